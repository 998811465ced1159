//! Reading: from any retained id, from the tail or from disk, frame by frame, never past what may be shown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::{Frame, PayloadChunk, join_payloads};
use crate::error::{Error, Result};
use crate::event::{DpRank, EngineTime, EventData, EventId};
use crate::store::{LOG, Row, Store, Tree};

use super::rank::{Rank, Rebuild};
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
    /// What is read.
    part: Part,
    /// Next id that is wanted.
    next: EventId,
    /// Last id of the frame before, once there was one: the next frame has to name it.
    chain: Option<EventId>,
    /// Frames at or below it were asked for although they are no part of a history.
    salvage: bool,
    with_payloads: bool,
    ahead: VecDeque<Frame>,
}

/// What a reader is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The compacted history of this number: the state at `base`.
    History { generation: u32, last: EventId, base: EventId },
    /// The log.
    Log,
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
        let (horizon, base, generation, history) = {
            let view = rank.view();
            (view.horizon, view.base, view.generation, view.history)
        };
        let head = rank.visible().get();
        let (start, part, next) = match from {
            from if salvage => (Start::Continue, Part::Log, from.max(1)),
            from if from <= horizon => match history {
                Some(history) => {
                    let part = Part::History { generation, last: history.last, base };
                    (Start::Reset { horizon }, part, 1)
                }
                None => (Start::Reset { horizon }, Part::Log, base + 1),
            },
            from if from > head + 1 => (Start::Ahead { head }, Part::Log, from),
            from => (Start::Continue, Part::Log, from),
        };
        let ahead = VecDeque::new();
        Self { store, rank, start, part, next, chain: None, salvage, with_payloads: false, ahead }
    }

    /// Reads what a reset rebuilds, whatever the horizon.
    pub(crate) fn from_history(store: Arc<dyn Store>, rank: Arc<Rank>) -> Self {
        Self::new(store, rank, 0, false)
    }

    /// Goes on with what a reset of a generation rebuilds, with the first frame after `from - 1`; `None` if it is no
    /// longer kept.
    pub(crate) fn rebuild(
        store: Arc<dyn Store>,
        rank: Arc<Rank>,
        generation: u32,
        from: EventId,
    ) -> Option<Self> {
        let Rebuild { history, base, .. } = rank.view().rebuild_of(generation)?;
        let (part, next, chain) = match history {
            Some(history) if from <= history.last => {
                let part = Part::History { generation, last: history.last, base };
                (part, from, (from > 1).then(|| from - 1))
            }
            _ => (Part::Log, from.max(base + 1), None),
        };
        let start = if from > 1 { Start::Continue } else { Start::Reset { horizon: base } };
        Some(Self { start, part, next, chain, ..Self::new(store, rank, 0, false) })
    }

    /// Reads a history that is not the rank's yet; the log after it makes no sense.
    pub(crate) fn of_generation(
        store: Arc<dyn Store>,
        rank: Arc<Rank>,
        generation: u32,
        last: EventId,
    ) -> Self {
        let part = Part::History { generation, last, base: EventId::MAX - 1 };
        Self { part, next: 1, ..Self::new(store, rank, 0, false) }
    }

    /// Id of the next event of the log; `None` while a compacted history comes first.
    pub(crate) fn position_in_log(&self) -> Option<EventId> {
        match self.part {
            Part::History { last, base, .. } => (self.chain == Some(last)).then_some(base + 1),
            Part::Log => Some(self.next),
        }
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
    /// `Damaged` if a frame is missing or changed, `Trimmed` if it was given up meanwhile: start anew then.
    pub fn next_frame(&mut self) -> Result<Option<ReadFrame>> {
        if let Part::History { generation, last, base } = self.part {
            if self.chain != Some(last) {
                return match self.next_of_history(generation, last) {
                    // Whatever is found amiss in a history that is being deleted is no damage.
                    Err(_) | Ok(None) if self.rank.view().rebuild_of(generation).is_none() => {
                        Err(self.trimmed(base))
                    }
                    frame => frame,
                };
            }
            (self.part, self.chain, self.next) = (Part::Log, None, base + 1);
        }
        self.next_of_log()
    }

    fn next_of_history(&mut self, generation: u32, last: EventId) -> Result<Option<ReadFrame>> {
        if self.ahead.is_empty() {
            let tree = Tree::Events { rank: self.rank.id().0, generation };
            self.read_ahead(tree, last)?;
        }
        match self.ahead.pop_front() {
            Some(frame) if frame.header().previous == self.chain.unwrap_or(0) => {
                self.deliver(frame, None).map(Some)
            }
            frame => {
                let missing = self.next..=frame.map_or(last, |frame| frame.header().first - 1);
                let what = "the compacted history does not hold them any more";
                Err(Error::damaged_ids(self.rank.id(), missing, what))
            }
        }
    }

    fn next_of_log(&mut self) -> Result<Option<ReadFrame>> {
        let limit = self.rank.visible().get();
        if self.next > limit {
            return Ok(None);
        }
        let mut payloads = None;
        let mut frame = self.ahead.pop_front();
        if frame.is_none()
            && let Some(entry) = self.rank.tail.at_or_above(self.next)
        {
            payloads = Some(entry.payloads);
            frame = Some(entry.frame);
        }
        if frame.is_none() {
            let tree = self.rank.view().tree;
            self.read_ahead(tree, limit)?;
            frame = self.ahead.pop_front();
        }
        match frame {
            Some(frame) if frame.header().first > limit => Ok(None),
            Some(frame) => {
                self.check_chain(&frame)?;
                self.deliver(frame, payloads).map(Some)
            }
            None => self.nothing_there(limit),
        }
    }

    fn trimmed(&self, wanted: EventId) -> Error {
        let horizon = self.rank.view().horizon;
        Error::Trimmed { rank: self.rank.id(), wanted, horizon }
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

    fn deliver(&mut self, frame: Frame, payloads: Option<Arc<[Option<Bytes>]>>) -> Result<ReadFrame> {
        let header = *frame.header();
        let payloads = match payloads {
            Some(payloads) if self.with_payloads => payloads,
            None if self.with_payloads && header.payload_len > 0 => self.payloads_of(&frame)?.into(),
            _ => Arc::new([]),
        };
        let from = self.next;
        self.next = header.last + 1;
        self.chain = Some(header.last);
        Ok(ReadFrame { frame, from, payloads })
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
        let (base, known) = {
            let view = self.rank.view();
            let known =
                view.lost.iter().any(|(first, last)| first <= missing.start() && *last >= header.previous);
            (view.base, known)
        };
        if self.salvage && (known || header.previous <= base) {
            return Ok(());
        }
        if *missing.start() <= base {
            return Err(self.trimmed(*missing.start()));
        }
        let what = format!("the frame of event {} follows event {}", header.first, header.previous);
        Err(Error::damaged_ids(self.rank.id(), missing, what))
    }

    fn read_ahead(&mut self, tree: Tree, limit: EventId) -> Result<()> {
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

    fn payloads_of(&self, frame: &Frame) -> Result<Vec<Option<Bytes>>> {
        let generation = if let Part::History { generation, .. } = self.part { generation } else { LOG };
        payloads_of(&*self.store, self.rank.id(), generation, frame)
    }
}

/// The payloads of the events of a frame of a generation, one entry an event.
pub(crate) fn payloads_of(
    store: &dyn Store,
    rank: DpRank,
    generation: u32,
    frame: &Frame,
) -> Result<Vec<Option<Bytes>>> {
    let header = frame.header();
    let tree = Tree::Payloads { rank: rank.0, generation };
    let chunks = read_payload_chunks(store, tree, header.first)?;
    join_payloads(&chunks, header.payload_len, header.payload_crc, header.count)
        .map_err(|e| Error::damaged_ids(rank, header.first..=header.last, e))
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
