//! What is asked of an index, and what it answers.

use std::collections::HashSet;

use crate::event::{DpRank, WorkerId};

/// A stream: the events of one rank of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The worker.
    pub worker_id: WorkerId,
    /// Its rank.
    pub dp_rank: DpRank,
}

impl StreamId {
    /// The stream of a worker's rank.
    pub fn new(worker_id: impl Into<WorkerId>, dp_rank: impl Into<DpRank>) -> Self {
        Self { worker_id: worker_id.into(), dp_rank: dp_rank.into() }
    }
}

/// How a prompt is matched. By default all streams take part, and each is followed to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchOptions<'a> {
    /// End once at most one stream still holds all blocks so far. What that stream is answered with is then a lower
    /// bound; the others' answers are exact, and so is who holds most.
    pub early_exit: bool,
    /// Only streams that were [described](super::Index::set_model) with this model take part. A tokens hash says
    /// nothing of the model, so an index of several models needs it.
    pub model: Option<&'a str>,
    /// Only these streams take part.
    pub streams: Option<&'a HashSet<StreamId>>,
}

/// How many leading blocks of a prompt one stream holds, and where.
///
/// The tiers are gone through once, from the fastest down. `device` counts the leading blocks on the device. From the
/// first block that is not there on, `host_pinned` counts those in host memory that follow without a gap, then `disk`
/// those on disk, then `external`. A block in several tiers thus counts once, for the fastest that goes on with the
/// prefix. There is no way back: behind a block that only a slower tier has, one that only a faster tier has ends the
/// match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMatch {
    /// The stream.
    pub stream: StreamId,
    /// Leading blocks on the device.
    pub device: u32,
    /// Blocks after them in host memory.
    pub host_pinned: u32,
    /// Blocks after them on disk.
    pub disk: u32,
    /// Blocks after them in an external store.
    pub external: u32,
}

impl StreamMatch {
    /// Leading blocks in all tiers together, 1 or more.
    pub fn total(&self) -> u32 {
        // Together they are at most the length of a prompt that fits a u32.
        self.device + self.host_pinned + self.disk + self.external
    }
}

/// How large an index is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Streams, those that hold nothing included.
    pub streams: usize,
    /// Blocks that are held, once for each stream whatever their placements and counts.
    pub blocks: usize,
    /// Blocks that are not held but remembered, since held ones hang below them.
    pub ghosts: usize,
    /// Nodes of the tree of paths. Streams that hold the same prompt share them.
    pub nodes: usize,
    /// Different sets of streams that hold a node.
    pub holder_sets: usize,
    /// Bytes on the heap, from the capacities of all that is allocated; what the allocator adds is not in it.
    pub heap_bytes: usize,
}
