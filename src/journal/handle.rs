//! The journal as its users hold it: append, wait, read, trim, close.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::codec::{EncodedRecords, SourceCursor, Stamp};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId, WorkerId};
use crate::store::{LOG, RANKS_MAX, Store};

use super::compaction::{CompactOptions, Compacted, Compactor, Job, ask};
use super::config::Config;
use super::doomed::DoomedRows;
use super::epochs::{Cursor, Epoch, Verdict, judge};
use super::input::{NewEvent, Source};
use super::keeper::{Keeper, KeeperThread};
use super::measure::horizon_for;
use super::open::{Begun, Held, begin, hold};
use super::queue::{Batch, Queue, Request};
use super::rank::{Rank, RankWriter, Revisions};
use super::reader::Reader;
use super::retention::Retention;
use super::stats::Stats;
use super::syncer::Syncer;
use super::watermark::Reached;
use super::writer::{Counters, Writer};

/// An open journal. Appending and reading are cheap and may be done from any thread; one thread behind it writes.
///
/// Dropping it closes it, but cannot tell of errors; call [`Journal::close`].
#[derive(Debug)]
pub struct Journal {
    config: Config,
    journal: [u8; 16],
    worker: WorkerId,
    epoch: Epoch,
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    ranks: Arc<RwLock<BTreeMap<DpRank, Arc<Rank>>>>,
    compactor: Arc<Compactor>,
    keeper: Mutex<Option<KeeperThread>>,
    writer: Mutex<Option<JoinHandle<Result<()>>>>,
    /// It holds the folder too.
    store: StoreHandle,
}

struct StoreHandle(Arc<dyn Store>);

impl std::fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Journal {
    /// Opens the journal of `config.dir`, or makes it.
    ///
    /// # Errors
    /// `InUse`, `OtherWorker`, `NewerFormat`, `Damaged` (nothing is changed then), or what the file system says.
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        Self::start(hold(&config)?, config)
    }

    pub(crate) fn start(mut held: Held, config: Config) -> Result<Self> {
        let begun = begin(&mut held, &config)?;
        let queue = Arc::new(Queue::new(config.queue_bytes_max, config.group, config.keep_payloads));
        let counters = Arc::new(Counters::default());
        let Begun { identity, epoch, ranks } = begun;
        let mut shared = BTreeMap::new();
        let mut written = BTreeMap::new();
        for found in ranks {
            let rank = Arc::new(Rank::new(&found.row, found.head, config.durability, config.tail_bytes_max));
            queue.add_rank(&rank, found.head + 1, found.cursor.clone());
            let doomed = DoomedRows::found(found.row.trimmed, &found.doomed, Instant::now());
            let next = found.row.generation.max(found.doomed.iter().copied().max().unwrap_or(0)) + 1;
            rank.generations.store(next, Ordering::Relaxed);
            let writer = RankWriter {
                previous: found.previous,
                cursor: found.cursor,
                revisions: Revisions::durable(found.row.revision),
                row: found.row,
                witnessed: found.head,
                doomed,
                unsaved: false,
            };
            shared.insert(rank.id(), Arc::clone(&rank));
            written.insert(rank.id(), (rank, writer));
        }
        let syncs = Arc::clone(&counters.syncs);
        let syncer = Syncer::start(Arc::clone(&held.store), Arc::clone(&queue), syncs)?;
        let writer = Writer {
            store: Arc::clone(&held.store),
            witness: held.witness,
            queue: Arc::clone(&queue),
            counters: Arc::clone(&counters),
            durability: config.durability,
            journal: identity.journal,
            worker: identity.worker,
            epoch: epoch.number,
            ranks: written,
            new_epoch: epoch,
            last_sync: Instant::now(),
            last_witness: Instant::now(),
            dirty: false,
            syncer,
            disk_max: config.retention.disk_max,
            room: 0,
        };
        let thread = std::thread::Builder::new().name("kvjournal-writer".into()).spawn(move || writer.run());
        let thread = thread.map_err(Error::io("start the writer"))?;
        let ranks = Arc::new(RwLock::new(shared));
        let compactor = Arc::new(Compactor::default());
        let stamp = Stamp {
            journal: identity.journal,
            worker: identity.worker,
            rank: DpRank(0),
            generation: LOG,
            epoch: epoch.number,
            epoch_first: 0,
        };
        let keeper = Keeper {
            store: Arc::clone(&held.store),
            queue: Arc::clone(&queue),
            ranks: Arc::clone(&ranks),
            compactor: Arc::clone(&compactor),
            retention: config.retention,
            stamp,
        };
        let keeper = config.retention.is_any().then(|| KeeperThread::start(keeper)).transpose()?;
        Ok(Self {
            journal: identity.journal,
            worker: identity.worker,
            epoch,
            queue,
            counters,
            ranks,
            compactor,
            keeper: Mutex::new(keeper),
            writer: Mutex::new(Some(thread)),
            store: StoreHandle(held.store),
            config,
        })
    }

    /// Appends events and gives them ids at once; they are durable once [`Journal::durable_head`] says so.
    ///
    /// An event that is too long for a frame becomes several with the same fold, so that there may be more ids than
    /// events. Nothing is appended if any event is refused. An empty slice appends nothing and gives `None`.
    ///
    /// # Errors
    /// `Invalid` if an event cannot be kept, `Busy` if the queue stays full, `Poisoned` or `Closed`.
    pub fn append(&self, rank: DpRank, events: &[NewEvent]) -> Result<Option<RangeInclusive<EventId>>> {
        self.append_from(rank, events, None, self.config.queue_wait_max)
    }

    /// Appends without waiting for room.
    ///
    /// # Errors
    /// As [`Journal::append`], and `Busy` at once if the queue is full.
    pub fn try_append(&self, rank: DpRank, events: &[NewEvent]) -> Result<Option<RangeInclusive<EventId>>> {
        self.append_from(rank, events, None, Duration::ZERO)
    }

    /// Appends the events of a batch of an engine, exactly once: if a crash took a part of the batch, only that part
    /// is appended, so the batch has to be decoded to the same events as before. A batch without events moves the
    /// source cursor all the same.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_batch(
        &self,
        rank: DpRank,
        source: &Source,
        events: &[NewEvent],
    ) -> Result<Option<RangeInclusive<EventId>>> {
        if source.endpoint.len() > SourceCursor::ENDPOINT_BYTES_MAX {
            return Err(Error::Invalid(format!("an endpoint of {} bytes", source.endpoint.len())));
        }
        let Source { endpoint, sequence, hash } = source.clone();
        let cursor = SourceCursor { endpoint, sequence, hash, done: 0, total: 0 };
        self.append_from(rank, events, Some(cursor), self.config.queue_wait_max)
    }

    fn append_from(
        &self,
        rank: DpRank,
        events: &[NewEvent],
        source: Option<SourceCursor>,
        wait_max: Duration,
    ) -> Result<Option<RangeInclusive<EventId>>> {
        let mut records = EncodedRecords::default();
        for event in events {
            let payload = event.payload.clone().filter(|_| self.config.keep_payloads);
            records.push(&event.data, event.engine_time, payload)?;
        }
        self.ensure_rank(rank)?;
        self.queue.append(rank, Batch { records: &records, source }, wait_max)
    }

    /// Readies a rank that has no events yet.
    fn ensure_rank(&self, id: DpRank) -> Result<()> {
        if self.rank(id).is_some() {
            return Ok(());
        }
        let mut ranks = self.ranks.write().unwrap_or_else(PoisonError::into_inner);
        if ranks.len() >= RANKS_MAX {
            return Err(Error::Invalid(format!("rank {id}: a journal holds at most {RANKS_MAX} ranks")));
        }
        let rank = ranks.entry(id).or_insert_with(|| {
            let row = super::rows::RankRow { rank: id.0, ..Default::default() };
            let head = self.config.first_id - 1;
            Arc::new(Rank::new(&row, head, self.config.durability, self.config.tail_bytes_max))
        });
        self.queue.add_rank(rank, self.config.first_id, None);
        Ok(())
    }

    fn rank(&self, rank: DpRank) -> Option<Arc<Rank>> {
        self.ranks.read().unwrap_or_else(PoisonError::into_inner).get(&rank).cloned()
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store.0
    }

    pub(super) fn known_rank(&self, rank: DpRank) -> Result<Arc<Rank>> {
        self.rank(rank).ok_or_else(|| Error::Invalid(format!("the journal has no rank {rank}")))
    }

    /// The ranks that have a stream, in order.
    pub fn ranks(&self) -> Vec<DpRank> {
        self.ranks.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// The worker.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Identity of the journal, drawn at random when it was made.
    pub fn id(&self) -> [u8; 16] {
        self.journal
    }

    /// Number and nonce of this opening.
    pub fn epoch(&self) -> (u64, u64) {
        (self.epoch.number, self.epoch.nonce)
    }

    /// The epochs of a rank that are remembered, oldest first. Empty until its first event is written.
    pub fn epochs(&self, rank: DpRank) -> Vec<Epoch> {
        self.rank(rank).map_or_else(Vec::new, |rank| rank.view().epochs.clone())
    }

    /// Newest id that was given, 0 if there is none.
    pub fn head(&self, rank: DpRank) -> EventId {
        self.rank(rank).map_or(0, |rank| rank.head())
    }

    /// Newest id known to be on stable storage, 0 if there is none.
    pub fn durable_head(&self, rank: DpRank) -> EventId {
        self.rank(rank).map_or(0, |rank| rank.durable.get())
    }

    /// Newest id that readers see: the durable head in `Sync`, more otherwise.
    pub fn visible_head(&self, rank: DpRank) -> EventId {
        self.rank(rank).map_or(0, |rank| rank.visible().get())
    }

    /// Ids at or below it are no longer kept one by one.
    pub fn horizon(&self, rank: DpRank) -> EventId {
        self.rank(rank).map_or(0, |rank| rank.view().horizon)
    }

    /// How far the batches of the engine were taken in.
    pub fn source_cursor(&self, rank: DpRank) -> Option<SourceCursor> {
        self.queue.cursor(rank)
    }

    /// Blocks until an event is on stable storage.
    ///
    /// # Errors
    /// `Timeout`, or `Poisoned` or `Closed` if that will not happen any more.
    pub fn wait_durable(&self, rank: DpRank, id: EventId, timeout: Duration) -> Result<()> {
        match self.known_rank(rank)?.durable.wait(id, timeout) {
            Reached::Yes => Ok(()),
            Reached::TimedOut => Err(Error::Timeout(format!("event {id} of rank {rank} to be durable"))),
            Reached::Stopped => Err(self.why_stopped()),
        }
    }

    /// Waits until an event is on stable storage. It waits as long as the disk takes: put a limit around it.
    ///
    /// # Errors
    /// `Poisoned` or `Closed` if that will not happen any more.
    pub async fn durable(&self, rank: DpRank, id: EventId) -> Result<()> {
        match self.known_rank(rank)?.durable.reached(id).await {
            Reached::Yes => Ok(()),
            Reached::Stopped | Reached::TimedOut => Err(self.why_stopped()),
        }
    }

    /// Syncs all that was appended before, whatever the durability.
    ///
    /// # Errors
    /// `Timeout`, `Poisoned` or `Closed`.
    pub fn sync(&self) -> Result<()> {
        ask(&self.queue, Request::Sync)
    }

    /// Compacts the events of a rank at or below `to`, as far as whole durable frames go and never the newest frame:
    /// they are replaced by the least of them that leaves the same state, and the horizon moves there. Appends and
    /// reads go on meanwhile. It takes memory of the order of the live state. One compaction runs at a time; another
    /// waits for it.
    ///
    /// # Errors
    /// `Invalid` for an unknown rank, `Damaged` if what is compacted cannot be read, `Timeout`, `Poisoned` or `Closed`.
    /// Nothing is changed then.
    pub fn compact(&self, rank: DpRank, to: EventId, options: CompactOptions) -> Result<Compacted> {
        self.compact_with(rank, to, options, &|_, _| {})
    }

    /// Compacts, telling `progress` the ids read and those there are; it starts anew with each pass.
    ///
    /// # Errors
    /// As [`Journal::compact`].
    pub fn compact_with(
        &self,
        rank: DpRank,
        to: EventId,
        options: CompactOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Compacted> {
        let rank = self.known_rank(rank)?;
        self.compactor.compact(&self.job(&rank), to, options, progress)
    }

    /// The id up to which [to compact](Journal::compact) a rank so that no more than `keep_events`, `keep_bytes` and
    /// `keep_age` allow is kept one by one; 0 if all may stay. Other than in the background, to the point: there is no
    /// quarter that must be exceeded first, and `keep_events` may be 0. `keep_bytes` costs reading the log.
    ///
    /// # Errors
    /// `Invalid` for an unknown rank, `Damaged`.
    pub fn horizon_for(&self, rank: DpRank, keep: &Retention) -> Result<EventId> {
        horizon_for(&self.store.0, &self.known_rank(rank)?, keep)
    }

    /// Gives up the events of a rank at or below `to`, as far as whole durable frames go and never the newest frame,
    /// and says where the horizon is then. Their space is freed bit by bit. The state they carried is given up with
    /// them: a reader that is reset gets the events after the horizon only. [`Journal::compact`] keeps it.
    ///
    /// # Errors
    /// `Invalid` for an unknown rank, `Timeout`, `Poisoned` or `Closed`.
    pub fn trim(&self, rank: DpRank, to: EventId) -> Result<EventId> {
        let rank = self.known_rank(rank)?;
        self.compactor.trim(&self.job(&rank), to)
    }

    fn job<'a>(&'a self, rank: &'a Arc<Rank>) -> Job<'a> {
        let stamp = Stamp {
            journal: self.journal,
            worker: self.worker,
            rank: rank.id(),
            generation: LOG,
            epoch: self.epoch.number,
            epoch_first: rank.view().epochs.last().map_or(0, |epoch| epoch.first),
        };
        Job { store: &self.store.0, queue: &self.queue, rank, stamp, generations: &rank.generations }
    }

    /// Reads a rank from an id on. At or below the horizon it starts with a reset.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn read(&self, rank: DpRank, from: EventId) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(&self.store.0), self.known_rank(rank)?, from, false))
    }

    /// Reads all frames that are there, those before a loss included, which are no part of a history.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn read_salvaged(&self, rank: DpRank, from: EventId) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(&self.store.0), self.known_rank(rank)?, from, true))
    }

    /// Decides how a reader with a cursor goes on.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn judge(&self, rank: DpRank, cursor: Cursor) -> Result<Verdict> {
        let rank = self.known_rank(rank)?;
        let (epochs, horizon) = {
            let view = rank.view();
            (view.epochs.clone(), view.horizon)
        };
        Ok(judge(&epochs, horizon, rank.visible().get(), cursor))
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        let depth = self.queue.depth();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        Stats {
            events: count(&self.counters.events),
            frames: count(&self.counters.frames),
            frame_bytes: count(&self.counters.bytes),
            syncs: count(&self.counters.syncs),
            trimmed_rows: count(&self.counters.trimmed_rows),
            queued_events: depth.events,
            queued_bytes: depth.bytes,
            queue_waits: depth.waits,
            tail_bytes: ranks.values().map(|rank| rank.tail.size().0).sum(),
        }
    }

    /// Bytes on disk.
    ///
    /// # Errors
    /// What the file system says.
    pub fn disk_bytes(&self) -> Result<u64> {
        Ok(self.store.0.disk_bytes()?)
    }

    /// The failure that stopped the journal, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.queue.failure()
    }

    fn why_stopped(&self) -> Error {
        self.failure().unwrap_or(Error::Closed)
    }

    /// Writes and syncs all that was appended, then closes.
    ///
    /// # Errors
    /// The failure that stopped the journal, now or before: what was not acknowledged may be lost then.
    pub fn close(self) -> Result<()> {
        self.shut()
    }

    fn shut(&self) -> Result<()> {
        self.compactor.stop.store(true, Ordering::Relaxed);
        drop(self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match writer.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(Error::Internal("the writer panicked".into())),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.shut() {
            tracing::error!(%error, "journal not closed in order");
        }
    }
}
