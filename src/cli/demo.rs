//! `demo`: a worker process that journals a load, killed several times; what is there afterwards; and what is left of it
//! once it is compacted.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::codec::as_kept;
use crate::event::{DpRank, EventData, JsonEvent};
use crate::index::Digest;
use crate::journal::{CompactOptions, Config, Journal, JournalView};

use super::args::DemoArgs;
use super::fold::fold;
use super::output::human_bytes;
use super::{Failure, Outcome, load};

const RANK: DpRank = DpRank(0);
const LOCK_WAIT: Duration = Duration::from_secs(20);

/// Longest time that the worker may take from one acknowledgement to the next.
const ACK_WAIT: Duration = Duration::from_secs(60);

pub(super) fn run(args: DemoArgs) -> Result<Outcome, Failure> {
    let temporary = tempfile::tempdir()?;
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().join("journal"));
    let mut events = Vec::new();
    for event in load::events(&args.load, 256, args.events)? {
        events.extend(as_kept(&event)?);
    }
    let from =
        args.load.trace.as_ref().map_or("made-up conversations".into(), |path| path.display().to_string());
    say(&format!("An engine double serves {from} and announces {} events.", events.len()))?;
    say(
        "A worker process journals them: `kvjournal append --ack`. It is killed with SIGKILL in the middle.\n",
    )?;
    let mut problems = Vec::new();
    let mut acked_total = 0;
    for life in 0..=args.kills {
        let from = next_event(&dir)?;
        let started = Instant::now();
        let goal = if life == args.kills {
            events.len() as u64
        } else {
            (events.len() as u64 * u64::from(life + 1)) / u64::from(args.kills + 1)
        };
        let acked = live(&dir, &events[from as usize - 1..], from - 1, goal, life == args.kills)?;
        acked_total = acked.max(acked_total);
        let kept = next_event(&dir)? - 1;
        let end = if life == args.kills { "ended" } else { "killed" };
        say(&format!(
            "life {}: from event {from}, acknowledged up to {acked}, {end} after {:.1} s; found after it: {kept}",
            life + 1,
            started.elapsed().as_secs_f64()
        ))?;
        if kept < acked {
            problems.push(format!("events {}..={acked} were acknowledged and are gone", kept + 1));
        }
    }
    check_replay(&dir, &events, &mut problems)?;
    compact_and_restart(&dir, &mut problems)?;
    if problems.is_empty() {
        say(&format!(
            "\nAll {acked_total} acknowledged events were there, in order, under the ids they were given; what they leave is there still."
        ))?;
        return Ok(Outcome::Fine);
    }
    for problem in &problems {
        say(&format!("PROBLEM: {problem}"))?;
    }
    Ok(Outcome::Problems)
}

fn say(line: &str) -> std::io::Result<()> {
    writeln!(stdout(), "{line}")
}

/// Id of the next event that the journal would take.
fn next_event(dir: &Path) -> Result<u64, Failure> {
    match JournalView::open(dir, LOCK_WAIT) {
        Ok(view) if view.ranks().contains(&RANK) => Ok(view.rank(RANK)?.head + 1),
        Ok(_) | Err(crate::Error::NotFound { .. }) => Ok(1),
        Err(e) => Err(e.into()),
    }
}

/// One life of the worker: feeds it events until it acknowledged `goal`, then kills it, or lets it end. Gives the last
/// id that it acknowledged.
fn live(dir: &Path, events: &[EventData], acked: u64, goal: u64, to_the_end: bool) -> Result<u64, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["append", "--ack", "--format", "json", "--dir"]).arg(dir);
    let mut worker = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut input = worker.stdin.take().expect("its stdin is piped");
    let lines: VecDeque<String> = events.iter().map(to_line).collect();
    let feeder = std::thread::spawn(move || {
        for line in lines {
            // A killed worker reads no more.
            if input.write_all(line.as_bytes()).is_err() {
                break;
            }
        }
    });
    let (sender, acks) = std::sync::mpsc::channel();
    let output = BufReader::new(worker.stdout.take().expect("its stdout is piped"));
    let listener = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let id =
                serde_json::from_str::<serde_json::Value>(&line).ok().and_then(|v| v["durable"].as_u64());
            if id.is_some_and(|id| sender.send(id).is_err()) {
                break;
            }
        }
    });
    let mut acked = acked;
    while to_the_end || acked < goal {
        match acks.recv_timeout(ACK_WAIT) {
            Ok(id) => acked = id,
            Err(_) => break,
        }
    }
    end(&mut worker, to_the_end)?;
    // What it said before it died counts too.
    let _both_end_with_the_worker = (feeder.join(), listener.join());
    Ok(acks.try_iter().last().unwrap_or(acked).max(acked))
}

fn end(worker: &mut Child, in_order: bool) -> std::io::Result<()> {
    if !in_order {
        worker.kill()?;
    }
    worker.wait().map(drop)
}

fn to_line(data: &EventData) -> String {
    let event =
        JsonEvent { event_id: None, dp_rank: RANK, data: data.clone(), engine_time: None, payload: None };
    let mut line = event.to_line();
    line.push('\n');
    line
}

/// Replays from several ids, and compares each event with what the engine announced.
fn check_replay(dir: &Path, events: &[EventData], problems: &mut Vec<String>) -> Result<(), Failure> {
    say("\nReplay:")?;
    let view = JournalView::open(dir, LOCK_WAIT)?;
    let head = events.len() as u64;
    for from in [1, head / 3, head - 9] {
        let from = from.max(1);
        let (mut reader, started, mut next) = (view.read(RANK, from)?, Instant::now(), from);
        while let Some(frame) = reader.next_frame()? {
            for event in frame.events() {
                let event = event?;
                if event.id != next || events.get(next as usize - 1) != Some(&event.data) {
                    problems.push(format!("replay from {from}: event {} is not what was appended", event.id));
                    return Ok(());
                }
                next += 1;
            }
        }
        if next != head + 1 {
            problems.push(format!("replay from {from} ends at {}, not at {head}", next - 1));
        }
        let rate = (next - from) as f64 / started.elapsed().as_secs_f64();
        say(&format!(
            "  from event {from}: {} events, each as it was announced ({rate:.0} a second)",
            next - from
        ))?;
    }
    Ok(())
}

/// Compacts the history, and checks that a reader that starts anew gets the same state, with ids that go on.
fn compact_and_restart(dir: &Path, problems: &mut Vec<String>) -> Result<(), Failure> {
    say(
        "\nCompaction: all but the newest tenth of the events is replaced by the least of them with the same state.",
    )?;
    let before = state(dir)?;
    let journal = Journal::open(Config { lock_wait_max: LOCK_WAIT, ..Config::new(dir, None) })?;
    let head = journal.head(RANK);
    let options = CompactOptions { grace: Duration::ZERO, pace_bytes: None, dry_run: false };
    let started = Instant::now();
    let done = journal.compact(RANK, head / 10 * 9, options)?;
    journal.close()?;
    say(&format!(
        "  events up to {}: {} became {} in {:.2} s, their frames {} became {}",
        done.horizon,
        done.events_before,
        done.events,
        started.elapsed().as_secs_f64(),
        human_bytes(done.frame_bytes_before),
        human_bytes(done.frame_bytes)
    ))?;
    let started = Instant::now();
    let after = state(dir)?;
    say(&format!(
        "Restart: {} events are read instead of {head} in {:.2} s; {} blocks are held, digest {}",
        after.events,
        started.elapsed().as_secs_f64(),
        after.blocks,
        after.digest
    ))?;
    if (before.blocks, before.digest) != (after.blocks, after.digest) {
        problems.push(format!("before it, {} blocks were held, digest {}", before.blocks, before.digest));
    }
    let next = next_event(dir)?;
    if next != head + 1 {
        problems.push(format!("the next event would be {next}, not {}", head + 1));
    }
    Ok(())
}

/// What the rank holds, and how many events say so.
struct State {
    events: u64,
    blocks: usize,
    digest: Digest,
}

fn state(dir: &Path) -> Result<State, Failure> {
    let view = JournalView::open(dir, LOCK_WAIT)?;
    let folded = fold(&view, RANK, None, |_, _| {})?;
    Ok(State { events: folded.events, blocks: folded.blocks(), digest: folded.digest() })
}
