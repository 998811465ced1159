//! Power cuts during `repair`: whenever the power goes, the damaged store is as it was, and repairing again saves as much
//! as if nothing had happened.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::path::Path;

use kvjournal::journal::{repair, verify};
use support::cut_verb::{
    EVENTS, Holding, RANKS, Reached, WAIT, append, be_child, cuts, filled, holding, seed,
};
use support::files::{contents, copy, write_durably};
use support::powerfs::PowerFs;
use support::random::Random;
use support::skip::skip;

/// Not a test by itself.
#[test]
fn child_verb() {
    be_child(|dir| repair(dir, WAIT, |_, _| {}).map(drop));
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
    cuts(&power, seed(), |round| damaged(round).0.path().to_owned(), check);
}
