//! What an event says: blocks stored, blocks removed, everything cleared, or something not known yet.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::{BlockHash, Placement, StorageTier, TokensHash};

/// What one event says.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum EventData {
    /// Blocks are held from now on.
    Stored(Stored),
    /// Blocks are no longer held.
    Removed(Removed),
    /// Whole tiers were emptied.
    Cleared(Cleared),
    /// The engine said something this release does not know. It is kept and relayed, never applied.
    Unknown(Unknown),
}

/// A run of blocks, each the child of the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Stored {
    /// The block before the first; `None` at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// Position of the first block in its prompt, in blocks, where the source says it.
    pub start_position: Option<u32>,
    /// The blocks, in the order of the prompt.
    pub blocks: Vec<Block>,
    /// Where they are.
    pub placement: Placement,
    /// LoRA adapter the blocks were computed with. It is mixed into their tokens hashes.
    pub lora: Option<String>,
    /// Cache salt the blocks were computed with. It is mixed into their tokens hashes.
    pub salt: Option<String>,
    /// Tokens in a block, as the engine said; 0 and `None` where it did not.
    pub block_size: Option<u32>,
    /// The engine repeats what it holds: each block counts at least once, and not once more.
    pub refresh: bool,
}

/// One block of KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Block {
    /// The engine's hash of this block and all before it.
    pub block_hash: BlockHash,
    /// Hash of its tokens. `None`: the tokens are not known or cannot be paired with the hashes, so that the
    /// block is held and relayed but can never match a prompt.
    pub tokens_hash: Option<TokensHash>,
    /// Images and the like whose placeholders lie in this block.
    #[serde(rename = "mm_extra_info", default)]
    pub mm: Option<Box<MmInfo>>,
}

/// The multimodal objects of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct MmInfo {
    /// The objects, in the order of the engine.
    pub mm_objects: Vec<MmObject>,
}

/// One multimodal object and where its placeholders lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct MmObject {
    /// Hash of the object.
    pub mm_hash: u64,
    /// Half-open ranges of tokens, from the start of the block.
    pub offsets: Vec<(u32, u32)>,
}

/// Blocks that are no longer held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Removed {
    /// The blocks, in the order of the engine.
    pub block_hashes: Vec<BlockHash>,
    /// Where they were.
    pub placement: Placement,
}

/// Whole tiers were emptied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Cleared {
    /// Who cleared, and why.
    pub reason: ClearReason,
    /// The tiers that were emptied; empty means all of them.
    pub tiers: Vec<StorageTier>,
}

/// Why tiers were emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClearReason {
    /// The engine said so itself.
    #[default]
    Engine,
    /// The engine was restarted, and its memory went with it.
    EngineRestart,
    /// Some of the engine's events were lost for good.
    EngineGap,
    /// Some of the journal's events were lost for good.
    JournalGap,
}

/// Something the engine said that this release does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Unknown {
    /// The event's tag, cut to [`Unknown::TAG_BYTES_MAX`]; `undecodable` for a whole batch that could not be
    /// read.
    pub tag: String,
}

impl Unknown {
    /// Longest tag that is kept. Engines use under 20 bytes.
    pub const TAG_BYTES_MAX: usize = 128;
}
