//! Looking into a journal that nobody writes to: no epoch is begun, no row is changed.
//!
//! sled has no way to open a database without writing to it, so a look either has the folder to itself, or works
//! on a copy.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::codec::{SourceCursor, Stamp};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId, WorkerId};
use crate::store::{Current, Folder, Found, LOG, SledStore, Store, WitnessState};

use super::compaction::{CompactOptions, Compacted, Compactor, Job};
use super::config::{Durability, GroupLimits};
use super::epochs::Epoch;
use super::measure::horizon_for;
use super::open::{check_before_open, check_format};
use super::queue::Queue;
use super::rank::Rank;
use super::reader::Reader;
use super::recover::{FoundRank, find_identity, find_ranks};
use super::retention::Retention;
use super::rows::Identity;

/// A journal that is only read.
pub struct JournalView {
    store: Arc<dyn Store>,
    identity: Identity,
    current: Current,
    witness: WitnessState,
    ranks: BTreeMap<DpRank, (Arc<Rank>, FoundRank)>,
    disk_bytes: u64,
    /// Removed when the view is dropped, after the store.
    _copy: Option<TempDir>,
}

impl std::fmt::Debug for JournalView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalView").field("worker", &self.identity.worker).finish_non_exhaustive()
    }
}

/// What is known of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInfo {
    /// The rank.
    pub rank: DpRank,
    /// Newest id.
    pub head: EventId,
    /// Ids at or below it are no longer kept one by one.
    pub horizon: EventId,
    /// The compacted history that stands for them.
    pub history: Option<HistoryInfo>,
    /// Ranges of ids that a repair could not save.
    pub lost: Vec<(EventId, EventId)>,
    /// The epochs that are remembered, oldest first.
    pub epochs: Vec<Epoch>,
    /// How far the batches of the engine were taken in.
    pub source: Option<SourceCursor>,
    /// The durable head that the witness holds.
    pub witnessed: EventId,
}

/// What is known of a compacted history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryInfo {
    /// Its number; each compaction counts one up.
    pub number: u32,
    /// Events in it.
    pub events: u64,
    /// Copies of blocks that it leaves held.
    pub copies: u64,
}

impl JournalView {
    /// Opens the journal in place: nobody else can use it meanwhile.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, `NewerFormat`, `Damaged`, or what the file system says.
    pub fn open(dir: &Path, lock_wait_max: Duration) -> Result<Self> {
        let folder = Folder::hold(dir, false, lock_wait_max)?;
        let (current, witness) = find_journal(&folder)?;
        let generation = folder.generation(current.generation);
        check_before_open(&generation, &witness)?;
        let store = SledStore::open(&generation.path)?.holding(folder);
        Self::of(Arc::new(store), current, witness, None)
    }

    /// Copies the store beside the journal and opens the copy: the journal's own bytes are not touched.
    ///
    /// # Errors
    /// As [`JournalView::open`].
    pub fn open_copy(dir: &Path, lock_wait_max: Duration) -> Result<Self> {
        let folder = Folder::hold(dir, false, lock_wait_max)?;
        let (current, witness) = find_journal(&folder)?;
        let generation = folder.generation(current.generation);
        let copy = copy_store(dir, &generation.path)?;
        if !copy.path().join("db").is_file() {
            return Err(Error::damaged(format!("{} is missing", generation.path.join("db").display())));
        }
        let store = SledStore::open(copy.path())?.holding(folder);
        Self::of(Arc::new(store), current, witness, Some(copy))
    }

    fn of(
        store: Arc<dyn Store>,
        current: Current,
        witness: WitnessState,
        copy: Option<TempDir>,
    ) -> Result<Self> {
        let identity = find_identity(&*store, &witness, None)?;
        let found = find_ranks(&*store, &identity, &witness)?;
        let ranks = found.into_iter().map(|found| {
            let rank = Arc::new(Rank::new(&found.row, found.head, Durability::Sync, 0));
            (rank.id(), (rank, found))
        });
        let disk_bytes = store.disk_bytes()?;
        Ok(Self { ranks: ranks.collect(), store, identity, current, witness, disk_bytes, _copy: copy })
    }

    /// The worker.
    pub fn worker(&self) -> WorkerId {
        self.identity.worker
    }

    /// Identity of the journal.
    pub fn id(&self) -> [u8; 16] {
        self.identity.journal
    }

    /// When it was made, microseconds since 1970.
    pub fn created_us(&self) -> u64 {
        self.identity.created_us
    }

    /// Format of the journal.
    pub fn format(&self) -> u32 {
        self.current.format
    }

    /// Number of the store's generation.
    pub fn generation(&self) -> u32 {
        self.current.generation
    }

    /// Whether it was closed in order.
    pub fn closed_in_order(&self) -> bool {
        self.witness.clean
    }

    /// Bytes of the store on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> Vec<DpRank> {
        self.ranks.keys().copied().collect()
    }

    /// What is known of a rank.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn rank(&self, rank: DpRank) -> Result<RankInfo> {
        let (_, found) = self.known(rank)?;
        Ok(RankInfo {
            rank,
            head: found.head,
            horizon: found.row.horizon,
            history: found.row.history.map(|history| HistoryInfo {
                number: found.row.generation,
                events: history.events,
                copies: history.copies,
            }),
            lost: found.row.lost.clone(),
            epochs: found.row.epochs.clone(),
            source: found.cursor.clone(),
            witnessed: self.witness.durable_head(rank.0),
        })
    }

    /// Reads a rank from an id on. At or below the horizon it starts with a reset.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn read(&self, rank: DpRank, from: EventId) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(&self.store), Arc::clone(&self.known(rank)?.0), from, false))
    }

    /// Reads all frames that are there, those before a loss included, which are no part of a history.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank.
    pub fn read_salvaged(&self, rank: DpRank, from: EventId) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(&self.store), Arc::clone(&self.known(rank)?.0), from, true))
    }

    /// As [`Journal::horizon_for`](super::Journal::horizon_for).
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank, `Damaged`.
    pub fn horizon_for(&self, rank: DpRank, keep: &Retention) -> Result<EventId> {
        horizon_for(&self.store, &self.known(rank)?.0, keep)
    }

    /// What [`Journal::compact`](super::Journal::compact) would do. Nothing is changed.
    ///
    /// # Errors
    /// `Invalid` if the journal has no such rank, `Damaged`.
    pub fn compact_dry(&self, rank: DpRank, to: EventId, progress: &dyn Fn(u64, u64)) -> Result<Compacted> {
        let (rank, found) = self.known(rank)?;
        let stamp = Stamp {
            journal: self.identity.journal,
            worker: self.identity.worker,
            rank: rank.id(),
            generation: LOG,
            epoch: 0,
            epoch_first: found.row.epochs.last().map_or(0, |epoch| epoch.first),
        };
        // Nobody takes anything from it: a dry run writes nothing.
        let queue = Queue::new(1, GroupLimits::default(), false);
        let job = Job { store: &self.store, queue: &queue, rank, stamp, generations: &rank.generations };
        let options = CompactOptions { dry_run: true, pace_bytes: None, ..CompactOptions::default() };
        Compactor::default().compact(&job, to, options, progress)
    }

    pub(crate) fn parts(&self, rank: DpRank) -> Result<(&dyn Store, &FoundRank)> {
        Ok((&*self.store, &self.known(rank)?.1))
    }

    fn known(&self, rank: DpRank) -> Result<&(Arc<Rank>, FoundRank)> {
        self.ranks.get(&rank).ok_or_else(|| Error::Invalid(format!("the journal has no rank {rank}")))
    }
}

fn find_journal(folder: &Folder) -> Result<(Current, WitnessState)> {
    match folder.find()? {
        Found::Fresh => Err(Error::NotFound { dir: folder.path().to_owned() }),
        Found::Journal { current, witness } => {
            check_format(&current)?;
            Ok((current, witness))
        }
    }
}

/// Copies the files of a store, beside the journal so that file systems that can share the blocks do, or in the
/// system's temporary folder if the journal's cannot be written to.
pub(crate) fn copy_store(dir: &Path, store: &Path) -> Result<TempDir> {
    let builder = || tempfile::Builder::new().prefix("copy-").tempdir_in(dir);
    let copy = builder().or_else(|_| tempfile::tempdir()).map_err(Error::io("make a folder for a copy"))?;
    let files = || -> std::io::Result<()> {
        for entry in fs::read_dir(store)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
            }
        }
        Ok(())
    };
    files().map_err(Error::io(format!("copy {}", store.display())))?;
    Ok(copy)
}
