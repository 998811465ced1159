//! Compaction against power cuts: the journal lives on a file system that forgets what was not synced, the power goes
//! at a random operation while it compacts, and what is left is held against the fold of all that was appended.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::path::Path;
use std::time::Duration;

use kvjournal::Error;
use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, migrate};
use support::churn::{check_told, churn};
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
    let dir = Path::new(&dir);
    // The cut is an error like any other to this process; the parent judges what is left.
    let work = || -> Result<(), Error> {
        for life in 0..4_u64 {
            if life == 2 {
                // Gives space back: the store is written anew, history and all.
                migrate(dir, WAIT, true, false)?;
            }
            let journal = Journal::open(config(dir))?;
            for round in 0..20_u64 {
                for rank in RANKS {
                    let head = journal.head(rank);
                    let events: Vec<NewEvent> = (head + 1..=head + 40).map(|id| churn(id).into()).collect();
                    say("appending", rank, head + 40);
                    let ids = journal.append(rank, &events)?.expect("there are events");
                    if round % 3 == 0 {
                        journal.wait_durable(rank, *ids.end(), WAIT)?;
                    }
                    say("durable", rank, journal.durable_head(rank));
                    if round % 4 == 3 {
                        let grace = Duration::from_millis(5 * (round % 2));
                        let options = CompactOptions { grace, pace_bytes: None, dry_run: false };
                        let to = ids.end().saturating_sub(round * 9);
                        say("horizon", rank, journal.compact(rank, to, options)?.horizon);
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

#[test]
fn a_power_cut_at_any_step_of_a_compaction_changes_no_state() {
    let name = "a_power_cut_at_any_step_of_a_compaction_changes_no_state";
    let power = match PowerFs::mount() {
        Ok(power) => power,
        Err(e) => return skip(name, &format!("FUSE cannot be mounted: {e}")),
    };
    let seed = seed_or(0x5eed_0032);
    let wanted = if std::env::var_os("KVJ_LONG").is_some() { 600 } else { 60 };
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut told = Told::default();
    let (mut cuts, mut events, mut horizons, mut life) = (0, 0, 0, 0);
    for round in 0..wanted * 3 {
        if cuts == wanted {
            break;
        }
        if round % 6 == 0 {
            life = round;
            told = Told::default();
        }
        let dir = power.path().join(format!("journal-{life}"));
        power.cut_at(1 + random.below(1_200));
        for line in support::child::run(&power, "child", &[("KVJ_CHILD_DIR", dir.as_os_str())]) {
            told.hear(&line);
        }
        cuts += u64::from(power.is_cut());
        let policy = if round % 3 == 0 { Policy::LoseAll } else { Policy::Random };
        power.reboot(policy, random.below(u64::MAX));
        let journal = Journal::open(config(&dir)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        events += check_told(&journal, &told, &RANKS).unwrap_or_else(|e| panic!("round {round}: {e}"));
        horizons += told.horizon.values().filter(|horizon| **horizon > 0).count();
        journal.close().unwrap();
    }
    println!("{cuts} cuts, {events} events read after the reboot");
    assert_eq!(cuts, wanted);
    assert!(events > 0 && horizons > 0, "nothing was compacted");
}
