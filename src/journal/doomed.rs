//! Rows of a rank that nobody needs any more, and from when on they may be deleted.

use std::time::Instant;

/// What the writer has to delete of one rank.
#[derive(Debug, Default)]
pub(crate) struct DoomedRows {
    /// Frames of the log up to the row's `trimmed`.
    log: Option<Instant>,
    histories: Vec<(u32, Instant)>,
}

/// Rows of one tree and its payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doomed {
    /// The oldest ones of the log.
    Log,
    /// All of a compacted history.
    History(u32),
}

impl DoomedRows {
    /// What an opening finds: it has no readers yet.
    pub(crate) fn found(is_log_trimmed: bool, histories: &[u32], now: Instant) -> Self {
        Self {
            log: is_log_trimmed.then_some(now),
            histories: histories.iter().map(|generation| (*generation, now)).collect(),
        }
    }

    pub(crate) fn trim_log(&mut self, due: Instant) {
        // What was due before can wait for what is due later: one trim deletes both.
        self.log = Some(due);
    }

    pub(crate) fn add_history(&mut self, generation: u32, due: Instant) {
        self.histories.push((generation, due));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.log.is_none() && self.histories.is_empty()
    }

    /// When the first of it may be deleted.
    pub(crate) fn first_due(&self) -> Option<Instant> {
        self.log.into_iter().chain(self.histories.iter().map(|(_, due)| *due)).min()
    }

    /// Something that may be deleted now; with `all`, anything.
    pub(crate) fn due(&self, now: Instant, all: bool) -> Option<Doomed> {
        let histories = self.histories.iter().filter(|(_, due)| all || *due <= now);
        let log = self.log.filter(|due| all || *due <= now).map(|_| Doomed::Log);
        log.or(histories.map(|(generation, _)| Doomed::History(*generation)).next())
    }

    /// It is gone.
    pub(crate) fn done(&mut self, doomed: Doomed) {
        match doomed {
            Doomed::Log => self.log = None,
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
        let mut doomed = DoomedRows::found(true, &[3], now);
        doomed.add_history(4, later);
        assert_eq!(doomed.due(now, false), Some(Doomed::Log));
        doomed.done(Doomed::Log);
        assert_eq!(doomed.due(now, false), Some(Doomed::History(3)));
        doomed.done(Doomed::History(3));
        assert_eq!((doomed.due(now, false), doomed.first_due()), (None, Some(later)));
        assert_eq!(doomed.due(now, true), Some(Doomed::History(4)), "nobody reads a journal that closes");
        doomed.done(Doomed::History(4));
        assert!(doomed.is_empty());
    }
}
