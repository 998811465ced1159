//! The fold of one stream's events.
//!
//! A block that is no longer held but still has held blocks below it stays as a **ghost**: the tree of paths does
//! not change, the walk of a prompt ends at the ghost, and once the block comes back all below it is there again.
//! A ghost without a known identity stands for a parent that was never stored.
//!
//! Invariants:
//!
//! - The node of a block with a parent is the child of the parent's node, unless the block's node is detached: its
//!   tokens are not known, nothing is known of it, or it is *stranded*, its parents leading back to itself.
//! - A ghost is alone of its stream at its node: were another block held there, a prompt could go on below the
//!   ghost. Where that would happen the ghost is detached, with all below it.

use std::collections::{BTreeSet, HashSet};

use crate::event::{Block, BlockHash, Cleared, EventData, Removed, StorageTier, Stored};

use super::digest::{Digest, term};
use super::entries::{Entries, Facts, Found, START, UNKNOWN};
use super::hash::{SlotMap, shrink_map};
use super::holders::Shape;
use super::holds::{Holds, NOT_HELD};
use super::kids::Kids;
use super::paths::{Paths, ROOT};
use super::tags::Tags;

/// Ghosts that are always allowed; more than this and twice the held blocks, and the stream is folded anew.
const GHOSTS_SPARE: usize = 1024;

/// Longest list that is kept from event to event.
const FOUND_KEPT: usize = 64;

/// The state of one stream. All its methods take the tree of paths that all streams share.
#[derive(Debug)]
pub(super) struct Stream {
    /// Its number in the sets of holders.
    pub(super) slot: u32,
    pub(super) entries: Entries,
    pub(super) holds: Holds,
    pub(super) tags: Tags,
    /// Blocks that are not held, by their node.
    pub(super) ghosts: SlotMap<u32>,
    /// Blocks whose parents lead back to themselves.
    pub(super) stranded: BTreeSet<u32>,
    /// Ghosts that may not stay at their nodes.
    pub(super) to_detach: Vec<u32>,
    /// Built when it is needed.
    pub(super) kids: Kids,
    /// Room for where the blocks of an event are.
    found: Vec<Option<Found>>,
    pub(super) digest: u128,
    /// Blocks that are held.
    pub(super) held: usize,
}

/// The block before one of an event.
#[derive(Clone, Copy)]
enum Before {
    /// None, it starts a prompt.
    Start,
    /// A block that the event names, which may not be known.
    Named(BlockHash),
    /// A block of this event, and whether it is new and so has no child.
    Slot { slot: u32, is_new: bool },
}

impl Stream {
    pub(super) fn new(slot: u32) -> Self {
        Self {
            slot,
            entries: Entries::default(),
            holds: Holds::default(),
            tags: Tags::default(),
            ghosts: SlotMap::default(),
            stranded: BTreeSet::new(),
            to_detach: Vec::new(),
            kids: Kids::default(),
            found: Vec::new(),
            digest: 0,
            held: 0,
        }
    }

    /// Blocks that are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn digest(&self) -> Digest {
        Digest(self.digest)
    }

    pub(super) fn apply(&mut self, paths: &mut Paths, event: &EventData) {
        self.fold(paths, event);
        let ghosts_max = 2 * self.held + GHOSTS_SPARE;
        if self.held == 0 && self.entries.len() > 0 {
            self.reset(paths);
        } else if self.ghosts.len() > ghosts_max || self.entries.is_sparse() {
            self.fold_anew(paths);
        }
    }

    fn fold(&mut self, paths: &mut Paths, event: &EventData) {
        match event {
            EventData::Stored(stored) => self.store(paths, stored),
            EventData::Removed(removed) => self.take(paths, removed),
            EventData::Cleared(cleared) => self.clear(paths, cleared),
            EventData::Unknown(_) => {}
        }
    }

    /// Gives the room back that the tables do not need any more.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink();
        shrink_map(&mut self.ghosts);
    }

    fn store(&mut self, paths: &mut Paths, stored: &Stored) {
        if stored.blocks.is_empty() {
            return;
        }
        let place = self.holds.place(&stored.placement);
        let tag = self.tags.intern(&stored.lora, &stored.salt);
        let mut repeats = Repeats::new(&stored.blocks);
        let mut before = stored.parent.map_or(Before::Start, Before::Named);
        let mut at = 0;
        while let Some(block) = stored.blocks.get(at) {
            if let Before::Slot { slot, is_new: true } = before {
                let (last, run) = self.store_run(paths, slot, &stored.blocks[at..], place, tag);
                if run > 0 {
                    before = Before::Slot { slot: last, is_new: true };
                    at += run;
                    continue;
                }
            }
            let (slot, is_new) = match self.entries.find(block.block_hash.0) {
                None => self.discover(paths, before, block, place, tag),
                Some(slot) => {
                    let facts = self.entries.facts(slot);
                    let count = self.holds.count(facts.hold, place);
                    if count == 0 || !stored.refresh && !repeats.has_before(at) {
                        self.set_count(paths, slot, place, count + 1);
                    }
                    if !facts.is_held() {
                        let parent = self.parent_for(paths, before);
                        self.revive(paths, slot, parent, block, tag);
                    }
                    (slot, false)
                }
            };
            before = Before::Slot { slot, is_new };
            at += 1;
        }
        self.tags.release(tag, 1);
        self.holds.release_place(place);
    }

    /// Adds a block that is not known. Says its slot, and whether it cannot have a child.
    fn discover(
        &mut self,
        paths: &mut Paths,
        before: Before,
        block: &Block,
        place: u32,
        tag: u32,
    ) -> (u32, bool) {
        let parent = self.parent_for(paths, before);
        if matches!(before, Before::Named(parent) if parent == block.block_hash) {
            // Its own parent: the ghost that was just made is the block.
            self.set_count(paths, parent, place, 1);
            self.revive(paths, parent, parent, block, tag);
            return (parent, false);
        }
        let parent_node = if parent == START { ROOT } else { self.entries.get(parent).node };
        let (node, is_new) = match block.tokens_hash {
            None => (paths.add_detached(0), true),
            Some(tokens) => {
                let has_none = matches!(before, Before::Slot { is_new: true, .. });
                match if has_none { None } else { paths.child(parent_node, tokens.0) } {
                    Some(node) => (node, false),
                    None => (paths.add_child(parent_node, tokens.0), true),
                }
            }
        };
        let hold = self.holds.with_count(NOT_HELD, place, 1);
        let no_tokens = block.tokens_hash.is_none();
        self.tags.retain(tag, 1);
        let facts = Facts { kids: 0, hold, tag, no_tokens };
        let slot = self.entries.add(parent, block.block_hash.0, node, parent, facts);
        self.adopt(parent, slot);
        paths.shift(node, self.slot, Shape::ABSENT, Shape::of(self.holds.mask(hold)));
        self.digest = self.digest.wrapping_add(term(&self.holds.get_place(place).seed, block.block_hash, 1));
        self.held += 1;
        if !is_new
            && !self.ghosts.is_empty()
            && let Some(ghost) = self.ghosts.remove(&node)
        {
            self.detach(paths, ghost);
        }
        (slot, is_new)
    }

    /// The slot of the block before another one, which is made if it is not known.
    fn parent_for(&mut self, paths: &mut Paths, before: Before) -> u32 {
        match before {
            Before::Start => START,
            Before::Slot { slot, .. } => slot,
            Before::Named(hash) => self.entries.find(hash.0).unwrap_or_else(|| {
                let node = paths.add_detached(0);
                let slot = self.entries.add(START, hash.0, node, UNKNOWN, Facts::default());
                paths.shift(node, self.slot, Shape::ABSENT, Shape::NOWHERE);
                self.ghosts.insert(node, slot);
                slot
            }),
        }
    }

    /// Gives a block its identity that was just stored for the first time since it was not held.
    fn revive(&mut self, paths: &mut Paths, slot: u32, parent: u32, block: &Block, tag: u32) {
        let mut facts = self.entries.facts(slot);
        self.tags.retain(tag, 1);
        facts.tag = tag;
        self.entries.set_facts(slot, facts);
        let entry = self.entries.get(slot);
        let tokens = block.tokens_hash.map(|tokens| tokens.0);
        let known_tokens = (!facts.no_tokens).then(|| paths.tokens(entry.node));
        if self.entries.parent(slot) != parent || known_tokens != tokens {
            self.settle(paths, slot, parent, tokens);
        }
    }

    fn take(&mut self, paths: &mut Paths, removed: &Removed) {
        let Some(place) = self.holds.known_place(&removed.placement) else { return };
        // Only a block that is still held after it was taken once could be taken twice.
        let mut still_held = HashSet::new();
        let mut found = std::mem::take(&mut self.found);
        self.entries.find_all(&removed.block_hashes, &mut found);
        let mut at = 0;
        while let Some(hash) = removed.block_hashes.get(at) {
            if still_held.is_empty() {
                let run = self.take_run(paths, &removed.block_hashes[at..], &found[at..], place);
                if run > 0 {
                    at += run;
                    continue;
                }
            }
            let slot = self.entries.find_again(hash.0, found[at]);
            at += 1;
            let Some(slot) = slot else { continue };
            let count = self.holds.count(self.entries.facts(slot).hold, place);
            if count == 0 || still_held.contains(hash) {
                continue;
            }
            if count > 1 {
                still_held.insert(*hash);
            }
            self.set_count(paths, slot, place, count - 1);
        }
        // The list's room is for the next event, unless it is large.
        if found.capacity() <= FOUND_KEPT {
            self.found = found;
        }
        self.holds.release_place(place);
    }

    fn clear(&mut self, paths: &mut Paths, cleared: &Cleared) {
        if cleared.tiers.is_empty() {
            return self.reset(paths);
        }
        let is_cleared = |tier: Option<StorageTier>| tier.is_some_and(|tier| cleared.tiers.contains(&tier));
        for slot in 0..self.entries.end() {
            // What is emptied may take others with it, but puts nothing into a free slot.
            while self.entries.is_live(slot) {
                let hold = self.entries.facts(slot).hold;
                let mut places = self.holds.of(hold).iter().map(|hold| hold.placement);
                let Some(place) = places.find(|place| is_cleared(self.holds.get_place(*place).tier)) else {
                    break;
                };
                self.set_count(paths, slot, place, 0);
            }
        }
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self, paths: &mut Paths) {
        for (slot, entry) in self.entries.iter() {
            if paths.shift(entry.node, self.slot, self.shape(slot), Shape::ABSENT) {
                // Nothing is put into a free slot meanwhile, so the parent's number still means the parent.
                paths.unlink(entry.node, self.node_before(self.entries.parent(slot)));
                paths.release(entry.node);
            }
        }
        *self = Self::new(self.slot);
    }

    /// Folds what is held anew: without ghosts that only hold other ghosts, and with the slots in order.
    fn fold_anew(&mut self, paths: &mut Paths) {
        let events = self.dump(paths);
        self.reset(paths);
        for event in &events {
            self.fold(paths, event);
        }
    }

    /// The tiers in which a block counts.
    pub(super) fn shape(&self, slot: u32) -> Shape {
        Shape::of(self.holds.mask(self.entries.facts(slot).hold))
    }

    /// The node of the block before, or where nodes of a block without one hang.
    pub(super) fn node_before(&self, parent: u32) -> u32 {
        if parent < UNKNOWN { self.entries.get(parent).node } else { ROOT }
    }

    /// Changes how often a block is held in one placement, with all that follows if it is no longer held at all.
    /// A ghost that is held from now on still needs its identity.
    fn set_count(&mut self, paths: &mut Paths, slot: u32, place: u32, count: u64) {
        let entry = self.entries.get(slot);
        let mut facts = self.entries.facts(slot);
        let before = self.holds.count(facts.hold, place);
        let seed = &self.holds.get_place(place).seed;
        let hash = BlockHash(entry.block_hash);
        self.digest =
            self.digest.wrapping_sub(term(seed, hash, before)).wrapping_add(term(seed, hash, count));
        let was = Shape::of(self.holds.mask(facts.hold));
        let was_held = facts.is_held();
        facts.hold = self.holds.with_count(facts.hold, place, count);
        let is = Shape::of(self.holds.mask(facts.hold));
        if facts.is_held() {
            self.entries.set_facts(slot, facts);
            paths.shift(entry.node, self.slot, was, is);
            if !was_held {
                self.held += 1;
                self.ghosts.remove(&entry.node);
            }
            return;
        }
        self.held -= 1;
        self.tags.release(facts.tag, 1);
        facts.tag = 0;
        if facts.kids == 0 {
            return self.forget(paths, slot, was);
        }
        self.entries.set_facts(slot, facts);
        paths.shift(entry.node, self.slot, was, is);
        if paths.blocks_of(entry.node, self.slot) > 1 {
            self.detach(paths, slot);
        } else {
            self.ghosts.insert(entry.node, slot);
        }
    }

    /// Drops a block that nothing hangs below, and ghosts above it that are left with nothing.
    fn forget(&mut self, paths: &mut Paths, slot: u32, was: Shape) {
        let (mut slot, mut was) = (slot, was);
        loop {
            let entry = self.entries.get(slot);
            let parent = self.entries.parent(slot);
            if paths.shift(entry.node, self.slot, was, Shape::ABSENT) {
                paths.unlink(entry.node, self.node_before(parent));
                paths.release(entry.node);
            }
            if !self.ghosts.is_empty() && self.ghosts.get(&entry.node) == Some(&slot) {
                self.ghosts.remove(&entry.node);
            }
            self.stranded.remove(&slot);
            self.to_detach.retain(|other| *other != slot);
            self.entries.remove(slot);
            match self.disown(parent, slot) {
                Some(ghost) => (slot, was) = (ghost, Shape::NOWHERE),
                None => return,
            }
        }
    }

    /// Counts a block below its parent.
    #[inline]
    pub(super) fn adopt(&mut self, parent: u32, kid: u32) {
        if parent < UNKNOWN {
            self.entries.add_kid(parent);
            self.kids.add(parent, kid);
        }
    }

    /// Counts a block below its parent no more. Says the parent if nothing is left of it.
    #[inline]
    pub(super) fn disown(&mut self, parent: u32, kid: u32) -> Option<u32> {
        if parent >= UNKNOWN {
            return None;
        }
        self.kids.remove(parent, kid);
        self.entries.drop_kid(parent).then_some(parent)
    }

    /// Drops a ghost that nothing hangs below any more, and those above that are left with nothing.
    pub(super) fn forget_ghost(&mut self, paths: &mut Paths, slot: u32) {
        self.forget(paths, slot, Shape::NOWHERE);
    }

    /// Notes where all nodes moved to.
    pub(super) fn move_nodes(&mut self, moved: &[u32]) {
        self.entries.move_nodes(moved);
        self.ghosts = self.ghosts.drain().map(|(node, slot)| (moved[node as usize], slot)).collect();
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        // A B-tree's nodes are about two thirds full.
        let stranded = self.stranded.len() * size_of::<u32>() * 3 / 2;
        self.entries.heap_bytes()
            + self.holds.heap_bytes()
            + self.tags.heap_bytes()
            + self.ghosts.allocation_size()
            + self.kids.heap_bytes()
            + self.to_detach.capacity() * size_of::<u32>()
            + self.found.capacity() * size_of::<Option<Found>>()
            + stranded
    }
}

/// Whether a block of an event stood in it before: looked up rarely, so nothing is built until then.
struct Repeats<'a> {
    blocks: &'a [Block],
    seen: HashSet<BlockHash>,
    /// Blocks that are in `seen`.
    until: usize,
}

impl<'a> Repeats<'a> {
    /// Blocks up to which going through them is faster than a set.
    const FEW: usize = 16;

    fn new(blocks: &'a [Block]) -> Self {
        Self { blocks, seen: HashSet::new(), until: 0 }
    }

    fn has_before(&mut self, at: usize) -> bool {
        let hash = self.blocks[at].block_hash;
        if at <= Self::FEW {
            return self.blocks[..at].iter().any(|block| block.block_hash == hash);
        }
        self.seen.extend(self.blocks[self.until..at].iter().map(|block| block.block_hash));
        self.until = at;
        self.seen.contains(&hash)
    }
}
