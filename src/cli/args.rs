//! The arguments, as typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::event::{DpRank, EventId, WorkerId};
use crate::journal::{Config, Durability};

/// A durable journal of KV-cache events for LLM inference workers.
///
/// Data goes to stdout, talk to stderr. Exit codes: 0 fine, 1 worked and found problems, 2 wrong use, 3 unavailable
/// (in use, unreachable), 4 damaged, 5 a bug.
#[derive(Debug, Parser)]
#[command(name = "kvjournal", version, max_term_width = 100)]
pub(super) struct Cli {
    /// How data is printed.
    #[arg(long, global = true, value_enum, default_value_t, env = "KVJ_FORMAT")]
    pub(super) format: Format,
    /// Says more on stderr: -v what happens, -vv each step. RUST_LOG refines it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON value a line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    Append(AppendArgs),
    Log(LogArgs),
}

/// The journal's folder.
#[derive(Clone, Debug, Args)]
pub(super) struct Dir {
    /// Folder of the journal.
    #[arg(long, value_name = "DIR", env = "KVJ_DIR")]
    pub(super) dir: PathBuf,
}

/// Appends events from stdin, one JSON value a line.
///
/// A line is an event (`{"event_id":…,"data":…,"dp_rank":0}`, its id is ignored: the journal gives ids) or bare data
/// (`{"removed":{"block_hashes":[1]}}`, `"cleared"`). A line that cannot be read stops the command before anything of
/// it or after it is appended; what came before stays.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  echo '{\"removed\":{\"block_hashes\":[1]}}' | kvjournal append --dir j --ack"
)]
pub(super) struct AppendArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// The worker whose journal this is. A new journal without it belongs to worker 1.
    #[arg(long, value_name = "N", env = "KVJ_WORKER_ID")]
    pub(super) worker_id: Option<u64>,
    /// Rank of events that name none.
    #[arg(long, value_name = "N", default_value_t = 0, env = "KVJ_RANK")]
    pub(super) rank: u32,
    /// Prints `{"durable":ID}` as ids become durable (with `"dp_rank"` for ranks above 0).
    #[arg(long)]
    pub(super) ack: bool,
    /// When an event counts as kept: `sync`, `os`, or an interval such as `50ms`.
    #[arg(long, value_name = "WHEN", default_value = "sync", value_parser = parse_durability, env = "KVJ_DURABILITY")]
    pub(super) durability: Durability,
    /// Leaves the events' payloads out.
    #[arg(long)]
    pub(super) no_payloads: bool,
}

/// Prints events.
///
/// From below the horizon it prints the history that is left, with a note on stderr.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal log --dir j --from 100 --to 200 --format json")]
pub(super) struct LogArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// First id.
    #[arg(long, value_name = "ID", default_value_t = 1)]
    pub(super) from: EventId,
    /// Last id.
    #[arg(long, value_name = "ID", default_value_t = EventId::MAX)]
    pub(super) to: EventId,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// Goes on as events are appended. The folder is only looked into while nobody else holds it.
    #[arg(long)]
    pub(super) follow: bool,
    /// Prints the payloads too, as base64.
    #[arg(long)]
    pub(super) payloads: bool,
    /// Prints frames from before a loss too, which `repair` saved but which are no part of the history.
    #[arg(long)]
    pub(super) salvaged: bool,
}

impl AppendArgs {
    pub(super) fn config(&self) -> Config {
        let mut config = Config::new(&self.dir.dir, self.worker_id.map(WorkerId));
        config.durability = self.durability;
        config.keep_payloads = !self.no_payloads;
        config
    }

    pub(super) fn rank(&self) -> DpRank {
        DpRank(self.rank)
    }
}

/// `sync`, `os`, or an interval such as `50ms`.
fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "sync" => Ok(Durability::Sync),
        "os" => Ok(Durability::Os),
        other => parse_duration(other).map(Durability::Interval),
    }
}

/// A number with `us`, `ms`, `s`, `m`, `h` or `d`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let wrong = || format!("'{text}' is no duration: write a number and us, ms, s, m, h or d");
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let micros = match &text[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    let micros: Option<u64> = number.checked_mul(micros).filter(|micros| *micros > 0);
    micros.map(Duration::from_micros).ok_or_else(wrong)
}
