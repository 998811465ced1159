//! Replay from disk: frames as they are, and decoded.

use std::time::Instant;

use kvjournal::journal::{Config, Journal};

use crate::table::{Bar, Table};
use crate::{Bench, CHUNK, RANK, Result, fill};

pub(crate) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let dir = tempfile::tempdir_in(&bench.dir)?;
    let config = Config::new(dir.path().join("journal"), None);
    let journal = Journal::open(config.clone())?;
    fill(&journal, bench.events.chunks(CHUNK))?;
    journal.close()?;
    // Opened anew, so that the tail is empty and all of it comes from the store.
    let journal = Journal::open(config)?;
    let (mut frames, mut events) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        frames.push(replay(&journal, false)?.0 / 1e9);
        events.push(replay(&journal, true)?.1 / 1e6);
    }
    journal.close()?;
    table.row("replay of frames, GB/s", Bar::AtLeast(1.0), frames);
    table.row("replay of decoded events, M/s", Bar::AtLeast(2.0), events);
    Ok(())
}

/// Bytes and events per second.
fn replay(journal: &Journal, decode: bool) -> Result<(f64, f64)> {
    let start = Instant::now();
    let (mut bytes, mut events) = (0, 0);
    let mut reader = journal.read(RANK, 1)?;
    while let Some(frame) = reader.next_frame()? {
        bytes += frame.frame().as_bytes().len();
        if decode {
            for event in frame.events() {
                std::hint::black_box(event?);
                events += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((bytes as f64 / seconds, f64::from(events) / seconds))
}
