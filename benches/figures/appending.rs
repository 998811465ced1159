//! What an append costs its caller, and how long it takes to be durable.

use std::time::{Duration, Instant};

use kvjournal::journal::{Config, Journal};

use crate::disk::Yardstick;
use crate::table::{Bar, Table, quantile};
use crate::{Bench, RANK, Result, WAIT_MAX};

/// Appends at once, as a step of an engine announces them, and such steps a second: the disk syncs all the time, and
/// the queue never fills.
const STEP_APPENDS: usize = 32;
const STEPS_PER_SECOND: u32 = 500;
/// Appends that are waited for, in one round.
const WAITED: usize = 200;

pub(crate) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let (mut medians, mut p99s, mut waits, mut syncs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let dir = tempfile::tempdir_in(&bench.dir)?;
        let journal = Journal::open(Config::new(dir.path().join("journal"), None))?;
        let mut calls = paced(bench, &journal)?;
        medians.push(quantile(&mut calls, 0.5) * 1e6);
        p99s.push(quantile(&mut calls, 0.99) * 1e6);
        let (append, sync) = waited(bench, &journal, &mut Yardstick::new(dir.path(), 4096)?)?;
        waits.push(append / sync);
        syncs.push(sync * 1e3);
        journal.close()?;
    }
    table.row("one append call while the disk syncs, median, us", Bar::AtMost(2.0), medians);
    table.row("one append call while the disk syncs, 99 %, us", Bar::AtMost(20.0), p99s);
    table.row("write of 4 KiB + fdatasync, median, ms", Bar::None, syncs);
    table.row("one append until durable, times that", Bar::AtMost(3.0), waits);
    Ok(())
}

/// Seconds of each append call in steps at a fixed pace, for two seconds.
pub(crate) fn paced(bench: &Bench, journal: &Journal) -> Result<Vec<f64>> {
    let pace = Duration::from_secs(1) / STEPS_PER_SECOND;
    let start = Instant::now();
    let mut times = Vec::new();
    for (step, index) in bench.events.chunks_exact(STEP_APPENDS).cycle().zip(0..2 * STEPS_PER_SECOND) {
        if let Some(early) = (pace * index).checked_sub(start.elapsed()) {
            std::thread::sleep(early);
        }
        for event in step {
            let call = Instant::now();
            journal.append(RANK, std::slice::from_ref(event))?;
            times.push(call.elapsed().as_secs_f64());
        }
    }
    journal.wait_durable(RANK, journal.head(RANK), WAIT_MAX)?;
    Ok(times)
}

/// Median seconds of an append until it is durable, and of a small synced write, in turn.
fn waited(bench: &Bench, journal: &Journal, yardstick: &mut Yardstick) -> Result<(f64, f64)> {
    let (mut appends, mut writes) = (Vec::new(), Vec::new());
    for event in bench.events.iter().take(WAITED) {
        writes.push(yardstick.write()?);
        let start = Instant::now();
        if let Some(ids) = journal.append(RANK, std::slice::from_ref(event))? {
            journal.wait_durable(RANK, *ids.end(), WAIT_MAX)?;
        }
        appends.push(start.elapsed().as_secs_f64());
    }
    Ok((quantile(&mut appends, 0.5), quantile(&mut writes, 0.5)))
}
