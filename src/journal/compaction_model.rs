//! Compaction against a plain list of events, over random operations, with power cuts on a store in memory: whatever
//! happened, a reader that starts anew ends with the fold of the list, and every event above the horizon is there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::error::Result;
use crate::event::{
    Block, BlockHash, Cleared, DpRank, EventData, EventId, Removed, Stored, TokensHash, WorkerId,
};
use crate::index::{Index, StreamId};
use crate::store::{MemoryStore, Store, WitnessRank, WitnessState};

use super::compaction::CompactOptions;
use super::config::Config;
use super::handle::Journal;
use super::input::{NewEvent, Source};
use super::open::Held;
use super::reader::Start;
use super::rows::{FORMAT, Identity};

const RANK: DpRank = DpRank(2);
const JOURNAL: [u8; 16] = [9; 16];
const WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
enum Operation {
    Append(Vec<EventData>),
    Compact {
        back: u64,
        grace: bool,
    },
    Trim {
        back: u64,
    },
    Reopen,
    /// The power goes once so many more writes and syncs were made; so many of those that were not synced stay.
    Crash {
        after: u64,
        keep: usize,
        appended: Vec<EventData>,
        back: u64,
    },
}

fn event() -> impl Strategy<Value = EventData> {
    let row = (0..12_u64, 1..7_u64).prop_map(|(first, blocks)| {
        let block =
            |hash| Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash)), mm: None };
        EventData::Stored(Stored {
            parent: first.checked_sub(1).map(BlockHash),
            blocks: (first..first + blocks).map(block).collect(),
            ..Stored::default()
        })
    });
    let removed = vec((0..18_u64).prop_map(BlockHash), 1..4)
        .prop_map(|block_hashes| EventData::Removed(Removed { block_hashes, ..Removed::default() }));
    prop_oneof![10 => row, 12 => removed, 1 => Just(EventData::Cleared(Cleared::default()))]
}

fn operation() -> impl Strategy<Value = Operation> {
    let back = || prop_oneof![Just(0), 0..40_u64];
    prop_oneof![
        8 => vec(event(), 1..8).prop_map(Operation::Append),
        4 => (back(), any::<bool>()).prop_map(|(back, grace)| Operation::Compact { back, grace }),
        1 => back().prop_map(|back| Operation::Trim { back }),
        1 => Just(Operation::Reopen),
        3 => (0..25_u64, 0..25_usize, vec(event(), 0..5), back())
            .prop_map(|(after, keep, appended, back)| Operation::Crash { after, keep, appended, back }),
    ]
}

struct Run {
    store: Arc<MemoryStore>,
    journal: Option<Journal>,
    /// The event with id n stands at n - 1.
    events: Vec<EventData>,
    /// Events up to here were given up.
    trimmed: EventId,
    durable: EventId,
    horizon: EventId,
}

impl Run {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let identity = Identity { format: FORMAT, journal: JOURNAL, worker: WorkerId(1), created_us: 1 };
        identity.save(&*store).unwrap();
        store.sync().unwrap();
        let mut run = Self { store, journal: None, events: Vec::new(), trimmed: 0, durable: 0, horizon: 0 };
        run.journal = Some(run.start().unwrap());
        run
    }

    fn start(&self) -> Result<Journal> {
        self.start_with(0)
    }

    /// Opens with a witness that saw this revision of the rank's row.
    fn start_with(&self, revision: u64) -> Result<Journal> {
        let seen = WitnessRank { rank: RANK.0, durable_head: self.durable, epoch_first: 0, revision };
        let ranks = Vec::from_iter((self.durable > 0).then_some(seen));
        let prior = WitnessState { journal: JOURNAL, ranks, ..WitnessState::default() };
        let store: Arc<dyn Store> = Arc::<MemoryStore>::clone(&self.store);
        let mut config = Config::new("unused", WorkerId(1));
        config.tail_bytes_max = 1;
        Journal::start(Held { store, witness: None, prior, store_dir: None }, config)
    }

    fn journal(&self) -> &Journal {
        self.journal.as_ref().expect("it is open between two operations")
    }

    fn append(&mut self, events: Vec<EventData>) -> Result<()> {
        for data in events {
            let id = self.events.len() as u64 + 1;
            let payload = (id.is_multiple_of(3)).then(|| Bytes::from(format!("payload {id}")));
            let event = NewEvent { payload, ..data.clone().into() };
            // One frame each, as if each came in a group of its own; and each from a batch of an engine.
            let source = Source { endpoint: "engine".into(), sequence: id, hash: u128::from(id) };
            let ids = self.journal().append_batch(RANK, &source, &[event])?;
            assert_eq!(ids, Some(id..=id), "ids go on whatever was compacted");
            self.events.push(data);
            if id.is_multiple_of(2) {
                self.journal().sync()?;
            }
        }
        Ok(())
    }

    fn compact(&self, back: u64, grace: bool) -> Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        let to = (self.events.len() as u64).saturating_sub(back);
        let grace = if grace { WAIT_MAX } else { Duration::ZERO };
        let options = CompactOptions { grace, pace_bytes: None, dry_run: false };
        let compacted = self.journal().compact(RANK, to, options)?;
        assert!(compacted.horizon <= to.max(compacted.horizon_before));
        assert!(compacted.events <= compacted.events_before);
        assert!(compacted.entries >= compacted.copies);
        Ok(())
    }

    fn step(&mut self, operation: Operation) {
        match operation {
            Operation::Append(events) => self.append(events).unwrap(),
            Operation::Compact { back, grace } => self.compact(back, grace).unwrap(),
            Operation::Trim { back } if !self.events.is_empty() => {
                let to = (self.events.len() as u64).saturating_sub(back);
                let before = self.journal().horizon(RANK);
                let horizon = self.journal().trim(RANK, to).unwrap();
                if horizon > before {
                    self.trimmed = horizon;
                }
            }
            Operation::Trim { .. } => {}
            Operation::Reopen => {
                self.journal.take().unwrap().close().unwrap();
                self.journal = Some(self.start().unwrap());
            }
            Operation::Crash { after, keep, appended, back } => {
                self.store.fail_at(after, io::ErrorKind::Other);
                let _failed = self.append(appended).and_then(|()| self.compact(back, false));
                let journal = self.journal.take().unwrap();
                self.durable = self.durable.max(journal.durable_head(RANK));
                self.store.fail_at(0, io::ErrorKind::Other);
                drop(journal);
                self.store.crash(keep);
                let journal = self.start().expect("what a crash leaves can be opened");
                let head = journal.head(RANK);
                assert!(self.durable <= head && head <= self.events.len() as u64);
                self.events.truncate(head as usize);
                self.journal = Some(journal);
            }
        }
        self.check();
    }

    /// The fold of the list, as far as it was not given up.
    fn expected(&self) -> Index {
        let index = Index::new();
        for data in &self.events[self.trimmed as usize..] {
            index.apply(StreamId::new(1, RANK.0), data);
        }
        index
    }

    fn check(&mut self) {
        let head = self.events.len() as u64;
        if head == 0 {
            return;
        }
        let journal = self.journal();
        journal.wait_durable(RANK, head, WAIT_MAX).unwrap();
        let horizon = journal.horizon(RANK);
        assert!(horizon >= self.horizon, "the horizon only rises");
        assert_eq!((journal.head(RANK), journal.durable_head(RANK)), (head, head));
        assert_eq!(
            journal.source_cursor(RANK).unwrap().sequence,
            head,
            "the cursor outlives what it came with"
        );
        let mut reader = journal.read(RANK, 1).unwrap().with_payloads();
        let starts_anew = reader.start() == Start::Reset { horizon };
        assert_eq!(starts_anew, horizon > 0);
        let index = Index::new();
        let (mut last, mut next) = (0, horizon + 1);
        while let Some(frame) = reader.next_frame().unwrap() {
            for event in frame.events() {
                let event = event.unwrap();
                assert!(event.id > last, "ids rise");
                last = event.id;
                index.apply(StreamId::new(1, RANK.0), &event.data);
                let whole = &self.events[event.id as usize - 1];
                if event.id > horizon {
                    assert_eq!((event.id, &event.data), (next, whole));
                    next += 1;
                }
                let payload =
                    (event.id.is_multiple_of(3)).then(|| Bytes::from(format!("payload {}", event.id)));
                assert_eq!(event.payload, payload, "event {}", event.id);
            }
        }
        assert_eq!(next, head + 1, "every event above the horizon");
        let stream = StreamId::new(1, RANK.0);
        assert_eq!(index.digest(stream), self.expected().digest(stream));
        (self.durable, self.horizon) = (head, horizon);
    }

    /// A reader that knows the state before any id, and goes on from there as it is told, ends with the state of all.
    fn check_from_every_id(&self) {
        let (journal, stream) = (self.journal(), StreamId::new(1, RANK.0));
        // What a trim gave up, only those who saw it still have.
        let ids = if self.trimmed == 0 { self.events.len() as u64 } else { 0 };
        for from in 1..=ids {
            let follower = Index::new();
            let mut reader = journal.read(RANK, from).unwrap();
            match reader.start() {
                Start::Continue => follower.apply_batch(stream, &self.events[..from as usize - 1]),
                Start::Reset { horizon } => assert!(from <= horizon),
                Start::Ahead { head } => panic!("{from} is ahead of {head}"),
            }
            while let Some(frame) = reader.next_frame().unwrap() {
                for event in frame.events() {
                    follower.apply(stream, &event.unwrap().data);
                }
            }
            assert_eq!(follower.digest(stream), self.expected().digest(stream), "from {from}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_compacted_a_reader_ends_with_the_fold_of_all_events(
        operations in vec(operation(), 1..40),
    ) {
        let mut run = Run::new();
        for operation in operations {
            run.step(operation);
        }
        run.check_from_every_id();
    }
}

#[test]
fn a_row_older_than_the_one_that_the_witness_saw_is_damage() {
    let mut run = Run::new();
    run.append(vec![EventData::Removed(Removed::default()); 3]).unwrap();
    run.journal.take().unwrap().close().unwrap();
    run.durable = 3;
    let found = run.start_with(100).map(drop).unwrap_err();
    assert!(found.to_string().contains("the witness saw version 100"), "{found}");
    run.start_with(1).unwrap();
}
