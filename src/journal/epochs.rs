//! Epochs: who may go on where they were, and from which id a new opening writes.
//!
//! Pure decisions. An epoch is one opening for writing; a reader names the epoch and id it has, and goes on without
//! a reset only if this very journal still has that history (the leader-epoch check of Kafka's KIP-101). A wiped,
//! copied or restored folder shows as a nonce nobody knows.

use std::time::Duration;

use bincode::{Decode, Encode};

use crate::event::EventId;

use super::config::Durability;

/// Epochs a rank remembers. A reader from an older one is reset.
pub const EPOCHS_MAX: usize = 64;

/// One opening for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Epoch {
    /// Rises with each opening.
    pub number: u64,
    /// Drawn at random.
    pub nonce: u64,
    /// First id it could give.
    pub first: EventId,
    /// Last id that was kept when it began.
    pub kept: EventId,
    /// Whether events were shown before they were on stable storage.
    pub(crate) shows_early: ShowsEarly,
    /// The kernel's boot id, zero where it has none.
    pub(crate) boot: [u8; 16],
    /// When it began, microseconds since 1970.
    pub opened_us: u64,
}

/// What an opening may have shown that a crash then took back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) enum ShowsEarly {
    /// Nothing.
    Never,
    /// What only memory had.
    FromMemory,
    /// What only the kernel had: lost with the machine, not with the process.
    FromKernel,
}

impl From<Durability> for ShowsEarly {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Sync => Self::Never,
            Durability::Interval(_) => Self::FromMemory,
            Durability::Os => Self::FromKernel,
        }
    }
}

/// How the journal was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftBehind {
    /// Closed in order.
    pub(crate) clean: bool,
    /// Another boot of the machine than now.
    pub(crate) rebooted: bool,
}

/// Whether ids above the head that was found may have been seen by someone.
pub(crate) fn may_have_shown_lost_ids(last: Option<&Epoch>, left: LeftBehind) -> bool {
    match last.map(|epoch| epoch.shows_early) {
        None | Some(ShowsEarly::Never) => false,
        Some(ShowsEarly::FromMemory) => !left.clean,
        Some(ShowsEarly::FromKernel) => !left.clean && left.rebooted,
    }
}

/// First id past a run that is given up: far beyond any id that was given within the same second.
pub(crate) fn jump_past(head: EventId, since_1970: Duration) -> EventId {
    (head + 1).max(since_1970.as_secs() << 20)
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of the epoch it read from last.
    pub epoch: u64,
    /// Nonce of that epoch.
    pub nonce: u64,
    /// Last id it has.
    pub id: EventId,
}

/// What a reader with a cursor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on after the reader's id.
    Continue,
    /// Forget the stream and take it from the start.
    Reset(ResetReason),
    /// The reader has an id that was not given yet.
    Ahead {
        /// Newest id that may be shown.
        head: EventId,
    },
}

/// Why a reader is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// The reader has nothing and asked for all.
    Asked,
    /// What the reader was rebuilding from was replaced, and its time of grace is over.
    HistoryGone,
    /// The journal never had that epoch, or no longer remembers it: another folder, or a very old reader.
    UnknownEpoch,
    /// The reader saw ids that were lost.
    SawLostIds,
    /// What comes next is no longer kept event by event.
    BelowHorizon,
}

/// Decides how a reader goes on. `epochs` has the newest last.
pub fn judge(epochs: &[Epoch], horizon: EventId, head: EventId, cursor: Cursor) -> Verdict {
    let known = epochs.iter().position(|e| e.number == cursor.epoch && e.nonce == cursor.nonce);
    let Some(known) = known else { return Verdict::Reset(ResetReason::UnknownEpoch) };
    match epochs.get(known + 1) {
        Some(next) if cursor.id > next.kept => return Verdict::Reset(ResetReason::SawLostIds),
        None if cursor.id > head => return Verdict::Ahead { head },
        _ => {}
    }
    if cursor.id < horizon { Verdict::Reset(ResetReason::BelowHorizon) } else { Verdict::Continue }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64, first: EventId, kept: EventId) -> Epoch {
        let shows_early = ShowsEarly::Never;
        Epoch { number, nonce: number * 10, first, kept, shows_early, boot: [0; 16], opened_us: 0 }
    }

    #[test]
    fn a_reader_goes_on_only_with_the_history_this_journal_still_has() {
        let epochs = [epoch(1, 1, 0), epoch(2, 101, 100), epoch(3, 1 << 20, 150)];
        let head = (1 << 20) + 5;
        let at = |epoch, id| judge(&epochs, 50, head, Cursor { epoch, nonce: epoch * 10, id });
        assert_eq!(at(1, 100), Verdict::Continue);
        assert_eq!(at(1, 101), Verdict::Reset(ResetReason::SawLostIds), "its epoch ended at 100");
        assert_eq!(at(2, 150), Verdict::Continue);
        assert_eq!(at(2, 151), Verdict::Reset(ResetReason::SawLostIds));
        assert_eq!(at(3, head), Verdict::Continue);
        assert_eq!(at(3, head + 1), Verdict::Ahead { head });
        assert_eq!(at(1, 50), Verdict::Continue, "the horizon itself is a state that is still known");
        assert_eq!(at(1, 49), Verdict::Reset(ResetReason::BelowHorizon));
        assert_eq!(at(4, 49), Verdict::Reset(ResetReason::UnknownEpoch));
        let copied = Cursor { epoch: 2, nonce: 21, id: 120 };
        assert_eq!(judge(&epochs, 50, head, copied), Verdict::Reset(ResetReason::UnknownEpoch));
    }

    #[test]
    fn ids_are_given_up_only_where_someone_may_have_seen_them() {
        let left = |clean, rebooted| LeftBehind { clean, rebooted };
        let last = |shows_early| Epoch { shows_early, ..epoch(1, 1, 0) };
        let gives_up = |shows, left| may_have_shown_lost_ids(Some(&last(shows)), left);
        assert!(!gives_up(ShowsEarly::Never, left(false, true)));
        assert!(gives_up(ShowsEarly::FromMemory, left(false, false)));
        assert!(!gives_up(ShowsEarly::FromMemory, left(true, true)));
        assert!(gives_up(ShowsEarly::FromKernel, left(false, true)));
        assert!(!gives_up(ShowsEarly::FromKernel, left(false, false)));
        assert!(!may_have_shown_lost_ids(None, left(false, true)));
    }

    #[test]
    fn a_jump_passes_the_head_and_the_clock() {
        assert_eq!(jump_past(5, Duration::from_secs(3)), 3 << 20);
        assert_eq!(jump_past(9 << 20, Duration::from_secs(3)), (9 << 20) + 1);
    }
}
