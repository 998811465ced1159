//! Guarantees 1 to 3 against SIGKILL: a real child process journals, is really killed at a chosen moment, and what
//! is found after reopening is held against what it had acknowledged and appended.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{Config, Durability, Journal, NewEvent};
use support::events::numbered;
use support::kill::KillAt;
use support::random::{Random, seed_or};
use support::told::{Told, say};

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(3)];
const PHASES: [&str; 5] = ["open", "write", "sync", "trim", "close"];
const WAIT: Duration = Duration::from_secs(60);

/// Events that a child appends before it closes.
const EVENTS: u64 = 3_000;
/// The newest events that a trim leaves.
const KEPT: u64 = 1_500;

fn config(dir: &Path, durability: Durability) -> Config {
    let mut config = Config::new(dir, WorkerId(5));
    config.durability = durability;
    config.tail_bytes_max = 64 * 1024;
    config.lock_wait_max = Duration::from_secs(20);
    config
}

/// Not a test by itself: the process that is killed. It says on stdout what it was told.
#[test]
fn child() {
    let Ok(dir) = std::env::var("KVJ_CHILD_DIR") else { return };
    let durability = match std::env::var("KVJ_CHILD_OS").is_ok() {
        true => Durability::Os,
        false => Durability::Sync,
    };
    KillAt::parse(&std::env::var("KVJ_CHILD_KILL").unwrap()).arm();
    let journal = Journal::open(config(Path::new(&dir), durability)).unwrap();
    let mut appended = 0;
    while appended < EVENTS {
        for rank in RANKS {
            let head = journal.head(rank);
            let events: Vec<NewEvent> =
                (head + 1..=head + 1 + appended % 20).map(|id| numbered(id).into()).collect();
            // Said before: a crash may keep what was appended and not yet said.
            say("appending", rank, head + events.len() as u64);
            let ids = journal.append(rank, &events).unwrap().unwrap();
            appended += events.len() as u64;
            if appended % 7 < 3 {
                // What may be shown is what has to last: in `Os` that is less than durable.
                journal.read(rank, *ids.end()).unwrap().wait(WAIT).unwrap();
            }
            say("durable", rank, journal.visible_head(rank));
            if appended % 11 == 0 {
                let horizon = journal.trim(rank, ids.end().saturating_sub(KEPT)).unwrap();
                say("horizon", rank, horizon);
            }
        }
    }
    for rank in RANKS {
        let horizon = journal.trim(rank, journal.head(rank) - KEPT).unwrap();
        say("horizon", rank, horizon);
    }
    journal.close().unwrap();
}

fn run_child(dir: &Path, kill: &str, durability: Durability, told: &mut Told) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("KVJ_CHILD_DIR", dir).env("KVJ_CHILD_KILL", kill);
    if durability == Durability::Os {
        command.env("KVJ_CHILD_OS", "1");
    }
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

/// Reopens the journal, holds it against what was told, and says how many events it compared.
fn check(dir: &Path, durability: Durability, told: &Told, what: &str) -> u64 {
    let journal = Journal::open(config(dir, durability)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let compared = told.check(&journal, &RANKS).unwrap_or_else(|e| panic!("{what}: {e}"));
    journal.close().unwrap();
    compared
}

fn kills(seed: u64, per_phase: u64, durability: Durability) {
    println!("seed {seed}: {per_phase} kills in each of {PHASES:?}, {durability:?}");
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("journal");
    let mut told = Told::default();
    let mut counts = BTreeMap::new();
    let (mut acknowledged, mut compared) = (0, 0);
    for phase in PHASES {
        let mut killed = 0;
        let mut tries = 0;
        while killed < per_phase {
            tries += 1;
            assert!(tries < per_phase * 6, "the phase {phase} is hardly ever reached");
            let nth = match phase {
                "open" => random.below(2),
                "close" => 0,
                "trim" => random.below(30),
                _ => random.below(200),
            };
            // Half of them at once, half some time into the phase or just past it.
            let delay = if random.below(2) == 0 { 0 } else { random.below(1500) };
            let kill = format!("{phase}:{nth}:{delay}");
            let before = told.acknowledged();
            let hit = run_child(&folder, &kill, durability, &mut told);
            acknowledged += told.acknowledged() - before;
            killed += u64::from(hit);
            compared += check(&folder, durability, &told, &kill);
        }
        counts.insert(phase, killed);
    }
    println!("killed {counts:?}, {acknowledged} events acknowledged, {compared} compared after reopening");
    assert!(counts.values().all(|killed| *killed >= per_phase));
    assert!(acknowledged > 0 && compared > 0, "a run that acknowledged nothing shows nothing");
}

fn per_phase() -> u64 {
    if std::env::var_os("KVJ_LONG").is_some() { 200 } else { 40 }
}

#[test]
fn sigkill_at_any_moment_loses_no_acknowledged_event_and_leaves_a_prefix() {
    kills(seed_or(0x5eed_0001), per_phase(), Durability::Sync);
}

#[test]
fn sigkill_loses_nothing_that_the_kernel_had() {
    kills(seed_or(0x5eed_00fe), per_phase() / 8, Durability::Os);
}
