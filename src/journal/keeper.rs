//! The thread that keeps a journal within its retention.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::codec::Stamp;
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId};
use crate::store::{LOG, Store, Tree};

use super::clock::now_us;
use super::compaction::{CompactOptions, Compactor, Job};
use super::queue::Queue;
use super::rank::Rank;
use super::reader::Reader;
use super::recover::parse_frame;
use super::retention::{Marks, Retention};
use super::rows::frame_key;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long it leaves a rank alone whose compaction failed.
const RETRY_EVERY: u32 = 60;

/// What it needs of the journal.
pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) ranks: Arc<RwLock<BTreeMap<DpRank, Arc<Rank>>>>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) retention: Retention,
    /// Of this opening, without a rank.
    pub(crate) stamp: Stamp,
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct KeeperThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeeperThread {
    pub(crate) fn start(keeper: Keeper) -> Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("kvjournal-keeper".into());
        let thread = thread.spawn(move || keeper.run(&stopped)).map_err(Error::io("start the keeper"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the keeper panicked");
        }
    }
}

impl Keeper {
    fn run(&self, stopped: &Receiver<()>) {
        if self.retention.keep_bytes_of(1).is_some() {
            for rank in self.ranks() {
                if let Err(error) = self.mark(&rank) {
                    tracing::warn!(%error, dp_rank = rank.id().0, "log not measured");
                }
            }
        }
        let mut resting = BTreeMap::new();
        while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            let is_tight = self.is_tight();
            let ranks = self.ranks();
            for rank in &ranks {
                let rest: &mut u32 = resting.entry(rank.id()).or_default();
                *rest = rest.saturating_sub(1);
                if *rest == 0
                    && let Err(error) = self.keep(rank, ranks.len(), is_tight)
                {
                    if matches!(error, Error::Closed | Error::Poisoned { .. }) {
                        return;
                    }
                    *rest = RETRY_EVERY;
                    tracing::warn!(%error, dp_rank = rank.id().0, "history not compacted, will be tried again");
                }
            }
        }
    }

    fn ranks(&self) -> Vec<Arc<Rank>> {
        self.ranks.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Measures what an opening found of a rank's log; what was appended since is measured as it is written.
    fn mark(&self, rank: &Arc<Rank>) -> Result<()> {
        let mut marks = Marks::default();
        let base = rank.view().base;
        let mut reader = Reader::new(Arc::clone(&self.store), Arc::clone(rank), base + 1, true);
        while reader.position() <= rank.found_head()
            && let Some(frame) = reader.next_frame()?
        {
            if self.compactor.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let header = frame.frame().header();
            marks.push(header.last, frame.frame().as_bytes().len() as u64 + u64::from(header.payload_len));
        }
        rank.marks().prepend(marks);
        Ok(())
    }

    fn is_tight(&self) -> bool {
        self.retention
            .tight_at()
            .is_some_and(|limit| self.store.disk_bytes().is_ok_and(|bytes| bytes >= limit))
    }

    fn keep(&self, rank: &Arc<Rank>, ranks: usize, is_tight: bool) -> Result<()> {
        let (base, head) = (rank.view().base, rank.durable.get());
        let planned = self.retention.plan(base, head, &rank.marks(), ranks);
        let by_age = self.retention.keep_age.map(|age| self.older_than(rank, age)).transpose()?.flatten();
        // A store that is full of room keeps its size: what little came since is not worth another compaction.
        let share = self.retention.keep_bytes_of(ranks).unwrap_or(0);
        let hard = is_tight && rank.marks().bytes() > share / 4;
        let (to, options) = match planned.max(by_age) {
            _ if hard => {
                tracing::warn!(dp_rank = rank.id().0, "disk limit is near, all history is compacted");
                let options =
                    CompactOptions { grace: Duration::ZERO, pace_bytes: None, ..self.retention.options };
                (head, options)
            }
            Some(to) if to > base => (to, self.retention.options),
            _ => return Ok(()),
        };
        let epoch_first = rank.view().epochs.last().map_or(0, |epoch| epoch.first);
        let stamp = Stamp { rank: rank.id(), epoch_first, ..self.stamp };
        let job = Job { store: &self.store, queue: &self.queue, rank, stamp, generations: &rank.generations };
        self.compactor.compact(&job, to, options, &|_, _| {}).map(drop)
    }

    /// The last id of the newest frame that was appended longer ago than `age`, if a quarter more than that has passed
    /// since the oldest one that is kept.
    fn older_than(&self, rank: &Arc<Rank>, age: Duration) -> Result<Option<EventId>> {
        let tree = Tree::Events { rank: rank.id().0, generation: LOG };
        let age_us = age.as_micros() as u64;
        let limit = now_us().saturating_sub(age_us);
        let at = |id: EventId| -> Result<Option<(EventId, EventId, u64)>> {
            let Some((_, row)) = self.store.at_or_below(tree, &frame_key(id))? else { return Ok(None) };
            let frame = parse_frame(rank.id(), row)?;
            Ok(Some((frame.header().previous, frame.header().last, frame.header().appended_us)))
        };
        let (base, head) = (rank.view().base, rank.durable.get());
        let Some(oldest) = self.store.scan(tree, &frame_key(base + 1)).next().transpose()? else {
            return Ok(None);
        };
        let oldest = parse_frame(rank.id(), oldest.1)?;
        if oldest.header().appended_us > limit.saturating_sub(age_us / 4) {
            return Ok(None);
        }
        // Frames are in the order of their time, as far as clocks are.
        let (mut old, mut new) = (oldest.header().last, head + 1);
        while new - old > 1 {
            let middle = old + (new - old) / 2;
            match at(middle)? {
                Some((_, last, appended)) if appended <= limit => old = last.max(middle).min(new - 1),
                Some((previous, ..)) => new = (previous + 1).clamp(old + 1, middle),
                None => new = middle,
            }
        }
        Ok(Some(old))
    }
}
