//! Reading: from any retained id, from the tail or from disk, frame by frame, never past what may be shown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::{Frame, PayloadChunk, join_payloads};
use crate::error::{Error, Result};
use crate::event::{DpRank, EngineTime, EventData, EventId};
use crate::store::{Row, Store, Tree};

use super::rank::Rank;
use super::recover::parse_frame;
use super::rows::{frame_key, payload_key};
use super::watermark::Reached;

/// Bytes of frames that a reader takes from disk at once. With its limit of rows it bounds a reader's memory.
const READ_BYTES_MAX: usize = 1024 * 1024;
const READ_ROWS_MAX: usize = 256;

/// How a replay starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the event that was asked for.
    Continue,
    /// Events at or below the horizon are no longer kept one by one: forget the stream; what comes first rebuilds
    /// the state at the horizon, then every event after it follows.
    Reset {
        /// The last id of the history that comes first.
        horizon: EventId,
    },
    /// That id was not given yet. The reader waits for it.
    Ahead {
        /// Newest id that may be shown.
        head: EventId,
    },
}

/// One frame on its way to a reader.
#[derive(Clone, Debug)]
pub struct ReadFrame {
    frame: Frame,
    from: EventId,
    payloads: Arc<[Option<Bytes>]>,
}

/// One event on its way to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadEvent {
    /// Its id.
    pub id: EventId,
    /// What it says.
    pub data: EventData,
    /// The engine's time.
    pub engine_time: Option<EngineTime>,
    /// The engine's own bytes, if they are kept and the reader asked for them.
    pub payload: Option<Bytes>,
}

/// Reads one rank, in order. Cheap to make; it holds at most a mebibyte of frames.
pub struct Reader {
    store: Arc<dyn Store>,
    rank: Arc<Rank>,
    start: Start,
    /// Next id that is wanted.
    next: EventId,
    /// Last id of the frame before, once there was one: the next frame has to name it.
    chain: Option<EventId>,
    /// Frames at or below it were asked for although they are no part of a history.
    salvage: bool,
    with_payloads: bool,
    ahead: VecDeque<Frame>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("rank", &self.rank.id())
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl ReadFrame {
    /// The frame as it stands on disk. It may start before the first event that was asked for.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The events that were asked for.
    pub fn events(&self) -> impl Iterator<Item = Result<ReadEvent>> {
        let rank = self.frame.header().rank;
        self.frame.events().enumerate().filter_map(move |(index, event)| match event {
            Ok(event) if event.id < self.from => None,
            Ok(event) => Some(Ok(ReadEvent {
                id: event.id,
                data: event.data,
                engine_time: event.engine_time,
                payload: self.payloads.get(index).cloned().flatten(),
            })),
            Err(e) => Some(Err(Error::damaged(format!("rank {rank}: {e}")))),
        })
    }
}

impl Reader {
    pub(crate) fn new(store: Arc<dyn Store>, rank: Arc<Rank>, from: EventId, salvage: bool) -> Self {
        let (horizon, base) = {
            let view = rank.view();
            (view.horizon, view.base)
        };
        let head = rank.visible().get();
        let (start, next) = match from {
            from if salvage => (Start::Continue, from.max(1)),
            from if from <= horizon => (Start::Reset { horizon }, base + 1),
            from if from > head + 1 => (Start::Ahead { head }, from),
            from => (Start::Continue, from),
        };
        Self { store, rank, start, next, chain: None, salvage, with_payloads: false, ahead: VecDeque::new() }
    }

    /// How the replay starts.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The rank that is read.
    pub fn rank(&self) -> DpRank {
        self.rank.id()
    }

    /// Id of the next event.
    pub fn position(&self) -> EventId {
        self.next
    }

    /// Asks for the payloads too.
    #[must_use]
    pub fn with_payloads(mut self) -> Self {
        self.with_payloads = true;
        self
    }

    /// The next frame, or `None` if all that may be shown was read; then wait, or come again.
    ///
    /// # Errors
    /// `Damaged` if a frame is missing or changed, `Trimmed` if it was given up meanwhile.
    pub fn next_frame(&mut self) -> Result<Option<ReadFrame>> {
        let limit = self.rank.visible().get();
        if self.next > limit {
            return Ok(None);
        }
        if self.ahead.is_empty()
            && let Some(entry) = self.rank.tail.at_or_above(self.next)
        {
            return self.deliver(entry.frame, Some(entry.payloads), limit);
        }
        if self.ahead.is_empty() {
            self.read_ahead(limit)?;
        }
        match self.ahead.pop_front() {
            Some(frame) => self.deliver(frame, None, limit),
            None => self.nothing_there(limit),
        }
    }

    /// Blocks until there is something to read.
    ///
    /// # Errors
    /// `Timeout`, or `Closed` if the journal was closed or failed.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        match self.rank.visible().wait(self.next, timeout) {
            Reached::Yes => Ok(()),
            Reached::Stopped => Err(Error::Closed),
            Reached::TimedOut => {
                Err(Error::Timeout(format!("event {} of rank {}", self.next, self.rank.id())))
            }
        }
    }

    /// Waits until there is something to read.
    ///
    /// # Errors
    /// `Closed` if the journal was closed or failed.
    pub async fn ready(&self) -> Result<()> {
        match self.rank.visible().reached(self.next).await {
            Reached::Yes => Ok(()),
            Reached::Stopped | Reached::TimedOut => Err(Error::Closed),
        }
    }

    fn deliver(
        &mut self,
        frame: Frame,
        payloads: Option<Arc<[Option<Bytes>]>>,
        limit: EventId,
    ) -> Result<Option<ReadFrame>> {
        let header = *frame.header();
        if header.first > limit {
            return Ok(None);
        }
        self.check_chain(&frame)?;
        let payloads = match payloads {
            Some(payloads) if self.with_payloads => payloads,
            None if self.with_payloads && header.payload_len > 0 => self.read_payloads(&frame)?.into(),
            _ => Arc::new([]),
        };
        let from = self.next;
        self.next = header.last + 1;
        self.chain = Some(header.last);
        Ok(Some(ReadFrame { frame, from, payloads }))
    }

    /// Each frame names the one before it; what is between them was never given, or is lost.
    fn check_chain(&self, frame: &Frame) -> Result<()> {
        let header = frame.header();
        let missing = match self.chain {
            Some(chain) if header.previous == chain => return Ok(()),
            Some(chain) => chain + 1..=header.first - 1,
            None if header.previous < self.next => return Ok(()),
            None => self.next..=header.first - 1,
        };
        let (horizon, base, known) = {
            let view = self.rank.view();
            let known =
                view.lost.iter().any(|(first, last)| first <= missing.start() && *last >= header.previous);
            (view.horizon, view.base, known)
        };
        if self.salvage && (known || header.previous <= base) {
            return Ok(());
        }
        if *missing.start() <= base {
            return Err(Error::Trimmed { rank: self.rank.id(), wanted: *missing.start(), horizon });
        }
        let what = format!("the frame of event {} follows event {}", header.first, header.previous);
        Err(Error::damaged_ids(self.rank.id(), missing, what))
    }

    fn read_ahead(&mut self, limit: EventId) -> Result<()> {
        let tree = self.rank.view().tree;
        let start = match self.store.at_or_below(tree, &frame_key(self.next))? {
            Some((key, _)) => key,
            None => frame_key(self.next).to_vec(),
        };
        let mut bytes = 0;
        for row in self.store.scan(tree, &start).take(READ_ROWS_MAX) {
            let (_, row) = row.map_err(|e| self.damaged_from(&e.to_string(), limit))?;
            bytes += row.len();
            let frame =
                parse_frame(self.rank.id(), row).map_err(|e| self.damaged_from(&e.to_string(), limit))?;
            if frame.header().first > limit {
                break;
            }
            if frame.header().last >= self.next {
                self.ahead.push_back(frame);
            }
            if bytes >= READ_BYTES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Ids from the next one on cannot be read: which ones exactly is known once the frame after them is found.
    fn damaged_from(&self, what: &str, limit: EventId) -> Error {
        let from = self.ahead.back().map_or(self.next, |frame| frame.header().last + 1);
        Error::damaged_ids(self.rank.id(), from..=limit.max(from), what)
    }

    fn nothing_there(&mut self, limit: EventId) -> Result<Option<ReadFrame>> {
        let (horizon, base) = {
            let view = self.rank.view();
            (view.horizon, view.base)
        };
        // Ids up to the horizon may have been given up without ever having had an event.
        if limit <= horizon.max(base) {
            self.next = limit + 1;
            return Ok(None);
        }
        let ids = self.next..=limit;
        Err(Error::damaged_ids(self.rank.id(), ids, "no frame holds them"))
    }

    fn read_payloads(&self, frame: &Frame) -> Result<Vec<Option<Bytes>>> {
        let header = frame.header();
        let tree = self.rank.view().payloads;
        let chunks = read_payload_chunks(&*self.store, tree, header.first)?;
        join_payloads(&chunks, header.payload_len, header.payload_crc, header.count)
            .map_err(|e| Error::damaged_ids(self.rank.id(), header.first..=header.last, e))
    }
}

/// The chunks of a frame's payloads, in order.
pub(crate) fn read_payload_chunks(store: &dyn Store, tree: Tree, first: EventId) -> Result<Vec<Bytes>> {
    let mut chunks = Vec::new();
    for row in store.scan(tree, &payload_key(first, 0)) {
        let (key, value): Row = row?;
        if key[..] != payload_key(first, chunks.len() as u16) {
            break;
        }
        match PayloadChunk::parse_prefix(&value) {
            Some((chunk, len)) if len == value.len() => chunks.push(chunk.bytes),
            _ => {
                return Err(Error::damaged(format!(
                    "the payload row of event {first} is not as it was written"
                )));
            }
        }
    }
    Ok(chunks)
}
