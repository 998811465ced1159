//! Events that carry their own number, so that whatever comes back can be checked without remembering it.

use kvjournal::event::{Block, BlockHash, ClearReason, Cleared, EventData, Removed, Stored, TokensHash};

/// The event with this number: the same for the same number, each unlike the others.
pub fn numbered(number: u64) -> EventData {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match hash >> 61 {
        0 => EventData::Removed(Removed {
            block_hashes: (0..=hash % 5).map(|i| BlockHash(number ^ (i << 48))).collect(),
            ..Removed::default()
        }),
        1 if hash.is_multiple_of(7) => {
            let reason = ClearReason::Engine;
            // A clear has no room for a number; its tiers and place must do.
            EventData::Cleared(Cleared { reason, tiers: vec![kvjournal::event::StorageTier::Disk] })
        }
        _ => {
            let block = |i: u64| Block {
                block_hash: BlockHash(number.wrapping_add(i << 40)),
                tokens_hash: Some(TokensHash(hash ^ i)),
                mm: None,
            };
            EventData::Stored(Stored {
                parent: Some(BlockHash(number)),
                blocks: (0..1 + hash % 40).map(block).collect(),
                ..Stored::default()
            })
        }
    }
}
