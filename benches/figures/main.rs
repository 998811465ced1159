//! The journal's own figures, each beside its bar. What peers do on the same disk is measured in `benches/peers`.
//!
//! `cargo bench --bench figures -- [--quick] [--rounds N] [--dir DIR] [--trace FILE] [--format json] [--only NAME]`.
//! Ratios are taken within a round; the table shows the median of the rounds with quartiles. Whether a bar is met
//! matters on an idle machine only, so a missed one is printed and is no failure.
#![allow(clippy::print_stdout, reason = "stdout is where the figures go")]

mod appending;
mod compacting;
mod disk;
mod memory;
mod opening;
mod reading;
mod table;

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Duration;

use kvjournal::engine::sim::{CacheSpec, Load, LoadSpec, SimEvent, read_trace};
use kvjournal::event::DpRank;
use kvjournal::journal::{Journal, NewEvent};

use table::Table;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures some figures and puts them into the table.
type Part = fn(&Bench, &mut Table) -> Result<()>;

pub(crate) const RANK: DpRank = DpRank(0);
/// Longest wait for the disk.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
/// Events of one append where the cost of a call is not what is measured.
pub(crate) const CHUNK: usize = 4096;

/// What is measured, and how much of it.
pub(crate) struct Bench {
    pub(crate) dir: PathBuf,
    pub(crate) events: Vec<NewEvent>,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let flag = |flag: &str| args.iter().any(|arg| arg == flag);
    let after = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    if let Some(dir) = after(memory::CHILD) {
        return memory::child(dir.as_ref());
    }
    let quick = flag("--quick");
    let rounds = after("--rounds").map_or(Ok(if quick { 3 } else { 7 }), |rounds| rounds.parse::<usize>())?;
    // Beside the build, since the system's folder for temporary files may be in memory.
    let dir = after("--dir").map_or(PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = tempfile::tempdir_in(dir)?;
    let bench = Bench {
        dir: dir.path().to_owned(),
        events: load(after("--trace"), if quick { 100_000 } else { 1_000_000 })?,
        rounds: rounds.max(1),
        quick,
    };
    let mut table = Table::new(after("--format").is_some_and(|format| format == "json"), bench.rounds);
    let only = after("--only");
    let parts: [(&str, Part); 5] = [
        ("appending", appending::measure),
        ("reading", reading::measure),
        ("opening", opening::measure),
        ("compacting", compacting::measure),
        ("memory", memory::measure),
    ];
    for (name, measure) in parts {
        if only.is_none_or(|only| only == name) {
            measure(&bench, &mut table)?;
        }
    }
    Ok(())
}

/// Events of one worker whose cache holds 20,000 blocks of 512 tokens, about 270 bytes each: of a trace, or of made-up
/// requests with its statistics.
fn load(trace: Option<&String>, count: u64) -> Result<Vec<NewEvent>> {
    let spec = LoadSpec {
        cache: CacheSpec { blocks: 20_000, block_size: 512 },
        events_max: Some(count),
        ..LoadSpec::default()
    };
    let load = match trace {
        None => Load::generated(spec)?,
        Some(path) => {
            let requests = read_trace(BufReader::new(File::open(path)?));
            Load::looped(spec, requests.collect::<std::result::Result<_, _>>()?)?
        }
    };
    Ok(load.flat_map(|batch| batch.events).map(SimEvent::into_data).map(NewEvent::from).collect())
}

/// Appends all events and waits until they are on disk.
pub(crate) fn fill<'a>(journal: &Journal, events: impl IntoIterator<Item = &'a [NewEvent]>) -> Result<()> {
    for chunk in events {
        journal.append(RANK, chunk)?;
    }
    Ok(journal.wait_durable(RANK, journal.head(RANK), WAIT_MAX)?)
}
