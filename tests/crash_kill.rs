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
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{Config, Durability, Journal, NewEvent};
use support::events::numbered;
use support::kill::KillAt;

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
    let say = |what: &str, rank: DpRank, id: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{what} {rank} {id}").unwrap();
        out.flush().unwrap();
    };
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
    println!("\nclosed 0 0");
}

/// What children said, all told: the newest of each kind.
#[derive(Debug, Default)]
struct Told {
    appending: BTreeMap<DpRank, u64>,
    durable: BTreeMap<DpRank, u64>,
    horizon: BTreeMap<DpRank, u64>,
    closed: bool,
}

fn run_child(dir: &Path, kill: &str, durability: Durability, told: &mut Told) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("KVJ_CHILD_DIR", dir).env("KVJ_CHILD_KILL", kill);
    if durability == Durability::Os {
        command.env("KVJ_CHILD_OS", "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    told.closed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let (Some(what), Some(rank), Some(id)) = (words.next(), words.next(), words.next()) else { continue };
        let (Ok(rank), Ok(id)) = (rank.parse(), id.parse()) else { continue };
        let newest = match what {
            "appending" => &mut told.appending,
            "durable" => &mut told.durable,
            "horizon" => &mut told.horizon,
            "closed" => {
                told.closed = true;
                continue;
            }
            _ => continue,
        };
        newest.insert(DpRank(rank), id);
    }
    let output = child.wait_with_output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    killed
}

/// Holds the journal against what was told, and says how many events it compared.
fn check(dir: &Path, durability: Durability, told: &Told, what: &str) -> u64 {
    let journal = Journal::open(config(dir, durability)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut compared = 0;
    for rank in RANKS {
        let head = journal.head(rank);
        let at = |of: &BTreeMap<DpRank, u64>| of.get(&rank).copied().unwrap_or(0);
        assert!(
            head >= at(&told.durable),
            "{what}: rank {rank} ends at {head}, {} was acknowledged",
            at(&told.durable)
        );
        assert!(
            head <= at(&told.appending),
            "{what}: rank {rank} ends at {head}, only {} was appended",
            at(&told.appending)
        );
        if head == 0 {
            continue;
        }
        let horizon = journal.horizon(rank);
        assert!(horizon >= at(&told.horizon), "{what}: rank {rank}: the horizon went back to {horizon}");
        let mut reader = journal.read(rank, 1).unwrap();
        let mut next = horizon + 1;
        while let Some(frame) = reader.next_frame().unwrap_or_else(|e| panic!("{what}: {e}")) {
            for event in frame.events() {
                let event = event.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(event.id, next, "{what}: rank {rank}");
                assert_eq!(event.data, numbered(event.id), "{what}: rank {rank} event {}", event.id);
                next += 1;
            }
        }
        assert_eq!(next, head + 1, "{what}: rank {rank} is kept to its head");
        compared += head - horizon;
    }
    journal.close().unwrap();
    compared
}

fn kills(seed: u64, per_phase: u64, durability: Durability) {
    println!("seed {seed}: {per_phase} kills in each of {PHASES:?}, {durability:?}");
    let mut random = seed | 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
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
                "open" => next(2),
                "close" => 0,
                "trim" => next(30),
                _ => next(200),
            };
            // Half of them at once, half some time into the phase or just past it.
            let delay = if next(2) == 0 { 0 } else { next(1500) };
            let kill = format!("{phase}:{nth}:{delay}");
            let before: u64 = told.durable.values().sum();
            let hit = run_child(&folder, &kill, durability, &mut told);
            acknowledged += told.durable.values().sum::<u64>() - before;
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

fn seed() -> u64 {
    let given = std::env::var("KVJ_SEED").ok().map(|seed| seed.parse().expect("KVJ_SEED is a number"));
    given.unwrap_or(0x5eed_0001)
}

#[test]
fn sigkill_at_any_moment_loses_no_acknowledged_event_and_leaves_a_prefix() {
    kills(seed(), per_phase(), Durability::Sync);
}

#[test]
fn sigkill_loses_nothing_that_the_kernel_had() {
    kills(seed() ^ 0xff, per_phase() / 8, Durability::Os);
}
