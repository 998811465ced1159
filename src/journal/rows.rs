//! The rows of the `meta` tree: whose journal it is, and one row a rank.

use std::ops::RangeInclusive;

use bincode::{Decode, Encode};

use crate::codec::{SealedKind, SourceCursor, bincode_config, open_sealed, seal};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId, WorkerId};
use crate::store::{LOG, Store, Tree};

use super::epochs::Epoch;

/// The format this release writes, and the newest it reads. `migrations/FORMAT.md` is its document.
pub const FORMAT: u32 = 1;

const IDENTITY_KEY: &[u8] = b"identity";
const RANK_KEY_PREFIX: &[u8] = b"rank/";

/// Whose journal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Identity {
    pub(crate) format: u32,
    pub(crate) journal: [u8; 16],
    pub(crate) worker: WorkerId,
    pub(crate) created_us: u64,
}

/// The state of one rank that does not follow from its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct RankRow {
    pub(crate) rank: u32,
    /// Number of the compacted history, 0 if there never was one. Numbers are not used again.
    pub(crate) generation: u32,
    /// A reader that is at or below it is reset.
    pub(crate) horizon: EventId,
    /// Frames of the log at or below it are no part of what a reset rebuilds: they were compacted or trimmed, or lie
    /// before a loss.
    pub(crate) base: EventId,
    /// Frames that end at or below it were given up and are being deleted.
    pub(crate) trimmed: EventId,
    /// No id at or below it is given again, whatever rows are left.
    pub(crate) floor: EventId,
    /// The source as of `cursor_at`; a frame above that knows better.
    pub(crate) cursor: Option<SourceCursor>,
    pub(crate) cursor_at: EventId,
    /// Newest last.
    pub(crate) epochs: Vec<Epoch>,
    /// Ranges of ids that a repair could not save, in order.
    pub(crate) lost: Vec<(EventId, EventId)>,
    /// The state at `base`; `None`: it was empty, or given up.
    pub(crate) history: Option<History>,
    /// Raised with each write, so that the newest copy is known in raw bytes.
    pub(crate) revision: u64,
}

/// What a compacted history is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct History {
    /// Last id of its newest frame.
    pub(crate) last: EventId,
    pub(crate) events: u64,
    /// Copies of blocks that it leaves held.
    pub(crate) copies: u64,
}

impl RankRow {
    /// The log's frames.
    pub(crate) fn tree(&self) -> Tree {
        Tree::Events { rank: self.rank, generation: LOG }
    }

    /// The payloads of the log's frames.
    pub(crate) fn payloads(&self) -> Tree {
        Tree::Payloads { rank: self.rank, generation: LOG }
    }

    /// Whether a break between two frames is one that a repair has told about.
    pub(crate) fn is_known_loss(&self, ids: &RangeInclusive<EventId>) -> bool {
        self.lost.iter().any(|(first, last)| first <= ids.start() && ids.end() <= last)
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let body = bincode::encode_to_vec(self, bincode_config())
            .map_err(|e| Error::Internal(format!("the row of rank {}: {e}", self.rank)))?;
        Ok(seal(SealedKind::Rank, self.revision, &body))
    }

    /// Writes the row with the next revision. It is durable with the next sync.
    pub(crate) fn save(&mut self, store: &dyn Store) -> Result<()> {
        self.revision += 1;
        let mut key = RANK_KEY_PREFIX.to_vec();
        key.extend_from_slice(&self.rank.to_be_bytes());
        Ok(store.put(Tree::Meta, &key, &self.encode()?)?)
    }
}

impl Identity {
    pub(crate) fn save(&self, store: &dyn Store) -> Result<()> {
        let body = bincode::encode_to_vec(self, bincode_config())
            .map_err(|e| Error::Internal(format!("the identity row: {e}")))?;
        Ok(store.put(Tree::Meta, IDENTITY_KEY, &seal(SealedKind::Identity, 1, &body))?)
    }
}

/// Reads the identity row.
pub(crate) fn read_identity(store: &dyn Store) -> Result<Identity> {
    let row =
        store.get(Tree::Meta, IDENTITY_KEY)?.ok_or_else(|| Error::damaged("the identity row is missing"))?;
    decode_identity(&row).map_err(|e| Error::damaged(format!("the identity row: {e}")))
}

/// Reads the rows of all ranks, in the order of the ranks.
pub(crate) fn read_ranks(store: &dyn Store) -> Result<Vec<RankRow>> {
    let mut ranks = Vec::new();
    for row in store.scan(Tree::Meta, RANK_KEY_PREFIX) {
        let (key, value) = row?;
        let Some(rank) = key.strip_prefix(RANK_KEY_PREFIX) else { break };
        let row =
            decode_rank(&value).map_err(|e| Error::damaged(format!("the row of rank {rank:?}: {e}")))?;
        if row.rank.to_be_bytes() != rank {
            return Err(Error::damaged(format!("the row of rank {} stands under another key", row.rank)));
        }
        ranks.push(row);
    }
    Ok(ranks)
}

pub(crate) fn decode_identity(row: &[u8]) -> Result<Identity, String> {
    match open_sealed(row)? {
        (SealedKind::Identity, _, body) => decode(body),
        (kind, ..) => Err(format!("a row of kind {kind:?}")),
    }
}

pub(crate) fn decode_rank(row: &[u8]) -> Result<RankRow, String> {
    match open_sealed(row)? {
        (SealedKind::Rank, _, body) => decode(body),
        (kind, ..) => Err(format!("a row of kind {kind:?}")),
    }
}

fn decode<T: Decode<()>>(body: &[u8]) -> Result<T, String> {
    let (value, len) = bincode::decode_from_slice(body, bincode_config()).map_err(|e| e.to_string())?;
    if len == body.len() { Ok(value) } else { Err(format!("{} bytes after its end", body.len() - len)) }
}

/// Key of a frame.
pub(crate) fn frame_key(first: EventId) -> [u8; 8] {
    first.to_be_bytes()
}

/// Key of a chunk of a frame's payloads.
pub(crate) fn payload_key(first: EventId, chunk: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&first.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// First id of the frame that a row of frames or payloads belongs to.
pub(crate) fn key_first(rank: u32, key: &[u8]) -> Result<EventId> {
    let id = key.first_chunk().map(|id| u64::from_be_bytes(*id));
    id.ok_or_else(|| Error::damaged(format!("rank {}: a key of {} bytes", DpRank(rank), key.len())))
}
