//! Power cuts during `repair` and `migrate`: whenever the power goes, the old store is as it was until the new one is
//! whole, and doing it again ends as if nothing had happened.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvjournal::event::{DpRank, EventData, WorkerId};
use kvjournal::journal::{Config, Journal, JournalView, NewEvent, Source, migrate, repair, verify};
use support::child;
use support::events::numbered;
use support::files::{contents, copy, copy_durably, remove_durably, write_durably};
use support::powerfs::{Policy, PowerFs};
use support::random::{Random, seed_or};
use support::skip::skip;

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(2)];
/// Events of each rank, and the newest id that was given.
const EVENTS: u64 = 360;
/// Trimmed of the second rank.
const TRIMMED: u64 = 100;
const WAIT: Duration = Duration::from_secs(10);

/// Not a test by itself: the process on whose disk the power goes.
#[test]
fn child_verb() {
    let Ok(dir) = std::env::var("KVJ_CHILD_DIR") else { return };
    let dir = Path::new(&dir);
    let done = match std::env::var("KVJ_CHILD_VERB").as_deref() {
        Ok("repair") => repair(dir, WAIT, |_, _| {}).map(drop),
        _ => migrate(dir, WAIT, true, false).map(drop),
    };
    match done {
        Ok(()) => println!("\nfinished"),
        Err(e) => println!("\nstopped: {e}"),
    }
    // Without sled's leave-taking, which may hang or panic on a dead disk.
    support::kill::kill_self();
}

/// Whether the child said that it had done its work.
fn run_verb(power: &PowerFs, verb: &str, dir: &Path) -> bool {
    let env = [("KVJ_CHILD_DIR", dir.as_os_str()), ("KVJ_CHILD_VERB", OsStr::new(verb))];
    child::run(power, "child_verb", &env).iter().any(|line| line == "finished")
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
type Kept = (EventData, Option<Vec<u8>>);

/// What a journal says it holds.
#[derive(Debug, PartialEq)]
struct Holding {
    events: BTreeMap<(DpRank, u64), Kept>,
    /// Ranges of ids that repairs told of, by rank.
    lost: BTreeMap<DpRank, Vec<(u64, u64)>>,
}

fn holding(dir: &Path) -> Result<Holding, String> {
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
fn append(dir: &Path, rank: DpRank) -> Result<u64, String> {
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
enum Reached {
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
fn operations(power: &PowerFs, verb: &str, template: &Path) -> u64 {
    let dir = power.path().join("uncut");
    copy_durably(template, &dir);
    let before = power.operations();
    assert!(run_verb(power, verb, &dir), "{verb} does not even work without a cut");
    let operations = power.operations() - before;
    remove_durably(&dir);
    operations
}

/// Cuts the power in `verb`, on a copy of `template` each time, and has `check` judge what is left and whether
/// the verb said that it was done. Gives how many cuts came how far.
fn cuts(
    power: &PowerFs,
    verb: &str,
    seed: u64,
    mut template: impl FnMut(u64) -> PathBuf,
    mut check: impl FnMut(u64, &Path, Reached, bool) -> Result<(), String>,
) -> BTreeMap<Reached, u64> {
    let mut random = Random::new(seed);
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    let all = operations(power, verb, &template(0));
    // A verb that finished before its cut makes a round without one.
    for round in 0..cut_count() * 3 {
        if counts.values().sum::<u64>() == cut_count() {
            break;
        }
        let dir = power.path().join(format!("journal-{round}"));
        copy_durably(&template(round), &dir);
        // Every other cut near the end, where names change.
        let near_end = all.saturating_sub(24) + 1 + random.below(24);
        power.cut_at(if round % 2 == 0 { 1 + random.below(all) } else { near_end });
        let finished = run_verb(power, verb, &dir);
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
    println!("{verb}: about {all} operations; cuts by what was left: {counts:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(counts.values().sum::<u64>(), cut_count());
    for reached in [Reached::OldOnly, Reached::NewUnnamed, Reached::NewNamed] {
        assert!(counts.contains_key(&reached), "no cut left {reached:?}");
    }
    counts
}

fn cut_count() -> u64 {
    if std::env::var_os("KVJ_LONG").is_some() { 400 } else { 60 }
}

fn seed() -> u64 {
    seed_or(0x5eed_0003)
}

/// A full journal: written on the disk that forgets, and what is on it after a cut.
fn filled(power: &PowerFs) -> tempfile::TempDir {
    let dir = power.path().join("filled");
    fill(&dir);
    power.reboot(Policy::LoseAll, seed());
    let template = tempfile::tempdir().unwrap();
    copy(&dir, template.path());
    remove_durably(&dir);
    template
}

#[test]
fn a_power_cut_during_migrate_loses_nothing_and_ids_go_on() {
    let name = "a_power_cut_during_migrate_loses_nothing_and_ids_go_on";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    println!("seed {}", seed());
    let template = filled(&power);
    let looked_into = tempfile::tempdir().unwrap();
    copy(template.path(), looked_into.path());
    let expected = holding(looked_into.path()).unwrap();
    assert_eq!(expected.events.keys().filter(|(rank, _)| *rank == RANKS[0]).count() as u64, EVENTS);
    let check = |round: u64, dir: &Path, reached: Reached, finished: bool| {
        if finished && reached != Reached::NewNamed {
            return Err("it was done, and is undone".into());
        }
        if round.is_multiple_of(3) {
            migrate(dir, WAIT, true, false).map_err(|e| format!("it cannot be done again: {e}"))?;
        }
        if holding(dir)? != expected {
            return Err("it holds something else".into());
        }
        for rank in RANKS {
            let view = JournalView::open(dir, WAIT).map_err(|e| e.to_string())?;
            let source = view.rank(rank).map_err(|e| e.to_string())?.source;
            if source.is_none_or(|source| (source.sequence, source.done) != (EVENTS, source.total)) {
                return Err(format!("rank {rank}: the source's cursor went back"));
            }
            drop(view);
            let id = append(dir, rank)?;
            if id != EVENTS + 1 {
                return Err(format!("rank {rank} goes on at {id}"));
            }
        }
        let left = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let stores = left.filter(|name| name.to_string_lossy().starts_with("gen-")).count();
        if stores == 1 { Ok(()) } else { Err(format!("{stores} stores are left")) }
    };
    cuts(&power, "migrate", seed(), |_| template.path().to_owned(), check);
}

/// Damages a copy of `template` in a way that depends on `round`, so that a repair saves something and loses something.
fn damage(template: &Path, round: u64, random: &mut Random) -> (tempfile::TempDir, Holding) {
    loop {
        let damaged = tempfile::tempdir().unwrap();
        copy(template, damaged.path());
        let flip = |file: &str, at: usize| {
            let path = damaged.path().join(file);
            let mut bytes = fs::read(&path).unwrap();
            bytes[at] ^= 0x10;
            write_durably(&path, &bytes);
        };
        let db = fs::read(damaged.path().join("gen-1/db")).unwrap();
        let used: Vec<usize> = (0..db.len()).filter(|at| db[*at] > 1).collect();
        match round % 4 {
            0 => {
                let at = used[used.len() / 3 + random.below(used.len() as u64 / 2) as usize];
                write_durably(&damaged.path().join("gen-1/db"), &db[..at]);
            }
            1 => flip("CURRENT", 3),
            2 => fs::remove_file(damaged.path().join("WITNESS")).unwrap(),
            _ => {}
        }
        if !round.is_multiple_of(4) {
            for _ in 0..4 {
                flip("gen-1/db", used[random.below(used.len() as u64) as usize]);
            }
        }
        let repaired = tempfile::tempdir().unwrap();
        copy(damaged.path(), repaired.path());
        if repair(repaired.path(), WAIT, |_, _| {}).is_ok_and(|done| done.frames > 0 && !done.lost.is_empty())
        {
            return (damaged, holding(repaired.path()).unwrap());
        }
    }
}

#[test]
fn a_power_cut_during_repair_leaves_the_damaged_store_alone_and_the_next_repair_saves_as_much() {
    let name = "a_power_cut_during_repair_leaves_the_damaged_store_alone_and_the_next_repair_saves_as_much";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    println!("seed {}", seed());
    let template = filled(&power);
    let mut random = Random::new(seed());
    // Each damage is hit at different moments.
    let damages: Vec<_> = (0..16).map(|round| damage(template.path(), round, &mut random)).collect();
    let damaged = |round: u64| &damages[(round / 4 % 4 * 4 + round % 4) as usize];
    let check = |round: u64, dir: &Path, reached: Reached, finished: bool| {
        let (damaged, expected) = damaged(round);
        let old = contents(&damaged.path().join("gen-1"));
        if finished && reached != Reached::NewNamed {
            return Err("it was done, and is undone".into());
        }
        let unchanged = || dir.join("gen-1").is_dir() && contents(&dir.join("gen-1")) == old;
        if !unchanged() {
            return Err("the damaged store was changed".into());
        }
        // Once the new store is the journal nobody has to repair it again, unless there never was a witness that
        // a cut could leave.
        let witnessed = damaged.path().join("WITNESS").exists();
        if reached != Reached::NewNamed || !witnessed || round.is_multiple_of(3) {
            repair(dir, WAIT, |_, _| {}).map_err(|e| format!("it cannot be repaired again: {e}"))?;
        }
        let verified = verify(dir, WAIT, |_, _| {}).map_err(|e| format!("it cannot be verified: {e}"))?;
        if !verified.damage.is_empty() {
            return Err(format!("it is damaged still: {:?}", verified.damage));
        }
        let saved = holding(dir)?;
        if saved.events != expected.events {
            let missing = expected.events.keys().filter(|id| !saved.events.contains_key(id)).count();
            return Err(format!("{} events were saved, {missing} are missing", saved.events.len()));
        }
        if saved.lost != expected.lost {
            return Err(format!("lost ids are {:?}, not {:?}", saved.lost, expected.lost));
        }
        for rank in RANKS {
            let id = append(dir, rank)?;
            if id <= EVENTS {
                return Err(format!("rank {rank}: id {id} is given again"));
            }
        }
        if holding(dir)?.events.len() != expected.events.len() + RANKS.len() {
            return Err("events were lost when it was used again".into());
        }
        if !unchanged() {
            return Err("the damaged store was changed after the repair".into());
        }
        Ok(())
    };
    cuts(&power, "repair", seed(), |round| damaged(round).0.path().to_owned(), check);
}
