//! Readers that ask for pages, and keep nothing at the worker: each gets exactly what it misses, whatever happened
//! between two pages.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvjournal::codec::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, Page, Refusal, ReplayRequest};
use kvjournal::event::{Block, BlockHash, DpRank, EventData, Stored, TokensHash, WorkerId};
use kvjournal::index::{Index, StreamId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent};
use kvjournal::worker::{LocalIndex, Replayer};
use support::churn::{churn, fold};
use support::random::Random;

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(60);
/// Longer than any test.
const GRACE: Duration = Duration::from_secs(600);

fn open(dir: &Path) -> Arc<Journal> {
    Arc::new(Journal::open(Config::new(dir, WorkerId(1))).unwrap())
}

fn append(journal: &Journal, count: u64) {
    append_of(journal, count, churn);
}

fn append_of(journal: &Journal, count: u64, event: fn(u64) -> EventData) {
    let head = journal.head(RANK);
    for id in head + 1..=head + count {
        journal.append(RANK, &[NewEvent::from(event(id))]).unwrap();
        // Small frames, so that pages and horizons have many places to be at.
        if id % 7 == 0 {
            journal.wait_durable(RANK, id, WAIT).unwrap();
        }
    }
    journal.wait_durable(RANK, head + count, WAIT).unwrap();
}

fn compact(journal: &Journal, to: u64, grace: Duration) {
    journal.compact(RANK, to, CompactOptions { grace, pace_bytes: None, dry_run: false }).unwrap();
}

fn replayer(journal: &Arc<Journal>) -> Replayer {
    Replayer::new(Arc::clone(journal), None, PAGE_BYTES_MAX)
}

/// What a router does, in the least words.
struct Asker {
    index: Index,
    request: ReplayRequest,
    /// Ids applied since the last reset, and resets.
    last: u64,
    resets: u64,
    is_done: bool,
}

fn stream() -> StreamId {
    StreamId::new(1, 0)
}

impl Asker {
    fn new() -> Self {
        let request = ReplayRequest { max_bytes: Some(PAGE_BYTES_MIN), ..ReplayRequest::default() };
        Self { index: Index::new(), request, last: 0, resets: 0, is_done: false }
    }

    /// Asks for the next page, takes it as it travels, and folds it.
    fn ask(&mut self, replayer: &Replayer) -> Page {
        let asked = serde_json::to_vec(&self.request).unwrap();
        let page = replayer.page(RANK, &ReplayRequest::parse(&asked).unwrap()).unwrap();
        let page = Page::parse(page.encode().unwrap()).unwrap();
        assert!(page.len() <= self.request.max_bytes.unwrap());
        let header = &page.header;
        if header.flags.reset {
            self.index.clear(stream());
            (self.last, self.resets) = (0, self.resets + 1);
            self.request.generation = Some(header.generation);
        }
        for frame in &page.frames {
            for event in frame.events().map(Result::unwrap) {
                assert!(event.id > self.last, "event {} after {}", event.id, self.last);
                if self.request.generation.is_none() {
                    assert_eq!(event.id, self.last + 1, "no id is left out");
                }
                self.last = event.id;
                self.index.apply(stream(), &event.data);
            }
        }
        self.is_done = header.flags.done;
        if self.is_done {
            self.request.generation = None;
        }
        (self.request.from, self.request.epoch, self.request.nonce) =
            (header.next, Some(header.epoch), Some(header.nonce));
        page
    }

    /// Asks until there is no more. Says how many pages it took.
    fn catch_up(&mut self, replayer: &Replayer) -> usize {
        for pages in 1..10_000 {
            if self.ask(replayer).header.flags.done {
                return pages;
            }
        }
        panic!("no end");
    }

    fn assert_holds_all(&self, journal: &Journal) {
        let head = journal.head(RANK);
        assert_eq!(self.last, head);
        assert_eq!(self.index.digest(stream()), fold(head).digest(stream()));
    }
}

fn refusal(journal: &Arc<Journal>, rank: DpRank, request: ReplayRequest) -> Refusal {
    replayer(journal).page(rank, &request).unwrap_err()
}

#[test]
fn a_reader_gets_exactly_what_it_misses_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 3_000);
    let replayer = replayer(&journal);
    let mut asker = Asker::new();
    assert!(asker.catch_up(&replayer) > 2, "more than a page");
    asker.assert_holds_all(&journal);
    let nothing = asker.ask(&replayer);
    assert_eq!((nothing.frames.len(), nothing.header.next), (0, 3_001));
    assert!(nothing.header.flags.done && !nothing.header.flags.reset);
    append(&journal, 500);
    asker.catch_up(&replayer);
    asker.assert_holds_all(&journal);
    assert_eq!(asker.resets, 1, "it began from nothing, and never again");

    compact(&journal, 2_000, Duration::ZERO);
    let mut late = Asker::new();
    late.catch_up(&replayer);
    late.assert_holds_all(&journal);
    // A state at the horizon or above it is known; below it, it is not.
    let horizon = journal.horizon(RANK);
    assert!((1_900..=2_000).contains(&horizon));
    for (id, resets) in [(horizon, false), (horizon + 1, false), (horizon - 1, true)] {
        let request = ReplayRequest { from: id + 1, ..asker.request };
        assert_eq!(replayer.page(RANK, &request).unwrap().header.flags.reset, resets, "from {id}");
    }
}

/// A row of blocks more with each event: nothing goes, so that a history is as long as the log.
fn kept(id: u64) -> EventData {
    let blocks = (0..20).map(|at| Block {
        block_hash: BlockHash(id * 20 + at),
        tokens_hash: Some(TokensHash(id * 20 + at)),
        mm: None,
    });
    EventData::Stored(Stored { blocks: blocks.collect(), ..Stored::default() })
}

#[test]
fn a_rebuild_ends_although_the_horizon_moves_unless_its_time_is_over() {
    for (grace, resets) in [(GRACE, 1), (Duration::ZERO, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path());
        append_of(&journal, 1_500, kept);
        let replayer = replayer(&journal);
        for round in 0..3 {
            // After one page: in the log that nothing comes before, or in a history. Then in the log behind it.
            let (mut early, mut late) = (Asker::new(), Asker::new());
            early.ask(&replayer);
            while late.last <= journal.horizon(RANK).max(early.last) {
                late.ask(&replayer);
            }
            assert!(!early.is_done && !late.is_done, "round {round}");
            append_of(&journal, 1_000, kept);
            compact(&journal, journal.head(RANK) - 700, grace);
            for (mut asker, name) in [(early, "early"), (late, "late")] {
                asker.catch_up(&replayer);
                let expected = Index::new();
                (1..=journal.head(RANK)).for_each(|id| expected.apply(stream(), &kept(id)));
                assert_eq!(asker.index.digest(stream()), expected.digest(stream()));
                assert_eq!(asker.resets, resets, "{name} in round {round}");
            }
        }
    }
}

#[test]
fn a_restart_costs_no_reader_a_reset_and_another_journal_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(&dir.path().join("first"));
    append(&journal, 2_000);
    let (mut whole, mut part) = (Asker::new(), Asker::new());
    whole.catch_up(&replayer(&journal));
    part.ask(&replayer(&journal));
    assert!(!part.is_done);
    for _ in 0..3 {
        Arc::into_inner(journal).unwrap().close().unwrap();
        journal = open(&dir.path().join("first"));
        append(&journal, 10);
    }
    for asker in [&mut whole, &mut part] {
        asker.catch_up(&replayer(&journal));
        asker.assert_holds_all(&journal);
        assert_eq!(asker.resets, 1);
    }
    let page = replayer(&journal).heartbeat(RANK).unwrap();
    assert_eq!(page.header.epochs.iter().map(|epoch| epoch.kept).collect::<Vec<_>>(), [2_020, 2_010, 2_000]);

    // The same worker with another folder, and with more events than before.
    let other = open(&dir.path().join("second"));
    append(&other, 2_500);
    whole.catch_up(&replayer(&other));
    whole.assert_holds_all(&other);
    assert_eq!(whole.resets, 2);
}

#[test]
fn requests_that_cannot_be_answered_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let none = ReplayRequest::default();
    assert!(matches!(refusal(&journal, RANK, none), Refusal::NoStream { .. }), "no rank yet");
    append(&journal, 10);
    assert!(matches!(refusal(&journal, DpRank(1), none), Refusal::NoStream { .. }));
    let mut asker = Asker::new();
    asker.catch_up(&replayer(&journal));
    let ahead = ReplayRequest { from: 12, ..asker.request };
    assert_eq!(refusal(&journal, RANK, ahead), Refusal::Ahead { head: 10 });
    let small = ReplayRequest { max_bytes: Some(100), ..none };
    assert_eq!(refusal(&journal, RANK, small), Refusal::TooSmall { least: PAGE_BYTES_MIN });
    // Generations that never were, and places in a history that are none, only cost a reset.
    compact(&journal, 9, Duration::ZERO);
    for (from, generation) in [(1, 77), (3, 1), (u64::MAX / 2, 1)] {
        let odd = ReplayRequest { from, generation: Some(generation), ..asker.request };
        match replayer(&journal).page(RANK, &odd) {
            Ok(page) => assert!(page.header.flags.reset, "from {from} of {generation}"),
            Err(refusal) => assert_eq!(refusal, Refusal::Ahead { head: 10 }),
        }
    }
}

#[test]
fn pages_carry_the_digest_that_their_reader_comes_to() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let index = Arc::new(LocalIndex::follow(Arc::clone(&journal)).unwrap());
    append(&journal, 1_500);
    compact(&journal, 1_000, Duration::ZERO);
    index.wait_applied(RANK, 1_500, WAIT).unwrap();
    let replayer = Replayer::new(Arc::clone(&journal), Some(Arc::clone(&index)), PAGE_BYTES_MAX);
    let mut asker = Asker::new();
    asker.catch_up(&replayer);
    let digest = asker.index.digest(stream()).0;
    let heartbeat = replayer.heartbeat(RANK).unwrap();
    assert_eq!(heartbeat.header.digest, Some((1_500, digest)));
    assert_eq!((heartbeat.header.next, heartbeat.header.durable), (1_501, 1_500));
    let parsed = Page::parse(heartbeat.encode().unwrap()).unwrap();
    assert_eq!(parsed, heartbeat);
}

#[test]
fn readers_hold_all_after_any_mix_of_appends_compactions_restarts_and_pages() {
    let rounds = if std::env::var_os("KVJ_LONG").is_some() { 40 } else { 6 };
    for seed in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut journal = open(dir.path());
        append(&journal, 50);
        let mut askers: Vec<Asker> = (0..4).map(|_| Asker::new()).collect();
        for _ in 0..60 {
            match random.below(10) {
                0..3 => append(&journal, 1 + random.below(300)),
                3 => {
                    let grace = if random.below(2) == 0 { Duration::ZERO } else { GRACE };
                    compact(&journal, random.below(journal.head(RANK)), grace);
                }
                4 => {
                    Arc::into_inner(journal).unwrap().close().unwrap();
                    journal = open(dir.path());
                }
                5 => askers[random.below(4) as usize] = Asker::new(),
                _ => {
                    let asker = &mut askers[random.below(4) as usize];
                    asker.request.max_bytes = Some(PAGE_BYTES_MIN + random.below(100_000) as usize);
                    asker.ask(&replayer(&journal));
                }
            }
        }
        for asker in &mut askers {
            asker.catch_up(&replayer(&journal));
            asker.assert_holds_all(&journal);
        }
        println!(
            "seed {seed}: head {}, resets {:?}",
            journal.head(RANK),
            askers.iter().map(|asker| asker.resets).collect::<Vec<_>>()
        );
    }
}
