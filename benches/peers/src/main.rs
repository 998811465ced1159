//! Measures kvjournal and its peers in the same run, on the same disk, and holds the ratios against their bars.
//!
//! The table, or JSON, goes to stdout; progress goes to stderr. Whether bars were met matters on an idle machine
//! only; `--enforce` makes a missed one the exit code 1.

mod events;
mod jetstream;
mod log;
mod probe;
mod product;
mod report;
mod rounds;
mod server;
mod stats;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use probe::ProbeLimits;
use report::{About, Report};
use rounds::{Bench, Subject};

/// Fast ingest came with this release of the server.
const FAST_INGEST_SINCE: (u64, u64) = (2, 14);

/// Measures kvjournal and its peers in the same run.
#[derive(Debug, Parser)]
#[command(after_help = "Example: kvjournal-peers --rounds 7 --dir /mnt/data --format json")]
struct Args {
    /// Rounds that count; one more comes before them and is thrown away. Default 7, quick 2.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Longest time of one log in one round, in seconds. Default 5, quick 1.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Folder on the disk to measure; made if it is not there. Default: in the build's target folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Requests in Mooncake's trace format; made up with the same statistics without it.
    #[arg(long, env = "KVJ_TRACE")]
    trace: Option<PathBuf>,
    /// The nats-server to run. Default: what get-nats-server.sh finds or fetches.
    #[arg(long)]
    nats_server: Option<PathBuf>,
    /// Form of the report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Few and short rounds: shows that all of it works, in under 3 minutes.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a bar was missed.
    #[arg(long)]
    enforce: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let report = measure(&args)?;
    let text = match args.format {
        Format::Text => report.text(),
        Format::Json => serde_json::to_string_pretty(&report).context("write JSON")? + "\n",
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read it has read enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        outcome => outcome.context("print the report")?,
    }
    Ok(ExitCode::from(u8::from(args.enforce && !report.passed())))
}

fn measure(args: &Args) -> Result<Report> {
    let binary = args.nats_server.clone().map_or_else(server::find, Ok)?;
    let version = server::version(&binary)?;
    let bench = bench(args, binary)?;
    let bytes: usize = bench.events.iter().map(|message| message.bytes.len()).sum();
    let event_bytes_mean = bytes as f64 / bench.events.len() as f64;

    let disk = bench.probe()?;
    let mut entrants = Vec::new();
    for subject in Subject::all(has_fast_ingest(&version)) {
        let entrant = bench.tune(subject, disk).with_context(|| format!("tune {}", subject.name()))?;
        eprintln!("tuned {}: {} in flight", subject.name(), entrant.window);
        entrants.push(entrant);
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 7 });
    let mut measured = Vec::new();
    for number in 0..=rounds {
        let round = bench.round(number as usize, &entrants)?;
        eprintln!("round {number} of {rounds}{}", if number == 0 { ", thrown away" } else { "" });
        if number > 0 {
            measured.push(round);
        }
    }
    let run_seconds_max = bench.run_time.as_secs_f64();
    Ok(Report::new(About { server: version, run_seconds_max, event_bytes_mean }, &entrants, &measured))
}

/// Checks the arguments once and makes all that is given to the logs.
fn bench(args: &Args, server: PathBuf) -> Result<Bench> {
    let default_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join("run");
    let dir = args.dir.clone().unwrap_or(default_dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    // The server reads paths from where it stands.
    let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    ensure!(!dir.to_string_lossy().contains(['"', '\\']), "{} cannot stand in a nats.conf", dir.display());
    let quick = args.quick;
    let events = events::load(args.trace.as_deref(), if quick { 100_000 } else { 1_000_000 })?;
    Ok(Bench {
        server,
        events: events::as_messages(&events)?,
        frames: events::as_frames(&events)?,
        dir,
        run_time: Duration::from_secs(args.seconds.unwrap_or(if quick { 1 } else { 5 })),
        run_messages: if quick { 500_000 } else { 8_000_000 },
        tuning_time: Duration::from_millis(if quick { 60 } else { 200 }),
        tuning_step: if quick { 4 } else { 2 },
        probe: ProbeLimits {
            writes: if quick { 200 } else { 1000 },
            time: Duration::from_secs(if quick { 1 } else { 3 }),
        },
    })
}

/// Whether a version such as `nats-server: v2.14.0` has fast ingest.
fn has_fast_ingest(version: &str) -> bool {
    let numbers = version.rsplit_once('v').map_or("", |(_, numbers)| numbers);
    let mut numbers = numbers.split('.').map(|number| number.parse::<u64>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= FAST_INGEST_SINCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_ingest_is_known_by_the_version() {
        assert!(has_fast_ingest("nats-server: v2.14.0"));
        assert!(has_fast_ingest("nats-server: v3.0.1"));
        assert!(!has_fast_ingest("nats-server: v2.9.10"));
        assert!(!has_fast_ingest("what"));
    }
}
