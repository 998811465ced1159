//! `bench`: the product's own figures on this machine, against its own disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Write, stdout};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::event::DpRank;
use crate::journal::{Config, Journal, NewEvent};

use super::args::{BenchArgs, Format};
use super::output::table;
use super::{Failure, Outcome, load};

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(60);
const PROBES: usize = 50;

pub(super) fn run(args: BenchArgs, format: Format) -> Result<Outcome, Failure> {
    let folder = tempfile::Builder::new().prefix("kvjournal-bench-").tempdir_in(&args.dir)?;
    let small = probe(folder.path(), 4 * 1024)?;
    let large = probe(folder.path(), 256 * 1024)?;
    let events: Vec<NewEvent> = load::events(&args.load, 512, args.events)?.map(NewEvent::from).collect();
    let config = Config::new(folder.path().join("journal"), None);
    let journal = Journal::open(config.clone())?;
    let (seconds, acks) = append(&journal, &events, args.window)?;
    let bytes = journal.stats().frame_bytes;
    journal.close()?;
    let started = Instant::now();
    let journal = Journal::open(config)?;
    let opened = started.elapsed();
    let started = Instant::now();
    let mut reader = journal.read(RANK, 1)?;
    let mut replayed = 0;
    while let Some(frame) = reader.next_frame()? {
        for event in frame.events() {
            event?;
            replayed += 1;
        }
    }
    let replay = f64::from(replayed) / started.elapsed().as_secs_f64();
    journal.close()?;
    let raw = 256.0 * 1024.0 / large.as_secs_f64();
    let figures = [
        ("durable append", events.len() as f64 / seconds, "events/s"),
        ("durable append", bytes as f64 / seconds / 1e6, "MB/s"),
        ("share of raw 256 KiB writes with fdatasync", bytes as f64 / seconds / raw * 100.0, "%"),
        ("acknowledged, median", quantile(&acks, 50) * 1e6, "µs"),
        ("acknowledged, 99 %", quantile(&acks, 99) * 1e6, "µs"),
        ("4 KiB write with fdatasync, median", small.as_secs_f64() * 1e6, "µs"),
        ("replay, decoded", replay, "events/s"),
        ("open", opened.as_secs_f64() * 1e3, "ms"),
        ("mean event", bytes as f64 / events.len().max(1) as f64, "bytes"),
    ];
    match format {
        Format::Json => {
            for (what, value, unit) in figures {
                writeln!(stdout(), "{}", json!({ "what": what, "value": value, "unit": unit }))?;
            }
        }
        Format::Text => {
            let mut rows = table(&["figure", "value", "unit"]);
            for (what, value, unit) in figures {
                rows.add_row([what.to_owned(), format!("{value:.0}"), unit.to_owned()]);
            }
            writeln!(stdout(), "{rows}")?;
        }
    }
    Ok(Outcome::Fine)
}

/// Appends all events, with at most `window` of them not acknowledged yet; gives seconds in all, and from call to
/// acknowledgement for a sample of them.
fn append(journal: &Journal, events: &[NewEvent], window: u64) -> Result<(f64, Vec<f64>), Failure> {
    let started = Instant::now();
    let mut waiting = VecDeque::new();
    let mut acks = Vec::new();
    let mut last = 0;
    for (index, event) in events.iter().enumerate() {
        let called = Instant::now();
        let Some(ids) = journal.append(RANK, std::slice::from_ref(event))? else { continue };
        last = *ids.end();
        if index % 16 == 0 {
            waiting.push_back((last, called));
        }
        if last > journal.durable_head(RANK) + window {
            journal.wait_durable(RANK, last - window, WAIT)?;
        }
        let durable = journal.durable_head(RANK);
        while let Some((_, called)) = waiting.front().copied().filter(|(id, _)| *id <= durable) {
            acks.push(called.elapsed().as_secs_f64());
            waiting.pop_front();
        }
    }
    journal.wait_durable(RANK, last, WAIT)?;
    Ok((started.elapsed().as_secs_f64(), acks))
}

fn quantile(values: &[f64], percent: usize) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
}

/// Median time of a write and fdatasync of so many bytes.
fn probe(dir: &Path, bytes: usize) -> std::io::Result<Duration> {
    let file = File::create(dir.join("probe"))?;
    let block = vec![0xa5; bytes];
    let mut times = Vec::with_capacity(PROBES);
    for index in 0..PROBES {
        let started = Instant::now();
        file.write_all_at(&block, (index * bytes) as u64)?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times[PROBES / 2])
}
