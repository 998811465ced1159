//! Going on with a reader that was away, or that reads in pieces: it says where it is, and that is all that is known of it.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::{DpRank, EventId};

use super::epochs::{Cursor, Epoch, ResetReason, Verdict, judge};
use super::handle::Journal;
use super::reader::Reader;

/// Where a reader is that reads in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its epoch and the last id that it has.
    pub cursor: Cursor,
    /// While it rebuilds a stream after a reset: the generation that it was told then. What it has is no state yet, and
    /// it may go on although the horizon moved past it meanwhile, as long as that generation is kept.
    pub rebuilding: Option<u32>,
}

/// How a reader goes on.
#[derive(Debug)]
pub enum Resumed {
    /// After the id that it has.
    Continue(Reader),
    /// From the start: it forgets the stream.
    Reset {
        /// Why.
        reason: ResetReason,
        /// Number of the compacted history that it starts with; 0 if there never was one.
        generation: u32,
        /// Reads what rebuilds the stream.
        reader: Reader,
    },
    /// It has an id that was not given yet.
    Ahead {
        /// Newest id that may be shown.
        head: EventId,
    },
}

impl Journal {
    /// Goes on with a reader of a rank where it was; one that was nowhere is reset.
    ///
    /// # Errors
    /// `Invalid` if the rank has no events yet.
    pub fn resume(&self, rank: DpRank, position: Option<Position>) -> Result<Resumed> {
        let rank = self.known_rank(rank)?;
        let (store, id) = (self.store(), rank.id());
        let (epochs, horizon, generation) = {
            let view = rank.view();
            (view.epochs.clone(), view.horizon, view.generation)
        };
        if epochs.is_empty() {
            return Err(Error::Invalid(format!("rank {id} has no events yet")));
        }
        let reset = |reason| {
            let reader = Reader::rebuild(Arc::clone(store), Arc::clone(&rank), generation, 1);
            // Its generation may have been replaced a moment ago, and without a grace.
            let reader = reader.ok_or_else(|| Error::Timeout("the horizon to stand still".into()))?;
            Ok(Resumed::Reset { reason, generation, reader })
        };
        let Some(Position { cursor, rebuilding }) = position else { return reset(ResetReason::Asked) };
        // A history that is kept may be read to its end, wherever the horizon is.
        let horizon = if rebuilding.is_some() { 0 } else { horizon };
        match (judge(&epochs, horizon, rank.visible().get(), cursor), rebuilding) {
            (Verdict::Reset(reason), _) => reset(reason),
            (Verdict::Ahead { head }, _) => Ok(Resumed::Ahead { head }),
            (Verdict::Continue, None) => {
                Ok(Resumed::Continue(Reader::new(Arc::clone(store), rank, cursor.id + 1, false)))
            }
            (Verdict::Continue, Some(generation)) => {
                match Reader::rebuild(Arc::clone(store), Arc::clone(&rank), generation, cursor.id + 1) {
                    Some(reader) => Ok(Resumed::Continue(reader)),
                    None => reset(ResetReason::HistoryGone),
                }
            }
        }
    }

    /// The epoch of a rank that is written, and at most `most` before it, the newest first, each with the last id that
    /// was kept of it and of all before it. `None` if the rank has no events yet.
    pub fn recent_epochs(&self, rank: DpRank, most: usize) -> Option<(Epoch, Vec<(Epoch, EventId)>)> {
        let epochs = self.epochs(rank);
        let current = *epochs.last()?;
        let past = epochs.windows(2).rev().take(most).map(|pair| (pair[0], pair[1].kept));
        Some((current, past.collect()))
    }
}
