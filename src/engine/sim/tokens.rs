//! Made-up tokens: the same for the same origin in every worker and every run, and their hashes.
//!
//! Hashes of the blocks of a trace's id are kept, since a prompt names the same ids again and again; what is kept
//! is bounded, and forgetting it costs time only.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::engine::{Namespace, tokens_hash};
use crate::event::{BlockHash, DpRank, TokensHash};

/// Tokens that one id of a trace stands for (the trace's README).
pub const TRACE_BLOCK_TOKENS: u32 = 512;

/// Token ids are below this, as in usual vocabularies.
pub const VOCABULARY: u32 = 128_000;

/// Most memory of the memos of all ranks, about: room for the hashes of 210,000 ids in blocks of 16.
pub(super) const MEMO_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What remembering an id costs besides its hashes: its place in the map and the head of the allocation.
const MEMO_ENTRY_BYTES: usize = 64;

/// Seeds of the two kinds of origin, so that no answer has the tokens of a prompt.
const PROMPT_SEED: u64 = 0;
const ANSWER_SEED: u64 = 1;

/// Where a run of tokens comes from. Equal origins have equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin(u64);

impl Origin {
    /// The block of a trace's id.
    pub(super) fn prompt(id: u64) -> Self {
        Self(xxh3_64_with_seed(&id.to_be_bytes(), PROMPT_SEED))
    }

    /// The answer to a rank's nth request: never the same twice, as with sampling.
    pub(super) fn answer(rank: DpRank, request: u64) -> Self {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&rank.0.to_be_bytes());
        bytes[4..].copy_from_slice(&request.to_be_bytes());
        Self(xxh3_64_with_seed(&bytes, ANSWER_SEED))
    }

    /// Appends the tokens of the nth block of the run.
    ///
    /// 32-bit arithmetic over a slice, which compilers turn into vectors: a load of fresh prompts is mostly this.
    pub(super) fn push_tokens(self, block: u64, block_size: u32, tokens: &mut Vec<u32>) {
        let (high, low) = ((self.0 >> 32) as u32, self.0 as u32);
        let start = (block as u32).wrapping_mul(block_size);
        let end = tokens.len();
        tokens.resize(end + block_size as usize, 0);
        for (token, at) in tokens[end..].iter_mut().zip(0..block_size) {
            let place = start.wrapping_add(at).wrapping_mul(0x9e37_79b1);
            let mixed = mix_32(low ^ place) ^ high;
            *token = ((u64::from(mixed) * u64::from(VOCABULARY)) >> 32) as u32;
        }
    }
}

/// A bijection of 32 bits whose outputs look random (lowbias32 of Wellons' hash prospector).
fn mix_32(mut value: u32) -> u32 {
    value = (value ^ value >> 16).wrapping_mul(0x7feb_352d);
    value = (value ^ value >> 15).wrapping_mul(0x846c_a68b);
    value ^ value >> 16
}

/// SplitMix64's output at a place of its stream.
pub(super) fn mix(seed: u64, at: u64) -> u64 {
    let mut mixed = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A uniform u64 as a number below `bound`. The bias, under bound / 2^64, does not matter here.
pub(super) fn below(uniform: u64, bound: u64) -> u64 {
    ((u128::from(uniform) * u128::from(bound)) >> 64) as u64
}

/// The engine's hash of a block: XXH3 over its parent's hash and its tokens' hash, both big-endian. A root has no
/// parent's hash, so it is no other block's child by chance.
pub(super) fn chain(parent: Option<BlockHash>, tokens: TokensHash) -> BlockHash {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&tokens.0.to_be_bytes());
    BlockHash(match parent {
        None => xxh3_64(&bytes[8..]),
        Some(parent) => {
            bytes[..8].copy_from_slice(&parent.0.to_be_bytes());
            xxh3_64(&bytes)
        }
    })
}

/// Hashes tokens, and remembers those of recent ids: a generation that is full becomes the old one, and the old
/// one is dropped.
#[derive(Debug)]
pub(super) struct Memo {
    block_size: u32,
    namespace: Namespace,
    /// Ids of a generation.
    ids_max: usize,
    young: HashMap<u64, Arc<[TokensHash]>>,
    old: HashMap<u64, Arc<[TokensHash]>>,
    scratch: Vec<u32>,
}

impl Memo {
    /// Remembers about `bytes_max` of hashes, but at least an id.
    pub(super) fn new(block_size: u32, bytes_max: usize) -> Self {
        let id_bytes =
            (TRACE_BLOCK_TOKENS / block_size) as usize * size_of::<TokensHash>() + MEMO_ENTRY_BYTES;
        Self {
            block_size,
            namespace: Namespace::new(None, None),
            ids_max: (bytes_max / 2 / id_bytes).max(1),
            young: HashMap::new(),
            old: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Hashes of the engine's blocks that a trace's id stands for, in order.
    pub(super) fn of_id(&mut self, id: u64) -> Arc<[TokensHash]> {
        if let Some(hashes) = self.young.get(&id) {
            return Arc::clone(hashes);
        }
        let blocks = u64::from(TRACE_BLOCK_TOKENS / self.block_size);
        let hashes = match self.old.remove(&id) {
            Some(hashes) => hashes,
            None => (0..blocks).map(|block| self.of_block(Origin::prompt(id), block)).collect(),
        };
        if self.young.len() == self.ids_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, Arc::clone(&hashes));
        hashes
    }

    /// Hash of the nth block of a run.
    pub(super) fn of_block(&mut self, origin: Origin, block: u64) -> TokensHash {
        self.scratch.clear();
        origin.push_tokens(block, self.block_size, &mut self.scratch);
        tokens_hash(self.namespace, &self.scratch, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(origin: Origin, block: u64, block_size: u32) -> Vec<u32> {
        let mut tokens = Vec::new();
        origin.push_tokens(block, block_size, &mut tokens);
        tokens
    }

    #[test]
    fn tokens_are_those_of_their_origin_and_within_the_vocabulary() {
        let of = |origin| tokens(origin, 0, 512);
        assert_eq!(of(Origin::prompt(7)), of(Origin::prompt(7)));
        assert_ne!(of(Origin::prompt(7)), of(Origin::prompt(8)));
        assert_ne!(of(Origin::answer(DpRank(0), 7)), of(Origin::answer(DpRank(1), 7)));
        assert_ne!(of(Origin::answer(DpRank(0), 7)), of(Origin::prompt(7)));
        assert!(of(Origin::prompt(u64::MAX)).iter().all(|token| *token < VOCABULARY));
        let distinct: std::collections::HashSet<u32> = of(Origin::prompt(7)).into_iter().collect();
        assert!(distinct.len() > 500, "{}", distinct.len());
        assert_eq!((below(0, 9), below(u64::MAX, 9)), (0, 8));
    }

    #[test]
    fn small_blocks_are_cut_from_the_same_tokens_as_large_ones() {
        let whole = tokens(Origin::prompt(3), 0, 512);
        let parts: Vec<u32> = (0..32).flat_map(|part| tokens(Origin::prompt(3), part, 16)).collect();
        assert_eq!(parts, whole);
    }

    #[test]
    fn what_is_remembered_is_what_would_be_hashed_again_and_is_bounded() {
        let mut memo = Memo::new(16, 100 * (32 * 8 + MEMO_ENTRY_BYTES));
        let first = memo.of_id(0);
        assert_eq!(first[5], memo.of_block(Origin::prompt(0), 5));
        for id in 0..=50 {
            memo.of_id(id);
        }
        assert_eq!((memo.young.len(), memo.old.len()), (1, 50));
        assert_eq!(memo.of_id(0), first);
        assert_eq!((memo.young.len(), memo.old.len()), (2, 49));
        assert_eq!(Memo::new(16, 0).of_id(0), first);
    }

    #[test]
    fn a_root_is_not_the_child_of_a_block_with_hash_zero() {
        assert_ne!(chain(None, TokensHash(5)), chain(Some(BlockHash(0)), TokensHash(5)));
    }
}
