//! The arguments, as typed.

use std::num::{NonZeroU32, NonZeroU64};
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
    Inspect(InspectArgs),
    Dump(DumpArgs),
    Match(MatchArgs),
    Compact(CompactArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    Migrate(MigrateArgs),
    Simulate(SimulateArgs),
    Demo(DemoArgs),
    Bench(BenchArgs),
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

/// Shows a journal: whose it is, its streams, heads, horizons, epochs and sizes. Works on a copy of the store.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal inspect --dir j --format json")]
pub(super) struct InspectArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
}

/// Prints what is held, as `stored` events, parents first: appended to an empty journal they give the same state.
///
/// How many blocks are held, and their digest, are told on stderr.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal dump --dir j --format json | kvjournal append --dir copy")]
pub(super) struct DumpArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// As of this event, from the horizon on. Without it: as of the newest.
    #[arg(long, value_name = "ID")]
    pub(super) at: Option<EventId>,
}

/// Says how many leading blocks of a prompt each rank holds, and in which tiers.
///
/// A prompt is given as its tokens, or as the tokens hashes of its blocks. A last block that is not full is left out.
/// Numbers are separated by commas or blanks, hashes may be written 0x…; `-` reads them from stdin.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("prompt").required(true),
    after_help = "Examples:\n  kvjournal match --dir j --tokens 1,2,3,4 --block-size 4\n  kvjournal match --dir j --hashes 0x1f2e --at 100 --explain"
)]
pub(super) struct MatchArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// The prompt's tokens.
    #[arg(long, value_name = "LIST", group = "prompt")]
    pub(super) tokens: Option<String>,
    /// The tokens hashes of the prompt's blocks.
    #[arg(long, value_name = "LIST", group = "prompt")]
    pub(super) hashes: Option<String>,
    /// Tokens in a block. Without it: as the engine said in its newest event.
    #[arg(long, value_name = "N", requires = "tokens")]
    pub(super) block_size: Option<NonZeroU32>,
    /// LoRA adapter of the prompt.
    #[arg(long, value_name = "NAME", requires = "tokens")]
    pub(super) lora: Option<String>,
    /// Cache salt of the prompt.
    #[arg(long, value_name = "SALT", requires = "tokens")]
    pub(super) salt: Option<String>,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// As of this event, from the horizon on. Without it: as of the newest.
    #[arg(long, value_name = "ID")]
    pub(super) at: Option<EventId>,
    /// Says for each block which event stored it, removed it or cleared it, and what hides it.
    #[arg(long)]
    pub(super) explain: bool,
}

/// Replaces old events by the least of them that leave the same state. Nothing that is held is lost.
///
/// Ids up to the new horizon are no longer kept one by one: a reader that asks for them is reset and reads the
/// compacted history first. Several limits: the one that keeps least counts. Whole frames are compacted, and never the
/// newest one, so that somewhat more may stay. Safe to interrupt. A journal that is in use is compacted by whoever uses
/// it (exit code 3).
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true).multiple(true),
    after_help = "Examples:\n  kvjournal compact --dir j --keep-events 100000 --dry-run\n  kvjournal compact --dir j --keep-age 2d --keep-bytes 1GiB --reclaim"
)]
pub(super) struct CompactArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// Newest events that stay as they are, in each rank; 0: none need to.
    #[arg(long, value_name = "N", group = "what")]
    pub(super) keep_events: Option<u64>,
    /// Bytes of the newest frames and payloads that stay as they are, in each rank, such as `500MiB`.
    #[arg(long, value_name = "SIZE", group = "what", value_parser = parse_size)]
    pub(super) keep_bytes: Option<u64>,
    /// Age up to which events stay as they are, such as `12h`.
    #[arg(long, value_name = "AGE", group = "what", value_parser = parse_duration)]
    pub(super) keep_age: Option<Duration>,
    /// Then writes the store anew, which gives unused space back. Needs free space for what is left.
    #[arg(long, group = "what")]
    pub(super) reclaim: bool,
    /// Says what would come of it, from a copy of the store.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
}

/// Checks every frame, event and payload, and names damaged ids. Works on a copy of the store.
///
/// Exit code 0 if all is well, 4 if anything is damaged.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal verify --dir j")]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
}

/// Saves what can be saved of a damaged journal into a new generation of its store, and prints lost ids as JSON.
///
/// The damaged store is only read, byte by byte, and kept. A journal that `verify` finds nothing wrong with is left
/// alone. Exit code 0 if nothing was lost, 1 if something was.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal repair --dir j")]
pub(super) struct RepairArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// Repairs even if nothing is found wrong.
    #[arg(long)]
    pub(super) force: bool,
}

/// Writes all events as JSON Lines to stdout, with payloads.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal export --dir j > events.jsonl")]
pub(super) struct ExportArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// Leaves the payloads out.
    #[arg(long)]
    pub(super) no_payloads: bool,
}

/// Reads events into a new journal: JSON Lines, whose ids are kept, or files of engine payloads.
///
/// JSON Lines need each rank's ids to follow each other; the first may be any. A file of engine payloads is one
/// batch as an engine sends it (`[ts, [events], dp_rank]` in msgpack); its events get new ids. What cannot be
/// understood is kept as `unknown`; a damaged batch is told, and what could be read of it is kept.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvjournal import --dir new < events.jsonl\n  kvjournal import --dir new --payloads batch1.msgpack batch2.msgpack"
)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// The worker whose journal this will be. Without it: worker 1.
    #[arg(long, value_name = "N", env = "KVJ_WORKER_ID")]
    pub(super) worker_id: Option<u64>,
    /// The files hold engine payloads, one batch each.
    #[arg(long, requires = "files")]
    pub(super) payloads: bool,
    /// Tokens in a block, if configured: blocks of another size are kept without tokens hashes.
    #[arg(long, value_name = "N", requires = "payloads")]
    pub(super) block_size: Option<u32>,
    /// Files to read; stdin without any.
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
}

/// Brings a journal to the newest format. Safe to interrupt.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal migrate --dir j --dry-run")]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    pub(super) dir: Dir,
    /// Says what would be done.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Writes the store anew even if the format is the newest, which gives unused space back.
    #[arg(long)]
    pub(super) force: bool,
}

/// Writes the events of an engine double to stdout: a prefix cache with leaf-first LRU eviction, fed from a trace or
/// from made-up conversations with the same statistics.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvjournal simulate --events 1000 | kvjournal append --dir j\n  kvjournal simulate --trace conversation.jsonl --block-size 512 --events 1000000 > events.jsonl\n  kvjournal simulate --events 100 --payloads batches/"
)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    pub(super) load: Load,
    /// Events to write, in all ranks together.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) events: u64,
    /// Data parallel ranks, each with a cache of its own; at most 1024.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) ranks: u32,
    /// Resets a rank's cache after so many of its events. Without it: never.
    #[arg(long, value_name = "N")]
    pub(super) clear_every: Option<NonZeroU64>,
    /// Writes engine payloads instead, one file for what one request makes the engine say, into this folder.
    #[arg(long, value_name = "DIR")]
    pub(super) payloads: Option<PathBuf>,
    /// Payloads as arrays (vLLM 0.10.2 to 0.13) instead of maps (0.24 and later).
    #[arg(long, requires = "payloads")]
    pub(super) arrays: bool,
}

/// What an engine double is fed with.
#[derive(Clone, Debug, Args)]
pub(super) struct Load {
    /// Requests in Mooncake's trace format; made up without it. A trace that ends starts again.
    #[arg(long, value_name = "FILE", env = "KVJ_TRACE")]
    pub(super) trace: Option<PathBuf>,
    /// Seed of made-up requests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Blocks that the cache holds.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(super) cache_blocks: usize,
    /// Tokens in a block; it divides 512. Without it: 16 for `simulate`, 256 for `demo`, 512 for `bench`.
    #[arg(long, value_name = "N")]
    pub(super) block_size: Option<u32>,
}

/// The main job in one command: a worker that journals a load is killed several times, and nothing is lost; then its
/// history is compacted, and the state stays.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal demo --trace conversation.jsonl")]
pub(super) struct DemoArgs {
    #[command(flatten)]
    pub(super) load: Load,
    /// Events to journal.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub(super) events: u64,
    /// How often the worker is killed.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) kills: u32,
    /// Folder of the journal; a temporary one without it.
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
}

/// Measures this machine: durable append, acknowledgement, replay and opening, against its own disk.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvjournal bench --dir /mnt/journals --events 500000")]
pub(super) struct BenchArgs {
    /// Folder on the disk to measure; a temporary journal is made in it and removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) load: Load,
    /// Events to append.
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    pub(super) events: u64,
    /// Events that may wait for their acknowledgement.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(super) window: u64,
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

/// A number of bytes, with `KiB`, `MiB` or `GiB` if it is large.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let wrong = || format!("'{text}' is no size: write a number of bytes, or one and KiB, MiB or GiB");
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "" => 1_u64,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).ok_or_else(wrong)
}
