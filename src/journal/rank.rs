//! What readers and the writer share of one rank.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::codec::SourceCursor;
use crate::event::{DpRank, EventId};
use crate::store::Tree;

use super::config::Durability;
use super::doomed::DoomedRows;
use super::epochs::Epoch;
use super::retention::Marks;
use super::rows::{History, RankRow};
use super::tail::Tail;
use super::watermark::Watermark;

/// One rank of an open journal.
#[derive(Debug)]
pub(crate) struct Rank {
    id: DpRank,
    shows_early: bool,
    /// Newest id that was given.
    head: AtomicU64,
    /// Newest id that may be shown, unless that is the durable head.
    pub(crate) shown: Watermark,
    /// Newest id on stable storage.
    pub(crate) durable: Watermark,
    pub(crate) tail: Tail,
    /// Newest id that an opening found.
    found_head: EventId,
    /// Where the log's bytes lie, as far as they were measured.
    marks: Mutex<Marks>,
    /// Number of the next compacted history.
    pub(crate) generations: AtomicU32,
    view: Mutex<RankView>,
}

/// What readers need to know of a rank's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankView {
    pub(crate) tree: Tree,
    pub(crate) generation: u32,
    pub(crate) history: Option<History>,
    /// Histories before, while readers that began them may still end them.
    pub(crate) graced: Vec<Rebuild>,
    pub(crate) horizon: EventId,
    pub(crate) base: EventId,
    pub(crate) lost: Vec<(EventId, EventId)>,
    pub(crate) epochs: Vec<Epoch>,
}

/// What a reset starts with: a history, or nothing, and then the log after `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rebuild {
    pub(crate) generation: u32,
    pub(crate) history: Option<History>,
    pub(crate) base: EventId,
}

impl Rank {
    pub(crate) fn new(row: &RankRow, head: EventId, durability: Durability, tail_bytes_max: usize) -> Self {
        Self {
            id: DpRank(row.rank),
            shows_early: durability != Durability::Sync,
            head: AtomicU64::new(head),
            shown: Watermark::new(head),
            durable: Watermark::new(head),
            tail: Tail::new(tail_bytes_max),
            found_head: head,
            marks: Mutex::default(),
            generations: AtomicU32::new(row.generation + 1),
            view: Mutex::new(RankView::of(row)),
        }
    }

    pub(crate) fn id(&self) -> DpRank {
        self.id
    }

    pub(crate) fn head(&self) -> EventId {
        self.head.load(Ordering::Acquire)
    }

    /// Called under the queue's lock, so that it only rises.
    pub(crate) fn set_head(&self, id: EventId) {
        self.head.store(id, Ordering::Release);
    }

    /// Readers get no further than this.
    pub(crate) fn visible(&self) -> &Watermark {
        if self.shows_early { &self.shown } else { &self.durable }
    }

    pub(crate) fn found_head(&self) -> EventId {
        self.found_head
    }

    pub(crate) fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, RankView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits: the journal stopped.
    pub(crate) fn stop(&self) {
        for mark in [&self.shown, &self.durable] {
            mark.stop();
        }
    }
}

impl RankView {
    pub(crate) fn of(row: &RankRow) -> Self {
        Self {
            tree: row.tree(),
            generation: row.generation,
            history: row.history,
            graced: Vec::new(),
            horizon: row.horizon,
            base: row.base,
            lost: row.lost.clone(),
            epochs: row.epochs.clone(),
        }
    }
}

impl RankView {
    /// What a reset starts with now.
    pub(crate) fn rebuild(&self) -> Rebuild {
        Rebuild { generation: self.generation, history: self.history, base: self.base }
    }

    /// What a reset of this generation started with, if it is still there.
    pub(crate) fn rebuild_of(&self, generation: u32) -> Option<Rebuild> {
        let mut all = std::iter::once(self.rebuild()).chain(self.graced.iter().copied());
        all.find(|rebuild| rebuild.generation == generation)
    }
}

/// The writer's side of one rank.
#[derive(Debug)]
pub(crate) struct RankWriter {
    pub(crate) row: RankRow,
    /// Last id of the newest frame.
    pub(crate) previous: EventId,
    /// The cursor of the newest frame or row.
    pub(crate) cursor: Option<SourceCursor>,
    /// Durable head that the witness has.
    pub(crate) witnessed: EventId,
    /// How far the row is known to be durable.
    pub(crate) revisions: Revisions,
    /// Rows that are left to delete.
    pub(crate) doomed: DoomedRows,
    /// The row must be saved and synced before anything of this opening leaves.
    pub(crate) unsaved: bool,
}

/// Revisions of a rank's row on their way to stable storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Revisions {
    /// Written before the newest sync began.
    pub(crate) syncing: u64,
    /// On stable storage for certain.
    pub(crate) synced: u64,
    /// The one that the witness has.
    pub(crate) witnessed: u64,
}

impl Revisions {
    /// Those of a row that is on stable storage, as the witness knows.
    pub(crate) fn durable(revision: u64) -> Self {
        Self { syncing: revision, synced: revision, witnessed: revision }
    }
}
