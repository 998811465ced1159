//! A journal within its limits: what is older is compacted in the background, and its state stays.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvjournal::Error;
use kvjournal::event::{DpRank, EventData, Removed, WorkerId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, Retention, Source, Start};
use support::churn::{check, churn};

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(1);

fn config(dir: &tempfile::TempDir) -> Config {
    Config::new(dir.path().join("journal"), WorkerId(1))
}

fn append(journal: &Journal, count: u64) {
    let head = journal.head(RANK);
    let events: Vec<NewEvent> = (head + 1..=head + count).map(|id| churn(id).into()).collect();
    journal.append(RANK, &events).unwrap();
}

/// Waits until something is so, with a limit.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn now(grace: Duration) -> CompactOptions {
    CompactOptions { grace, pace_bytes: None, dry_run: false }
}

#[test]
fn a_journal_keeps_about_the_events_it_is_told_to_and_all_of_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    let options = now(Duration::ZERO);
    config.retention = Retention { keep_events: Some(5_000), options, ..Retention::default() };
    let journal = Journal::open(config.clone()).unwrap();
    for _ in 0..300 {
        append(&journal, 100);
    }
    wait_until("the horizon rises", || {
        journal.horizon(RANK) + 6_250 + 1_000 >= 30_000 && journal.horizon(RANK) <= 25_000
    });
    journal.wait_durable(RANK, 30_000, WAIT).unwrap();
    let events = check(&journal, RANK).unwrap();
    assert!(events < 9_000, "{events} are read by a reader that starts anew");
    journal.close().unwrap();
    let journal = Journal::open(config).unwrap();
    assert_eq!(check(&journal, RANK), Ok(events));
}

#[test]
fn ids_heads_and_cursors_survive_the_compaction_of_everything_while_idle() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    let options = now(Duration::ZERO);
    config.retention =
        Retention { keep_age: Some(Duration::from_millis(200)), options, ..Retention::default() };
    let journal = Journal::open(config.clone()).unwrap();
    let source = |sequence| Source { endpoint: "engine".into(), sequence, hash: 7 };
    let all: Vec<NewEvent> = (1..=1_000).step_by(2).map(|id| churn(id).into()).collect();
    journal.append_batch(RANK, &source(41), &all).unwrap();
    journal.sync().unwrap();
    let removals = all.iter().filter_map(|event| match &event.data {
        EventData::Stored(stored) => {
            let block_hashes = stored.blocks.iter().map(|block| block.block_hash).collect();
            Some(EventData::Removed(Removed { block_hashes, ..Removed::default() }).into())
        }
        _ => None,
    });
    journal.append_batch(RANK, &source(42), &removals.collect::<Vec<_>>()).unwrap();
    journal.sync().unwrap();
    // Never over the newest frame: one more is needed for all of these to go.
    journal.append(RANK, &[EventData::Removed(Removed::default()).into()]).unwrap();
    journal.sync().unwrap();
    wait_until("all is compacted", || journal.horizon(RANK) == 1_000);
    journal.close().unwrap();
    let journal = Journal::open(config).unwrap();
    assert_eq!((journal.head(RANK), journal.horizon(RANK)), (1_001, 1_000));
    assert_eq!(journal.source_cursor(RANK).map(|cursor| cursor.sequence), Some(42));
    let mut reader = journal.read(RANK, 1).unwrap();
    assert_eq!(reader.start(), Start::Reset { horizon: 1_000 });
    let frame = reader.next_frame().unwrap().unwrap();
    assert_eq!(frame.events().map(|event| event.unwrap().id).collect::<Vec<_>>(), [1_001], "nothing is left");
    assert_eq!(journal.append(RANK, &[churn(1).into()]).unwrap(), Some(1_002..=1_002));
    assert_eq!(journal.append_batch(RANK, &source(42), &[]).unwrap(), None, "that batch is in already");
}

/// Ends the other threads of a test when one of them panics, too.
struct StopAll<'a>(&'a AtomicBool);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Appends 200,000 events a second, up to `count`, until it is to stop.
fn append_steadily(journal: &Journal, count: u64, stop: &AtomicBool) {
    let began = Instant::now();
    let mut appended = 0;
    while appended < count && !stop.load(Ordering::Relaxed) {
        append(journal, 500);
        appended += 500;
        let due = Duration::from_micros(appended * 5);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

/// Reads from the oldest id on, and halts for longer than the grace. True if it was told that it was too slow.
fn read_slowly(journal: &Journal, stop: &AtomicBool) -> bool {
    let mut reader = journal.read(RANK, 1).unwrap();
    let (mut last, mut halted) = (0, false);
    while !stop.load(Ordering::Relaxed) {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                for event in frame.events() {
                    let id = event.unwrap().id;
                    assert!(id > last);
                    last = id;
                }
                if !halted {
                    std::thread::sleep(2 * GRACE);
                    halted = true;
                }
            }
            Err(Error::Trimmed { .. }) => return true,
            Err(e) => panic!("{e}"),
            Ok(None) => return false,
        }
    }
    false
}

#[test]
fn readers_page_through_the_old_part_while_it_is_compacted_and_200_000_events_a_second_are_appended() {
    const EVENTS: u64 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    append(&journal, 100_000);
    journal.sync().unwrap();
    let stop = AtomicBool::new(false);
    let (whole, late, compactions) = std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let _guard = StopAll(&stop);
            append_steadily(&journal, EVENTS, &stop);
        });
        let reading = scope.spawn(|| {
            let _guard = StopAll(&stop);
            let (mut whole, mut late) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                // Whatever it is told, the state it gets is that of the head it ends at.
                match check(&journal, RANK) {
                    Ok(_) => whole += 1,
                    Err(error) if error.contains("is kept from event") => late += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (whole, late)
        });
        let slow = scope.spawn(|| {
            let _guard = StopAll(&stop);
            let mut late = 0;
            while !stop.load(Ordering::Relaxed) {
                late += u32::from(read_slowly(&journal, &stop));
            }
            late
        });
        let mut compactions = 0;
        while !stop.load(Ordering::Relaxed) {
            let to = journal.durable_head(RANK) - 10_000;
            let compacted = journal.compact(RANK, to, now(GRACE)).unwrap();
            assert!(compacted.horizon >= compacted.horizon_before);
            compactions += u32::from(compacted.horizon > compacted.horizon_before);
            std::thread::sleep(Duration::from_millis(100));
        }
        appending.join().unwrap();
        let (whole, raced) = reading.join().unwrap();
        (whole, slow.join().unwrap() + raced, compactions)
    });
    journal.sync().unwrap();
    let events = check(&journal, RANK).unwrap();
    wait_until("what was compacted is deleted", || {
        let rows = journal.stats().trimmed_rows;
        std::thread::sleep(Duration::from_millis(1_500));
        rows > 0 && journal.stats().trimmed_rows == rows
    });
    println!(
        "{compactions} compactions, {whole} whole replays, {late} readers were too slow, {events} events now"
    );
    assert!(compactions >= 10 && whole >= 2 && late >= 1);
}

#[test]
fn the_store_never_exceeds_its_limit_and_goes_on_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    let max = Retention::DISK_MIN;
    let options = now(Duration::from_secs(60));
    config.retention = Retention { disk_max: Some(max), options, ..Retention::default() };
    let journal = Journal::open(config.clone()).unwrap();
    let payload = bytes::Bytes::from(vec![7; 4 * 1024]);
    let (mut largest, mut refused, mut appended) = (0, 0, 0_u64);
    let began = Instant::now();
    // Four times the limit.
    while appended < 4 * max {
        assert!(began.elapsed() < 2 * WAIT, "{appended} bytes appended, refused {refused} times");
        let head = journal.head(RANK);
        let event = |id| NewEvent { payload: Some(payload.clone()), ..churn(id).into() };
        match journal.append(RANK, &(head + 1..=head + 100).map(event).collect::<Vec<_>>()) {
            Ok(_) => appended += 100 * payload.len() as u64,
            Err(Error::AtDiskLimit { used, max: told }) => {
                assert!(used <= max && told == max);
                refused += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => panic!("{e}"),
        }
        largest = largest.max(journal.disk_bytes().unwrap());
        assert!(largest <= max, "{largest} of {max}");
    }
    println!("{appended} bytes appended, {largest} on disk at most, refused {refused} times");
    journal.sync().unwrap();
    check(&journal, RANK).unwrap();
    journal.close().unwrap();
    let journal = Journal::open(config).unwrap();
    check(&journal, RANK).unwrap();
    append(&journal, 100);
}
