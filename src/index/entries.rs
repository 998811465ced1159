//! The blocks that one stream knows: those it holds, and those that a held block hangs below.
//!
//! Sixteen bytes a block, in slots that keep the order of events, found by a table of slot numbers. The block before a
//! block mostly lies in the slot before; where it does not, and where its facts do not fit, they stand aside.

use hashbrown::{HashTable, hash_table};

use crate::event::{Block, BlockHash};

use super::hash::{SlotMap, is_roomy, mix2, seed, shrink_map};
use super::holds::NOT_HELD;
use super::pages::{Freed, Pages};

/// In place of a parent: the block starts a prompt.
pub(super) const START: u32 = u32::MAX;
/// In place of a parent: nothing is known of the block but that others hang below it.
pub(super) const UNKNOWN: u32 = u32::MAX - 1;

/// Most blocks that are added together: what is done in vain if the first of them is there already.
const CHAIN: usize = 64;

/// Where a block was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    bucket: usize,
    pub(super) slot: u32,
}

/// A block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) block_hash: u64,
    /// Its node in the tree of paths.
    pub(super) node: u32,
    /// Its facts as far as they fit, a number below each limit, and [`BEHIND`].
    word: u32,
}

/// The block before an entry's block is in the slot before.
const BEHIND: u32 = 1 << 30;

impl Entry {
    /// The facts of a block as they are kept, [`None`] if they stand aside.
    #[inline]
    pub(super) fn packed(self) -> Option<u32> {
        (self.word & Facts::ASIDE == 0).then_some(self.word & !BEHIND)
    }
}

/// What else is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Blocks that have this one before them.
    pub(super) kids: u32,
    /// The combination of its holds; [`NOT_HELD`] for one that is only remembered.
    pub(super) hold: u32,
    /// Number of its LoRA adapter and salt; 0 for neither.
    pub(super) tag: u32,
    /// Whether its tokens are not known.
    pub(super) no_tokens: bool,
}

impl Facts {
    pub(super) fn is_held(self) -> bool {
        self.hold != NOT_HELD
    }

    const KIDS_BITS: u32 = 13;
    const HOLD_BITS: u32 = 9;
    const TAG_BITS: u32 = 7;
    /// The bits of each.
    const KIDS: u32 = (1 << Self::KIDS_BITS) - 1;
    const HOLD: u32 = ((1 << Self::HOLD_BITS) - 1) << Self::KIDS_BITS;
    const NO_TOKENS: u32 = 1 << 29;
    const ASIDE: u32 = 1 << 31;

    /// All in one number, if they fit.
    #[inline]
    pub(super) fn packed(self) -> Option<u32> {
        let fits = self.kids >> Self::KIDS_BITS | self.hold >> Self::HOLD_BITS | self.tag >> Self::TAG_BITS;
        let packed = self.kids
            | self.hold << Self::KIDS_BITS
            | self.tag << (Self::KIDS_BITS + Self::HOLD_BITS)
            | if self.no_tokens { Self::NO_TOKENS } else { 0 };
        (fits == 0).then_some(packed)
    }

    #[inline]
    pub(super) fn unpacked(packed: u32) -> Self {
        let field = |shift: u32, bits: u32| packed >> shift & ((1 << bits) - 1);
        Self {
            kids: field(0, Self::KIDS_BITS),
            hold: field(Self::KIDS_BITS, Self::HOLD_BITS),
            tag: field(Self::KIDS_BITS + Self::HOLD_BITS, Self::TAG_BITS),
            no_tokens: packed & Self::NO_TOKENS != 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Entries {
    slots: Pages<Entry>,
    by_hash: HashTable<u32>,
    /// Facts that do not fit an entry.
    aside: SlotMap<Facts>,
    /// The block before, or [`UNKNOWN`], where it is not in the slot before; a block that starts a prompt has none.
    parents: SlotMap<u32>,
    seed: u64,
}

impl Default for Entries {
    fn default() -> Self {
        Self {
            slots: Pages::default(),
            by_hash: HashTable::new(),
            aside: SlotMap::default(),
            parents: SlotMap::default(),
            seed: seed(),
        }
    }
}

impl Entries {
    #[inline]
    pub(super) fn find(&self, block_hash: u64) -> Option<u32> {
        let is_it = |slot: &u32| self.get(*slot).block_hash == block_hash;
        self.by_hash.find(mix2(self.seed, block_hash), is_it).copied()
    }

    /// Finds many blocks at once: nothing waits for another, so the processor fetches them side by side.
    pub(super) fn find_all(&self, hashes: &[BlockHash], found: &mut Vec<Option<Found>>) {
        let find = |hash: &BlockHash| {
            let is_it = |slot: &u32| self.get(*slot).block_hash == hash.0;
            let bucket = self.by_hash.find_bucket_index(mix2(self.seed, hash.0), is_it)?;
            Some(Found { bucket, slot: *self.by_hash.get_bucket(bucket)? })
        };
        found.clear();
        found.extend(hashes.iter().map(find));
    }

    /// The slot of a block, given where it was found a moment ago.
    #[inline]
    pub(super) fn find_again(&self, block_hash: u64, found: Option<Found>) -> Option<u32> {
        // A free slot holds hash 0, which is a legal hash.
        match found {
            Some(Found { slot, .. })
                if self.slots.peek(slot).is_some_and(|entry| entry.block_hash == block_hash)
                    && self.is_live(slot) =>
            {
                Some(slot)
            }
            _ => self.find(block_hash),
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Entry {
        *self.slots.get(slot)
    }

    pub(super) fn set_node(&mut self, slot: u32, node: u32) {
        self.slots.get_mut(slot).node = node;
    }

    /// The slot of the block before it, [`START`] or [`UNKNOWN`].
    #[inline]
    pub(super) fn parent(&self, slot: u32) -> u32 {
        if self.get(slot).word & BEHIND != 0 {
            return slot - 1;
        }
        self.parents.get(&slot).copied().unwrap_or(START)
    }

    /// The slot of the block before it, if that is known.
    #[inline]
    pub(super) fn parent_slot(&self, slot: u32) -> Option<u32> {
        Some(self.parent(slot)).filter(|parent| *parent < UNKNOWN)
    }

    /// Notes the block before a block, which had none or one in another slot.
    pub(super) fn set_parent(&mut self, slot: u32, parent: u32) {
        let entry = self.slots.get_mut(slot);
        let is_behind = parent < UNKNOWN && parent + 1 == slot;
        entry.word = entry.word & !BEHIND | if is_behind { BEHIND } else { 0 };
        if is_behind || parent == START {
            self.parents.remove(&slot);
        } else {
            self.parents.insert(slot, parent);
        }
    }

    /// Adds a block that is not there yet: after `before` where that slot is free.
    #[inline]
    pub(super) fn add(&mut self, before: u32, block_hash: u64, node: u32, parent: u32, facts: Facts) -> u32 {
        let slot = self.slots.add_after(before, Entry { block_hash, node, word: 0 });
        let (slots, seed) = (&self.slots, self.seed);
        let rehash = |slot: &u32| mix2(seed, slots.get(*slot).block_hash);
        self.by_hash.insert_unique(mix2(seed, block_hash), slot, rehash);
        self.set_facts(slot, facts);
        self.set_parent(slot, parent);
        slot
    }

    /// Adds blocks that are not there yet, each below the one before: the first below `parent`, and as many as fit
    /// beside one another up to one that is there or has no tokens. Their facts are `packed`, and their nodes are still
    /// to be set. Says the first slot, and how many.
    pub(super) fn add_chain(&mut self, parent: u32, blocks: &[Block], packed: u32) -> (u32, usize) {
        let most = blocks.iter().take(CHAIN).take_while(|block| block.tokens_hash.is_some()).count();
        if most == 0 {
            return (parent, 0);
        }
        let (first, len) = self.slots.claim_after(parent, most);
        for (entry, block) in self.slots.run_mut(first, len).iter_mut().zip(blocks) {
            *entry = Entry { block_hash: block.block_hash.0, node: 0, word: packed | BEHIND };
        }
        let (slots, seed) = (&self.slots, self.seed);
        let rehash = |slot: &u32| mix2(seed, slots.get(*slot).block_hash);
        let mut added = 0;
        for (block, slot) in blocks[..len].iter().zip(first..) {
            let hash = block.block_hash.0;
            let is_it = |slot: &u32| slots.get(*slot).block_hash == hash;
            match self.by_hash.entry(mix2(seed, hash), is_it, rehash) {
                hash_table::Entry::Occupied(_) => break,
                hash_table::Entry::Vacant(room) => room.insert(slot),
            };
            added += 1;
        }
        if added < len {
            let rest = first + added as u32;
            self.slots.run_mut(rest, len - added).fill(Entry::default());
            self.slots.give_back(rest, len - added);
        }
        if added > 0 && first != parent.wrapping_add(1) {
            self.set_parent(first, parent);
        }
        (first, added)
    }

    /// Notes the nodes of blocks in consecutive slots, which are consecutive as well.
    pub(super) fn set_nodes(&mut self, slot: u32, len: usize, node: u32) {
        for (entry, node) in self.slots.run_mut(slot, len).iter_mut().zip(node..) {
            entry.node = node;
        }
    }

    /// What stands in a slot, which need not be there.
    #[inline]
    pub(super) fn peek(&self, slot: u32) -> Option<Entry> {
        self.slots.peek(slot).copied()
    }

    /// Counts a block more below a block.
    #[inline]
    pub(super) fn add_kid(&mut self, slot: u32) {
        let word = &mut self.slots.get_mut(slot).word;
        if *word & Facts::ASIDE == 0 && *word & Facts::KIDS < Facts::KIDS {
            *word += 1;
            return;
        }
        let mut facts = self.facts(slot);
        facts.kids += 1;
        self.set_facts(slot, facts);
    }

    /// Counts a block less below a block. Says whether nothing is left of it: no block below, and it is not held.
    #[inline]
    pub(super) fn drop_kid(&mut self, slot: u32) -> bool {
        let word = &mut self.slots.get_mut(slot).word;
        if *word & Facts::ASIDE == 0 {
            *word -= 1;
            return *word & (Facts::KIDS | Facts::HOLD) == 0;
        }
        let mut facts = self.facts(slot);
        facts.kids -= 1;
        self.set_facts(slot, facts);
        facts.kids == 0 && !facts.is_held()
    }

    /// Removes a block whose facts do not stand aside; its slot is free at the latest with [`Entries::flush`], and
    /// until then holds nothing that can be found. Says the block before it, as [`Entries::parent`] does.
    #[inline]
    pub(super) fn remove_soon(&mut self, freed: &mut Freed, found: Found) -> u32 {
        let Found { bucket, slot } = found;
        let entry = std::mem::take(self.slots.get_mut(slot));
        match self.by_hash.get_bucket_entry(bucket) {
            Ok(known) if *known.get() == slot => drop(known.remove()),
            _ => self.unlist(entry.block_hash, slot),
        }
        self.slots.give_back_soon(freed, slot);
        if entry.word & BEHIND != 0 { slot - 1 } else { self.parents.remove(&slot).unwrap_or(START) }
    }

    /// Frees the slots that are to be freed soon.
    pub(super) fn flush(&mut self, freed: &mut Freed) {
        self.slots.flush(freed);
    }

    /// Removes a block.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) {
        let entry = self.slots.remove(slot);
        if entry.word & Facts::ASIDE != 0 {
            self.aside.remove(&slot);
        }
        if entry.word & BEHIND == 0 {
            self.parents.remove(&slot);
        }
        self.unlist(entry.block_hash, slot);
    }

    fn unlist(&mut self, block_hash: u64, slot: u32) {
        let hash = mix2(self.seed, block_hash);
        if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
    }

    #[inline]
    pub(super) fn facts(&self, slot: u32) -> Facts {
        if let Some(packed) = self.get(slot).packed() {
            return Facts::unpacked(packed);
        }
        self.aside.get(&slot).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn set_facts(&mut self, slot: u32, facts: Facts) {
        let word = &mut self.slots.get_mut(slot).word;
        let was_aside = *word & Facts::ASIDE != 0;
        let packed = facts.packed();
        *word = *word & BEHIND | packed.unwrap_or(Facts::ASIDE);
        if packed.is_none() {
            self.aside.insert(slot, facts);
        } else if was_aside {
            self.aside.remove(&slot);
        }
    }

    /// All blocks, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Entry)> {
        self.slots.iter().map(|(slot, entry)| (slot, *entry))
    }

    pub(super) fn is_live(&self, slot: u32) -> bool {
        self.slots.is_live(slot)
    }

    /// One past the highest slot.
    pub(super) fn end(&self) -> u32 {
        self.slots.end()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Notes where all nodes moved to.
    pub(super) fn move_nodes(&mut self, moved: &[u32]) {
        for slot in 0..self.end() {
            if self.is_live(slot) {
                let node = &mut self.slots.get_mut(slot).node;
                *node = moved[*node as usize];
            }
        }
    }

    /// Gives the room back that the tables do not need any more.
    pub(super) fn shrink(&mut self) {
        if is_roomy(self.by_hash.len(), self.by_hash.num_buckets()) {
            let (slots, seed) = (&self.slots, self.seed);
            let rehash = |slot: &u32| mix2(seed, slots.get(*slot).block_hash);
            self.by_hash.shrink_to(2 * self.by_hash.len(), rehash);
        }
        shrink_map(&mut self.aside);
        shrink_map(&mut self.parents);
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.slots.is_sparse()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.heap_bytes()
            + self.by_hash.allocation_size()
            + self.aside.allocation_size()
            + self.parents.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_back_whether_they_fit_or_stand_aside() {
        let mut entries = Entries::default();
        let slot = entries.add(START, 7, 3, START, Facts::default());
        for (kids, hold, tag) in [(1, 2, 3), (1 << 13, 1, 1), (1, 1 << 9, 1), (1, 1, 1 << 7), (5, 511, 127)] {
            for no_tokens in [false, true] {
                let facts = Facts { kids, hold, tag, no_tokens };
                entries.set_facts(slot, facts);
                assert_eq!(entries.facts(slot), facts);
            }
        }
        assert!(entries.aside.is_empty(), "the last fit again");
        assert_eq!((entries.find(7), entries.find(8)), (Some(slot), None));
        entries.remove(slot);
        assert_eq!(entries.find(7), None);
    }
}
