//! One rank of an engine: a request comes, and what is not held yet is stored.
//!
//! The order is vLLM's (`block_pool.py`): leading blocks that are held are taken first, then room is made while
//! blocks are allocated (`BlockRemoved`), then the new blocks are announced (`BlockStored`). vLLM writes a
//! `BlockRemoved` for each block and announces an answer's blocks as they fill up; here a request makes at most one
//! `Removed` and one `Stored`.

use crate::engine::RawEvent;
use crate::event::{Block, BlockHash, DpRank, TokensHash};

use super::cache::PrefixCache;
use super::event::{SimEvent, SimStored};
use super::tokens::{MEMO_BYTES_MAX, Memo, Origin, TRACE_BLOCK_TOKENS, chain};
use super::trace::Request;

/// Largest cache: 268 million tokens in blocks of 16.
pub const CACHE_BLOCKS_MAX: usize = 16 * 1024 * 1024;

/// What an engine's cache is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Blocks that it holds, 1 to [`CACHE_BLOCKS_MAX`]. Default 20,000.
    pub blocks: usize,
    /// Tokens in a block; divides [`TRACE_BLOCK_TOKENS`]. Default 16, which is vLLM's.
    pub block_size: u32,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self { blocks: 20_000, block_size: 16 }
    }
}

/// Why there is no such cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No room, or too much.
    #[error("a cache of {blocks} blocks, it has 1 to {CACHE_BLOCKS_MAX}")]
    Blocks {
        /// Blocks that were asked for.
        blocks: usize,
    },
    /// A trace's block does not come out even.
    #[error("blocks of {block_size} tokens do not divide the {TRACE_BLOCK_TOKENS} of a trace's block")]
    BlockSize {
        /// The size that was asked for.
        block_size: u32,
    },
}

impl CacheSpec {
    /// Whether there can be such a cache.
    ///
    /// # Errors
    /// Which of its numbers is out of range.
    pub fn check(self) -> Result<(), SpecError> {
        let Self { blocks, block_size } = self;
        if !(1..=CACHE_BLOCKS_MAX).contains(&blocks) {
            return Err(SpecError::Blocks { blocks });
        }
        if block_size == 0 || !TRACE_BLOCK_TOKENS.is_multiple_of(block_size) {
            return Err(SpecError::BlockSize { block_size });
        }
        Ok(())
    }
}

/// How much of a stored block is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Hashes: all that an event holds.
    #[default]
    Hashes,
    /// Hashes and tokens: what an engine's payload holds. Several times slower.
    Tokens,
}

/// One rank of an engine, with its cache.
#[derive(Debug)]
pub struct EngineDouble {
    spec: CacheSpec,
    rank: DpRank,
    cache: PrefixCache,
    memo: Memo,
    requests: u64,
    /// The blocks of the running request.
    path: Vec<Block>,
}

impl EngineDouble {
    /// Rank 0 with an empty cache; `None` if [`CacheSpec::check`] refuses it.
    pub fn new(spec: CacheSpec) -> Option<Self> {
        Self::for_rank(spec, DpRank(0)).ok()
    }

    /// A rank with an empty cache. Ranks give different answers to the same request.
    ///
    /// # Errors
    /// If [`CacheSpec::check`] refuses the cache.
    pub fn for_rank(spec: CacheSpec, rank: DpRank) -> Result<Self, SpecError> {
        Self::one_of(1, spec, rank)
    }

    /// A rank that shares the memory for remembered hashes with others.
    pub(super) fn one_of(ranks: u32, spec: CacheSpec, rank: DpRank) -> Result<Self, SpecError> {
        spec.check()?;
        Ok(Self {
            spec,
            rank,
            cache: PrefixCache::new(spec.blocks),
            memo: Memo::new(spec.block_size, MEMO_BYTES_MAX / ranks as usize),
            requests: 0,
            path: Vec::new(),
        })
    }

    /// Blocks it holds.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The blocks it holds, in no order.
    pub fn held(&self) -> impl Iterator<Item = BlockHash> {
        self.cache.hashes()
    }

    /// Drops all it holds, as a reset of the cache does.
    pub fn clear(&mut self) -> RawEvent {
        self.reset();
        RawEvent::Cleared
    }

    /// [`clear`](Self::clear) as an event of the double.
    pub fn reset(&mut self) -> SimEvent {
        self.cache.clear();
        SimEvent::Cleared
    }

    /// [`step`](Self::step) with tokens, as an engine knows the events.
    pub fn serve(&mut self, request: &Request) -> Vec<RawEvent> {
        let raw = |event: &SimEvent| event.to_raw().expect("the tokens were asked for");
        self.step(request, Detail::Tokens).iter().map(raw).collect()
    }

    /// Serves a request, and says what an engine would announce: first what it evicts, then what it stores; nothing
    /// if all is held.
    ///
    /// The prompt's ids count as whole blocks. The answer fills `output_length / block_size` more, rounded down,
    /// which no other request shares. What is longer than the cache is cut.
    pub fn step(&mut self, request: &Request, detail: Detail) -> Vec<SimEvent> {
        self.requests += 1;
        let answer = Origin::answer(self.rank, self.requests);
        let prompt_blocks = self.plan(request, answer);
        let admitted = self.cache.admit(self.path.iter().map(|block| block.block_hash));
        let (found, stored) = self.path.split_at(admitted.found);
        let mut events = Vec::with_capacity(2);
        if !admitted.evicted.is_empty() {
            events.push(SimEvent::Removed(admitted.evicted));
        }
        if !stored.is_empty() {
            let blocks = found.len()..self.path.len();
            let token_ids = (detail == Detail::Tokens).then(|| {
                let mut tokens = Vec::with_capacity(blocks.len() * self.spec.block_size as usize);
                blocks.for_each(|at| self.push_tokens(request, answer, prompt_blocks, at, &mut tokens));
                tokens
            });
            events.push(SimEvent::Stored(SimStored {
                parent: found.last().map(|block| block.block_hash),
                blocks: stored.to_vec(),
                token_ids,
                block_size: self.spec.block_size,
            }));
        }
        events
    }

    /// Lays out the blocks of a request in `path`, and says how many are the prompt's.
    fn plan(&mut self, request: &Request, answer: Origin) -> usize {
        self.path.clear();
        for id in &request.hash_ids {
            let room = self.spec.blocks - self.path.len();
            if room == 0 {
                break;
            }
            for tokens_hash in self.memo.of_id(*id).iter().take(room) {
                push(&mut self.path, *tokens_hash);
            }
        }
        let prompt_blocks = self.path.len();
        let room = (self.spec.blocks - prompt_blocks) as u64;
        for block in 0..room.min(request.output_length / u64::from(self.spec.block_size)) {
            push(&mut self.path, self.memo.of_block(answer, block));
        }
        prompt_blocks
    }

    /// Appends the tokens of the block at a place of `path`.
    fn push_tokens(
        &self,
        request: &Request,
        answer: Origin,
        prompt_blocks: usize,
        at: usize,
        tokens: &mut Vec<u32>,
    ) {
        let parts = (TRACE_BLOCK_TOKENS / self.spec.block_size) as usize;
        let (origin, block) = match at.checked_sub(prompt_blocks) {
            None => (Origin::prompt(request.hash_ids[at / parts]), at % parts),
            Some(block) => (answer, block),
        };
        origin.push_tokens(block as u64, self.spec.block_size, tokens);
    }
}

fn push(path: &mut Vec<Block>, tokens_hash: TokensHash) {
    let parent = path.last().map(|block| block.block_hash);
    path.push(Block { block_hash: chain(parent, tokens_hash), tokens_hash: Some(tokens_hash), mm: None });
}
