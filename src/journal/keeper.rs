//! The thread that keeps a journal within its retention.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::codec::Stamp;
use crate::error::{Error, Result};
use crate::event::DpRank;
use crate::store::Store;

use super::compaction::{CompactOptions, Compactor, Job};
use super::measure::{measure, older_than};
use super::queue::Queue;
use super::rank::Rank;
use super::retention::Retention;

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
                let measured = measure(&self.store, &rank, rank.found_head(), &self.compactor.stop);
                match measured {
                    Ok(marks) => rank.marks().prepend(marks),
                    Err(error) => {
                        tracing::warn!(%error, dp_rank = rank.id().0, "log not measured");
                    }
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

    fn is_tight(&self) -> bool {
        self.retention
            .tight_at()
            .is_some_and(|limit| self.store.disk_bytes().is_ok_and(|bytes| bytes >= limit))
    }

    fn keep(&self, rank: &Arc<Rank>, ranks: usize, is_tight: bool) -> Result<()> {
        let (base, head) = (rank.view().base, rank.durable.get());
        let planned = self.retention.plan(base, head, &rank.marks(), ranks);
        let by_age = self.retention.keep_age.map(|age| older_than(&*self.store, rank, age, age / 4));
        let by_age = by_age.transpose()?.flatten();
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
}
