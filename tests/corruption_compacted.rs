//! Guarantee 6 for a compacted journal: whatever is damaged in its history, its log or their rows, a reader that is
//! reset ends with the right state or a typed error; `repair` leaves a journal that opens and gives no id again.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use kvjournal::ErrorKind;
use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, repair};
use support::churn::{check, churn};
use support::files::{copy, files};
use support::random::{Random, seed_or};

const RANK: DpRank = DpRank(0);
const EVENTS: u64 = 4_000;
const HORIZON_MIN: u64 = 2_000;
const WAIT: Duration = Duration::from_secs(10);

fn config(dir: &Path) -> Config {
    let mut config = Config::new(dir, WorkerId(1));
    config.lock_wait_max = WAIT;
    config
}

/// A journal with a history and a log, opened and compacted twice.
fn make(dir: &Path) {
    for life in 0..2 {
        let journal = Journal::open(config(dir)).unwrap();
        for first in (1 + life * EVENTS / 2..=(life + 1) * EVENTS / 2).step_by(100) {
            let events: Vec<NewEvent> = (first..first + 100).map(|id| churn(id).into()).collect();
            journal.append(RANK, &events).unwrap();
            journal.sync().unwrap();
        }
        let options = CompactOptions { grace: Duration::ZERO, pace_bytes: None, dry_run: false };
        journal.compact(RANK, journal.head(RANK) - 500, options).unwrap();
        assert!(check(&journal, RANK).unwrap() > 500);
        journal.close().unwrap();
    }
}

/// `Ok` if the state and all ids above the horizon are right; otherwise the typed error.
fn answer(dir: &Path, what: &str) -> Result<(), kvjournal::Error> {
    let journal = Journal::open(config(dir))?;
    assert_eq!(journal.head(RANK), EVENTS, "{what}: shorter, silently");
    assert!(journal.horizon(RANK) > HORIZON_MIN, "{what}: the horizon fell");
    let mut reader = journal.read(RANK, 0)?;
    while let Some(frame) = reader.next_frame()? {
        frame.events().try_for_each(|event| event.map(drop))?;
    }
    // It can be read: so it has to be right.
    check(&journal, RANK).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    journal.close()
}

#[test]
fn damage_to_a_compacted_journal_is_told_or_harmless() {
    let original = tempfile::tempdir().unwrap();
    let original = original.path().join("journal");
    make(&original);
    let rounds: u64 = if std::env::var_os("KVJ_LONG").is_some() { 2_000 } else { 120 };
    let seed = seed_or(20_261_207);
    let mut random = Random::new(seed);
    println!("seed {seed}");
    let (mut right, mut typed, mut cuts) = (0, 0, 0);
    for round in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("journal");
        copy(&original, &dir);
        let files = files(&dir);
        let file = &files[random.below(files.len() as u64) as usize];
        let path = dir.join(file);
        let mut bytes = fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        // Most of the large file is empty: take a byte that says something.
        let full: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        let at = match full.len() as u64 {
            0 => continue,
            len => full[random.below(len) as usize],
        };
        let what = if round % 4 == 0 {
            bytes.truncate(at);
            cuts += 1;
            format!("round {round}: {} cut at {at}", file.display())
        } else {
            bytes[at] ^= 1 << random.below(8);
            format!("round {round}: {} flipped at {at}", file.display())
        };
        fs::write(&path, bytes).unwrap();
        match answer(&dir, &what) {
            Ok(()) => right += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
                typed += 1;
                match repair(&dir, WAIT, |_, _| {}) {
                    Ok(_) => {}
                    Err(e) if what.contains("cut at") && e.to_string().contains("is left in the store") => {
                        continue;
                    }
                    Err(e) => panic!("{what}: repair failed: {e}"),
                }
                let journal =
                    Journal::open(config(&dir)).unwrap_or_else(|e| panic!("{what}: after repair: {e}"));
                let mut reader = journal.read(RANK, 0).unwrap();
                while let Some(frame) =
                    reader.next_frame().unwrap_or_else(|e| panic!("{what}: after repair: {e}"))
                {
                    frame.events().for_each(|event| drop(event.unwrap()));
                }
                let ids = journal.append(RANK, &[churn(1).into()]).unwrap().unwrap();
                assert!(*ids.start() > EVENTS, "{what}: an id is given again: {ids:?}");
                journal.close().unwrap();
            }
        }
    }
    println!("{right} harmless, {typed} told, {cuts} of them cuts");
    assert!(right > 0 && typed > 0, "the damage bites, and not always");
}
