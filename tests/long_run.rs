//! A worker that lives long: its journal stays within its disk, its process within its memory, and what a router reads
//! is right whenever it looks. With `KVJ_LONG=1` it appends 20 million events.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::index::StreamId;
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, Retention};
use kvjournal::worker::LocalIndex;
use support::churn::{check, churn, fold};

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(120);
const KEPT: u64 = 50_000;
const DISK_MAX: u64 = 400 * 1024 * 1024;
/// What one of these events needs at least, so that they would not fit the limits if all were kept.
const EVENT_BYTES: u64 = 80;

fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn disk_and_memory_stay_what_they_are_however_long_it_runs() {
    let rounds: u64 = if std::env::var_os("KVJ_LONG").is_some() { 200 } else { 10 };
    let per_round: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("journal"), WorkerId(1));
    let options =
        CompactOptions { grace: Duration::from_millis(200), pace_bytes: None, ..CompactOptions::default() };
    config.retention =
        Retention { keep_events: Some(KEPT), disk_max: Some(DISK_MAX), options, ..Retention::default() };
    let began = Instant::now();
    let mut journal = Arc::new(Journal::open(config.clone()).unwrap());
    let mut index = LocalIndex::follow(Arc::clone(&journal)).unwrap();
    let (mut most_disk, mut resident) = (0, Vec::new());
    for round in 1..=rounds {
        for _ in 0..per_round / 1_000 {
            let head = journal.head(RANK);
            let events: Vec<NewEvent> = (head + 1..=head + 1_000).map(|id| churn(id).into()).collect();
            journal.append(RANK, &events).unwrap();
        }
        let head = journal.head(RANK);
        journal.wait_durable(RANK, head, WAIT).unwrap();
        most_disk = most_disk.max(journal.disk_bytes().unwrap());
        assert!(most_disk <= DISK_MAX, "round {round}: {most_disk} bytes of disk");
        resident.push(resident_bytes());
        if round % 5 == 0 {
            index.wait_applied(RANK, head, WAIT).unwrap();
            let found = index.index().digest(StreamId::new(WorkerId(1), RANK));
            assert_eq!(found, fold(head).digest(StreamId::new(WorkerId(1), RANK)), "at {head}");
            let started = Instant::now();
            while journal.horizon(RANK) + 4 * KEPT < head {
                assert!(started.elapsed() < WAIT, "retention does not keep up");
                std::thread::sleep(Duration::from_millis(50));
            }
            check(&journal, RANK).unwrap();
            println!(
                "{head} events in {:.0} s: horizon {}, {} MB of disk, {} MB resident",
                began.elapsed().as_secs_f64(),
                journal.horizon(RANK),
                journal.disk_bytes().unwrap() / 1_000_000,
                resident[resident.len() - 1] / 1_000_000
            );
        }
        if round % 10 == 0 {
            drop(index);
            Arc::into_inner(journal).expect("the index let go of it").close().unwrap();
            journal = Arc::new(Journal::open(config.clone()).unwrap());
            assert_eq!(journal.head(RANK), head);
            index = LocalIndex::follow(Arc::clone(&journal)).unwrap();
        }
    }
    let all = rounds * per_round;
    assert_eq!(journal.head(RANK), all);
    let late = &resident[resident.len() / 2..];
    let (early, late) = (resident[..resident.len() / 2].iter().max(), late.iter().max());
    println!("most disk {most_disk} bytes, most resident {early:?}, then {late:?}");
    // Far below what keeping everything would take in the long form, and below any leak that matters in the short one.
    assert!(late < Some(&(512 * 1024 * 1024)), "{late:?} bytes resident");
    assert!(rounds < 100 || most_disk < all * EVENT_BYTES / 2, "{most_disk} bytes are no bounded disk");
    drop(index);
    Arc::into_inner(journal).expect("the index let go of it").close().unwrap();
}
