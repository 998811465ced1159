//! Running a compaction: the history and the log up to a frame's end are read, planned, read again, and what stays is
//! handed to the writer as a new history.
//!
//! Memory is that of the live state and a few frames, whatever the history's length. Nothing is changed until
//! the caller makes the new history the rank's.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;

use crate::codec::{BuiltFrame, EncodedRecords, Frame, FrameBuilder, Stamp};
use crate::engine::{cut_removed, cut_stored, payload_blocks};
use crate::error::{Error, Result};
use crate::event::{EventData, EventId};
use crate::journal::clock::now_us;
use crate::journal::rows::History;

use super::plan::Plan;
use super::planner::Planner;
use super::reading::{Reading, Source};

/// Bytes of frames and payloads that are handed to the writer at once: they stand before a group of appends.
const BATCH_BYTES: usize = 256 * 1024;

/// Rounds after which what is left is left: each one makes the history smaller, and hardly any stream needs a third.
const ROUNDS_MAX: usize = 8;

/// What a compaction works on.
pub(crate) struct Run<'a> {
    pub(crate) reading: Reading<'a>,
    /// All but the generation.
    pub(crate) stamp: Stamp,
    /// Gives the numbers of generations.
    pub(crate) generations: &'a AtomicU32,
    /// Takes frames of a generation.
    pub(crate) write: &'a dyn Fn(u32, Vec<BuiltFrame>) -> Result<()>,
    /// Told the ids read so far and in all, over all passes.
    pub(crate) progress: &'a dyn Fn(u64, u64),
}

/// A new history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) generation: u32,
    pub(crate) history: Option<History>,
    /// Events, bytes of frames and bytes of payloads before and after.
    pub(crate) before: Size,
    pub(crate) after: Size,
    /// Blocks and hashes in the events that stay.
    pub(crate) entries: u64,
    /// Copies of blocks held.
    pub(crate) copies: u64,
}

/// How much a history is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) events: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) payload_bytes: u64,
}

impl Size {
    fn add(&mut self, frame: &Frame) {
        self.events += u64::from(frame.header().count);
        self.frame_bytes += frame.as_bytes().len() as u64;
        self.payload_bytes += u64::from(frame.header().payload_len);
    }
}

/// One pass of writing.
struct Written {
    outcome: Outcome,
    /// Events whose payload cannot be cut as they were.
    uncut: Vec<EventId>,
}

impl Run<'_> {
    /// Compacts, and checks that the new history holds as much as the old one.
    ///
    /// # Errors
    /// What reading and writing say, `Closed` if it was stopped, `Internal` if the result would be wrong.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let mut whole = HashSet::new();
        let mut source = Source::Journal;
        let mut before = None;
        let mut outcome = Outcome::default();
        for round in 1..=ROUNDS_MAX {
            let (plan, size) = self.plan(source, &whole)?;
            let before = *before.get_or_insert(size);
            let is_rough = plan.is_rough();
            let written = self.write(source, plan, round == ROUNDS_MAX)?;
            if !written.uncut.is_empty() {
                whole.extend(written.uncut);
                continue;
            }
            outcome = Outcome { before, ..written.outcome };
            match outcome.history {
                Some(history) if is_rough && outcome.after.events < size.events => {
                    source = Source::Written { generation: outcome.generation, last: history.last };
                }
                _ => break,
            }
        }
        Ok(outcome)
    }

    /// Tells that a frame was read.
    fn note(&self, frame: &Frame) {
        let end = self.reading.end;
        (self.progress)(frame.header().last.min(end), end);
    }

    fn plan(&self, source: Source, whole: &HashSet<EventId>) -> Result<(Plan, Size)> {
        let mut planner = Planner::new(whole);
        let mut size = Size::default();
        self.reading.frames(source, |frame| {
            size.add(frame);
            for event in self.reading.events(frame)? {
                planner.apply(event.id, &event.data);
            }
            self.note(frame);
            Ok(())
        })?;
        Ok((planner.plan(), size))
    }

    fn write(&self, source: Source, mut plan: Plan, is_last: bool) -> Result<Written> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::new(Stamp { generation, ..self.stamp }, self.write);
        let mut uncut = Vec::new();
        self.reading.frames(source, |frame| {
            self.note(frame);
            let ids = frame.header().first..=frame.header().last;
            if !plan.touches(ids) {
                return Ok(());
            }
            let mut payloads = match frame.header().payload_len {
                0 => Vec::new(),
                _ => self.reading.payloads(frame)?,
            };
            for (index, event) in self.reading.events(frame)?.into_iter().enumerate() {
                let Some(kept) = plan.keep(event.id, event.data) else { continue };
                let payload = payloads.get_mut(index).and_then(Option::take);
                let payload = match payload.map(|payload| cut_payload(&kept, payload)) {
                    None => None,
                    Some(Cut::Payload(payload)) => Some(payload),
                    Some(Cut::Impossible) => {
                        if !is_last {
                            uncut.push(event.id);
                        }
                        None
                    }
                };
                // What is written is thrown away.
                if uncut.is_empty() {
                    batch.push(event.id, &kept, event.engine_time, payload)?;
                }
            }
            Ok(())
        })?;
        plan.check()?;
        let (last, after) = batch.end()?;
        let copies = plan.copies();
        let history = (after.events > 0).then_some(History { last, events: after.events, copies });
        let entries = plan.entries();
        let outcome = Outcome { generation, history, before: Size::default(), after, entries, copies };
        Ok(Written { outcome, uncut })
    }
}

/// A payload as it fits what is kept of its event.
enum Cut {
    Payload(Bytes),
    /// The event has to stay as a whole.
    Impossible,
}

fn cut_payload(kept: &EventData, payload: Bytes) -> Cut {
    match kept {
        EventData::Stored(stored) => match payload_blocks(&payload) {
            Some(blocks) if blocks == stored.blocks.len() => Cut::Payload(payload),
            Some(_) => cut_stored(&payload, stored.blocks.len()).map_or(Cut::Impossible, Cut::Payload),
            // Nobody else can read it either; it is kept as it came.
            None => Cut::Payload(payload),
        },
        EventData::Removed(removed) => match cut_removed(&payload, &removed.block_hashes) {
            Some(cut) => Cut::Payload(cut),
            None => Cut::Payload(payload),
        },
        EventData::Cleared(_) | EventData::Unknown(_) => Cut::Payload(payload),
    }
}

/// Frames on their way to the writer.
struct Batch<'a> {
    stamp: Stamp,
    write: &'a dyn Fn(u32, Vec<BuiltFrame>) -> Result<()>,
    open: FrameBuilder,
    full: Vec<BuiltFrame>,
    bytes: usize,
    previous: EventId,
    size: Size,
}

impl<'a> Batch<'a> {
    fn new(stamp: Stamp, write: &'a dyn Fn(u32, Vec<BuiltFrame>) -> Result<()>) -> Self {
        let open = FrameBuilder::sparse();
        Self { stamp, write, open, full: Vec::new(), bytes: 0, previous: 0, size: Size::default() }
    }

    fn push(
        &mut self,
        id: EventId,
        data: &EventData,
        engine_time: Option<crate::event::EngineTime>,
        payload: Option<Bytes>,
    ) -> Result<()> {
        let mut records = EncodedRecords::default();
        records.push(data, engine_time, payload)?;
        let mut records = records.iter();
        let (Some((record, payload)), None) = (records.next(), records.next()) else {
            return Err(Error::Internal(format!("event {id} became longer than it was")));
        };
        if !self.open.fits(record, payload.map_or(0, Bytes::len)) {
            self.cut()?;
        }
        self.open.push_at(id, record, payload.cloned());
        Ok(())
    }

    /// Closes the open frame.
    fn cut(&mut self) -> Result<()> {
        let open = std::mem::replace(&mut self.open, FrameBuilder::sparse());
        if open.is_empty() {
            return Ok(());
        }
        self.bytes += open.weight();
        let built = open.build(self.stamp, self.previous, now_us());
        self.previous = built.frame.header().last;
        self.size.add(&built.frame);
        self.full.push(built);
        if self.bytes >= BATCH_BYTES {
            self.hand_over()?;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<()> {
        self.bytes = 0;
        (self.write)(self.stamp.generation, std::mem::take(&mut self.full))
    }

    /// Hands over the rest. Gives the last id, and how much it was.
    fn end(mut self) -> Result<(EventId, Size)> {
        self.cut()?;
        if !self.full.is_empty() {
            self.hand_over()?;
        }
        Ok((self.previous, self.size))
    }
}
