//! The journal against a plain list per rank, over random operations, with power cuts on a store in memory.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::error::Result;
use crate::event::{BlockHash, DpRank, EventData, EventId, Removed, WorkerId};
use crate::store::{MemoryStore, Store, WitnessRank, WitnessState};

use super::config::Config;
use super::handle::Journal;
use super::input::{NewEvent, Source};
use super::open::Held;
use super::rows::{FORMAT, Identity};

const RANKS: u32 = 3;
const JOURNAL: [u8; 16] = [7; 16];
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Event `n` of the model: no two are the same.
fn event(n: u64) -> NewEvent {
    let removed = Removed { block_hashes: vec![BlockHash(n)], ..Removed::default() };
    // Payloads make rows of their own; two long ones do not fit one frame, which cuts batches, and the longest
    // take several rows.
    let payload = match n % 6 {
        0 => Some(Bytes::from(vec![n as u8; 200 * 1024])),
        1 => Some(Bytes::from(vec![n as u8; 40 * 1024])),
        3 => Some(Bytes::from(n.to_be_bytes().to_vec())),
        _ => None,
    };
    NewEvent { payload, ..EventData::Removed(removed).into() }
}

#[derive(Clone, Debug)]
enum Operation {
    Append {
        rank: u32,
        events: u64,
    },
    /// The next batch of the rank's engine.
    Batch {
        rank: u32,
        events: u64,
    },
    /// The engine sends the batch again that it sent last.
    Repeat {
        rank: u32,
    },
    Sync,
    Reopen,
    /// The power goes once so many more writes and syncs were made, and so many unsynced writes stay.
    Crash {
        after: u64,
        keep: usize,
        appends: Vec<(u32, u64)>,
        /// The power goes again while the journal is opened.
        reopens: Vec<(u64, usize)>,
    },
    Read {
        rank: u32,
        from: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let rank = 0..RANKS;
    prop_oneof![
        4 => (rank.clone(), 1..6_u64).prop_map(|(rank, events)| Operation::Append { rank, events }),
        4 => (rank.clone(), 0..6_u64).prop_map(|(rank, events)| Operation::Batch { rank, events }),
        2 => rank.clone().prop_map(|rank| Operation::Repeat { rank }),
        2 => Just(Operation::Sync),
        1 => Just(Operation::Reopen),
        2 => (0..12_u64, 0..12_usize, vec((rank.clone(), 1..6_u64), 0..4), vec((0..6_u64, 0..6_usize), 0..3))
            .prop_map(|(after, keep, appends, reopens)| Operation::Crash { after, keep, appends, reopens }),
        2 => (rank, 0..40_u64).prop_map(|(rank, from)| Operation::Read { rank, from }),
    ]
}

/// A batch as the engine sent it last.
#[derive(Clone, Debug)]
struct SentBatch {
    source: Source,
    events: Vec<NewEvent>,
}

/// What a rank should hold: the event with id n stands at n - 1.
#[derive(Debug, Default)]
struct RankModel {
    events: Vec<NewEvent>,
    /// Newest id that was seen to be durable.
    durable: EventId,
    sequence: u64,
    last_batch: Option<SentBatch>,
    /// Ids of the last batch's first events, which are kept; the rest was lost in a crash.
    batch_ids: Vec<EventId>,
}

struct Run {
    store: Arc<MemoryStore>,
    journal: Option<Journal>,
    ranks: BTreeMap<u32, RankModel>,
    next: u64,
}

impl Run {
    /// Opens the journal, with a witness that saw what the model saw.
    fn start(&self) -> Result<Journal> {
        let ranks = self.ranks.iter().filter(|(_, model)| model.durable > 0);
        let ranks = ranks.map(|(rank, model)| WitnessRank {
            rank: *rank,
            durable_head: model.durable,
            epoch_first: 0,
            revision: 0,
        });
        let prior = WitnessState { journal: JOURNAL, ranks: ranks.collect(), ..WitnessState::default() };
        let held =
            Held { store: Arc::<MemoryStore>::clone(&self.store), witness: None, prior, store_dir: None };
        let mut config = Config::new("unused", WorkerId(1));
        // One frame in the tail at most, so that reads come from the store too.
        config.tail_bytes_max = 1;
        Journal::start(held, config)
    }
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let identity = Identity { format: FORMAT, journal: JOURNAL, worker: WorkerId(1), created_us: 1 };
        identity.save(&*store).unwrap();
        store.sync().unwrap();
        let mut run = Self { store, journal: None, ranks: BTreeMap::new(), next: 1 };
        run.journal = Some(run.start().unwrap());
        run
    }

    fn journal(&self) -> &Journal {
        self.journal.as_ref().expect("it is open between two operations")
    }

    fn new_events(&mut self, count: u64) -> Vec<NewEvent> {
        let first = self.next;
        self.next += count;
        (first..self.next).map(event).collect()
    }

    fn step(&mut self, operation: Operation) {
        match operation {
            Operation::Append { rank, events } => {
                let events = self.new_events(events);
                let ids = self.journal().append(DpRank(rank), &events).unwrap();
                self.took(rank, ids, events);
            }
            Operation::Batch { rank, events } => {
                let events = self.new_events(events);
                let model = self.ranks.entry(rank).or_default();
                model.sequence += 1;
                let source = Source {
                    endpoint: format!("engine-{rank}"),
                    sequence: model.sequence,
                    hash: u128::from(self.next),
                };
                model.last_batch = Some(SentBatch { source, events });
                model.batch_ids.clear();
                self.send(rank);
            }
            Operation::Repeat { rank } => self.send(rank),
            Operation::Sync => {
                self.journal().sync().unwrap();
                for (rank, model) in &self.ranks {
                    assert_eq!(self.journal().durable_head(DpRank(*rank)), model.events.len() as u64);
                }
            }
            Operation::Reopen => {
                self.journal.take().unwrap().close().unwrap();
                self.journal = Some(self.start().unwrap());
                for (rank, model) in &self.ranks {
                    assert_eq!(self.journal().head(DpRank(*rank)), model.events.len() as u64);
                }
            }
            Operation::Crash { after, keep, appends, reopens } => self.crash(after, keep, appends, &reopens),
            Operation::Read { rank, from } => self.read(rank, from),
        }
        self.see_durable();
    }

    /// Sends the engine's last batch; the journal takes what it does not have of it.
    fn send(&mut self, rank: u32) {
        let Some(model) = self.ranks.get(&rank) else { return };
        let Some(batch) = model.last_batch.clone() else { return };
        let kept = model.batch_ids.len();
        let ids = self.journal().append_batch(DpRank(rank), &batch.source, &batch.events).unwrap();
        let missing = batch.events[kept..].to_vec();
        self.took(rank, ids.clone(), missing);
        self.ranks.entry(rank).or_default().batch_ids.extend(ids.into_iter().flatten());
        let cursor = self.journal().source_cursor(DpRank(rank)).unwrap();
        assert_eq!((cursor.sequence, cursor.is_complete()), (batch.source.sequence, true));
    }

    /// The journal gave `ids` to `events`: exactly those that come next.
    fn took(&mut self, rank: u32, ids: Option<RangeInclusive<EventId>>, events: Vec<NewEvent>) {
        let model = self.ranks.entry(rank).or_default();
        let first = model.events.len() as u64 + 1;
        let expected = (!events.is_empty()).then(|| first..=first + events.len() as u64 - 1);
        assert_eq!(ids, expected, "rank {rank}");
        model.events.extend(events);
    }

    /// Notes how far the journal says it is durable: never past what was appended, never back.
    fn see_durable(&mut self) {
        let journal = self.journal.as_ref().expect("it is open between two operations");
        for (rank, model) in &mut self.ranks {
            let durable = journal.durable_head(DpRank(*rank));
            assert!(model.durable <= durable && durable <= model.events.len() as u64, "rank {rank}");
            assert_eq!(journal.head(DpRank(*rank)), model.events.len() as u64);
            model.durable = durable;
        }
    }

    fn crash(&mut self, after: u64, keep: usize, appends: Vec<(u32, u64)>, reopens: &[(u64, usize)]) {
        self.store.fail_at(after, io::ErrorKind::Other);
        for (rank, count) in appends {
            let events = self.new_events(count);
            // Once the store failed, the journal refuses.
            let Ok(ids) = self.journal().append(DpRank(rank), &events) else { break };
            self.took(rank, ids, events);
        }
        let journal = self.journal.take().expect("it is open between two operations");
        for (rank, model) in &mut self.ranks {
            model.durable = model.durable.max(journal.durable_head(DpRank(*rank)));
        }
        self.store.fail_at(0, io::ErrorKind::Other);
        drop(journal);
        self.store.crash(keep);
        for (after, keep) in reopens {
            self.store.fail_at(*after, io::ErrorKind::Other);
            drop(self.start());
            self.store.crash(*keep);
        }
        let journal = self.start().expect("what a crash leaves can be opened");
        for (rank, model) in &mut self.ranks {
            let head = journal.head(DpRank(*rank));
            let appended = model.events.len() as u64;
            assert!(model.durable <= head, "rank {rank}: {head} was kept, {} was durable", model.durable);
            assert!(head <= appended, "rank {rank}: {head} was kept, {appended} were appended");
            model.events.truncate(head as usize);
            model.batch_ids.retain(|id| *id <= head);
        }
        self.journal = Some(journal);
        for rank in 0..RANKS {
            self.read(rank, 0);
        }
    }

    /// Reads to the durable head, all of which has to be as it was appended.
    fn read(&self, rank: u32, from: u64) {
        let (journal, id) = (self.journal(), DpRank(rank));
        let Some(model) = self.ranks.get(&rank).filter(|model| !model.events.is_empty()) else { return };
        let head = model.events.len() as u64;
        journal.wait_durable(id, head, WAIT_MAX).unwrap();
        let from = from.clamp(1, head);
        let mut reader = journal.read(id, from).unwrap().with_payloads();
        let mut next = from;
        while let Some(frame) = reader.next_frame().unwrap() {
            for found in frame.events() {
                let found = found.unwrap();
                assert_eq!(found.id, next, "ids are contiguous");
                let found =
                    NewEvent { data: found.data, engine_time: found.engine_time, payload: found.payload };
                assert_eq!(Some(&found), model.events.get(next as usize - 1), "rank {rank}, event {next}");
                next += 1;
            }
        }
        assert_eq!(next, head + 1, "rank {rank}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_journal_is_a_list_per_rank_that_a_crash_cuts_at_its_end(
        operations in vec(operation(), 1..40),
    ) {
        let mut run = Run::new();
        for operation in operations {
            run.step(operation);
        }
        for rank in 0..RANKS {
            run.read(rank, 0);
        }
    }
}

#[test]
fn payload_rows_whose_frame_never_came_are_not_taken_for_another_frame_s() {
    let mut run = Run::new();
    // The row of the rank, a sync, three rows of payload; the frame fails.
    run.store.fail_at(5, io::ErrorKind::Other);
    run.next = 6;
    run.step(Operation::Append { rank: 0, events: 1 });
    run.journal().sync().unwrap_err();
    run.crash(0, 3, Vec::new(), &[]);
    assert!(run.ranks[&0].events.is_empty());
    // A payload of one row, under the key of the three.
    run.next = 9;
    run.step(Operation::Append { rank: 0, events: 1 });
    run.step(Operation::Reopen);
    run.read(0, 1);
}
