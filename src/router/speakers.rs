//! Who speaks under a stream's name. Two journals that do at the same time are a conflict: a folder that was copied, or
//! two workers with one id. A restart is none, although what the old opening sent may still arrive. Pure.

use std::time::Duration;

/// The journal and the nonce of its opening.
pub(super) type Identity = ([u8; 16], u64);

/// Longest time that two openings are heard side by side without a conflict: what was sent may be late.
const OVERLAP_MAX: Duration = Duration::from_secs(2);

/// Most that are remembered.
const SPEAKERS_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Speaker {
    identity: Identity,
    first: Duration,
    last: Duration,
}

/// Those that were heard lately.
#[derive(Debug, Default)]
pub(super) struct Speakers(Vec<Speaker>);

impl Speakers {
    /// One was heard.
    pub(super) fn hear(&mut self, now: Duration, identity: Identity) {
        if let Some(known) = self.0.iter_mut().find(|known| known.identity == identity) {
            known.last = now;
            return;
        }
        if self.0.len() == SPEAKERS_MAX
            && let Some(oldest) = self.0.iter().enumerate().min_by_key(|(_, known)| known.last)
        {
            self.0.swap_remove(oldest.0);
        }
        self.0.push(Speaker { identity, first: now, last: now });
    }

    /// Forgets those that were not heard for so long.
    pub(super) fn forget(&mut self, now: Duration, silence: Duration) {
        self.0.retain(|known| now < known.last + silence);
    }

    /// Whether two were heard side by side for longer than messages are late.
    pub(super) fn are_in_conflict(&self) -> bool {
        self.0.iter().enumerate().any(|(at, one)| {
            self.0[at + 1..]
                .iter()
                .any(|other| one.last.min(other.last) > one.first.max(other.first) + OVERLAP_MAX)
        })
    }

    /// When the next one is forgotten.
    pub(super) fn next_forgotten(&self, silence: Duration) -> Option<Duration> {
        self.0.iter().map(|known| known.last + silence).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    /// Hears speakers at seconds, and says whether that is a conflict now.
    fn conflict(heard: &[(u64, u64)], now: u64) -> bool {
        let mut speakers = Speakers::default();
        for (at, nonce) in heard {
            speakers.hear(Duration::from_secs(*at), ([0; 16], *nonce));
        }
        speakers.forget(Duration::from_secs(now), SILENCE);
        speakers.are_in_conflict()
    }

    #[test]
    fn two_side_by_side_are_a_conflict_and_a_restart_is_none() {
        assert!(!conflict(&[(0, 1), (1, 1), (2, 2), (3, 1), (9, 2)], 9), "the old one was late");
        assert!(!conflict(&[(0, 1), (1, 2), (3, 1), (3, 2)], 3), "not for long yet");
        assert!(conflict(&[(0, 1), (1, 2), (4, 1), (4, 2)], 4));
        assert!(!conflict(&[(0, 1), (1, 2), (4, 1), (4, 2), (9, 2)], 9), "one is gone");
        assert!(!conflict(&[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)], 5), "one after the other");
    }
}
