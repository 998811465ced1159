//! Compacting a rank of an open journal: by whom, up to where, and what came of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::codec::Stamp;
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId};
use crate::store::{LOG, Store, Tree};

use super::compact::{Outcome, Reading, Run};
use super::queue::{Queue, Replacement, Request};
use super::rank::Rank;
use super::recover::parse_frame;
use super::rows::frame_key;

/// How long the writer may take for one request: it stands behind one group and one sync, but a sync may be slow.
pub(crate) const REQUEST_WAIT_MAX: Duration = Duration::from_secs(60);

/// How a compaction is done.
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    /// For how long readers that began the history before may still end it, and ids that go can still be read. Default
    /// 60 s. It ends early when the journal is closed.
    pub grace: Duration,
    /// Bytes of frames read in a second at most; each is read twice. `None`: as fast as it goes. Default 64 MiB.
    pub pace_bytes: Option<u64>,
    /// Whether to only say what would come of it.
    pub dry_run: bool,
}

impl Default for CompactOptions {
    fn default() -> Self {
        Self { grace: Duration::from_secs(60), pace_bytes: Some(64 * 1024 * 1024), dry_run: false }
    }
}

/// What a compaction did to what lies at or below the horizon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Ids at or below it were no longer kept one by one before.
    pub horizon_before: EventId,
    /// Ids at or below it are no longer kept one by one now.
    pub horizon: EventId,
    /// Events that were compacted: those of the history before and those above it up to the horizon.
    pub events_before: u64,
    /// Events of the history now.
    pub events: u64,
    /// Bytes of frames before.
    pub frame_bytes_before: u64,
    /// Bytes of frames now.
    pub frame_bytes: u64,
    /// Bytes of payloads before.
    pub payload_bytes_before: u64,
    /// Bytes of payloads now.
    pub payload_bytes: u64,
    /// Blocks and hashes that the events of the history name.
    pub entries: u64,
    /// Copies of blocks that are held at the horizon.
    pub copies: u64,
}

/// What is shared by all compactions of a journal.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    /// One at a time: their horizons only rise.
    one: Mutex<()>,
    pub(crate) stop: AtomicBool,
}

/// One compaction.
pub(crate) struct Job<'a> {
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) queue: &'a Queue,
    pub(crate) rank: &'a Arc<Rank>,
    /// Of this opening, without a rank's own ids.
    pub(crate) stamp: Stamp,
    pub(crate) generations: &'a AtomicU32,
}

impl Compactor {
    pub(crate) fn compact(
        &self,
        job: &Job<'_>,
        to: EventId,
        options: CompactOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Compacted> {
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        let horizon = job.rank.view().horizon;
        let unchanged = Compacted { horizon_before: horizon, horizon, ..Compacted::default() };
        let Some(end) = job.boundary(to)? else { return Ok(unchanged) };
        let write = |generation, frames| job.write(generation, frames, options.dry_run);
        let reading =
            Reading { store: job.store, rank: job.rank, end, pace: options.pace_bytes, stop: &self.stop };
        let run = Run { reading, stamp: job.stamp, generations: job.generations, write: &write, progress };
        let first = job.generations.load(Ordering::Relaxed);
        let outcome = run.run();
        let kept = outcome.as_ref().ok().map(|outcome| outcome.generation);
        for generation in (first..job.generations.load(Ordering::Relaxed)).filter(|it| Some(*it) != kept) {
            job.abandon(generation);
        }
        let outcome = outcome?;
        if options.dry_run {
            return Ok(told(&outcome, horizon, horizon.max(end)));
        }
        let Outcome { generation, history, .. } = outcome;
        let replacement = Replacement { base: end, generation, history, grace: options.grace };
        job.replace(replacement)?;
        let compacted = told(&outcome, horizon, job.rank.view().horizon);
        tracing::info!(
            dp_rank = job.rank.id().0,
            horizon = compacted.horizon,
            events_before = compacted.events_before,
            events = compacted.events,
            "history compacted"
        );
        Ok(compacted)
    }

    /// Gives up all up to `to`, history and all. What stands there is not read.
    pub(crate) fn trim(&self, job: &Job<'_>, to: EventId) -> Result<EventId> {
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = job.boundary(to)? {
            let generation = job.generations.fetch_add(1, Ordering::Relaxed);
            job.replace(Replacement { base, generation, history: None, grace: Duration::ZERO })?;
        }
        Ok(job.rank.view().horizon)
    }
}

fn told(outcome: &Outcome, horizon_before: EventId, horizon: EventId) -> Compacted {
    Compacted {
        horizon_before,
        horizon,
        events_before: outcome.before.events,
        events: outcome.after.events,
        frame_bytes_before: outcome.before.frame_bytes,
        frame_bytes: outcome.after.frame_bytes,
        payload_bytes_before: outcome.before.payload_bytes,
        payload_bytes: outcome.after.payload_bytes,
        entries: outcome.entries,
        copies: outcome.copies,
    }
}

impl Job<'_> {
    /// The end of the last durable frame at or below `to`, never that of the newest one; `None` if that is not above
    /// what was compacted before.
    fn boundary(&self, to: EventId) -> Result<Option<EventId>> {
        let tree = Tree::Events { rank: self.rank.id().0, generation: LOG };
        let to = to.min(self.rank.durable.get());
        let newest = self.store.last(tree)?;
        let Some((_, bytes)) = self.store.at_or_below(tree, &frame_key(to))? else { return Ok(None) };
        let frame = parse_frame(self.rank.id(), bytes)?;
        let header = frame.header();
        let is_newest = newest.is_none_or(|(key, _)| key[..] == frame_key(header.first));
        let end = if header.last <= to && !is_newest { header.last } else { header.previous };
        Ok((end > self.rank.view().base).then_some(end))
    }

    fn write(&self, generation: u32, frames: Vec<crate::codec::BuiltFrame>, dry_run: bool) -> Result<()> {
        if dry_run {
            return Ok(());
        }
        let rank = self.rank.id();
        ask(self.queue, |answer| Request::Write { rank, generation, frames, answer })
    }

    fn replace(&self, replacement: Replacement) -> Result<()> {
        let rank: DpRank = self.rank.id();
        ask(self.queue, |answer| Request::Replace { rank, replacement, answer })
    }

    fn abandon(&self, generation: u32) {
        // A journal that takes no requests any more finds it when it is opened.
        let _closed = self.queue.request(Request::Abandon { rank: self.rank.id(), generation });
    }
}

/// Asks the writer for something and waits for its answer.
pub(crate) fn ask<T>(
    queue: &Queue,
    request: impl FnOnce(std::sync::mpsc::SyncSender<Result<T>>) -> Request,
) -> Result<T> {
    let (answer, answered) = sync_channel(1);
    queue.request(request(answer))?;
    match answered.recv_timeout(REQUEST_WAIT_MAX) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(Error::Timeout("the writer".into())),
        Err(RecvTimeoutError::Disconnected) => Err(queue.failure().unwrap_or(Error::Closed)),
    }
}
