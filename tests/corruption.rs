//! Guarantee 6: a flipped bit or a cut file gives a typed error or the right answer, never a shorter journal; and
//! `repair` saves every undamaged frame without opening the damaged store.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvjournal::ErrorKind;
use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{Config, Journal, JournalView, NewEvent, repair, verify};
use support::events::numbered;
use support::files::{copy, files};

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(2)];
const EVENTS: u64 = 900;
const WAIT: Duration = Duration::from_secs(10);

fn payload(id: u64) -> Vec<u8> {
    vec![id as u8; 40 + id as usize % 50]
}

/// A journal that was opened three times, with frames of all sizes.
fn make(dir: &Path) {
    let mut next = 1;
    for life in 1..=3 {
        let journal = Journal::open(Config::new(dir, WorkerId(1))).unwrap();
        while next <= EVENTS / 3 * life {
            let last = (next + next % 37).min(EVENTS / 3 * life);
            for rank in RANKS {
                let event = |id| NewEvent { payload: Some(payload(id).into()), ..numbered(id).into() };
                let events: Vec<NewEvent> = (next..=last).map(event).collect();
                journal.append(rank, &events).unwrap();
                journal.wait_durable(rank, last, WAIT).unwrap();
            }
            next = last + 1;
        }
        journal.close().unwrap();
    }
}

/// Opens and reads it all: `Ok` if it is whole and right, otherwise the typed error.
fn answer(dir: &Path, what: &str) -> Result<(), kvjournal::Error> {
    let mut config = Config::new(dir, WorkerId(1));
    config.lock_wait_max = WAIT;
    let journal = Journal::open(config)?;
    for rank in RANKS {
        assert_eq!(journal.head(rank), EVENTS, "{what}: rank {rank} is shorter, silently");
        let mut reader = journal.read(rank, 1)?.with_payloads();
        let mut next = 1;
        while let Some(frame) = reader.next_frame()? {
            for event in frame.events() {
                let event = event?;
                assert_eq!(event.id, next, "{what}: rank {rank}");
                assert_eq!(event.data, numbered(next), "{what}: rank {rank} event {next} is another");
                assert_eq!(event.payload.as_deref(), Some(&payload(next)[..]), "{what}: event {next}");
                next += 1;
            }
        }
        assert_eq!(next, EVENTS + 1, "{what}: rank {rank} is shorter, silently");
    }
    journal.close()
}

/// Repairs it, and holds what was saved and what was said to be lost against all there was.
fn check_repair(dir: &Path, what: &str) {
    let repaired = match repair(dir, WAIT, |_, _| {}) {
        Ok(repaired) => repaired,
        // Cut so short that not one frame or row is left.
        Err(e) if what.contains("cut at") && e.to_string().contains("is left in the store") => return,
        Err(e) => panic!("{what}: repair failed: {e}"),
    };
    assert!(dir.join(format!("gen-{}", repaired.kept)).is_dir(), "{what}: the damaged store is kept");
    let lost = |of: &BTreeMap<DpRank, Vec<RangeInclusive<u64>>>, rank: DpRank, id: u64| {
        of.get(&rank).is_some_and(|ranges| ranges.iter().any(|ids| ids.contains(&id)))
    };
    {
        let view = JournalView::open(dir, WAIT).unwrap_or_else(|e| panic!("{what}: after repair: {e}"));
        for rank in RANKS {
            let mut saved = vec![false; EVENTS as usize + 1];
            let mut reader = view.read_salvaged(rank, 1).unwrap().with_payloads();
            while let Some(frame) =
                reader.next_frame().unwrap_or_else(|e| panic!("{what}: after repair: {e}"))
            {
                for event in frame.events() {
                    let event = event.unwrap();
                    assert_eq!(event.data, numbered(event.id), "{what}: event {} was saved wrong", event.id);
                    let gone = lost(&repaired.payloads_lost, rank, event.id);
                    let expected = (!gone).then(|| payload(event.id));
                    assert_eq!(event.payload.as_deref(), expected.as_deref(), "{what}: event {}", event.id);
                    saved[event.id as usize] = true;
                }
            }
            for id in 1..=EVENTS {
                let told = lost(&repaired.lost, rank, id);
                assert!(
                    saved[id as usize] != told,
                    "{what}: rank {rank} event {id}: saved or told to be lost"
                );
            }
        }
    }
    let verified = verify(dir, WAIT, |_, _| {}).unwrap();
    assert!(verified.damage.is_empty(), "{what}: after repair: {:?}", verified.damage);
    let journal = Journal::open(Config::new(dir, WorkerId(1))).unwrap();
    for rank in RANKS {
        let ids = journal.append(rank, &[numbered(1).into()]).unwrap().unwrap();
        assert!(*ids.start() > EVENTS, "{what}: an id is given again: {ids:?}");
    }
    journal.close().unwrap();
}

/// A file, what is done to it in words, and the deed.
type Damaging = (PathBuf, String, Box<dyn Fn(&mut Vec<u8>)>);

struct Tally {
    right: usize,
    typed: usize,
    repaired: usize,
}

/// Damages copies of a journal, one at a time.
fn try_all(damages: impl Iterator<Item = Damaging>, original: &Path) -> Tally {
    let mut tally = Tally { right: 0, typed: 0, repaired: 0 };
    for (number, (file, what, damage)) in damages.enumerate() {
        let dir = tempfile::tempdir().unwrap();
        copy(original, dir.path());
        let path = dir.path().join(&file);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let what = format!("{} {what}", file.display());
        match answer(dir.path(), &what) {
            Ok(()) => tally.right += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
                tally.typed += 1;
                // Each of them is repaired: what sled did to the files before the damage was told must not matter.
                if number % 2 == 0 || file.file_name().is_some_and(|name| name != "db") {
                    check_repair(dir.path(), &what);
                    tally.repaired += 1;
                }
            }
        }
    }
    tally
}

/// Where to damage a file: everywhere if it is short, at a sample of the bytes that are in use otherwise.
fn places(bytes: &[u8], sample: usize) -> Vec<usize> {
    if bytes.len() <= sample {
        return (0..bytes.len()).collect();
    }
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0 && bytes[*at] != 1).collect();
    let step = (used.len() / sample).max(1);
    used.into_iter().step_by(step).collect()
}

fn sample() -> usize {
    if std::env::var_os("KVJ_LONG").is_some() { 3000 } else { 80 }
}

#[test]
fn a_flipped_bit_anywhere_is_told_or_harmless_and_repair_saves_the_rest() {
    let original = tempfile::tempdir().unwrap();
    make(original.path());
    answer(original.path(), "undamaged").unwrap();
    let mut damages: Vec<Damaging> = Vec::new();
    for path in files(original.path()) {
        let file = path.strip_prefix(original.path()).unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let few = if path.ends_with("db") { sample() } else { sample() / 4 };
        for at in places(&bytes, few) {
            let flip = move |bytes: &mut Vec<u8>| bytes[at] ^= 1 << (at % 8);
            damages.push((file.clone(), format!("byte {at} flipped"), Box::new(flip)));
        }
    }
    let count = damages.len();
    let tally = try_all(damages.into_iter(), original.path());
    println!("{count} flips: {} right, {} told, {} repaired", tally.right, tally.typed, tally.repaired);
    assert!(tally.typed > 0 && tally.right > 0 && tally.repaired > 0);
}

#[test]
fn a_file_cut_at_any_length_or_lost_is_told_or_harmless() {
    let original = tempfile::tempdir().unwrap();
    make(original.path());
    let mut damages: Vec<Damaging> = Vec::new();
    for path in files(original.path()) {
        let file = path.strip_prefix(original.path()).unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        for at in places(&bytes, sample() / 5) {
            let cut = move |bytes: &mut Vec<u8>| bytes.truncate(at);
            damages.push((file.clone(), format!("cut at {at}"), Box::new(cut)));
        }
    }
    let count = damages.len();
    let tally = try_all(damages.into_iter(), original.path());
    println!("{count} cuts: {} right, {} told, {} repaired", tally.right, tally.typed, tally.repaired);
    for path in files(original.path()) {
        let dir = tempfile::tempdir().unwrap();
        copy(original.path(), dir.path());
        let file = path.strip_prefix(original.path()).unwrap();
        fs::remove_file(dir.path().join(file)).unwrap();
        match answer(dir.path(), &format!("{} lost", file.display())) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{} lost: {error}", file.display()),
        }
    }
}
