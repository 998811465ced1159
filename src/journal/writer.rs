//! The writer: one thread that owns the store, and turns what is queued into groups on disk.
//!
//! For each group: payload rows, then frames, then one sync, then the watermarks. A row that a frame relies on is
//! always written before it, and sled recovers a prefix of its writes, so a crash leaves nothing half. Groups are
//! synced by [`Syncer`], while full frames of the next one are written already.
//!
//! After a failed write or sync the writer stops for good. Nothing above the last good sync was acknowledged, so
//! nothing is lost; but after a failed sync the kernel may show pages that never reached the disk, so the witness
//! is told to distrust the store, and the next opening writes it anew before it acknowledges anything.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::codec::{BuiltFrame, FrameBuilder, PayloadRows, SourceCursor, Stamp};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId, WorkerId};
use crate::store::{LOG, Store, Tree, Witness};

use super::clock::now_us;
use super::config::Durability;
use super::doomed::{Doomed, DoomedRows};
use super::epochs::Epoch;
use super::phase::{Phase, enter};
use super::queue::{Group, Queue, Replacement, Request};
use super::rank::{Rank, RankView, RankWriter, Revisions};
use super::rows::{frame_key, payload_key};
use super::syncer::{SyncPoint, Syncer};

/// The witness is at most this much behind the durable heads.
const WITNESS_EVERY: Duration = Duration::from_secs(1);

/// Rows of trimmed frames that are deleted between two groups, so that appends hardly wait for it.
const TRIM_ROWS_MAX: usize = 64;

/// Bytes that are left free below the store's limit: half of it for what waits in the queue and for segments that are
/// being opened, half for a compacted history that frees more than it takes.
pub(crate) const DISK_MARGIN: u64 = 96 * 1024 * 1024;

/// Figures that the writer keeps.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) events: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) syncs: Arc<AtomicU64>,
    pub(crate) trimmed_rows: AtomicU64,
}

/// The writer's state.
pub(crate) struct Writer {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) witness: Option<Witness>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) durability: Durability,
    pub(crate) journal: [u8; 16],
    pub(crate) worker: WorkerId,
    /// This opening.
    pub(crate) epoch: u64,
    pub(crate) ranks: BTreeMap<DpRank, (Arc<Rank>, RankWriter)>,
    /// Entry of this opening, without a rank's own ids.
    pub(crate) new_epoch: Epoch,
    pub(crate) last_sync: Instant,
    pub(crate) last_witness: Instant,
    /// Something was written since the last sync began.
    pub(crate) dirty: bool,
    pub(crate) syncer: Syncer,
    /// Bytes that the store never exceeds.
    pub(crate) disk_max: Option<u64>,
    /// Bytes of the log that were deleted, less those that were written since.
    pub(crate) room: i64,
}

impl Writer {
    /// Runs until the queue is closed and empty, or a write fails.
    pub(crate) fn run(mut self) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_groups()))
            .unwrap_or_else(|_| Err(Error::Internal("the writer panicked".into())));
        if let Err(error) = &outcome {
            tracing::error!(%error, "journal stopped");
            self.queue.fail(error);
        }
        for (rank, _) in self.ranks.values() {
            rank.stop();
        }
        outcome
    }

    fn run_groups(&mut self) -> Result<()> {
        loop {
            let mut group = self.queue.take(self.idle_max());
            let is_synced = !self.queue.is_syncing();
            if let Err(error) = self.syncer.take_failure() {
                return Err(self.distrust(error));
            }
            if is_synced {
                self.rows_synced();
            }
            let last = group.last;
            let requests = std::mem::take(&mut group.requests);
            self.write_group(group)?;
            let must_sync = requests.iter().any(Request::is_ordered) || last;
            self.commit(must_sync)?;
            self.answer(requests)?;
            self.delete_replaced(last)?;
            self.watch_disk()?;
            if last {
                return self.close();
            }
            if self.witness_stale() && self.last_witness.elapsed() >= WITNESS_EVERY {
                self.write_witness(false)?;
            }
        }
    }

    /// How long the writer may sleep with nothing to do.
    fn idle_max(&self) -> Duration {
        let due = |every: Duration, last: Instant| every.saturating_sub(last.elapsed());
        let mut idle = WITNESS_EVERY;
        if self.witness_stale() {
            idle = idle.min(due(WITNESS_EVERY, self.last_witness));
        }
        if self.dirty {
            idle = idle.min(due(self.sync_every(), self.last_sync));
        }
        let doomed = self.ranks.values().filter_map(|(_, writer)| writer.doomed.first_due());
        doomed.map(|due| due.saturating_duration_since(Instant::now())).fold(idle, Duration::min)
    }

    fn sync_every(&self) -> Duration {
        match self.durability {
            Durability::Sync => Duration::ZERO,
            Durability::Interval(every) => every,
            Durability::Os => WITNESS_EVERY,
        }
    }

    fn write_group(&mut self, group: Group) -> Result<()> {
        if group.frames.is_empty() && group.cursors.is_empty() {
            return Ok(());
        }
        let _phase = enter(Phase::Write);
        for (rank, _) in &group.frames {
            self.prepare_rank(rank)?;
        }
        for (rank, builder) in group.frames {
            self.write_frame(&rank, builder)?;
        }
        // After the frames: a row that is ahead of them would, after a crash between, claim a batch that is not there.
        for (rank, cursor) in group.cursors {
            self.prepare_rank(&rank)?;
            let (_, writer) = self.ranks.get_mut(&rank.id()).expect("it was prepared");
            writer.cursor = Some(cursor.clone());
            writer.row.cursor = Some(cursor);
            writer.row.cursor_at = writer.previous;
            writer.row.save(&*self.store)?;
            self.dirty = true;
        }
        Ok(())
    }

    /// Makes sure that the rank's row, with this epoch, is on stable storage before anything stamped with it leaves.
    fn prepare_rank(&mut self, rank: &Arc<Rank>) -> Result<()> {
        if let Some((_, writer)) = self.ranks.get(&rank.id()) {
            if !writer.unsaved {
                return Ok(());
            }
        } else {
            let row = super::rows::RankRow { rank: rank.id().0, ..Default::default() };
            let writer = RankWriter {
                row,
                previous: 0,
                cursor: None,
                witnessed: 0,
                revisions: Revisions::default(),
                doomed: DoomedRows::default(),
                unsaved: true,
            };
            self.ranks.insert(rank.id(), (Arc::clone(rank), writer));
        }
        let first = self.first_id_of(rank);
        let (rank, writer) = self.ranks.get_mut(&rank.id()).expect("it was just put there");
        if first > 1 {
            writer.row.horizon = writer.row.horizon.max(first - 1);
            writer.row.floor = writer.row.floor.max(first - 1);
        }
        writer.row.epochs.push(Epoch { first, kept: 0, ..self.new_epoch });
        writer.row.save(&*self.store)?;
        writer.unsaved = false;
        *rank.view() = RankView::of(&writer.row);
        self.sync_now()
    }

    fn write_frame(&mut self, rank: &Arc<Rank>, builder: FrameBuilder) -> Result<()> {
        let (_, writer) = self.ranks.get_mut(&rank.id()).expect("it was prepared");
        let epoch_first = writer.row.epochs.last().map_or(0, |epoch| epoch.first);
        let stamp = Stamp {
            journal: self.journal,
            worker: self.worker,
            rank: rank.id(),
            generation: LOG,
            epoch: self.epoch,
            epoch_first,
        };
        let built = builder.build(stamp, writer.previous, now_us());
        let header = *built.frame.header();
        write_rows(&*self.store, rank.id(), LOG, &built)?;
        writer.previous = header.last;
        self.dirty = true;
        rank.tail.push(&built);
        let bytes = built.frame.as_bytes().len() as u64 + u64::from(header.payload_len);
        rank.marks().push(header.last, bytes);
        self.room = (self.room - bytes as i64).max(0);
        let counters = &self.counters;
        counters.events.fetch_add(u64::from(header.count), Ordering::Relaxed);
        counters.frames.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(built.frame.as_bytes().len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Shows and syncs what was written, as the durability asks.
    fn commit(&mut self, must_sync: bool) -> Result<()> {
        if !self.dirty {
            return Ok(());
        }
        if self.durability == Durability::Os {
            self.flush()?;
        }
        for (rank, writer) in self.ranks.values() {
            rank.shown.raise(writer.previous);
        }
        let due = self.last_sync.elapsed() >= self.sync_every();
        if must_sync {
            self.sync_now()?;
            self.dirty = false;
            self.ends().iter().for_each(|(rank, id)| rank.durable.raise(*id));
        } else if due && !self.queue.is_syncing() {
            self.flush()?;
            self.rows_syncing();
            self.syncer.begin(self.ends())?;
            self.dirty = false;
            self.last_sync = Instant::now();
        }
        Ok(())
    }

    /// The end of the newest frame of each rank that has one to be synced.
    fn ends(&self) -> SyncPoint {
        let ranks = self.ranks.values().filter(|(rank, writer)| rank.durable.get() < writer.previous);
        ranks.map(|(rank, writer)| (Arc::clone(rank), writer.previous)).collect()
    }

    fn answer(&mut self, requests: Vec<Request>) -> Result<()> {
        for request in requests {
            match request {
                Request::Sync(answer) => reply(&answer, Ok(())),
                Request::Write { rank, generation, frames, answer } => {
                    self.write_history(rank, generation, &frames)?;
                    reply(&answer, Ok(()));
                }
                Request::Replace { rank, replacement, answer } => {
                    self.replace(rank, replacement)?;
                    reply(&answer, Ok(()));
                }
                Request::Abandon { rank, generation } => {
                    if let Some((_, writer)) = self.ranks.get_mut(&rank) {
                        writer.doomed.add_history(generation, Instant::now());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes frames of a history that is not the rank's yet. Nobody reads it before it is.
    fn write_history(&mut self, rank: DpRank, generation: u32, frames: &[BuiltFrame]) -> Result<()> {
        let _phase = enter(Phase::Compact);
        for built in frames {
            write_rows(&*self.store, rank, generation, built)?;
            self.dirty = true;
        }
        Ok(())
    }

    /// Puts a history, which was written and synced, in the place of a rank's oldest events. What it replaces goes
    /// later, a few rows at a time; the row is durable first, so that a crash leaves rows to delete, not a hole.
    fn replace(&mut self, rank: DpRank, replacement: Replacement) -> Result<()> {
        let _phase = enter(Phase::Replace);
        let Replacement { base, generation, history, grace } = replacement;
        let cursor = self.cursor_at(rank, base)?;
        let Some((rank, writer)) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let row = &mut writer.row;
        let old = row.generation;
        if cursor.is_some() && base > row.cursor_at {
            (row.cursor, row.cursor_at) = (cursor, base);
        }
        row.horizon = row.horizon.max(base);
        row.base = row.base.max(base);
        row.trimmed = row.trimmed.max(base);
        row.lost.retain(|(_, last)| *last > base);
        (row.generation, row.history) = (generation, history);
        row.save(&*self.store)?;
        let due = Instant::now() + grace;
        if grace.is_zero() {
            writer.doomed.end_grace(due);
        }
        writer.doomed.trim_log(base, rank.marks().compacted(base), due);
        if old > 0 {
            writer.doomed.add_history(old, due);
        }
        let mut view = RankView::of(&writer.row);
        if !grace.is_zero() {
            view.graced.clone_from(&rank.view().graced);
            let old = rank.view().rebuild();
            view.graced.push(old);
        }
        let rank = Arc::clone(rank);
        self.sync_now()?;
        *rank.view() = view;
        Ok(())
    }

    /// Where the source was at the end of a frame.
    fn cursor_at(&self, rank: DpRank, end: EventId) -> Result<Option<SourceCursor>> {
        let tree = Tree::Events { rank: rank.0, generation: LOG };
        let Some((_, bytes)) = self.store.at_or_below(tree, &frame_key(end))? else { return Ok(None) };
        let frame = super::recover::parse_frame(rank, bytes)?;
        frame.cursor().map_err(|e| Error::damaged(format!("rank {rank}: {e}")))
    }

    /// Deletes some rows of what was replaced and nobody may read any more, or all of them before the journal closes.
    fn delete_replaced(&mut self, all: bool) -> Result<()> {
        for (rank, writer) in self.ranks.values_mut().filter(|(_, writer)| !writer.doomed.is_empty()) {
            while let Some(doomed) = writer.doomed.due(Instant::now(), all) {
                let _phase = enter(Phase::Trim);
                let (payloads, frames, below) = match doomed {
                    Doomed::Log { up_to, .. } => {
                        // What begins before it can no longer be read to its end.
                        rank.view().graced.retain(|graced| graced.base >= up_to);
                        (writer.row.payloads(), writer.row.tree(), frame_key(up_to + 1))
                    }
                    Doomed::History(generation) => {
                        // Before the first row goes, so that no reader takes it for damage.
                        rank.view().graced.retain(|graced| graced.generation != generation);
                        let rank = rank.id().0;
                        let events = Tree::Events { rank, generation };
                        (Tree::Payloads { rank, generation }, events, frame_key(EventId::MAX))
                    }
                };
                let removed = self.store.remove_below(payloads, &below, TRIM_ROWS_MAX)?
                    + self.store.remove_below(frames, &below, TRIM_ROWS_MAX)?;
                self.counters.trimmed_rows.fetch_add(removed as u64, Ordering::Relaxed);
                self.dirty = true;
                if removed == 0 {
                    match doomed {
                        Doomed::Log { bytes, .. } => self.room += bytes as i64,
                        Doomed::History(_) => {
                            self.store.drop_tree(payloads)?;
                            self.store.drop_tree(frames)?;
                        }
                    }
                    writer.doomed.done(doomed);
                } else if !all {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Refuses appends while the store is so near its limit that what waits already might exceed it. A store never
    /// shrinks, but near its limit it may go on in the room of what was deleted.
    fn watch_disk(&self) -> Result<()> {
        if let Some(max) = self.disk_max {
            let used = self.store.disk_bytes()?;
            let full = used + DISK_MARGIN / 2 > max;
            let tight = used + DISK_MARGIN > max && self.room < DISK_MARGIN as i64;
            self.queue.set_disk_limit((full || tight).then_some((used, max)));
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let _phase = enter(Phase::Close);
        self.commit(true)?;
        self.write_witness(true)
    }

    /// A failed flush is a failed sync: what sled wrote of it is not known.
    fn flush(&mut self) -> Result<()> {
        self.store.flush().map_err(|error| self.distrust(error.into()))
    }

    /// Syncs here and now, after the sync that may run.
    fn sync_now(&mut self) -> Result<()> {
        let synced = self.syncer.finish().and_then(|()| {
            let _phase = enter(Phase::Sync);
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
            Ok(self.store.sync()?)
        });
        self.last_sync = Instant::now();
        synced.map_err(|error| self.distrust(error))?;
        self.rows_syncing();
        self.rows_synced();
        Ok(())
    }

    fn first_id_of(&self, rank: &Rank) -> EventId {
        rank.durable.get() + 1
    }
}

/// Writes a frame after the payloads it names.
pub(crate) fn write_rows(store: &dyn Store, rank: DpRank, generation: u32, built: &BuiltFrame) -> Result<()> {
    let header = built.frame.header();
    let rank = rank.0;
    if !built.payloads.is_empty() {
        let rows = PayloadRows {
            journal: header.journal,
            rank,
            generation,
            first: header.first,
            epoch: header.epoch,
        };
        for (chunk, value) in rows.encode(&built.payloads).into_iter().enumerate() {
            store.append(
                Tree::Payloads { rank, generation },
                &payload_key(header.first, chunk as u16),
                &value,
            )?;
        }
    }
    Ok(store.append(Tree::Events { rank, generation }, &frame_key(header.first), built.frame.as_bytes())?)
}

fn reply<T>(answer: &SyncSender<Result<T>>, value: Result<T>) {
    let _gone_callers_need_no_answer = answer.try_send(value);
}
