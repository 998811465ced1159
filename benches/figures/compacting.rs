//! Compaction: how fast, what it keeps, what an append pays while it runs; and the fold of a journal that is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvjournal::event::EventData;
use kvjournal::journal::{CompactOptions, Config, Journal};
use kvjournal::worker::LocalIndex;

use crate::appending::paced;
use crate::table::{Bar, Table, quantile};
use crate::{Bench, CHUNK, RANK, Result, WAIT_MAX, fill};

pub(crate) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let operations: usize = bench.events.iter().map(|event| blocks_of(&event.data)).sum();
    let (mut speeds, mut kept, mut folds, mut costs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let dir = tempfile::tempdir_in(&bench.dir)?;
        let config = Config::new(dir.path().join("journal"), None);
        let journal = Journal::open(config.clone())?;
        fill(&journal, bench.events.chunks(CHUNK))?;
        costs.push(cost_of_compaction(bench, &journal)?);
        journal.close()?;

        let dir = tempfile::tempdir_in(&bench.dir)?;
        let config = Config::new(dir.path().join("journal"), None);
        let journal = Journal::open(config.clone())?;
        fill(&journal, bench.events.chunks(CHUNK))?;
        journal.close()?;
        let journal = Arc::new(Journal::open(config)?);
        let start = Instant::now();
        let index = LocalIndex::follow(Arc::clone(&journal))?;
        index.wait_applied(RANK, journal.head(RANK), WAIT_MAX)?;
        folds.push(operations as f64 / start.elapsed().as_secs_f64() / 1e6);
        drop(index);

        let options = CompactOptions { pace_bytes: None, ..CompactOptions::default() };
        let start = Instant::now();
        let compacted = journal.compact(RANK, journal.head(RANK), options)?;
        speeds.push(compacted.events_before as f64 / start.elapsed().as_secs_f64() / 1e6);
        kept.push(compacted.entries as f64 / compacted.copies.max(1) as f64);
    }
    table.row("compaction, M events/s", Bar::AtLeast(1.0), speeds);
    table.row("entries that it keeps, for each live block", Bar::AtMost(1.2), kept);
    table.row("fold at open, M block operations/s", Bar::AtLeast(10.0), folds);
    table.row("one append call during compaction, 99 %, times that without", Bar::AtMost(2.0), costs);
    Ok(())
}

fn blocks_of(event: &EventData) -> usize {
    match event {
        EventData::Stored(stored) => stored.blocks.len(),
        EventData::Removed(removed) => removed.block_hashes.len(),
        EventData::Cleared(_) | EventData::Unknown(_) => 0,
    }
}

/// The 99th percentile of append calls while the journal is compacted again and again, at the pace that is usual,
/// against that of the same calls without.
fn cost_of_compaction(bench: &Bench, journal: &Journal) -> Result<f64> {
    let p99 = |mut calls: Vec<f64>| quantile(&mut calls, 0.99);
    let without = p99(paced(bench, journal)?);
    let stop = AtomicBool::new(false);
    let with = std::thread::scope(|scope| {
        let compacting = scope.spawn(|| -> kvjournal::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                journal.compact(RANK, journal.head(RANK), CompactOptions::default())?;
            }
            Ok(())
        });
        let calls = paced(bench, journal);
        stop.store(true, Ordering::Relaxed);
        compacting.join().map_err(|_| "the compaction panicked")??;
        calls
    })?;
    Ok(p99(with) / without)
}
