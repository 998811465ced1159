//! Rows of a rank that nobody needs any more, and from when on they may be deleted.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event::EventId;

/// What the writer has to delete of one rank.
#[derive(Debug, Default)]
pub(crate) struct DoomedRows {
    /// Parts of the log that were compacted, the oldest first. Each has a time of its own, or a rank that is compacted
    /// more often than its grace would delete nothing.
    log: VecDeque<(EventId, u64, Instant)>,
    histories: Vec<(u32, Instant)>,
}

/// Rows of one tree and its payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doomed {
    /// The oldest ones of the log: so many bytes, to the end of a frame.
    Log { up_to: EventId, bytes: u64 },
    /// All of a compacted history.
    History(u32),
}

impl DoomedRows {
    /// What an opening finds: it has no readers yet.
    pub(crate) fn found(trimmed: EventId, histories: &[u32], now: Instant) -> Self {
        Self {
            log: (trimmed > 0).then_some((trimmed, 0, now)).into_iter().collect(),
            histories: histories.iter().map(|generation| (*generation, now)).collect(),
        }
    }

    pub(crate) fn trim_log(&mut self, up_to: EventId, bytes: u64, due: Instant) {
        self.log.push_back((up_to, bytes, due));
    }

    /// Readers have no time left.
    pub(crate) fn end_grace(&mut self, now: Instant) {
        let dues = self.histories.iter_mut().map(|(_, due)| due);
        for due in dues.chain(self.log.iter_mut().map(|(.., due)| due)) {
            *due = now.min(*due);
        }
    }

    pub(crate) fn add_history(&mut self, generation: u32, due: Instant) {
        self.histories.push((generation, due));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.log.is_empty() && self.histories.is_empty()
    }

    /// When the first of it may be deleted.
    pub(crate) fn first_due(&self) -> Option<Instant> {
        let log = self.log.front().map(|(.., due)| *due);
        log.into_iter().chain(self.histories.iter().map(|(_, due)| *due)).min()
    }

    /// Something that may be deleted now; with `all`, anything.
    pub(crate) fn due(&self, now: Instant, all: bool) -> Option<Doomed> {
        let histories = self.histories.iter().filter(|(_, due)| all || *due <= now);
        let log = self.log.front().filter(|(.., due)| all || *due <= now);
        let log = log.map(|(up_to, bytes, _)| Doomed::Log { up_to: *up_to, bytes: *bytes });
        log.or(histories.map(|(generation, _)| Doomed::History(*generation)).next())
    }

    /// It is gone.
    pub(crate) fn done(&mut self, doomed: Doomed) {
        match doomed {
            Doomed::Log { up_to, .. } => self.log.retain(|(id, ..)| *id > up_to),
            Doomed::History(generation) => self.histories.retain(|(number, _)| *number != generation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_readers_may_still_end_is_due_later() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let mut doomed = DoomedRows::found(10, &[3], now);
        doomed.add_history(4, later);
        doomed.trim_log(20, 7, later);
        let log = |up_to, bytes| Doomed::Log { up_to, bytes };
        assert_eq!(doomed.due(now, false), Some(log(10, 0)));
        doomed.done(log(10, 0));
        assert_eq!(doomed.due(now, false), Some(Doomed::History(3)));
        doomed.done(Doomed::History(3));
        assert_eq!((doomed.due(now, false), doomed.first_due()), (None, Some(later)));
        assert_eq!(doomed.due(now, true), Some(log(20, 7)), "nobody reads a journal that closes");
        doomed.end_grace(now);
        assert_eq!(doomed.due(now, false), Some(log(20, 7)));
        doomed.done(log(20, 7));
        assert_eq!(doomed.due(now, false), Some(Doomed::History(4)));
        doomed.done(Doomed::History(4));
        assert!(doomed.is_empty());
    }
}
