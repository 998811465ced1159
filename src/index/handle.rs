//! The index as others use it: many readers beside one writer.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::event::{EventData, TokensHash, WorkerId};

use super::answer::{Counters, MatchOptions, StreamId, StreamMatch};
use super::digest::Digest;
use super::state::State;

/// Which blocks each stream holds, to be asked for the longest prefix of a prompt.
///
/// An index is shared by reference between threads. Reading takes a lock that readers share; writing waits for the
/// readers and keeps them waiting for as long as one call takes, so a batch is at most one frame's events. No call
/// fails or panics, whatever the events say.
#[derive(Debug, Default)]
pub struct Index {
    state: RwLock<State>,
}

impl Index {
    /// An index of no streams. It allocates nothing worth mentioning.
    pub fn new() -> Self {
        Self::default()
    }

    // No call panics, so the lock is never poisoned by one; were there a fault after all, answers that may be wrong
    // are better for a router than none.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Folds one event into a stream, which is there from then on, whatever the event says.
    ///
    /// An event costs the blocks it names, whatever the size of the index, apart from now and then moving slots
    /// together; clearing some tiers costs all blocks of the stream, and a block that comes back after another parent
    /// or with other tokens costs what hangs below it.
    pub fn apply(&self, stream: StreamId, event: &EventData) {
        self.apply_batch(stream, [event]);
    }

    /// Folds events into a stream, in order and without letting a reader in between. At most one frame's worth: readers
    /// wait meanwhile.
    pub fn apply_batch<'a>(&self, stream: StreamId, events: impl IntoIterator<Item = &'a EventData>) {
        self.write().apply(stream, events);
    }

    /// Says which model a stream serves; `None`: none that is known. The stream is there from then on. A new stream has
    /// none.
    pub fn set_model(&self, stream: StreamId, model: Option<&str>) {
        self.write().set_model(stream, model);
    }

    /// The model of a stream.
    pub fn model(&self, stream: StreamId) -> Option<String> {
        self.read().model(stream)
    }

    /// Empties a stream in all placements; it stays, with its model. Says whether it was there.
    pub fn clear(&self, stream: StreamId) -> bool {
        self.write().clear(stream)
    }

    /// Drops a stream with its blocks and its model. Says whether it was there.
    pub fn remove_stream(&self, stream: StreamId) -> bool {
        self.write().remove_stream(stream)
    }

    /// Drops all streams of a worker. Says how many there were.
    pub fn remove_worker(&self, worker_id: WorkerId) -> usize {
        // Readers are let in between two streams.
        let streams = self.read().streams_of(worker_id);
        streams.into_iter().filter(|stream| self.remove_stream(*stream)).count()
    }

    /// For each stream that holds at least the first block of a prompt in some tier: how many leading blocks it holds.
    ///
    /// `prompt` is the tokens hash of each whole block, from the start. Answers come in no particular order. Only
    /// blocks in a [placement](crate::event::Placement::is_own_full_attention) that is the worker's own count. Where
    /// several blocks of a stream have the same tokens after the same ones, the prompt goes on below any of them.
    ///
    /// Costs the length of the prompt, plus the streams that hold the first block, plus, wherever the holders of two
    /// consecutive blocks differ, the streams that hold them; streams that do not hold the first block cost nothing.
    pub fn find_matches(&self, prompt: &[TokensHash], options: MatchOptions<'_>) -> Vec<StreamMatch> {
        self.read().find_matches(prompt, options)
    }

    /// What a stream holds, as `Stored` events: folded into an empty stream they give the same state, with the same
    /// digest. Empty if the stream is not there.
    ///
    /// Parents come before children, except below a block whose parents lead back to itself. A block that is held
    /// several times is stored as often. Blocks whose parent is not held are there too. An event has at most 512
    /// blocks. What the fold does not read is not kept: multimodal objects, positions and block sizes.
    pub fn dump(&self, stream: StreamId) -> Vec<EventData> {
        self.read().dump(stream)
    }

    /// The digest of what a stream holds; that of nothing if it is not there.
    pub fn digest(&self, stream: StreamId) -> Digest {
        self.read().ask(stream, |stream| stream.digest()).unwrap_or_default()
    }

    /// Blocks that a stream holds, each counted once whatever its placements and counts; 0 if it is not there.
    pub fn blocks(&self, stream: StreamId) -> usize {
        self.read().ask(stream, |stream| stream.held()).unwrap_or_default()
    }

    /// The streams, in order.
    pub fn streams(&self) -> Vec<StreamId> {
        self.read().streams()
    }

    /// How large the index is. Costs the number of streams and of holder sets.
    pub fn counters(&self) -> Counters {
        self.read().counters()
    }
}
