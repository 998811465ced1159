//! Where a follower is in one stream, and what a page means to one who is there. Pure.
//!
//! A page that the worker sent to all may come twice, late, or never. It is taken only if it goes on exactly where the
//! follower is; whatever else it says is a reason to ask. Only the answer to a question moves a follower back.

use crate::codec::{Page, PageHeader};
use crate::event::EventId;

/// Where a follower is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Identity of the journal that it follows.
    pub journal: [u8; 16],
    /// Number of the epoch of the page that it had last.
    pub epoch: u64,
    /// Nonce of that epoch.
    pub nonce: u64,
    /// Last id that it has.
    pub id: EventId,
    /// While it rebuilds the stream after a reset: the generation that the page with the reset named. What it has is
    /// no state yet.
    pub rebuilding: Option<u32>,
}

/// What a page that was sent to all means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It goes on where the follower is: the events above its id are new. Then it is there.
    Contiguous(Place),
    /// Nothing in it is new.
    Nothing(Place),
    /// Ids up to `until` were missed.
    Gap {
        /// Newest id that the page knows of.
        until: EventId,
    },
    /// It is of an epoch of which the follower cannot tell what it kept: ask. It may also be late, from an opening that
    /// is over; its number does not tell, since a folder that was restored counts from an old one.
    OtherEpoch,
}

/// An answer that does not go on where the follower is. A worker never sends one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer to what follows event {have} starts with event {first} after {previous}, and goes on with {next}"
)]
pub struct Misfit {
    /// Last id of the follower.
    pub have: EventId,
    /// First id of the frame that does not fit, 0 if it is the end of the page.
    pub first: EventId,
    /// The id that it follows.
    pub previous: EventId,
    /// The id that the page says comes next.
    pub next: EventId,
}

impl Place {
    /// What a page that was sent to all means to a follower here.
    pub fn observe(&self, page: &Page) -> Observed {
        let header = &page.header;
        let Some(mut place) = self.in_epoch_of(header) else { return Observed::OtherEpoch };
        let had = place.id;
        for frame in &page.frames {
            let frame = frame.header();
            if frame.last <= place.id {
                continue;
            }
            if !follows(place.id, frame.previous, frame.first) {
                return Observed::Gap { until: header.next - 1 };
            }
            place.id = frame.last;
        }
        if header.next - 1 > place.id {
            Observed::Gap { until: header.next - 1 }
        } else if place.id > had {
            Observed::Contiguous(place)
        } else {
            Observed::Nothing(place)
        }
    }

    /// Where a follower is after an answer that is no reset.
    ///
    /// # Errors
    /// If the answer is to another question.
    pub fn advance(&self, page: &Page) -> Result<Self, Misfit> {
        let header = &page.header;
        if header.journal != self.journal {
            return Err(self.misfit(header, 0, 0));
        }
        let mut place = Self { epoch: header.epoch, nonce: header.nonce, ..*self };
        for frame in &page.frames {
            let frame = frame.header();
            // The log after a history starts past the ids of the history.
            let is_after_history =
                self.rebuilding.is_some() && frame.generation == 0 && frame.previous >= place.id;
            if frame.last <= place.id || !is_after_history && !follows(place.id, frame.previous, frame.first)
            {
                return Err(self.misfit(header, frame.first, frame.previous));
            }
            place.id = frame.last;
        }
        let end = header.next - 1;
        if end < place.id || end > place.id && self.rebuilding.is_none() {
            return Err(self.misfit(header, 0, place.id));
        }
        place.id = end;
        if header.flags.done {
            place.rebuilding = None;
        }
        Ok(place)
    }

    /// Where a follower is after an answer that resets it.
    ///
    /// # Errors
    /// If it does not start with what rebuilds a stream.
    pub fn reset(page: &Page) -> Result<Self, Misfit> {
        let header = &page.header;
        let place = Self {
            journal: header.journal,
            epoch: header.epoch,
            nonce: header.nonce,
            id: 0,
            rebuilding: Some(header.generation),
        };
        place.advance(page)
    }

    /// The same place in the epoch of a page, if its events up to there are known to be those that the follower has.
    fn in_epoch_of(&self, header: &PageHeader) -> Option<Self> {
        if header.journal != self.journal {
            return None;
        }
        let is_kept = (header.epoch, header.nonce) == (self.epoch, self.nonce)
            || header
                .epochs
                .iter()
                .any(|past| (past.number, past.nonce) == (self.epoch, self.nonce) && self.id <= past.kept);
        is_kept.then_some(Self { epoch: header.epoch, nonce: header.nonce, ..*self })
    }

    fn misfit(&self, header: &PageHeader, first: EventId, previous: EventId) -> Misfit {
        Misfit { have: self.id, first, previous, next: header.next }
    }
}

/// Whether a frame goes on after `id`: it follows it, or `id` is one of its own.
fn follows(id: EventId, previous: EventId, first: EventId) -> bool {
    previous == id || first <= id
}
