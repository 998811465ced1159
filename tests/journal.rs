//! The journal's everyday promises, on a real folder.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::time::Duration;

use kvjournal::event::{Block, BlockHash, DpRank, EventData, Removed, Stored, TokensHash, WorkerId};
use kvjournal::journal::{Config, Durability, Journal, NewEvent, Source, Start};
use kvjournal::{Error, ErrorKind};

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(30);

fn stored(first: u64, blocks: u64) -> NewEvent {
    let block =
        |hash| Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash * 3)), mm: None };
    EventData::Stored(Stored { blocks: (first..first + blocks).map(block).collect(), ..Stored::default() })
        .into()
}

fn removed(hash: u64) -> NewEvent {
    EventData::Removed(Removed { block_hashes: vec![BlockHash(hash)], ..Removed::default() }).into()
}

fn config(dir: &tempfile::TempDir) -> Config {
    Config::new(dir.path().join("journal"), WorkerId(7))
}

fn read_all(journal: &Journal, rank: DpRank, from: u64) -> Vec<(u64, EventData)> {
    let mut reader = journal.read(rank, from).unwrap();
    let mut events = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        events.extend(frame.events().map(|event| event.unwrap()).map(|event| (event.id, event.data)));
    }
    events
}

#[test]
fn events_come_back_in_order_from_any_id_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let events: Vec<NewEvent> =
        (1..=5000).map(|i| if i % 3 == 0 { removed(i) } else { stored(i, 20) }).collect();
    let journal = Journal::open(config(&dir)).unwrap();
    let mut expected = Vec::new();
    for chunk in events.chunks(7) {
        let ids = journal.append(RANK, chunk).unwrap().unwrap();
        expected.extend(ids.zip(chunk.iter().map(|event| event.data.clone())));
    }
    assert_eq!(journal.head(RANK), 5000);
    journal.wait_durable(RANK, 5000, WAIT).unwrap();
    for from in [1, 2, 2500, 4999, 5000] {
        assert_eq!(read_all(&journal, RANK, from), expected[from as usize - 1..], "from {from}");
    }
    journal.close().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    assert_eq!(journal.durable_head(RANK), 5000);
    for from in [1, 777, 5000] {
        assert_eq!(read_all(&journal, RANK, from), expected[from as usize - 1..], "from {from}");
    }
    assert_eq!(journal.append(RANK, &[removed(1)]).unwrap(), Some(5001..=5001));
    assert_eq!(journal.read(RANK, 6000).unwrap().start(), Start::Ahead { head: 5000 });
}

#[test]
fn a_sync_covers_all_that_was_appended_before_it_however_much_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    config.group.bytes_max = 64 * 1024;
    let journal = Journal::open(config).unwrap();
    for round in 0..3 {
        for i in 0..3_000 {
            journal.append(DpRank(i % 3), &[stored(u64::from(i), 20)]).unwrap();
        }
        journal.sync().unwrap();
        for rank in journal.ranks() {
            assert_eq!(journal.durable_head(rank), journal.head(rank), "round {round} rank {rank}");
        }
    }
}

#[test]
fn trimming_moves_the_horizon_and_a_reader_from_below_is_reset() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    for i in 1..=3000 {
        journal.append(RANK, &[stored(i * 100, 30)]).unwrap();
    }
    journal.sync().unwrap();
    let horizon = journal.trim(RANK, 2000).unwrap();
    assert!((1..=2000).contains(&horizon), "{horizon}");
    assert_eq!(journal.read(RANK, horizon).unwrap().start(), Start::Reset { horizon });
    let events = read_all(&journal, RANK, 1);
    assert_eq!((events[0].0, events.last().unwrap().0), (horizon + 1, 3000));
    assert_eq!(journal.read(RANK, horizon + 1).unwrap().start(), Start::Continue);
    journal.close().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    assert_eq!(journal.horizon(RANK), horizon);
    assert_eq!(read_all(&journal, RANK, 1), events);
    let all = journal.trim(RANK, 5000).unwrap();
    assert!(all < 3000, "never over the newest frame");
}

#[test]
fn a_second_opener_is_told_and_another_worker_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    let mut second = config(&dir);
    second.lock_wait_max = Duration::from_millis(50);
    let error = Journal::open(second).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    journal.close().unwrap();
    let error = Journal::open(Config::new(dir.path().join("journal"), WorkerId(8))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("belongs to worker 7"), "{error}");
}

#[test]
fn a_batch_of_an_engine_is_never_appended_twice() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    let source = |sequence| Source { endpoint: "tcp://engine".into(), sequence, hash: 42 };
    let events = [stored(1, 3), removed(1)];
    assert_eq!(journal.append_batch(RANK, &source(5), &events).unwrap(), Some(1..=2));
    assert_eq!(journal.append_batch(RANK, &source(5), &events).unwrap(), None);
    assert_eq!(journal.append_batch(RANK, &source(6), &[]).unwrap(), None);
    journal.close().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    let cursor = journal.source_cursor(RANK).unwrap();
    assert_eq!((cursor.sequence, cursor.done, cursor.total), (6, 0, 0));
    assert_eq!(journal.append_batch(RANK, &source(7), &events).unwrap(), Some(3..=4));
    journal.close().unwrap();
    let journal = Journal::open(config(&dir)).unwrap();
    assert_eq!(journal.append_batch(RANK, &source(7), &events).unwrap(), None);
}

#[test]
fn payloads_come_back_as_they_were_from_the_tail_and_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    config.tail_bytes_max = 1;
    let journal = Journal::open(config.clone()).unwrap();
    let payload = |i: usize| bytes::Bytes::from(vec![i as u8; if i == 40 { 700_000 } else { i * 37 }]);
    for i in 0..80 {
        journal.append(RANK, &[NewEvent { payload: Some(payload(i)), ..stored(i as u64, 2) }]).unwrap();
    }
    journal.sync().unwrap();
    let check = |journal: &Journal| {
        let mut reader = journal.read(RANK, 1).unwrap().with_payloads();
        let mut seen = 0;
        while let Some(frame) = reader.next_frame().unwrap() {
            for event in frame.events() {
                let event = event.unwrap();
                assert_eq!(event.payload.unwrap_or_default(), payload(seen), "event {}", event.id);
                seen += 1;
            }
        }
        assert_eq!(seen, 80);
    };
    check(&journal);
    journal.close().unwrap();
    check(&Journal::open(config).unwrap());
}

#[test]
fn ids_that_interval_durability_may_have_shown_are_given_up_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    config.durability = Durability::Interval(Duration::from_millis(5));
    let journal = Journal::open(config.clone()).unwrap();
    journal.append(RANK, &[stored(1, 1)]).unwrap();
    journal.wait_durable(RANK, 1, WAIT).unwrap();
    journal.close().unwrap();
    let journal = Journal::open(config).unwrap();
    assert_eq!(journal.append(RANK, &[removed(1)]).unwrap(), Some(2..=2), "closed in order: ids go on");
}

#[tokio::test]
async fn a_follower_sees_each_event_once_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let journal = std::sync::Arc::new(Journal::open(config(&dir)).unwrap());
    journal.append(RANK, &[stored(1, 1)]).unwrap();
    let mut reader = journal.read(RANK, 1).unwrap();
    let follower = tokio::spawn(async move {
        let mut ids = Vec::new();
        while ids.len() < 500 {
            reader.ready().await.unwrap();
            while let Some(frame) = reader.next_frame().unwrap() {
                ids.extend(frame.events().map(|event| event.unwrap().id));
            }
        }
        ids
    });
    for i in 2..=500 {
        journal.append(RANK, &[stored(i, 1)]).unwrap();
        if i % 50 == 0 {
            journal.durable(RANK, i).await.unwrap();
        }
    }
    assert_eq!(follower.await.unwrap(), (1..=500).collect::<Vec<_>>());
}
