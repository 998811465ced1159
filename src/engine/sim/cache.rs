//! The prefix cache: which blocks are held, and in which order they go.
//!
//! One list of blocks, next victim first. A request takes its blocks out, so that none of them can go, and puts
//! them back at the end, last block first; that is how vLLM frees a request's blocks (`free_blocks`). So a child
//! always stands before its parent, and the first of the list is a leaf: nothing has to count children, and a
//! block costs O(1).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::event::BlockHash;

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct PrefixCache {
    blocks_max: usize,
    slots_of: HashMap<BlockHash, u32, BuildHasherDefault<AsIs>>,
    slots: Vec<Slot>,
    /// Slots that hold nothing.
    vacant: Vec<u32>,
    /// The next victim.
    first: u32,
    last: u32,
    /// Slots of the running request, in the order of its prompt.
    running: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: BlockHash,
    before: u32,
    after: u32,
}

/// What happened when a request was admitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// Leading blocks of the request that were held.
    pub(super) found: usize,
    /// Blocks that had to go, in this order.
    pub(super) evicted: Vec<BlockHash>,
}

impl PrefixCache {
    /// An empty cache. `blocks_max` is below 2^32 - 1.
    pub(super) fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            slots_of: HashMap::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            first: NIL,
            last: NIL,
            running: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots_of.len()
    }

    pub(super) fn hashes(&self) -> impl Iterator<Item = BlockHash> {
        self.slots_of.keys().copied()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.blocks_max);
    }

    /// Holds a request's chain of blocks, at most `blocks_max` of them, evicting what stands in the way.
    pub(super) fn admit(&mut self, chain: impl ExactSizeIterator<Item = BlockHash> + Clone) -> Admitted {
        debug_assert!(chain.len() <= self.blocks_max, "the engine cuts requests to the cache");
        self.running.clear();
        for hash in chain.clone() {
            let Some(&slot) = self.slots_of.get(&hash) else { break };
            self.unlink(slot);
            self.running.push(slot);
        }
        let found = self.running.len();
        let wanted = self.len() + (chain.len() - found);
        let evicted = (self.blocks_max..wanted).map(|_| self.evict()).collect();
        for hash in chain.skip(found) {
            let slot = self.occupy(hash);
            self.running.push(slot);
        }
        while let Some(slot) = self.running.pop() {
            self.link_last(slot);
        }
        Admitted { found, evicted }
    }

    fn evict(&mut self) -> BlockHash {
        let slot = self.first;
        assert_ne!(slot, NIL, "a request of at most blocks_max blocks leaves enough others to evict");
        self.unlink(slot);
        self.vacant.push(slot);
        let hash = self.slots[slot as usize].hash;
        self.slots_of.remove(&hash);
        hash
    }

    fn occupy(&mut self, hash: BlockHash) -> u32 {
        let filled = Slot { hash, before: NIL, after: NIL };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = filled;
                slot
            }
            None => {
                self.slots.push(filled);
                (self.slots.len() - 1) as u32
            }
        };
        self.slots_of.insert(hash, slot);
        slot
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { before, after, .. } = self.slots[slot as usize];
        match before {
            NIL => self.first = after,
            before => self.slots[before as usize].after = after,
        }
        match after {
            NIL => self.last = before,
            after => self.slots[after as usize].before = before,
        }
    }

    fn link_last(&mut self, slot: u32) {
        let before = std::mem::replace(&mut self.last, slot);
        self.slots[slot as usize].before = before;
        self.slots[slot as usize].after = NIL;
        match before {
            NIL => self.first = slot,
            before => self.slots[before as usize].after = slot,
        }
    }
}

/// Block hashes are hashes already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(cache: &mut PrefixCache, hashes: &[u64]) -> (usize, Vec<u64>) {
        let admitted = cache.admit(hashes.iter().map(|hash| BlockHash(*hash)));
        (admitted.found, admitted.evicted.into_iter().map(|hash| hash.0).collect())
    }

    #[test]
    fn the_least_recently_used_chain_goes_first_and_its_leaf_before_its_root() {
        let mut cache = PrefixCache::new(5);
        assert_eq!(admit(&mut cache, &[1, 2, 3]), (0, vec![]));
        assert_eq!(admit(&mut cache, &[4, 5]), (0, vec![]));
        assert_eq!(admit(&mut cache, &[1, 2]), (2, vec![]));
        assert_eq!(admit(&mut cache, &[6, 7]), (0, vec![3, 5]));
        assert_eq!(admit(&mut cache, &[8]), (0, vec![4]));
        assert_eq!(admit(&mut cache, &[9]), (0, vec![2]));
    }

    #[test]
    fn a_request_as_long_as_the_cache_evicts_all_but_its_own() {
        let mut cache = PrefixCache::new(3);
        admit(&mut cache, &[1, 2, 3]);
        assert_eq!(admit(&mut cache, &[1, 4, 5]), (1, vec![3, 2]));
        assert_eq!(admit(&mut cache, &[1, 4, 5]), (3, vec![]));
        cache.clear();
        assert_eq!((cache.len(), admit(&mut cache, &[1])), (0, (0, vec![])));
    }
}
