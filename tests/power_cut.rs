//! Guarantees 1 to 3 against power cuts: the journal lives on a file system that forgets what was not synced, the
//! power goes at a random operation, and what is found after the reboot is held against what was acknowledged.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kvjournal::Error;
use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{Config, Journal, NewEvent};
use support::events::numbered;
use support::powerfs::{Policy, PowerFs};
use support::random::{Random, seed_or};
use support::skip::skip;
use support::told::{Told, say};

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(1)];
const WAIT: Duration = Duration::from_secs(60);

fn config(dir: &Path) -> Config {
    let mut config = Config::new(dir, WorkerId(5));
    config.tail_bytes_max = 64 * 1024;
    config
}

/// Not a test by itself: the process on whose disk the power goes. It says on stdout what it was told.
#[test]
fn child() {
    let Ok(dir) = std::env::var("KVJ_CHILD_DIR") else { return };
    // The cut is an error like any other to this process; the parent judges what is left.
    let work = || -> Result<(), Error> {
        for _ in 0..3 {
            let journal = Journal::open(config(Path::new(&dir)))?;
            say("opened", RANKS[0], 1);
            for round in 0..40_u64 {
                for rank in RANKS {
                    let head = journal.head(rank);
                    let events: Vec<NewEvent> =
                        (head + 1..=head + 1 + round % 30).map(|id| numbered(id).into()).collect();
                    say("appending", rank, head + events.len() as u64);
                    let ids = journal.append(rank, &events)?.expect("there are events");
                    if round % 3 == 0 {
                        journal.wait_durable(rank, *ids.end(), WAIT)?;
                    }
                    say("durable", rank, journal.durable_head(rank));
                    if round % 9 == 8 {
                        say("horizon", rank, journal.trim(rank, ids.end().saturating_sub(300))?);
                    }
                }
            }
            journal.close()?;
        }
        Ok(())
    };
    match work() {
        Ok(()) => println!("\nfinished 0 0"),
        Err(e) => println!("\nstopped: {e}"),
    }
    // Without sled's leave-taking, which may hang or panic on a dead disk.
    support::kill::kill_self();
}

fn run_child(power: &PowerFs, dir: &Path, told: &mut Told) {
    for line in support::child::run(power, "child", &[("KVJ_CHILD_DIR", dir.as_os_str())]) {
        told.hear(&line);
    }
}

/// Reopens the journal and holds it against what was told: how many events it compared, or what is wrong.
fn check(dir: &Path, told: &Told) -> Result<u64, String> {
    let journal = Journal::open(config(dir)).map_err(|e| format!("it cannot be opened: {e}"))?;
    let compared = told.check(&journal, &RANKS)?;
    journal.close().map_err(|e| e.to_string())?;
    Ok(compared)
}

struct Outcome {
    cuts: u64,
    during_creation: u64,
    acknowledged: u64,
    compared: u64,
    wrong: Vec<String>,
}

fn cuts(power: &PowerFs, seed: u64, cuts: u64, policy: impl Fn(u64) -> Policy) -> Outcome {
    let mut random = Random::new(seed);
    let mut outcome =
        Outcome { cuts: 0, during_creation: 0, acknowledged: 0, compared: 0, wrong: Vec::new() };
    let mut told = Told::default();
    let mut life = 0;
    // A child that finished before its cut makes a round without one.
    for round in 0..cuts * 3 {
        if outcome.cuts == cuts {
            break;
        }
        let creating = round % 4 == 0;
        if creating {
            // A new journal, cut early: some of these cuts fall into its making.
            life = round;
            told = Told::default();
        }
        let dir = power.path().join(format!("journal-{life}"));
        power.cut_at(if creating { 1 + random.below(60) } else { 1 + random.below(700) });
        let before = told.acknowledged();
        run_child(power, &dir, &mut told);
        outcome.acknowledged += told.acknowledged() - before;
        outcome.cuts += u64::from(power.is_cut());
        outcome.during_creation += u64::from(power.is_cut() && !told.words.contains("opened"));
        power.reboot(policy(round), random.below(u64::MAX));
        match check(&dir, &told) {
            Ok(compared) => outcome.compared += compared,
            Err(what) => {
                if let Some(keep) = std::env::var_os("KVJ_KEEP") {
                    let to = Path::new(&keep).join(format!("{seed}-{round}"));
                    let done = Command::new("cp").arg("-r").arg(&dir).arg(to).status();
                    assert!(done.is_ok_and(|status| status.success()));
                }
                outcome.wrong.push(format!("round {round}: {what}"));
                // A journal that was found wrong is of no further use.
                life = cuts * 3 + round;
                told = Told::default();
            }
        }
    }
    outcome
}

fn cut_count() -> u64 {
    if std::env::var_os("KVJ_LONG").is_some() { 1000 } else { 100 }
}

fn seed() -> u64 {
    seed_or(0x5eed_0002)
}

#[test]
fn a_power_cut_at_any_moment_loses_no_acknowledged_event_and_leaves_a_prefix() {
    let name = "a_power_cut_at_any_moment_loses_no_acknowledged_event_and_leaves_a_prefix";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    println!("seed {}", seed());
    let policy = |round: u64| if round.is_multiple_of(3) { Policy::LoseAll } else { Policy::Random };
    let outcome = cuts(&power, seed(), cut_count(), policy);
    println!(
        "{} cuts, {} during creation, {} events acknowledged, {} compared after the reboot",
        outcome.cuts, outcome.during_creation, outcome.acknowledged, outcome.compared
    );
    assert!(outcome.wrong.is_empty(), "{:#?}", outcome.wrong);
    assert_eq!(outcome.cuts, cut_count());
    assert!(outcome.during_creation > 0);
    assert!(
        outcome.acknowledged > 0 && outcome.compared > 0,
        "a run that acknowledged nothing shows nothing"
    );
}

/// The test above bites: with fdatasync doing nothing, as without the journal's own sync, it finds losses.
#[test]
fn without_the_journal_s_own_sync_the_same_cuts_do_lose_acknowledged_events() {
    let name = "without_the_journal_s_own_sync_the_same_cuts_do_lose_acknowledged_events";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    power.ignore_fdatasync(true);
    let outcome = cuts(&power, seed(), 12, |_| Policy::LoseAll);
    assert!(!outcome.wrong.is_empty(), "{} cuts and nothing was found wrong", outcome.cuts);
}

#[test]
fn after_a_failed_sync_nothing_that_a_later_opening_acknowledges_rests_on_lost_pages() {
    let name = "after_a_failed_sync_nothing_that_a_later_opening_acknowledges_rests_on_lost_pages";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    let dir = power.path().join("journal");
    let rank = RANKS[0];
    let append = |journal: &Journal, count: u64| {
        let head = journal.head(rank);
        let events: Vec<NewEvent> = (head + 1..=head + count).map(|id| numbered(id).into()).collect();
        journal.append(rank, &events).unwrap().unwrap()
    };
    let journal = Journal::open(config(&dir)).unwrap();
    append(&journal, 100);
    journal.sync().unwrap();
    power.fail_next_fsync("db");
    append(&journal, 2_000);
    let error = journal.wait_durable(rank, 2_100, WAIT).unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    assert!(journal.append(rank, &[numbered(1).into()]).is_err(), "it stays stopped until it is reopened");
    assert_eq!(journal.durable_head(rank), 100);
    assert!(journal.close().is_err());
    let journal = Journal::open(config(&dir)).unwrap();
    let kept = journal.head(rank);
    assert!((100..=2_100).contains(&kept), "{kept}");
    append(&journal, 500);
    journal.wait_durable(rank, kept + 500, WAIT).unwrap();
    let told = Told {
        durable: BTreeMap::from([(rank, kept + 500)]),
        appending: BTreeMap::from([(rank, kept + 500)]),
        ..Told::default()
    };
    power.reboot(Policy::LoseAll, seed());
    std::mem::forget(journal);
    assert_eq!(check(&dir, &told), Ok(kept + 500));
}
