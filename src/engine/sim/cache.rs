//! The prefix cache of an engine: blocks in chains, evicted leaves first and least recently used first.

use std::collections::{BTreeSet, HashMap};

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Namespace, RawEvent, tokens_hash};
use crate::event::{Block, BlockHash, EventData, Removed, Stored};

use super::trace::Request;

/// Tokens that one id of a trace stands for.
pub const TRACE_BLOCK_TOKENS: u32 = 512;

/// Token ids are below this, as those of usual vocabularies.
const VOCABULARY: u64 = 128_000;

/// Ids of blocks that come from decoding; no trace has them.
const DECODED: u64 = 1 << 63;

/// What the double is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Blocks that the cache holds.
    pub blocks: usize,
    /// Tokens in a block; it divides 512.
    pub block_size: u32,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self { blocks: 20_000, block_size: 16 }
    }
}

/// An engine's cache. Each request makes at most one `Removed`, of what had to go, and one `Stored`.
#[derive(Debug)]
pub struct EngineDouble {
    spec: CacheSpec,
    held: HashMap<u64, Held>,
    /// Blocks without held children, least recently used first.
    leaves: BTreeSet<(u64, u64)>,
    requests: u64,
}

#[derive(Debug)]
struct Held {
    parent: Option<u64>,
    children: u32,
    used: u64,
}

/// One block of a prompt: its hash, and where its tokens come from.
#[derive(Clone, Copy)]
struct PromptBlock {
    hash: u64,
    id: u64,
    part: u32,
}

impl EngineDouble {
    /// An empty cache; `None` if the block size does not divide 512 or there is no room at all.
    pub fn new(spec: CacheSpec) -> Option<Self> {
        let divides = spec.block_size > 0 && TRACE_BLOCK_TOKENS.is_multiple_of(spec.block_size);
        (divides && spec.blocks > 0).then(|| Self {
            spec,
            held: HashMap::new(),
            leaves: BTreeSet::new(),
            requests: 0,
        })
    }

    /// Blocks it holds.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Drops all it holds, as a reset of the cache does.
    pub fn clear(&mut self) -> RawEvent {
        self.held.clear();
        self.leaves.clear();
        RawEvent::Cleared
    }

    /// Serves a request, and says what an engine would announce: first what it evicts, then what it stores. Prompts
    /// longer than the cache are cut.
    pub fn serve(&mut self, request: &Request) -> Vec<RawEvent> {
        self.requests += 1;
        let now = self.requests;
        let mut prompt = self.prompt(request);
        prompt.truncate(self.spec.blocks);
        let known = prompt.iter().take_while(|block| self.held.contains_key(&block.hash)).count();
        let (found, missing) = prompt.split_at(known);
        for block in found {
            self.touch(block.hash, now);
        }
        let mut events = Vec::new();
        let evicted = self.evict((self.held.len() + missing.len()).saturating_sub(self.spec.blocks), now);
        if !evicted.is_empty() {
            events.push(RawEvent::Removed { block_hashes: evicted });
        }
        let room = self.spec.blocks - self.held.len();
        let missing = &missing[..missing.len().min(room)];
        if missing.is_empty() {
            return events;
        }
        let parent = found.last().map(|block| block.hash);
        self.store(parent, missing, now);
        events.push(RawEvent::Stored {
            parent,
            block_hashes: missing.iter().map(|block| block.hash).collect(),
            token_ids: missing.iter().flat_map(|block| self.tokens(*block)).collect(),
            block_size: self.spec.block_size,
        });
        events
    }

    /// The blocks of a request: those of its prompt, and whole ones of its answer.
    fn prompt(&self, request: &Request) -> Vec<PromptBlock> {
        let parts = TRACE_BLOCK_TOKENS / self.spec.block_size;
        let answered = request.output_length / u64::from(TRACE_BLOCK_TOKENS);
        let answer = (0..answered).map(|index| DECODED | self.requests << 20 | index);
        let mut parent = 0;
        let ids = request.hash_ids.iter().copied().chain(answer);
        ids.flat_map(|id| (0..parts).map(move |part| (id, part)))
            .map(|(id, part)| {
                parent = chain(parent, id, part);
                PromptBlock { hash: parent, id, part }
            })
            .collect()
    }

    /// The tokens of a block: the same for the same id.
    fn tokens(&self, block: PromptBlock) -> impl Iterator<Item = u32> + use<> {
        let start = u64::from(block.part) * u64::from(self.spec.block_size);
        (start..start + u64::from(self.spec.block_size)).map(move |at| {
            let mixed =
                (block.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93);
            ((mixed >> 32) % VOCABULARY) as u32
        })
    }

    fn touch(&mut self, hash: u64, now: u64) {
        let held = self.held.get_mut(&hash).expect("it was found");
        if held.children == 0 {
            self.leaves.remove(&(held.used, hash));
            self.leaves.insert((now, hash));
        }
        held.used = now;
    }

    fn evict(&mut self, count: usize, now: u64) -> Vec<u64> {
        let mut evicted = Vec::with_capacity(count);
        while evicted.len() < count {
            // A block of the running request is in use.
            let Some((_, hash)) = self.leaves.first().copied().filter(|(used, _)| *used < now) else { break };
            self.leaves.pop_first();
            let gone = self.held.remove(&hash).expect("a leaf is held");
            if let Some((parent, held)) = gone.parent.and_then(|hash| Some((hash, self.held.get_mut(&hash)?)))
            {
                held.children -= 1;
                if held.children == 0 {
                    self.leaves.insert((held.used, parent));
                }
            }
            evicted.push(hash);
        }
        evicted
    }

    fn store(&mut self, mut parent: Option<u64>, blocks: &[PromptBlock], now: u64) {
        for block in blocks {
            if let Some((hash, held)) = parent.and_then(|hash| Some((hash, self.held.get_mut(&hash)?))) {
                if held.children == 0 {
                    self.leaves.remove(&(held.used, hash));
                }
                held.children += 1;
            }
            self.held.insert(block.hash, Held { parent, children: 0, used: now });
            self.leaves.insert((now, block.hash));
            parent = Some(block.hash);
        }
    }
}

fn chain(parent: u64, id: u64, part: u32) -> u64 {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&parent.to_be_bytes());
    bytes[8..16].copy_from_slice(&id.to_be_bytes());
    bytes[16..].copy_from_slice(&part.to_be_bytes());
    xxh3_64(&bytes)
}

impl RawEvent {
    /// The event as kvjournal keeps it, with tokens hashed.
    pub fn to_data(&self) -> EventData {
        match self {
            Self::Stored { parent, block_hashes, token_ids, block_size } => {
                let plain = Namespace::new(None, None);
                let tokens = token_ids.chunks_exact((*block_size).max(1) as usize);
                let block = |(hash, tokens): (&u64, &[u32])| Block {
                    block_hash: BlockHash(*hash),
                    tokens_hash: Some(tokens_hash(plain, tokens, None)),
                    mm: None,
                };
                EventData::Stored(Stored {
                    parent: parent.map(BlockHash),
                    blocks: block_hashes.iter().zip(tokens).map(block).collect(),
                    block_size: Some(*block_size),
                    ..Stored::default()
                })
            }
            Self::Removed { block_hashes } => EventData::Removed(Removed {
                block_hashes: block_hashes.iter().copied().map(BlockHash).collect(),
                ..Removed::default()
            }),
            Self::Cleared => EventData::Cleared(Default::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Generator;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_is_announced_folds_to_what_is_held_and_keeps_to_the_rules_of_engines() {
        let spec = CacheSpec { blocks: 700, block_size: 128 };
        let mut engine = EngineDouble::new(spec).unwrap();
        let mut held: HashMap<u64, Option<u64>> = HashMap::new();
        let (mut removed, mut stored) = (0, 0);
        for request in Generator::new(3).take(2_000) {
            for event in engine.serve(&request) {
                match event {
                    RawEvent::Removed { block_hashes } => {
                        for hash in block_hashes {
                            assert!(held.remove(&hash).is_some(), "only what is held is removed");
                            assert!(held.values().all(|parent| *parent != Some(hash)), "leaves go first");
                            removed += 1;
                        }
                    }
                    RawEvent::Stored { mut parent, block_hashes, token_ids, block_size } => {
                        assert_eq!(token_ids.len(), block_hashes.len() * block_size as usize);
                        assert!(token_ids.iter().all(|token| u64::from(*token) < VOCABULARY));
                        for hash in block_hashes {
                            assert!(parent.is_none_or(|parent| held.contains_key(&parent)));
                            assert_eq!(held.insert(hash, parent), None, "only what is missing is stored");
                            parent = Some(hash);
                            stored += 1;
                        }
                    }
                    RawEvent::Cleared => unreachable!("requests do not clear"),
                }
            }
            assert!(held.len() <= spec.blocks);
            let own: HashSet<_> = engine.held.keys().collect();
            assert_eq!(own, held.keys().collect());
        }
        assert!(removed > 1_000 && stored > removed);
        assert_eq!(engine.clear(), RawEvent::Cleared);
        assert!(engine.is_empty());
    }

    #[test]
    fn the_least_recently_used_chain_goes_first() {
        let mut engine = EngineDouble::new(CacheSpec { blocks: 4, block_size: 512 }).unwrap();
        let mut serve = |ids: &[u64]| engine.serve(&Request { hash_ids: ids.to_vec(), ..Request::default() });
        serve(&[1, 2]);
        serve(&[3]);
        serve(&[1, 2]);
        let events = serve(&[4, 5]);
        let three = chain(0, 3, 0);
        assert_eq!(events[0], RawEvent::Removed { block_hashes: vec![three] });
        assert!(serve(&[1, 2]).is_empty(), "used again just before, so it stayed");
    }

    #[test]
    fn a_block_size_that_does_not_divide_is_refused() {
        assert!(EngineDouble::new(CacheSpec { blocks: 1, block_size: 48 }).is_none());
        assert!(EngineDouble::new(CacheSpec { blocks: 0, block_size: 16 }).is_none());
    }
}
