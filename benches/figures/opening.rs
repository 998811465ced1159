//! Opening, fresh and after long retention, against the store's own opening; and the disk that retention takes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kvjournal::journal::{Config, Journal, NewEvent};

use crate::disk::bytes_taken;
use crate::table::{Bar, Table, quantile};
use crate::{Bench, CHUNK, RANK, Result, WAIT_MAX, fill};

/// Times that a tenth of the journal is appended, and the oldest tenth given up.
const CYCLES: usize = 100;

pub(crate) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let dir = tempfile::tempdir_in(&bench.dir)?;
    let config = Config::new(dir.path().join("journal"), None);
    let journal = Journal::open(config.clone())?;
    fill(&journal, bench.events.chunks(CHUNK))?;
    journal.close()?;
    let (mut ratios, mut fresh) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let store = open_store(&config.dir)?;
        let open = open_and_append(bench, &config)?;
        ratios.push(open / store);
        fresh.push(open);
    }
    table.row("open until the first append returns, ms", Bar::None, millis(&fresh));
    table.row("the same, times sled's own open", Bar::AtMost(2.0), ratios);

    let space = retain(bench, &config)?;
    let mut worn = Vec::new();
    for _ in 0..bench.rounds {
        worn.push(open_and_append(bench, &config)?);
    }
    let before = quantile(&mut fresh, 0.5);
    table.row("the same after 100 retention cycles, ms", Bar::None, millis(&worn));
    let worn: Vec<f64> = worn.iter().map(|open| open / before).collect();
    table.row("the same, times the open before them", Bar::AtMost(1.3), worn);
    table.row("disk taken under retention, times live bytes", Bar::AtMost(2.5), space);
    Ok(())
}

fn millis(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|seconds| seconds * 1e3).collect()
}

fn open_and_append(bench: &Bench, config: &Config) -> Result<f64> {
    let start = Instant::now();
    let journal = Journal::open(config.clone())?;
    journal.append(RANK, &bench.events[..1])?;
    let seconds = start.elapsed().as_secs_f64();
    journal.close()?;
    Ok(seconds)
}

/// Seconds that sled itself takes to open the journal's store, with the journal's settings (`store/sled`).
fn open_store(dir: &Path) -> Result<f64> {
    let mut generations = std::fs::read_dir(dir)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gen-")));
    let path: PathBuf = generations.next().ok_or("the journal has no generation")?;
    let start = Instant::now();
    let config = sled::Config::new()
        .path(path)
        .flush_every_ms(None)
        .segment_size(8 * 1024 * 1024)
        .cache_capacity(24 * 1024 * 1024)
        .mode(sled::Mode::HighThroughput);
    let store = config.open()?;
    let seconds = start.elapsed().as_secs_f64();
    drop(store);
    // It lets go of its lock a moment later.
    while config.open().is_err() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    Ok(seconds)
}

/// Goes through the cycles at equal size; gives the disk taken against the live bytes, for the last half of them.
fn retain(bench: &Bench, config: &Config) -> Result<Vec<f64>> {
    let journal = Journal::open(config.clone())?;
    let kept = bench.events.len() as u64;
    let tenth = bench.events.len() / 10;
    let frame_bytes = mean_event_bytes(&journal)?;
    let mut space = Vec::new();
    for cycle in 0..CYCLES {
        let part: &[NewEvent] = &bench.events[cycle % 10 * tenth..][..tenth];
        fill(&journal, part.chunks(CHUNK))?;
        journal.trim(RANK, journal.head(RANK) - kept)?;
        wait_until_trimmed(&journal)?;
        let live = (journal.head(RANK) - journal.horizon(RANK)) as f64 * frame_bytes;
        if cycle >= CYCLES / 2 {
            space.push(bytes_taken(&config.dir)? as f64 / live);
        }
    }
    journal.close()?;
    Ok(space)
}

/// Bytes of frames for each event.
fn mean_event_bytes(journal: &Journal) -> Result<f64> {
    let (mut bytes, mut events) = (0, 0);
    let mut reader = journal.read(RANK, 1)?;
    while let Some(frame) = reader.next_frame()? {
        bytes += frame.frame().as_bytes().len();
        events += frame.frame().header().count;
    }
    Ok(bytes as f64 / f64::from(events))
}

/// Rows of what was given up go in the background.
fn wait_until_trimmed(journal: &Journal) -> Result<()> {
    let start = Instant::now();
    let mut before = None;
    while before != Some(journal.stats().trimmed_rows) {
        before = Some(journal.stats().trimmed_rows);
        std::thread::sleep(std::time::Duration::from_millis(20));
        if start.elapsed() > WAIT_MAX {
            return Err("the rows of trimmed frames never went".into());
        }
    }
    Ok(())
}
