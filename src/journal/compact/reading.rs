//! Reading what is compacted, at a pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::codec::{Frame, FrameEvent};
use crate::error::{Error, Result};
use crate::event::EventId;
use crate::journal::rank::Rank;
use crate::journal::reader::{Reader, payloads_of};
use crate::store::Store;

/// Longest sleep at once, so that closing the journal does not wait for a slow compaction.
const NAP_MAX: Duration = Duration::from_millis(50);

/// What is compacted.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The rank's history and its log.
    Journal,
    /// A history that was just written.
    Written { generation: u32, last: EventId },
}

/// How a compaction reads.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) rank: &'a Arc<Rank>,
    /// Last id that goes into the history: the end of a frame.
    pub(crate) end: EventId,
    /// Bytes of frames read in a second at most.
    pub(crate) pace: Option<u64>,
    pub(crate) stop: &'a AtomicBool,
}

impl Reading<'_> {
    /// Calls `work` with each frame of the source.
    ///
    /// One thread reads, decodes and works: with another one that decoded ahead it was slower, since what one thread
    /// allocates and another one frees costs more than it saves; one that only read ahead gained a tenth.
    ///
    /// # Errors
    /// What reading and `work` say, `Closed` if it was stopped.
    pub(super) fn frames(&self, source: Source, mut work: impl FnMut(&Frame) -> Result<()>) -> Result<()> {
        let mut reader = self.reader(source);
        let started = Instant::now();
        let mut bytes = 0;
        loop {
            if matches!(source, Source::Journal)
                && reader.position_in_log().is_some_and(|next| next > self.end)
            {
                return Ok(());
            }
            let Some(read) = reader.next_frame()? else { return Ok(()) };
            work(read.frame())?;
            bytes += read.frame().as_bytes().len() as u64;
            self.rest(started, bytes)?;
        }
    }

    /// The events of a frame.
    pub(super) fn events(&self, frame: &Frame) -> Result<Vec<FrameEvent>> {
        let damaged = |e| Error::damaged(format!("rank {}: {e}", self.rank.id()));
        frame.events().collect::<std::result::Result<_, _>>().map_err(damaged)
    }

    /// The payloads of a frame's events, one entry an event.
    pub(super) fn payloads(&self, frame: &Frame) -> Result<Vec<Option<Bytes>>> {
        payloads_of(&**self.store, self.rank.id(), frame.header().generation, frame)
    }

    fn reader(&self, source: Source) -> Reader {
        let (store, rank) = (Arc::clone(self.store), Arc::clone(self.rank));
        match source {
            Source::Journal => Reader::from_history(store, rank),
            Source::Written { generation, last } => Reader::of_generation(store, rank, generation, last),
        }
    }

    /// Sleeps until so many bytes may have been read.
    fn rest(&self, started: Instant, bytes: u64) -> Result<()> {
        let due = self
            .pace
            .map_or(Duration::ZERO, |pace| Duration::from_secs_f64(bytes as f64 / pace.max(1) as f64));
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Closed);
            }
            let left = due.saturating_sub(started.elapsed());
            // Short ones are left to add up: a thread that sleeps wakes late.
            if left < Duration::from_millis(2) {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP_MAX));
        }
    }
}
