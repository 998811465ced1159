//! The queue between appenders and the writer: ids are given here, under one lock.
//!
//! Appenders encode before they take the lock, so that it is held for a copy; the writer takes a whole group at
//! once. The queue is bounded: an appender waits for room, for a limited time, and what waits is visible.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::codec::{BuiltFrame, EncodedRecords, FrameBuilder, SourceCursor};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId};

use super::config::GroupLimits;
use super::rank::Rank;
use super::rows::History;

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The writer waits here.
    work: Condvar,
    /// Appenders wait here.
    room: Condvar,
    bytes_max: usize,
    group: GroupLimits,
    keep_payloads: bool,
}

#[derive(Debug)]
struct State {
    ranks: BTreeMap<DpRank, RankQueue>,
    /// Full frames, in the order they were filled.
    full: Vec<(Arc<Rank>, FrameBuilder)>,
    bytes: usize,
    events: usize,
    /// When the oldest event that waits came in.
    since: Option<Instant>,
    /// Each with the number of events that were appended before it.
    requests: VecDeque<(u64, Request)>,
    appended: u64,
    taken: u64,
    mode: Mode,
    waits: u64,
    /// Bytes used and allowed, while the store is at its limit.
    disk_limit: Option<(u64, u64)>,
    /// The disk is busy with a sync.
    syncing: bool,
    /// Bytes taken since that sync began.
    ahead_bytes: usize,
}

/// The next frame of one rank.
#[derive(Debug)]
struct RankQueue {
    rank: Arc<Rank>,
    next: EventId,
    open: FrameBuilder,
    cursor: Option<SourceCursor>,
    /// The cursor moved without an event.
    moved: bool,
}

/// Whether the queue still takes events.
#[derive(Clone, Debug)]
enum Mode {
    Open,
    Closing,
    Failed { cause: String, disk_full: bool },
}

/// What the writer is asked for beside appending.
#[derive(Debug)]
pub(crate) enum Request {
    /// Sync all that was appended before, and answer.
    Sync(SyncSender<Result<()>>),
    /// Write frames of a history that is not the rank's yet.
    Write { rank: DpRank, generation: u32, frames: Vec<BuiltFrame>, answer: SyncSender<Result<()>> },
    /// Make a history that was written the rank's, in place of its events up to `base`.
    Replace { rank: DpRank, replacement: Replacement, answer: SyncSender<Result<()>> },
    /// Delete what was written of a history that came to nothing.
    Abandon { rank: DpRank, generation: u32 },
}

/// What takes the place of a rank's oldest events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replacement {
    /// The end of a frame.
    pub(crate) base: EventId,
    pub(crate) generation: u32,
    pub(crate) history: Option<History>,
    /// For how long what it replaces can still be read.
    pub(crate) grace: Duration,
}

impl Request {
    /// Whether it comes after all that was appended before, and after a sync.
    pub(crate) fn is_ordered(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Abandon { .. })
    }
}

/// What the writer takes at once.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Frames to build, in order for each rank.
    pub(crate) frames: Vec<(Arc<Rank>, FrameBuilder)>,
    /// Cursors that moved without an event.
    pub(crate) cursors: Vec<(Arc<Rank>, SourceCursor)>,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: usize,
    /// Nothing more will come after this group.
    pub(crate) last: bool,
}

/// A batch of an engine: the cursor says which one and how many records it has.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) records: &'a EncodedRecords,
    pub(crate) source: Option<SourceCursor>,
}

/// What waits for the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueDepth {
    pub(crate) bytes: usize,
    pub(crate) events: usize,
    pub(crate) waits: u64,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize, group: GroupLimits, keep_payloads: bool) -> Self {
        Self {
            state: Mutex::new(State {
                ranks: BTreeMap::new(),
                full: Vec::new(),
                bytes: 0,
                events: 0,
                since: None,
                requests: VecDeque::new(),
                appended: 0,
                taken: 0,
                mode: Mode::Open,
                waits: 0,
                disk_limit: None,
                syncing: false,
                ahead_bytes: 0,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            bytes_max,
            group,
            keep_payloads,
        }
    }

    /// Adds a rank, unless it is there, whose next event gets the id `next`.
    pub(crate) fn add_rank(&self, rank: &Arc<Rank>, next: EventId, cursor: Option<SourceCursor>) {
        let fresh = || RankQueue {
            rank: Arc::clone(rank),
            next,
            open: FrameBuilder::new(next),
            cursor,
            moved: false,
        };
        self.lock().ranks.entry(rank.id()).or_insert_with(fresh);
    }

    /// Gives ids to the records of a batch, or to those of it that a crash took, and queues them; `None` if there
    /// is nothing to append. Waits up to `wait_max` for room.
    pub(crate) fn append(
        &self,
        rank: DpRank,
        batch: Batch<'_>,
        wait_max: Duration,
    ) -> Result<Option<RangeInclusive<EventId>>> {
        let weight = batch.records.weight();
        let mut state = self.wait_for_room(weight, wait_max)?;
        let state = &mut *state;
        let full = state.full.len();
        let queue =
            state.ranks.get_mut(&rank).ok_or_else(|| Error::Invalid(format!("unknown rank {rank}")))?;
        let skip = match (&batch.source, &queue.cursor) {
            (Some(source), Some(at)) if at.same_batch(source) => at.done as usize,
            _ => 0,
        };
        let mut source = batch.source;
        if let Some(source) = &mut source {
            source.total = batch.records.len() as u32;
            if batch.records.len() == 0 {
                queue.moved |= queue.cursor.as_ref() != Some(source);
                queue.cursor = Some(source.clone());
            }
        }
        let first = queue.next;
        for (index, (record, payload)) in batch.records.iter().enumerate().skip(skip) {
            let payload = payload.filter(|_| self.keep_payloads).cloned();
            if !queue.open.fits(record, payload.as_ref().map_or(0, bytes::Bytes::len)) {
                state.full.push((Arc::clone(&queue.rank), queue.cut()));
            }
            queue.open.push(record, payload);
            queue.next += 1;
            if let Some(source) = &mut source {
                source.done = index as u32 + 1;
                queue.cursor = Some(source.clone());
                queue.moved = false;
            }
        }
        let appended = (queue.next - first) as usize;
        let moved = queue.moved;
        queue.rank.set_head(queue.next - 1);
        if appended > 0 || moved {
            state.bytes += weight;
            state.events += appended;
            state.appended += appended as u64;
            state.since.get_or_insert_with(Instant::now);
            // While the disk is busy the writer waits for full frames: waking it for less costs more than the append.
            if !state.syncing || state.full.len() > full {
                self.work.notify_one();
            }
        }
        Ok((appended > 0).then(|| first..=queue_last(first, appended)))
    }

    fn wait_for_room(&self, weight: usize, wait_max: Duration) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let mut deadline = None;
        loop {
            state.mode.check()?;
            if let Some((used, max)) = state.disk_limit {
                return Err(Error::AtDiskLimit { used, max });
            }
            // An empty queue takes anything, or a long batch would never fit.
            if state.bytes == 0 || state.bytes + weight <= self.bytes_max {
                return Ok(state);
            }
            let now = Instant::now();
            if deadline.is_none() {
                state.waits += 1;
            }
            let left = deadline.get_or_insert(now + wait_max).saturating_duration_since(now);
            if left.is_zero() {
                return Err(Error::Busy { queued_bytes: state.bytes, bytes_max: self.bytes_max });
            }
            state = self.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the writer for something, once it has written all that was appended before.
    pub(crate) fn request(&self, request: Request) -> Result<()> {
        let mut state = self.lock();
        state.mode.check()?;
        let State { ranks, full, requests, appended, .. } = &mut *state;
        // Open frames take their place in the line: what is appended from now on comes after them.
        let mut after = 0;
        if request.is_ordered() {
            for queue in ranks.values_mut().filter(|queue| !queue.open.is_empty()) {
                full.push((Arc::clone(&queue.rank), queue.cut()));
            }
            after = *appended;
        }
        requests.push_back((after, request));
        self.work.notify_one();
        Ok(())
    }

    /// Takes the next group; an empty one if nothing came until `idle_max`, or once a sync is done.
    ///
    /// While the disk is busy with a sync only full frames are taken, and no more of them than make a group: what
    /// cannot be synced yet may as well grow.
    pub(crate) fn take(&self, idle_max: Duration) -> Group {
        let mut state = self.lock();
        let idle_until = Instant::now() + idle_max;
        let mut was_syncing = false;
        loop {
            if state.syncing {
                if !state.full.is_empty() && state.ahead_bytes < self.group.bytes_max {
                    break;
                }
                was_syncing = true;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let full = state.bytes >= self.group.bytes_max || state.events >= self.group.events_max;
            let ripe = state.since.map(|since| since + self.group.wait_max);
            let closing = !matches!(state.mode, Mode::Open);
            let asked = closing || !state.requests.is_empty();
            if was_syncing || full || asked || ripe.is_some_and(|ripe| ripe <= now) {
                break;
            }
            let left = ripe.unwrap_or(idle_until).min(idle_until).saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let group = state.take_group(&self.group);
        self.room.notify_all();
        group
    }

    /// Refuses appends with these bytes used and allowed, or takes them again.
    pub(crate) fn set_disk_limit(&self, limit: Option<(u64, u64)>) {
        self.lock().disk_limit = limit;
    }

    /// Whether the disk is busy with a sync.
    pub(crate) fn is_syncing(&self) -> bool {
        self.lock().syncing
    }

    /// A sync began, or ended.
    pub(crate) fn set_syncing(&self, syncing: bool) {
        let mut state = self.lock();
        state.syncing = syncing;
        state.ahead_bytes = 0;
        self.work.notify_one();
    }

    /// Blocks until no sync runs.
    pub(crate) fn wait_synced(&self) {
        let mut state = self.lock();
        while state.syncing {
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no more events; the writer gets what is queued and a last group.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        if matches!(state.mode, Mode::Open) {
            state.mode = Mode::Closing;
        }
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Takes no more events, since the writer failed.
    pub(crate) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.mode = Mode::Failed { cause: error.to_string(), disk_full: error.is_disk_full() };
        // Their senders wait for an answer, which dropping them is.
        state.requests.clear();
        self.room.notify_all();
    }

    /// The failure that stopped the writer, if one did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.lock().mode.check().err().filter(|e| !matches!(e, Error::Closed))
    }

    /// Where the source of a rank is, events that still wait for the disk included.
    pub(crate) fn cursor(&self, rank: DpRank) -> Option<SourceCursor> {
        self.lock().ranks.get(&rank).and_then(|queue| queue.cursor.clone())
    }

    pub(crate) fn depth(&self) -> QueueDepth {
        let state = self.lock();
        QueueDepth { bytes: state.bytes, events: state.events, waits: state.waits }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn queue_last(first: EventId, appended: usize) -> EventId {
    first + appended as u64 - 1
}

impl RankQueue {
    /// Takes the open frame. A frame that holds no batch's end still says where the source is, so that the newest
    /// frame always knows.
    fn cut(&mut self) -> FrameBuilder {
        let mut full = std::mem::replace(&mut self.open, FrameBuilder::new(self.next));
        if let Some(cursor) = &self.cursor {
            full.set_cursor(cursor.clone());
        }
        full
    }
}

impl State {
    /// Whole frames, oldest first, up to the limits of a group; the open ones too if all full ones fit and the disk
    /// is free.
    fn take_group(&mut self, limits: &GroupLimits) -> Group {
        let mut group = Group::default();
        let mut bytes = 0;
        let mut taken = 0;
        for (_, frame) in &self.full {
            if taken > 0 && (bytes + frame.weight() > limits.bytes_max || group.events >= limits.events_max) {
                break;
            }
            bytes += frame.weight();
            group.events += frame.len();
            taken += 1;
        }
        let all = taken == self.full.len() && !self.syncing;
        self.ahead_bytes += bytes;
        group.frames.extend(self.full.drain(..taken));
        if all {
            for queue in self.ranks.values_mut() {
                if !queue.open.is_empty() {
                    group.events += queue.open.len();
                    let frame = queue.cut();
                    group.frames.push((Arc::clone(&queue.rank), frame));
                } else if let Some(cursor) = queue.cursor.as_ref().filter(|_| queue.moved) {
                    group.cursors.push((Arc::clone(&queue.rank), cursor.clone()));
                }
                queue.moved = false;
            }
            self.bytes = 0;
            self.events = 0;
            self.since = None;
            group.last = !matches!(self.mode, Mode::Open);
        } else {
            self.bytes = self.bytes.saturating_sub(bytes);
            self.events -= group.events;
        }
        self.taken += group.events as u64;
        // What is asked for needs a sync of its own. A cursor that moved without an event goes with the open frames:
        // who asked after it waits for them too.
        if self.syncing || (!all && self.ranks.values().any(|queue| queue.moved)) {
            return group;
        }
        while self.requests.front().is_some_and(|(after, _)| *after <= self.taken) {
            group.requests.extend(self.requests.pop_front().map(|(_, request)| request));
        }
        group
    }
}

impl Mode {
    fn check(&self) -> Result<()> {
        match self {
            Self::Open => Ok(()),
            Self::Closing => Err(Error::Closed),
            Self::Failed { cause, disk_full } => {
                Err(Error::Poisoned { cause: cause.clone(), disk_full: *disk_full })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BlockHash, EventData, Removed};
    use crate::journal::config::Durability;
    use crate::journal::rows::RankRow;

    #[test]
    fn while_the_disk_is_busy_only_full_frames_are_taken_and_no_more_than_a_group() {
        let group = GroupLimits { bytes_max: 100 * 1024, ..GroupLimits::default() };
        let queue = Queue::new(usize::MAX, group, false);
        let row = RankRow { rank: 0, ..RankRow::default() };
        let rank = Arc::new(Rank::new(&row, 0, Durability::Sync, 1));
        queue.add_rank(&rank, 1, None);
        let mut records = EncodedRecords::default();
        let removed = Removed { block_hashes: vec![BlockHash(1); 1000], ..Removed::default() };
        (0..30).for_each(|_| records.push(&EventData::Removed(removed.clone()), None, None).unwrap());
        let batch = Batch { records: &records, source: None };
        assert_eq!(queue.append(DpRank(0), batch, Duration::ZERO).unwrap(), Some(1..=30));
        queue.set_syncing(true);
        let ahead = queue.take(Duration::ZERO);
        assert_eq!(
            (ahead.frames.len(), ahead.events),
            (1, 8),
            "another full frame is above the group's limit"
        );
        queue.set_syncing(false);
        let rest = queue.take(Duration::ZERO);
        assert_eq!((rest.frames.len(), rest.events), (1, 8));
        let last = queue.take(Duration::ZERO);
        assert_eq!((last.frames.len(), last.events), (2, 14), "a full frame and the open one");
        assert_eq!(queue.depth(), QueueDepth::default());
    }
}
