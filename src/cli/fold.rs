//! What a rank of a journal that nobody writes to holds, now or as of an earlier event.

use crate::error::Error;
use crate::event::{DpRank, EventData, EventId};
use crate::index::{Digest, Index, StreamId};
use crate::journal::JournalView;

use super::Failure;

/// A folded rank.
pub(super) struct Folded {
    pub(super) index: Index,
    pub(super) stream: StreamId,
    /// The id it is right as of.
    pub(super) at: EventId,
    /// Events that were read for it.
    pub(super) events: u64,
}

impl Folded {
    /// Blocks that are held.
    pub(super) fn blocks(&self) -> usize {
        self.index.blocks(self.stream)
    }

    pub(super) fn digest(&self) -> Digest {
        self.index.digest(self.stream)
    }
}

/// The ranks that are asked for: one, or all.
pub(super) fn ranks(view: &JournalView, rank: Option<u32>) -> Vec<DpRank> {
    rank.map_or_else(|| view.ranks(), |rank| vec![DpRank(rank)])
}

/// Folds a rank up to an id, showing each event to `see` as well.
pub(super) fn fold(
    view: &JournalView,
    rank: DpRank,
    at: Option<EventId>,
    mut see: impl FnMut(EventId, &EventData),
) -> Result<Folded, Failure> {
    let info = view.rank(rank)?;
    let up_to = at.unwrap_or(info.head).min(info.head);
    if up_to < info.horizon {
        let horizon = info.horizon;
        let what = format!(
            "rank {rank}: what was held at {up_to} is not known: the history up to {horizon} is compacted"
        );
        return Err(Error::Invalid(what).into());
    }
    let (index, stream) = (Index::new(), StreamId::new(view.worker(), rank));
    let mut folded = Folded { index, stream, at: up_to, events: 0 };
    let mut reader = view.read(rank, 0)?;
    while let Some(frame) = reader.next_frame()? {
        for event in frame.events() {
            let event = event?;
            if event.id > up_to {
                return Ok(folded);
            }
            folded.index.apply(stream, &event.data);
            folded.events += 1;
            see(event.id, &event.data);
        }
    }
    Ok(folded)
}
