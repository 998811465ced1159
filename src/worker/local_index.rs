//! The worker's own index, fed from its journal: each event once, in the order of ids, behind the appends.
//!
//! Each rank has a thread that reads the journal as any reader does: the tail in memory while it keeps up, the disk
//! when it lags, the compacted history when it starts or was overtaken by a compaction. Nothing in it is waited for by
//! an append. Whatever goes wrong in it, a panic included, costs a rebuild of that rank from the journal and no more.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::event::{DpRank, EventData, EventId};
use crate::index::{Digest, Index, StreamId};
use crate::journal::Journal;

/// How often it looks for new ranks, and whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pause before a rebuild after a failure; doubled with each failure in a row, up to the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// An index that follows a journal that is open in this process.
///
/// It ends when it is dropped. Drop it before the journal is closed; what the journal still writes then is not folded.
pub struct LocalIndex {
    shared: Arc<Shared<Index>>,
    supervisor: Option<JoinHandle<()>>,
}

/// How far the index is with one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexProgress {
    /// The state is that after this event; 0 while the compacted history is being read, and before the first event.
    pub applied: EventId,
    /// Of what is held after that event.
    pub digest: Digest,
    /// How often the rank was rebuilt from the journal since the index began, for whatever reason.
    pub rebuilds: u64,
    /// What went wrong last, if anything did.
    pub last_error: Option<String>,
}

impl std::fmt::Debug for LocalIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalIndex").field("progress", &*self.shared.progress()).finish_non_exhaustive()
    }
}

impl LocalIndex {
    /// Begins to follow all ranks of a journal, also those that are still to come (seen within 100 ms).
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn follow(journal: Arc<Journal>) -> Result<Self> {
        let shared = Arc::new(Shared::new(Index::new()));
        let supervisor = Shared::start(&shared, journal)?;
        Ok(Self { shared, supervisor: Some(supervisor) })
    }

    /// The index, to be asked. A rank that is being rebuilt holds only what was read again so far.
    pub fn index(&self) -> &Index {
        &self.shared.fold
    }

    /// How far it is with a rank; that of nothing for an unknown one.
    pub fn progress(&self, rank: DpRank) -> IndexProgress {
        self.shared.progress().get(&rank).cloned().unwrap_or_default()
    }

    /// Waits until an event of a rank is applied.
    ///
    /// # Errors
    /// `Timeout`.
    pub fn wait_applied(&self, rank: DpRank, id: EventId, timeout: Duration) -> Result<()> {
        self.shared.wait_applied(rank, id, timeout)
    }
}

impl Drop for LocalIndex {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(supervisor) = self.supervisor.take()
            && supervisor.join().is_err()
        {
            tracing::error!("the index's supervisor panicked");
        }
    }
}

/// What is fed.
trait Fold: Send + Sync + 'static {
    fn apply(&self, stream: StreamId, events: &[EventData]);
    fn clear(&self, stream: StreamId);
    fn blocks(&self, stream: StreamId) -> usize;
    fn digest(&self, stream: StreamId) -> Digest;
}

impl Fold for Index {
    fn apply(&self, stream: StreamId, events: &[EventData]) {
        self.apply_batch(stream, events);
    }

    fn clear(&self, stream: StreamId) {
        Self::clear(self, stream);
    }

    fn blocks(&self, stream: StreamId) -> usize {
        Self::blocks(self, stream)
    }

    fn digest(&self, stream: StreamId) -> Digest {
        Self::digest(self, stream)
    }
}

/// What the threads share.
struct Shared<F> {
    fold: F,
    progress: Mutex<BTreeMap<DpRank, IndexProgress>>,
    moved: Condvar,
    stop: AtomicBool,
}

impl<F: Fold> Shared<F> {
    fn new(fold: F) -> Self {
        Self { fold, progress: Mutex::default(), moved: Condvar::new(), stop: AtomicBool::new(false) }
    }

    /// Starts the thread that starts, and at last ends, one for each rank.
    fn start(shared: &Arc<Self>, journal: Arc<Journal>) -> Result<JoinHandle<()>> {
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("kvjournal-index".into());
        let supervise = move || {
            let shared = &*shared;
            std::thread::scope(|scope| {
                let mut followed = BTreeMap::new();
                while !shared.is_stopped() {
                    for rank in journal.ranks() {
                        let journal = &*journal;
                        followed
                            .entry(rank)
                            .or_insert_with(|| scope.spawn(move || shared.follow(journal, rank)));
                    }
                    shared.nap(LOOK_EVERY);
                }
            });
        };
        thread.spawn(supervise).map_err(Error::io("start the index"))
    }

    /// Keeps one rank right until it is to stop or the journal is closed.
    fn follow(&self, journal: &Journal, rank: DpRank) {
        let mut pause = PAUSE_MIN;
        while !self.is_stopped() {
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.fold_all(journal, rank)));
            let error = match outcome {
                Ok(Ok(())) | Ok(Err(Error::Closed | Error::Poisoned { .. })) => return,
                // A compaction was faster: its history is there at once.
                Ok(Err(error @ Error::Trimmed { .. })) => {
                    self.rebuild(rank, &error.to_string());
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the index panicked".into(),
            };
            tracing::error!(%error, dp_rank = rank.0, "index fell behind, it is rebuilt from the journal");
            self.rebuild(rank, &error);
            if began.elapsed() > PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            self.nap(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Reads the rank from its beginning, and onward as events come.
    fn fold_all(&self, journal: &Journal, rank: DpRank) -> Result<()> {
        let stream = StreamId::new(journal.worker(), rank);
        self.fold.clear(stream);
        let mut reader = journal.read(rank, 0)?;
        let (mut events, mut caught_up) = (Vec::new(), false);
        while !self.is_stopped() {
            while let Some(frame) = reader.next_frame()? {
                events.clear();
                for event in frame.events() {
                    events.push(event?.data);
                }
                self.fold.apply(stream, &events);
                if let Some(next) = reader.position_in_log() {
                    let digest = self.fold.digest(stream);
                    self.update(rank, |progress| (progress.applied, progress.digest) = (next - 1, digest));
                }
                if self.is_stopped() {
                    return Ok(());
                }
            }
            if !caught_up {
                let (applied, blocks) = (self.applied(rank), self.fold.blocks(stream));
                tracing::info!(dp_rank = rank.0, applied, blocks, "index holds all that was appended");
                caught_up = true;
            }
            match reader.wait(LOOK_EVERY) {
                Ok(()) | Err(Error::Timeout(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn applied(&self, rank: DpRank) -> EventId {
        self.progress().get(&rank).map_or(0, |progress| progress.applied)
    }

    fn rebuild(&self, rank: DpRank, error: &str) {
        self.update(rank, |progress| {
            *progress = IndexProgress {
                applied: 0,
                digest: Digest::default(),
                rebuilds: progress.rebuilds + 1,
                last_error: Some(error.to_owned()),
            };
        });
    }

    fn update(&self, rank: DpRank, change: impl FnOnce(&mut IndexProgress)) {
        change(self.progress().entry(rank).or_default());
        self.moved.notify_all();
    }

    fn wait_applied(&self, rank: DpRank, id: EventId, timeout: Duration) -> Result<()> {
        let lags = |ranks: &mut BTreeMap<DpRank, IndexProgress>| {
            ranks.get(&rank).map_or(0, |progress| progress.applied) < id
        };
        let waited = self.moved.wait_timeout_while(self.progress(), timeout, lags);
        match waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            true => Err(Error::Timeout(format!("event {id} of rank {rank} to be in the index"))),
            false => Ok(()),
        }
    }

    /// Sleeps, and wakes when it is to stop.
    fn nap(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.is_stopped()
            && let left = deadline.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn progress(&self) -> MutexGuard<'_, BTreeMap<DpRank, IndexProgress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BlockHash, Removed, Unknown, WorkerId};
    use crate::journal::Config;

    const WAIT: Duration = Duration::from_secs(30);
    const RANK: DpRank = DpRank(0);

    /// Notes what it is fed, and panics once at a removal of this block.
    #[derive(Default)]
    struct Faulty {
        seen: Mutex<Vec<EventData>>,
        panicked: AtomicBool,
    }

    const POISON: BlockHash = BlockHash(13);

    impl Fold for Faulty {
        fn apply(&self, _: StreamId, events: &[EventData]) {
            for event in events {
                let is_poison =
                    matches!(event, EventData::Removed(removed) if removed.block_hashes == [POISON]);
                assert!(!is_poison || self.panicked.swap(true, Ordering::Relaxed), "a fault on purpose");
                self.seen.lock().unwrap().push(event.clone());
            }
        }

        fn clear(&self, _: StreamId) {
            self.seen.lock().unwrap().clear();
        }

        fn blocks(&self, _: StreamId) -> usize {
            0
        }

        fn digest(&self, _: StreamId) -> Digest {
            Digest::default()
        }
    }

    #[test]
    fn a_panic_costs_a_rebuild_and_no_append() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Arc::new(Journal::open(Config::new(dir.path().join("j"), WorkerId(1))).unwrap());
        let shared = Arc::new(Shared::new(Faulty::default()));
        let thread = Shared::start(&shared, Arc::clone(&journal)).unwrap();
        let mut appended = Vec::new();
        for id in 1..=20 {
            let removed = Removed { block_hashes: vec![BlockHash(id)], ..Removed::default() };
            appended.push(EventData::Removed(removed));
            appended.push(EventData::Unknown(Unknown { tag: "other".into() }));
            let new: Vec<_> = appended[appended.len() - 2..].iter().cloned().map(Into::into).collect();
            journal.append(RANK, &new).unwrap();
            journal.sync().unwrap();
        }
        shared.wait_applied(RANK, 40, WAIT).unwrap();
        assert_eq!(*shared.fold.seen.lock().unwrap(), appended, "each once, in order");
        let progress = shared.progress()[&RANK].clone();
        assert_eq!((progress.applied, progress.rebuilds), (40, 1));
        assert_eq!(progress.last_error.as_deref(), Some("the index panicked"));
        shared.stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        Arc::into_inner(journal).expect("nobody else has it").close().unwrap();
    }
}
