//! The syncer: a thread that makes durable what the writer flushed, while the writer writes on.
//!
//! Writing a group takes about as long as syncing it, so one thread for both would leave the disk idle half the time.
//! One sync runs at a time. What is written meanwhile is acknowledged by the next one, whether or not this one happens
//! to cover it. Flushing stays with the writer: sled frees the memory of what a thread flushed only after dozens more
//! flushes by that thread (measured: a gigabyte was held after eight million events).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::event::EventId;
use crate::store::Store;

use super::phase::{Phase, enter};
use super::queue::Queue;
use super::rank::Rank;

/// What is durable once a sync is done: the end of each rank's newest frame.
pub(crate) type SyncPoint = Vec<(Arc<Rank>, EventId)>;

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Syncer {
    /// Taken to end the thread.
    points: Option<SyncSender<SyncPoint>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<Error>>>,
    queue: Arc<Queue>,
}

/// The thread's end.
struct Loop {
    store: Arc<dyn Store>,
    queue: Arc<Queue>,
    failure: Arc<Mutex<Option<Error>>>,
    syncs: Arc<AtomicU64>,
}

impl Syncer {
    /// Starts the thread. `syncs` counts what it does.
    pub(crate) fn start(store: Arc<dyn Store>, queue: Arc<Queue>, syncs: Arc<AtomicU64>) -> Result<Self> {
        let failure = Arc::default();
        let (sender, points) = sync_channel(1);
        let work = Loop { store, queue: Arc::clone(&queue), failure: Arc::clone(&failure), syncs };
        let thread = std::thread::Builder::new()
            .name("kvjournal-syncer".into())
            .spawn(move || work.run(&points))
            .map_err(Error::io("start the syncer"))?;
        Ok(Self { points: Some(sender), thread: Some(thread), failure, queue })
    }

    /// Begins a sync of all that was flushed so far. Only one may run: see [`Queue::is_syncing`].
    pub(crate) fn begin(&self, point: SyncPoint) -> Result<()> {
        self.queue.set_syncing(true);
        let sent = self.points.as_ref().map(|points| points.send(point));
        if !matches!(sent, Some(Ok(()))) {
            self.queue.set_syncing(false);
            return Err(Error::Internal("the syncer ended".into()));
        }
        Ok(())
    }

    /// Waits for the sync that runs, if one does.
    pub(crate) fn finish(&self) -> Result<()> {
        self.queue.wait_synced();
        self.take_failure()
    }

    /// The failure of a sync, told once.
    pub(crate) fn take_failure(&self) -> Result<()> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        // The thread holds the store, and with it the folder: nobody else may have it before the thread is gone.
        drop(self.points.take());
        let _its_panics_are_caught = self.thread.take().map(JoinHandle::join);
    }
}

impl Loop {
    fn run(&self, points: &Receiver<SyncPoint>) {
        for point in points {
            // A panic must not leave the writer waiting.
            let synced = catch_unwind(AssertUnwindSafe(|| self.sync()))
                .unwrap_or_else(|_| Err(Error::Internal("the syncer panicked".into())));
            match synced {
                Ok(()) => point.iter().for_each(|(rank, id)| rank.durable.raise(*id)),
                Err(error) => {
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
            self.queue.set_syncing(false);
        }
    }

    fn sync(&self) -> Result<()> {
        let _phase = enter(Phase::Sync);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(self.store.sync_flushed()?)
    }
}
