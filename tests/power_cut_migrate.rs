//! Power cuts during `migrate`: whenever the power goes, the journal is the old one or the new one, and both are the same.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::path::Path;

use kvjournal::journal::{JournalView, RankInfo, migrate};
use support::cut_verb::{EVENTS, RANKS, Reached, WAIT, append, be_child, cuts, filled, holding, seed};
use support::files::copy;
use support::powerfs::PowerFs;
use support::skip::skip;

/// Not a test by itself.
#[test]
fn child_verb() {
    be_child(|dir| migrate(dir, WAIT, true, false).map(drop));
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
    let known = ranks(looked_into.path()).unwrap();
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
        let found = ranks(dir)?;
        if found != known {
            return Err(format!("of its ranks it knows {found:?}, not {known:?}"));
        }
        for rank in RANKS {
            let id = append(dir, rank)?;
            if id != EVENTS + 1 {
                return Err(format!("rank {rank} goes on at {id}"));
            }
        }
        let left = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let stores = left.filter(|name| name.to_string_lossy().starts_with("gen-")).count();
        if stores == 1 { Ok(()) } else { Err(format!("{stores} stores are left")) }
    };
    cuts(&power, seed(), |_| template.path().to_owned(), check);
}

/// Heads, horizons, cursors and epochs.
fn ranks(dir: &Path) -> Result<Vec<RankInfo>, String> {
    let view = JournalView::open(dir, WAIT).map_err(|e| format!("it cannot be looked into: {e}"))?;
    view.ranks().into_iter().map(|rank| view.rank(rank).map_err(|e| e.to_string())).collect()
}
