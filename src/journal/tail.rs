//! The tail: the newest frames of a rank in memory, so that recent reads touch no disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::codec::{BuiltFrame, Frame};
use crate::event::EventId;

/// A frame with the payloads of its events, one entry an event, or none at all.
#[derive(Clone, Debug)]
pub(crate) struct TailFrame {
    pub(crate) frame: Frame,
    pub(crate) payloads: Arc<[Option<Bytes>]>,
}

/// The newest frames of one rank, within a limit of bytes.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes_max: usize,
    frames: Mutex<Frames>,
}

#[derive(Debug, Default)]
struct Frames {
    queue: VecDeque<TailFrame>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, frames: Mutex::default() }
    }

    /// Adds the next frame; the oldest go once the limit is passed. The newest always stays.
    pub(crate) fn push(&self, built: &BuiltFrame) {
        let entry = TailFrame { frame: built.frame.clone(), payloads: built.payloads.clone().into() };
        let mut frames = self.lock();
        frames.bytes += entry.weight();
        frames.queue.push_back(entry);
        while frames.bytes > self.bytes_max && frames.queue.len() > 1 {
            let oldest = frames.queue.pop_front().expect("there are two at least");
            frames.bytes -= oldest.weight();
        }
    }

    /// The frame that holds `id`, or else the first one above it; `None` if that may be on disk only.
    pub(crate) fn at_or_above(&self, id: EventId) -> Option<TailFrame> {
        let frames = self.lock();
        let first = frames.queue.front()?;
        // Ids below the tail, and above the last frame on disk, are not there at all: nothing is skipped.
        if id < first.frame.header().first && id <= first.frame.header().previous {
            return None;
        }
        let index = frames.queue.partition_point(|entry| entry.frame.header().last < id);
        frames.queue.get(index).cloned()
    }

    /// Bytes and frames it holds.
    pub(crate) fn size(&self) -> (usize, usize) {
        let frames = self.lock();
        (frames.bytes, frames.queue.len())
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TailFrame {
    fn weight(&self) -> usize {
        self.frame.as_bytes().len() + self.payloads.iter().flatten().map(Bytes::len).sum::<usize>()
    }
}
