//! A verb that is cut off by the power: a journal for it, the process that runs it, and what is left after the reboot.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvjournal::event::{DpRank, EventData, WorkerId};
use kvjournal::journal::{Config, Journal, JournalView, NewEvent, Source};

use super::child;
use super::events::numbered;
use super::files::{copy, copy_durably, remove_durably};
use super::powerfs::{Policy, PowerFs};
use super::random::{Random, seed_or};

pub const RANKS: [DpRank; 2] = [DpRank(0), DpRank(2)];
/// Events of each rank, and the newest id that was given.
pub const EVENTS: u64 = 360;
/// Trimmed of the second rank.
pub const TRIMMED: u64 = 100;
pub const WAIT: Duration = Duration::from_secs(10);
/// Operations at the end of a verb that are cut more often: there names change.
const END: u64 = 14;

/// What the test `child_verb` of each file is: the process on whose disk the power goes.
pub fn be_child(verb: impl Fn(&Path) -> Result<(), kvjournal::Error>) {
    let Ok(dir) = std::env::var("KVJ_CHILD_DIR") else { return };
    match verb(Path::new(&dir)) {
        Ok(()) => println!("\nfinished"),
        Err(e) => println!("\nstopped: {e}"),
    }
    // Without sled's leave-taking, which may hang or panic on a dead disk.
    super::kill::kill_self();
}

/// Whether the child said that it had done its work.
fn run_verb(power: &PowerFs, dir: &Path) -> bool {
    child::run(power, "child_verb", &[("KVJ_CHILD_DIR", dir.as_os_str())])
        .iter()
        .any(|line| line == "finished")
}

fn payload(id: u64) -> Vec<u8> {
    vec![id as u8; 40 + id as usize % 50]
}

/// Fills a journal in three openings, from an engine's batches of all sizes, and trims one rank.
fn fill(dir: &Path) {
    let mut next = 1;
    for life in 1..=3 {
        let journal = Journal::open(Config::new(dir, WorkerId(5))).unwrap();
        while next <= EVENTS / 3 * life {
            let last = (next + next % 23).min(EVENTS / 3 * life);
            for rank in RANKS {
                let source = Source { endpoint: "engine".into(), sequence: last, hash: u128::from(last) };
                let event = |id| NewEvent { payload: Some(payload(id).into()), ..numbered(id).into() };
                let events: Vec<NewEvent> = (next..=last).map(event).collect();
                let ids = journal.append_batch(rank, &source, &events).unwrap().unwrap();
                assert_eq!(ids, next..=last);
                journal.wait_durable(rank, last, WAIT).unwrap();
            }
            next = last + 1;
        }
        if life == 2 {
            journal.trim(RANKS[1], TRIMMED).unwrap();
        }
        journal.close().unwrap();
    }
}

/// An event with its payload.
pub type Kept = (EventData, Option<Vec<u8>>);

/// What a journal says it holds.
#[derive(Debug, PartialEq)]
pub struct Holding {
    pub events: BTreeMap<(DpRank, u64), Kept>,
    /// Ranges of ids that repairs told of, by rank.
    pub lost: BTreeMap<DpRank, Vec<(u64, u64)>>,
}

pub fn holding(dir: &Path) -> Result<Holding, String> {
    let view = JournalView::open(dir, WAIT).map_err(|e| format!("it cannot be looked into: {e}"))?;
    let mut holding = Holding { events: BTreeMap::new(), lost: BTreeMap::new() };
    for rank in view.ranks() {
        holding.lost.insert(rank, view.rank(rank).map_err(|e| e.to_string())?.lost);
        let mut reader = view.read_salvaged(rank, 1).map_err(|e| e.to_string())?.with_payloads();
        while let Some(frame) = reader.next_frame().map_err(|e| e.to_string())? {
            for event in frame.events() {
                let event = event.map_err(|e| e.to_string())?;
                let kept = (event.data, event.payload.map(|payload| payload.to_vec()));
                holding.events.insert((rank, event.id), kept);
            }
        }
    }
    Ok(holding)
}

/// Opens the journal and appends to it: the ids it gives.
pub fn append(dir: &Path, rank: DpRank) -> Result<u64, String> {
    let work = || -> Result<u64, kvjournal::Error> {
        let journal = Journal::open(Config::new(dir, WorkerId(5)))?;
        let ids = journal.append(rank, &[numbered(1).into()])?.expect("there is an event");
        journal.wait_durable(rank, *ids.end(), WAIT)?;
        journal.close()?;
        Ok(*ids.start())
    };
    work().map_err(|e| format!("it cannot be appended to: {e}"))
}

/// How far a verb had come when the power went, by what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    OldOnly,
    NewUnnamed,
    NewNamed,
}

fn reached(dir: &Path) -> Reached {
    let current = fs::read(dir.join("CURRENT")).unwrap_or_default();
    match (dir.join("gen-2").exists(), String::from_utf8_lossy(&current).contains(" generation=2 ")) {
        (_, true) => Reached::NewNamed,
        (true, false) => Reached::NewUnnamed,
        (false, false) => Reached::OldOnly,
    }
}

/// Operations of a verb that is not cut.
fn operations(power: &PowerFs, template: &Path) -> u64 {
    let dir = power.path().join("uncut");
    copy_durably(template, &dir);
    let before = power.operations();
    assert!(run_verb(power, &dir), "it does not even work without a cut");
    let operations = power.operations() - before;
    remove_durably(&dir);
    operations
}

/// Cuts the power in the verb of [`be_child`], on a copy of `template` each time, and has `check` judge what is left: it is
/// told how far the verb had come, and whether it said that it was done.
pub fn cuts(
    power: &PowerFs,
    seed: u64,
    mut template: impl FnMut(u64) -> PathBuf,
    mut check: impl FnMut(u64, &Path, Reached, bool) -> Result<(), String>,
) {
    let mut random = Random::new(seed);
    let mut counts: BTreeMap<Reached, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let all = operations(power, &template(0));
    // A verb that finished before its cut makes a round without one.
    for round in 0..cut_count() * 3 {
        if counts.values().sum::<u64>() == cut_count() {
            break;
        }
        let dir = power.path().join(format!("journal-{round}"));
        copy_durably(&template(round), &dir);
        // Every other cut near the end.
        let near_end = all.saturating_sub(END) + 1 + random.below(END);
        power.cut_at(if round % 2 == 0 { 1 + random.below(all) } else { near_end });
        let finished = run_verb(power, &dir);
        let was_cut = power.is_cut();
        let policy = if round % 4 < 2 { Policy::LoseAll } else { Policy::Random };
        power.reboot(policy, random.below(u64::MAX));
        let reached = reached(&dir);
        if was_cut {
            *counts.entry(reached).or_default() += 1;
        }
        if let Err(what) = check(round, &dir, reached, finished) {
            wrong.push(format!("round {round}, {policy:?}, {reached:?}, finished {finished}: {what}"));
        }
        remove_durably(&dir);
    }
    println!("about {all} operations; cuts by what was left: {counts:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(counts.values().sum::<u64>(), cut_count());
    for reached in [Reached::OldOnly, Reached::NewUnnamed, Reached::NewNamed] {
        assert!(counts.contains_key(&reached), "no cut left {reached:?}");
    }
}

fn cut_count() -> u64 {
    if std::env::var_os("KVJ_LONG").is_some() { 400 } else { 60 }
}

pub fn seed() -> u64 {
    seed_or(0x5eed_0003)
}

/// A full journal: written on the disk that forgets, and what is on it after a cut.
pub fn filled(power: &PowerFs) -> tempfile::TempDir {
    let dir = power.path().join("filled");
    fill(&dir);
    power.reboot(Policy::LoseAll, seed());
    let template = tempfile::tempdir().unwrap();
    copy(&dir, template.path());
    remove_durably(&dir);
    template
}
