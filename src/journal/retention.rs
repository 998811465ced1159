//! How much of its log a journal keeps one by one: what to compact, as a pure decision.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::EventId;

use super::compaction::CompactOptions;
use super::writer::DISK_MARGIN;

/// How much of the log is kept event by event. What is older is compacted in the background: its state stays.
///
/// Each limit counts for each rank alone. A rank is compacted once it is over a limit by a quarter, back to the limit, so
/// that the work is a small part of that of the appends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    /// Newest events that are kept. Default: all.
    pub keep_events: Option<u64>,
    /// Bytes of the newest frames and payloads that are kept. Default: all, or a fifth of `disk_max` over all ranks.
    pub keep_bytes: Option<u64>,
    /// Age up to which events are kept. Default: any.
    pub keep_age: Option<Duration>,
    /// Bytes that the store's files never exceed, with `queue_bytes_max` at most 32 MiB. At four fifths of it, less a
    /// margin of 96 MiB, all but the newest frame is compacted, without grace; where that is not enough, appends are
    /// refused (`AtDiskLimit`) before the limit is reached, and an opening that finds the store so large writes it
    /// anew. At least [`Retention::DISK_MIN`]. Default: none.
    pub disk_max: Option<u64>,
    /// How compactions are done.
    pub options: CompactOptions,
}

impl Retention {
    /// Smallest `disk_max`: 256 MiB. The store grows by segments of 8 MiB, and what waits in memory must still fit.
    pub const DISK_MIN: u64 = 256 * 1024 * 1024;

    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self { keep_events: Some(0), .. } => Err(Error::Invalid("keep_events must be above 0".into())),
            Self { keep_bytes: Some(0), .. } => Err(Error::Invalid("keep_bytes must be above 0".into())),
            Self { disk_max: Some(max), .. } if *max < Self::DISK_MIN => {
                Err(Error::Invalid(format!("disk_max {max} is below {} bytes", Self::DISK_MIN)))
            }
            _ => Ok(()),
        }
    }

    /// Whether anything is ever compacted.
    pub(super) fn is_any(&self) -> bool {
        self.keep_events.is_some()
            || self.keep_bytes.is_some()
            || self.keep_age.is_some()
            || self.disk_max.is_some()
    }

    /// Bytes of the store from which on all history is compacted.
    pub(super) fn tight_at(&self) -> Option<u64> {
        self.disk_max.map(|max| (max - DISK_MARGIN.min(max)) / 5 * 4)
    }

    /// Bytes that one of `ranks` keeps.
    pub(super) fn keep_bytes_of(&self, ranks: usize) -> Option<u64> {
        let share = self.disk_max.map(|max| max / 5 / ranks.max(1) as u64);
        self.keep_bytes.into_iter().chain(share).min()
    }

    /// Up to which id a rank is to be compacted now, by its number of events and their bytes.
    pub(super) fn plan(&self, base: EventId, head: EventId, marks: &Marks, ranks: usize) -> Option<EventId> {
        let events =
            self.keep_events.filter(|keep| head.saturating_sub(base) > keep.saturating_add(keep / 4));
        let by_events = events.map(|keep| head - keep);
        let by_bytes = self.keep_bytes_of(ranks).and_then(|keep| marks.plan(keep));
        by_events.max(by_bytes).filter(|to| *to > base)
    }
}

/// Marks set at most.
const MARKS_MAX: usize = 4096;

/// Where so many bytes of the log lie: coarse, so that it takes little memory whatever the log's length.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Last id of a frame, and the bytes up to its end.
    marks: VecDeque<(EventId, u64)>,
    /// Bytes between two marks at least.
    step: u64,
    /// Bytes up to the newest frame's end.
    end: u64,
    /// Bytes up to the end of what was compacted.
    start: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self { marks: VecDeque::new(), step: 64 * 1024, end: 0, start: 0 }
    }
}

impl Marks {
    /// A frame of so many bytes ends with `last`.
    pub(crate) fn push(&mut self, last: EventId, bytes: u64) {
        self.end += bytes;
        if self.end - self.marks.back().map_or(self.start, |(_, at)| *at) >= self.step {
            self.marks.push_back((last, self.end));
        }
        if self.marks.len() > MARKS_MAX {
            self.step *= 2;
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
    }

    /// What lies before all that was pushed.
    pub(crate) fn prepend(&mut self, before: Self) {
        let shift = before.end;
        self.end += shift;
        self.start = before.start;
        for (_, at) in &mut self.marks {
            *at += shift;
        }
        self.step = self.step.max(before.step);
        for mark in before.marks.into_iter().rev() {
            self.marks.push_front(mark);
        }
    }

    /// All up to `base` is compacted: about so many bytes.
    pub(crate) fn compacted(&mut self, base: EventId) -> u64 {
        let before = self.start;
        while let Some((last, at)) = self.marks.front().copied() {
            if last > base {
                break;
            }
            self.start = at;
            self.marks.pop_front();
        }
        self.start - before
    }

    /// Bytes of the log that are not compacted.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The id up to which to compact so that about `keep` bytes stay; `None` while it is less than a quarter over that.
    fn plan(&self, keep: u64) -> Option<EventId> {
        if self.bytes() <= keep.saturating_add(keep / 4) {
            return None;
        }
        self.up_to(keep)
    }

    /// The id up to which to compact so that about `keep` bytes stay: a mark's step more at most.
    pub(crate) fn up_to(&self, keep: u64) -> Option<EventId> {
        let goal = self.end.checked_sub(keep)?;
        let index = self.marks.partition_point(|(_, at)| *at <= goal);
        index.checked_sub(1).map(|index| self.marks[index].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(frames: u64) -> Marks {
        let mut marks = Marks::default();
        (1..=frames).for_each(|frame| marks.push(frame * 10, 60_000));
        marks
    }

    #[test]
    fn events_are_compacted_once_they_are_a_quarter_over_the_limit() {
        let retention = Retention { keep_events: Some(1000), ..Retention::default() };
        let plan = |base, head| retention.plan(base, head, &Marks::default(), 1);
        assert_eq!(plan(0, 1250), None);
        assert_eq!(plan(0, 1251), Some(251));
        assert_eq!(plan(251, 1251), None);
    }

    #[test]
    fn bytes_are_found_wherever_they_lie_and_whatever_was_read_later() {
        let retention = Retention { keep_bytes: Some(3_000_000), ..Retention::default() };
        let mut all = marks(100);
        let to = retention.plan(0, 1000, &all, 1).unwrap();
        // Of 6 MB the newest 3 MB stay, to the next mark.
        assert!((480..=500).contains(&to), "{to}");
        all.compacted(to);
        assert!((3_000_000..3_200_000).contains(&all.bytes()), "{}", all.bytes());
        assert_eq!(retention.plan(to, 1000, &all, 1), None);
        // The same, read in two parts.
        let mut new = Marks::default();
        (51..=100).for_each(|frame| new.push(frame * 10, 60_000));
        new.prepend(marks(50));
        assert_eq!((new.bytes(), new.plan(3_000_000)), (6_000_000, Some(to)));
    }

    #[test]
    fn a_limit_for_the_disk_is_a_limit_for_all_ranks_together() {
        let retention = Retention { disk_max: Some(Retention::DISK_MIN), ..Retention::default() };
        assert_eq!(retention.keep_bytes_of(2), Some(Retention::DISK_MIN / 10));
        assert!(retention.check().is_ok());
        assert!(Retention { disk_max: Some(1), ..retention }.check().is_err());
    }

    #[test]
    fn marks_stay_few() {
        let marks = marks(1_000_000);
        assert!(marks.marks.len() <= MARKS_MAX);
        let to = marks.plan(30_000_000_000).unwrap();
        assert!((4_980_000..=5_000_000).contains(&to), "{to}");
    }
}
