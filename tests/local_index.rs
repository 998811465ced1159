//! The worker's index follows its journal, whatever the journal does meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::index::StreamId;
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent};
use kvjournal::worker::LocalIndex;
use support::churn::{churn, fold};

const WAIT: Duration = Duration::from_secs(60);
const RANKS: [DpRank; 2] = [DpRank(0), DpRank(3)];

fn append(journal: &Journal, rank: DpRank, count: u64) {
    let head = journal.head(rank);
    let events: Vec<NewEvent> = (head + 1..=head + count).map(|id| churn(id).into()).collect();
    journal.append(rank, &events).unwrap();
}

/// Waits for the newest event, and holds the state against a fold of all events.
fn check(index: &LocalIndex, journal: &Journal, rank: DpRank) {
    let head = journal.head(rank);
    index.wait_applied(rank, head, WAIT).unwrap();
    assert_eq!(index.progress(rank).applied, head);
    let found = index.index().digest(StreamId::new(WorkerId(1), rank));
    assert_eq!(found, fold(head).digest(StreamId::new(WorkerId(1), RANKS[0])), "rank {rank} at {head}");
}

#[test]
fn it_is_right_while_events_come_faster_than_the_tail_holds_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("journal"), WorkerId(1));
    // Hardly a frame: the index reads what it missed from disk.
    config.tail_bytes_max = 4 * 1024;
    let journal = Arc::new(Journal::open(config.clone()).unwrap());
    let index = LocalIndex::follow(Arc::clone(&journal)).unwrap();
    for _ in 0..40 {
        RANKS.into_iter().for_each(|rank| append(&journal, rank, 500));
    }
    RANKS.into_iter().for_each(|rank| check(&index, &journal, rank));
    // A compaction changes nothing of it, whether the index has read that part or not.
    let options = CompactOptions { grace: Duration::ZERO, pace_bytes: None, dry_run: false };
    for _ in 0..10 {
        append(&journal, RANKS[0], 2_000);
        journal.sync().unwrap();
        journal.compact(RANKS[0], journal.durable_head(RANKS[0]) - 100, options).unwrap();
    }
    RANKS.into_iter().for_each(|rank| check(&index, &journal, rank));
    drop(index);
    Arc::into_inner(journal).expect("the index let go of it").close().unwrap();

    let journal = Arc::new(Journal::open(config).unwrap());
    let index = LocalIndex::follow(Arc::clone(&journal)).unwrap();
    RANKS.into_iter().for_each(|rank| check(&index, &journal, rank));
    append(&journal, RANKS[1], 10);
    check(&index, &journal, RANKS[1]);
    assert_eq!(index.progress(RANKS[1]).rebuilds, 0);
}
