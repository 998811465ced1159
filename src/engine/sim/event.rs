//! What the double announces, in the forms that others take: events, JSON Lines, and engine payloads.

use crate::engine::{EncodedForm, Namespace, RawEvent, encode_batch, tokens_hash};
use crate::event::{
    Block, BlockHash, Cleared, DpRank, EventData, EventId, JsonEvent, Placement, Removed, Stored,
};

/// The medium that engines write for their device.
const MEDIUM: &str = "GPU";

/// One event of the double.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimEvent {
    /// Blocks are held from now on.
    Stored(SimStored),
    /// Blocks were evicted, in this order.
    Removed(Vec<BlockHash>),
    /// The cache was reset.
    Cleared,
}

/// Blocks of one request that were not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimStored {
    /// The last block of the request that was held; `None` at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// The blocks, with their tokens hashes.
    pub blocks: Vec<Block>,
    /// The tokens of all blocks, if they were asked for with [`Detail::Tokens`](super::Detail::Tokens).
    pub token_ids: Option<Vec<u32>>,
    /// Tokens in a block.
    pub block_size: u32,
}

impl SimEvent {
    /// The event as kvjournal keeps it: what decoding its [`EncodedForm::Array`] gives.
    pub fn into_data(self) -> EventData {
        match self {
            Self::Stored(SimStored { parent, blocks, block_size, .. }) => EventData::Stored(Stored {
                parent,
                blocks,
                placement: on_device(),
                block_size: Some(block_size),
                ..Stored::default()
            }),
            Self::Removed(block_hashes) => {
                EventData::Removed(Removed { block_hashes, placement: on_device() })
            }
            Self::Cleared => EventData::Cleared(Cleared::default()),
        }
    }

    /// The event as an engine knows it; `None` if it stores blocks whose tokens were not asked for.
    pub fn to_raw(&self) -> Option<RawEvent> {
        Some(match self {
            Self::Stored(stored) => RawEvent::Stored {
                parent: stored.parent.map(|hash| hash.0),
                block_hashes: stored.blocks.iter().map(|block| block.block_hash.0).collect(),
                token_ids: stored.token_ids.clone()?,
                block_size: stored.block_size,
            },
            Self::Removed(hashes) => {
                RawEvent::Removed { block_hashes: hashes.iter().map(|hash| hash.0).collect() }
            }
            Self::Cleared => RawEvent::Cleared,
        })
    }
}

impl RawEvent {
    /// The event as kvjournal keeps it, with its tokens hashed: what decoding its [`EncodedForm::Array`] gives.
    pub fn to_data(&self) -> EventData {
        let event = match self {
            Self::Stored { parent, block_hashes, token_ids, block_size } => {
                let plain = Namespace::new(None, None);
                let tokens = token_ids.chunks_exact((*block_size).max(1) as usize);
                let block = |(hash, tokens): (&u64, &[u32])| Block {
                    block_hash: BlockHash(*hash),
                    tokens_hash: Some(tokens_hash(plain, tokens, None)),
                    mm: None,
                };
                SimEvent::Stored(SimStored {
                    parent: parent.map(BlockHash),
                    blocks: block_hashes.iter().zip(tokens).map(block).collect(),
                    token_ids: None,
                    block_size: *block_size,
                })
            }
            Self::Removed { block_hashes } => {
                SimEvent::Removed(block_hashes.iter().copied().map(BlockHash).collect())
            }
            Self::Cleared => SimEvent::Cleared,
        };
        event.into_data()
    }
}

fn on_device() -> Placement {
    Placement { medium: Some(MEDIUM.into()), ..Placement::default() }
}

/// What one request, or a reset of the cache, made a rank announce: one engine message. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimBatch {
    /// Who announces it.
    pub rank: DpRank,
    /// When, in milliseconds from the start of the load. It never goes back.
    pub timestamp_ms: u64,
    /// What: at most one `Removed`, then at most one `Stored`; or a `Cleared`.
    pub events: Vec<SimEvent>,
}

impl SimBatch {
    /// The engine's bytes, `[ts, [events], dp_rank]` in msgpack, with `start_seconds` (since 1970) as the load's
    /// start. `None` if it stores blocks whose tokens were not asked for.
    pub fn payload(&self, form: EncodedForm, start_seconds: f64) -> Option<Vec<u8>> {
        let events: Option<Vec<RawEvent>> = self.events.iter().map(SimEvent::to_raw).collect();
        let seconds = start_seconds + self.timestamp_ms as f64 / 1e3;
        Some(encode_batch(form, seconds, self.rank.0, &events?))
    }

    /// The events as JSON Lines, each without its line end, numbered from `first_id` if one is given.
    pub fn into_lines(self, first_id: Option<EventId>) -> impl Iterator<Item = String> {
        let dp_rank = self.rank;
        self.events.into_iter().zip(0..).map(move |(event, index)| {
            let event_id = first_id.map(|first| first + index);
            let data = event.into_data();
            JsonEvent { event_id, dp_rank, data, engine_time: None, payload: None }.to_line()
        })
    }
}
