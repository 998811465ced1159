//! Compaction against SIGKILL: a child appends and compacts, is killed at each step of a compaction, and what is found
//! after reopening is held against the fold of all that was appended.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, verify};
use support::churn::{check, check_told, churn};
use support::kill::KillAt;
use support::random::{Random, seed_or};
use support::told::{Told, say};

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(3)];
/// Writing a history, naming it, deleting what it replaced.
const PHASES: [&str; 4] = ["compact", "replace", "trim", "open"];
const WAIT: Duration = Duration::from_secs(60);
/// Events that a child appends to each rank before it closes.
const EVENTS: u64 = 4_000;

fn config(dir: &Path) -> Config {
    let mut config = Config::new(dir, WorkerId(5));
    config.tail_bytes_max = 64 * 1024;
    config.lock_wait_max = Duration::from_secs(20);
    config
}

/// Not a test by itself: the process that is killed. It says on stdout what it was told.
#[test]
fn child() {
    let Ok(dir) = std::env::var("KVJ_CHILD_DIR") else { return };
    KillAt::parse(&std::env::var("KVJ_CHILD_KILL").unwrap()).arm();
    let journal = Journal::open(config(Path::new(&dir))).unwrap();
    std::thread::scope(|scope| {
        let compacting = scope.spawn(|| {
            for round in 0..12 {
                for rank in RANKS {
                    std::thread::sleep(Duration::from_millis(3));
                    let grace = if round % 2 == 0 { Duration::ZERO } else { Duration::from_millis(20) };
                    let options = CompactOptions { grace, pace_bytes: None, dry_run: false };
                    let to = journal.durable_head(rank).saturating_sub(if round % 3 == 0 { 300 } else { 0 });
                    // The rank may have no events yet.
                    let Ok(compacted) = journal.compact(rank, to, options) else { continue };
                    say("horizon", rank, compacted.horizon);
                    check(&journal, rank).unwrap();
                }
            }
        });
        for _ in 0..EVENTS / 50 {
            for rank in RANKS {
                let head = journal.head(rank);
                let events: Vec<NewEvent> = (head + 1..=head + 50).map(|id| churn(id).into()).collect();
                say("appending", rank, head + 50);
                let ids = journal.append(rank, &events).unwrap().unwrap();
                journal.wait_durable(rank, *ids.end(), WAIT).unwrap();
                say("durable", rank, *ids.end());
            }
        }
        compacting.join().unwrap();
    });
    journal.close().unwrap();
}

fn run_child(dir: &Path, kill: &str, told: &mut Told) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("KVJ_CHILD_DIR", dir).env("KVJ_CHILD_KILL", kill);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        told.hear(&line.unwrap());
    }
    let output = child.wait_with_output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    killed
}

/// Reopens the journal, and holds it against what was told.
fn check_reopened(dir: &Path, told: &Told) -> Result<u64, String> {
    let journal = Journal::open(config(dir)).map_err(|e| format!("it cannot be opened: {e}"))?;
    let events = check_told(&journal, told, &RANKS)?;
    journal.close().map_err(|e| e.to_string())?;
    let damage = verify(dir, WAIT, |_, _| {}).map_err(|e| e.to_string())?.damage;
    if damage.is_empty() { Ok(events) } else { Err(format!("{damage:?}")) }
}

#[test]
fn sigkill_at_any_step_of_a_compaction_changes_no_state() {
    let seed = seed_or(0x5eed_0031);
    let per_phase = if std::env::var_os("KVJ_LONG").is_some() { 100 } else { 20 };
    println!("seed {seed}: {per_phase} kills in each of {PHASES:?}");
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut told = Told::default();
    let mut events = 0;
    let (mut life, mut horizons) = (0, 0);
    for phase in PHASES {
        let (mut killed, mut tries) = (0, 0);
        while killed < per_phase {
            tries += 1;
            assert!(tries < per_phase * 6, "the phase {phase} is hardly ever reached");
            if tries % 10 == 0 {
                // A new one, so that the first compaction of a journal is among them.
                life += 1;
                told = Told::default();
            }
            let nth = random.below(match phase {
                "open" => 1,
                "trim" => 40,
                _ => 12,
            });
            let delay = if random.below(2) == 0 { 0 } else { random.below(1500) };
            let kill = format!("{phase}:{nth}:{delay}");
            let folder = dir.path().join(format!("journal-{life}"));
            killed += u64::from(run_child(&folder, &kill, &mut told));
            events += check_reopened(&folder, &told).unwrap_or_else(|e| panic!("{kill}: {e}"));
            horizons += told.horizon.values().filter(|horizon| **horizon > 0).count();
        }
    }
    println!("{events} events read after reopening, {} journals", life + 1);
    assert!(events > 0 && horizons > 0, "nothing was compacted");
}
