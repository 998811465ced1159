//! Followers over a network that loses, repeats, delays and reorders, of a worker that restarts, compacts, loses its
//! folder, gets an old one back, or is there twice. Virtual time; a real journal and its real pages. Once it is quiet,
//! each follower holds what the journal holds.
//!
//! A seed that fails is printed; `KVJ_SEED=N` runs it alone. `KVJ_LONG=1` runs more.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvjournal::codec::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, Page, Refusal, ReplayRequest};
use kvjournal::event::{BlockHash, DpRank, EventData, EventId, WorkerId};
use kvjournal::index::{Index, StreamId};
use kvjournal::journal::{CompactOptions, Config, Journal, NewEvent, Start};
use kvjournal::router::{Action, Freshness, Limits, Notice, Session};
use kvjournal::worker::Replayer;
use support::churn::churn;
use support::random::{Random, seed_or};

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);
const CHAOS_STEPS: u64 = 900;
/// Twice what a follower waits before a worker is gone.
const QUIET_STEPS: u64 = 1_200;

fn stream() -> StreamId {
    StreamId::new(1, 0)
}

/// A fault of a follower on purpose, that the simulation has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// Does not forget the stream when it is told to.
    KeepsAtReset,
    /// Folds events that it has already.
    AppliesTwice,
    /// Leaves the last frame of a page out.
    DropsLastFrame,
    /// Gives an answer to the question after the one it answers.
    MixesAnswers,
}

/// Where an answer goes: a follower that began anew does not get what the one before it asked for.
#[derive(Clone, Copy)]
struct Inbox {
    follower: usize,
    life: u64,
    number: u64,
}

/// What is on its way.
#[derive(Clone)]
enum Message {
    Live(Vec<u8>),
    Ask { to: Inbox, request: Vec<u8> },
    Answer { to: Inbox, answer: Result<Vec<u8>, Refusal> },
}

/// A journal that is open, and what it should hold.
struct Worker {
    dir: PathBuf,
    journal: Arc<Journal>,
    published: EventId,
    truth: Vec<EventData>,
}

impl Worker {
    fn open(dir: PathBuf, truth: Vec<EventData>) -> Self {
        let journal = Arc::new(Journal::open(Config::new(&dir, WorkerId(1))).unwrap());
        let published = journal.head(RANK);
        Self { dir, journal, published, truth }
    }

    fn append(&mut self, count: u64, variant: u64) {
        for _ in 0..count {
            let event = varied(self.truth.len() as u64 + 1, variant);
            self.journal.append(RANK, &[NewEvent::from(event.clone())]).unwrap();
            self.truth.push(event);
        }
        let head = self.truth.len() as u64;
        if head > 0 {
            self.journal.wait_durable(RANK, head, WAIT).unwrap();
        }
        assert_eq!(self.journal.head(RANK), head);
    }

    fn digest(&self) -> u128 {
        let index = Index::new();
        index.apply_batch(stream(), &self.truth);
        index.digest(stream()).0
    }

    /// What was appended since the last page; a heartbeat if there is nothing, or if it was compacted meanwhile.
    fn page(&mut self, with_digest: bool) -> Option<Page> {
        let replayer = Replayer::new(Arc::clone(&self.journal), None, PAGE_BYTES_MAX);
        let mut page = replayer.heartbeat(RANK)?;
        let mut reader = self.journal.read(RANK, self.published + 1).unwrap();
        if reader.start() == Start::Continue {
            let mut left = PAGE_BYTES_MIN;
            while let Some(read) = reader.next_frame().unwrap() {
                left = left.saturating_sub(read.frame().as_bytes().len());
                if left == 0 {
                    break;
                }
                page.frames.push(read.frame().clone());
            }
        }
        page.header.flags.heartbeat = page.frames.is_empty();
        match page.frames.last() {
            Some(last) => page.header.next = last.header().last + 1,
            None if with_digest => page.header.digest = Some((self.truth.len() as u64, self.digest())),
            None => {}
        }
        self.published = page.header.next - 1;
        Some(page)
    }

    fn close(self) -> (PathBuf, Vec<EventData>) {
        Arc::into_inner(self.journal).unwrap().close().unwrap();
        (self.dir, self.truth)
    }
}

/// The event of an id in one of the histories that it may have.
fn varied(id: u64, variant: u64) -> EventData {
    let turn = |hash: BlockHash| BlockHash(hash.0 ^ variant << 40);
    match churn(id) {
        EventData::Stored(mut stored) => {
            stored.blocks.iter_mut().for_each(|block| block.block_hash = turn(block.block_hash));
            EventData::Stored(stored)
        }
        EventData::Removed(mut removed) => {
            removed.block_hashes.iter_mut().for_each(|hash| *hash = turn(*hash));
            EventData::Removed(removed)
        }
        other => other,
    }
}

struct Follower {
    life: u64,
    session: Session,
    index: Index,
    last: EventId,
    seen: BTreeSet<Notice>,
}

impl Follower {
    fn new(life: u64) -> Self {
        let (session, index) = (Session::new(Limits::default()), Index::new());
        Self { life, session, index, last: 0, seen: BTreeSet::new() }
    }
}

struct World {
    random: Random,
    now: Duration,
    sent: u64,
    network: BTreeMap<(Duration, u64), Message>,
    followers: Vec<Follower>,
    workers: Vec<Worker>,
    /// The folder of a worker that is down, until when.
    down: Option<(PathBuf, Vec<EventData>, Duration)>,
    /// A second worker of the same id, until when.
    twin_until: Option<Duration>,
    backup: Option<(PathBuf, Vec<EventData>)>,
    root: tempfile::TempDir,
    folders: u64,
    variant: u64,
    lossy: bool,
    mutant: Mutant,
    /// What no right follower may do.
    faults: Vec<String>,
}

impl World {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let root = tempfile::tempdir().unwrap();
        let worker = Worker::open(root.path().join("0"), Vec::new());
        Self {
            random: Random::new(seed),
            now: Duration::ZERO,
            sent: 0,
            network: BTreeMap::new(),
            followers: vec![Follower::new(0), Follower::new(0)],
            workers: vec![worker],
            down: None,
            twin_until: None,
            backup: None,
            root,
            folders: 1,
            variant: 0,
            lossy: true,
            mutant,
            faults: Vec::new(),
        }
    }

    /// One in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    fn send(&mut self, message: &Message) {
        if self.lossy && self.once_in(8) {
            return;
        }
        let copies = if self.lossy && self.once_in(10) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.lossy && self.once_in(6) { 3_000 } else { 60 };
            let delay = Duration::from_millis(1 + self.random.below(late));
            self.sent += 1;
            self.network.insert((self.now + delay, self.sent), message.clone());
        }
    }

    fn new_folder(&mut self) -> PathBuf {
        self.folders += 1;
        self.root.path().join(self.folders.to_string())
    }

    /// Whatever may befall a worker.
    fn befall(&mut self) {
        if let Some((dir, truth, _)) = self.down.take_if(|(.., until)| *until <= self.now) {
            self.workers.push(Worker::open(dir, truth));
        }
        if self.twin_until.is_some_and(|until| until <= self.now) && self.workers.len() == 2 {
            let gone = self.random.below(2) as usize;
            self.workers.remove(gone).close();
            self.twin_until = None;
        }
        if self.down.is_some() || self.twin_until.is_some() || self.workers.len() != 1 {
            return;
        }
        match self.random.below(200) {
            0..3 => self.compact(),
            3..6 => self.restart(),
            6 => self.back_up(),
            7 => self.restore(),
            8 if self.once_in(3) => {
                self.workers.remove(0).close();
                let dir = self.new_folder();
                self.variant += 1;
                self.workers.push(Worker::open(dir, Vec::new()));
            }
            9 if self.once_in(2) => self.twin(),
            _ => {}
        }
    }

    fn compact(&mut self) {
        let grace = if self.once_in(2) { Duration::ZERO } else { Duration::from_secs(600) };
        let journal = Arc::clone(&self.workers[0].journal);
        let head = journal.head(RANK);
        if head > 0 {
            let to = self.random.below(head + 1);
            journal.compact(RANK, to, CompactOptions { grace, pace_bytes: None, dry_run: false }).unwrap();
        }
    }

    fn restart(&mut self) {
        let (dir, truth) = self.workers.remove(0).close();
        let seconds = if self.once_in(8) { 65 } else { self.random.below(9) };
        self.down = Some((dir, truth, self.now + Duration::from_secs(seconds)));
    }

    fn back_up(&mut self) {
        let (dir, truth) = self.workers.remove(0).close();
        let backup = self.new_folder();
        copy(&dir, &backup);
        self.backup = Some((backup, truth.clone()));
        self.workers.push(Worker::open(dir, truth));
    }

    /// An old folder comes back, and other events with the same ids follow.
    fn restore(&mut self) {
        let Some((backup, truth)) = self.backup.clone() else { return };
        self.workers.remove(0).close();
        let dir = self.new_folder();
        copy(&backup, &dir);
        self.variant += 1;
        self.workers.push(Worker::open(dir, truth));
    }

    /// A copy of the folder is used by another worker of the same id.
    fn twin(&mut self) {
        let (dir, truth) = self.workers.remove(0).close();
        let other = self.new_folder();
        copy(&dir, &other);
        self.workers.push(Worker::open(dir, truth.clone()));
        self.workers.push(Worker::open(other, truth));
        self.twin_until = Some(self.now + Duration::from_secs(12));
        self.variant += 1;
    }

    fn step(&mut self, step: u64) {
        self.now += STEP;
        for at in 0..self.workers.len() {
            if self.lossy && self.once_in(3) {
                let count = self.random.below(40);
                let variant = self.variant + at as u64 * 1_000;
                self.workers[at].append(count, variant);
            }
            let beats = step.is_multiple_of(10);
            // Some pages are of what a replay already gave.
            let is_slow = self.lossy && self.once_in(2);
            let worker = &mut self.workers[at];
            if (beats || !is_slow && worker.journal.head(RANK) > worker.published)
                && let Some(page) = worker.page(beats)
            {
                self.send(&Message::Live(page.encode().unwrap().to_vec()));
            }
        }
        if self.lossy {
            self.befall();
            if self.once_in(300) {
                let follower = self.random.below(2) as usize;
                self.followers[follower] = Follower::new(self.sent);
            }
        }
        while let Some(next) = self.network.first_entry().filter(|next| next.key().0 <= self.now) {
            let message = next.remove();
            self.deliver(message);
        }
        for follower in 0..self.followers.len() {
            let chance = self.random.below(u64::MAX);
            let actions = self.followers[follower].session.tick(self.now, chance);
            self.act(follower, actions);
        }
    }

    fn deliver(&mut self, message: Message) {
        let chance = self.random.below(u64::MAX);
        match message {
            Message::Live(bytes) => {
                for follower in 0..self.followers.len() {
                    // Each may miss what another one gets.
                    if self.lossy && self.once_in(20) {
                        continue;
                    }
                    let page = Page::parse(bytes.clone().into()).unwrap();
                    let actions = self.followers[follower].session.live(self.now, page);
                    self.act(follower, actions);
                }
            }
            Message::Ask { to, request } => {
                if self.workers.is_empty() {
                    return;
                }
                let worker = self.random.below(self.workers.len() as u64) as usize;
                let replayer = Replayer::new(Arc::clone(&self.workers[worker].journal), None, PAGE_BYTES_MAX);
                let request = ReplayRequest::parse(&request).unwrap();
                let busy = Refusal::Busy { retry_after_ms: 200 };
                let answer = match self.lossy && self.once_in(15) {
                    true => Err(busy),
                    false => replayer.page(RANK, &request).map(|page| page.encode().unwrap().to_vec()),
                };
                self.send(&Message::Answer { to, answer });
            }
            Message::Answer { to: Inbox { follower, life, number }, answer } => {
                if self.followers[follower].life != life {
                    return;
                }
                let number = number + u64::from(self.mutant == Mutant::MixesAnswers);
                let answer = answer.map(|bytes| Page::parse(bytes.into()).unwrap());
                let session = &mut self.followers[follower].session;
                let actions = session.answered(self.now, chance, number, Some(answer));
                self.act(follower, actions);
            }
        }
    }

    fn act(&mut self, at: usize, actions: Vec<Action>) {
        let mutant = self.mutant;
        for action in actions {
            let follower = &mut self.followers[at];
            match action {
                Action::Clear => {
                    if mutant != Mutant::KeepsAtReset {
                        follower.index.clear(stream());
                    }
                    follower.last = 0;
                }
                Action::Apply(page, after) => {
                    let after = if mutant == Mutant::AppliesTwice { 0 } else { after };
                    let frames = page.frames.len()
                        - usize::from(mutant == Mutant::DropsLastFrame && page.frames.len() > 1);
                    for event in
                        page.frames[..frames].iter().flat_map(|frame| frame.events().map(Result::unwrap))
                    {
                        if event.id <= after {
                            continue;
                        }
                        if event.id <= follower.last {
                            self.faults.push(format!("event {} after {}", event.id, follower.last));
                        }
                        follower.last = event.id;
                        follower.index.apply(stream(), &event.data);
                    }
                }
                Action::Ask(mut request, number) => {
                    request.max_bytes = Some(PAGE_BYTES_MIN);
                    let request = serde_json::to_vec(&request).unwrap();
                    let to = Inbox { follower: at, life: follower.life, number };
                    self.send(&Message::Ask { to, request });
                }
                Action::Compare(id, digest) => {
                    let found = follower.index.digest(stream()).0;
                    if found != digest {
                        self.faults.push(format!("at event {id} the digest is {found:x}, not {digest:x}"));
                        let actions = follower.session.mismatch(self.now);
                        self.act(at, actions);
                    }
                }
                Action::Tell(notice) => {
                    follower.seen.insert(notice);
                    if notice == Notice::Misfit {
                        self.faults.push("an answer that does not fit".into());
                    }
                }
            }
        }
    }

    fn run(mut self) -> Result<BTreeSet<Notice>, String> {
        for step in 0..CHAOS_STEPS {
            self.step(step);
        }
        self.lossy = false;
        self.network.clear();
        if let Some((dir, truth, _)) = self.down.take() {
            self.workers.push(Worker::open(dir, truth));
        }
        while self.workers.len() > 1 {
            self.workers.remove(0).close();
        }
        if self.workers[0].truth.is_empty() {
            self.workers[0].append(1, self.variant);
        }
        for step in 0..QUIET_STEPS {
            self.step(step);
        }
        if let Some(fault) = self.faults.first() {
            return Err(format!("{fault}, and {} more", self.faults.len() - 1));
        }
        let worker = &self.workers[0];
        let mut seen = BTreeSet::new();
        for follower in &self.followers {
            let place = follower.session.place().map(|place| (place.id, place.rebuilding));
            let (found, digest) = (follower.index.digest(stream()).0, worker.digest());
            if place != Some((worker.truth.len() as u64, None))
                || found != digest
                || follower.session.freshness() != Freshness::Exact
            {
                return Err(format!(
                    "a follower is at {place:?} with {found:x}, {:?}; the journal at {} with {digest:x}",
                    follower.session.freshness(),
                    worker.truth.len()
                ));
            }
            seen.extend(&follower.seen);
        }
        Ok(seen)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let one = seed_or(u64::MAX);
    match one {
        u64::MAX if std::env::var_os("KVJ_LONG").is_some() => 0..20 * usual,
        u64::MAX => 0..usual,
        one => one..one + 1,
    }
}

#[test]
fn followers_hold_what_the_journal_holds_once_it_is_quiet() {
    let mut seen = BTreeSet::new();
    let seeds = seeds(12);
    let is_one = seeds.end - seeds.start == 1;
    for seed in seeds {
        match World::new(seed, Mutant::None).run() {
            Ok(notices) => seen.extend(notices),
            Err(fault) => panic!("KVJ_SEED={seed}: {fault}"),
        }
    }
    println!("seen: {seen:?}");
    let all = [
        Notice::Up,
        Notice::Stale,
        Notice::Gone,
        Notice::Reset,
        Notice::CaughtUp,
        Notice::Gap,
        Notice::Conflict,
    ];
    assert!(is_one || all.iter().all(|notice| seen.contains(notice)), "only {seen:?}");
}

#[test]
fn faults_on_purpose_are_found() {
    for mutant in [Mutant::KeepsAtReset, Mutant::AppliesTwice, Mutant::DropsLastFrame, Mutant::MixesAnswers] {
        let found = (0..50).find_map(|seed| World::new(seed, mutant).run().err().map(|fault| (seed, fault)));
        let (seed, fault) = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
        println!("{mutant:?} by seed {seed}: {fault}");
    }
}
