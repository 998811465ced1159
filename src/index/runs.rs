//! Runs of blocks that an event stores or removes alike, folded together.
//!
//! Engines announce what follows one another at once: a prompt's new blocks, and what they evict from its end. Most of
//! what such a block needs is the same for all of its run, and is done once. A run is only taken where that is plain;
//! blocks before and after it go one by one, with the same outcome.

use crate::event::{Block, BlockHash};

use super::digest::term;
use super::entries::{Facts, Found, UNKNOWN};
use super::holders::{NOBODY, Shape};
use super::holds::NOT_HELD;
use super::pages::Freed;
use super::paths::Paths;
use super::stream::Stream;

impl Stream {
    /// Stores blocks of one event, each below the one before, up to the first that is known or has no tokens: the first
    /// below `parent`, whose node is new and so has no child. Says the last slot, and how many were stored.
    pub(super) fn store_run(
        &mut self,
        paths: &mut Paths,
        parent: u32,
        blocks: &[Block],
        place: u32,
        tag: u32,
    ) -> (u32, usize) {
        let hold = self.holds.with_count(NOT_HELD, place, 1);
        let facts = Facts { kids: 1, hold, tag, no_tokens: false };
        let Some(packed) = facts.packed().filter(|_| !self.kids.is_built()) else {
            self.holds.release(hold, 1);
            return (parent, 0);
        };
        let shape = Shape::of(self.holds.mask(hold));
        let set = paths.holders_mut().change(NOBODY, self.slot, Shape::ABSENT, shape);
        let (mut last, mut stored) = (parent, 0);
        while stored < blocks.len() {
            let (slot, len) = self.entries.add_chain(last, &blocks[stored..], packed);
            if len == 0 {
                break;
            }
            let mut above = self.entries.get(last).node;
            let added = &blocks[stored..stored + len];
            let mut at = 0;
            while at < len {
                let (node, nodes) = paths.add_chain(above, &added[at..], set);
                self.entries.set_nodes(slot + at as u32, nodes, node);
                at += nodes;
                above = node + nodes as u32 - 1;
            }
            last = slot + len as u32 - 1;
            stored += len;
        }
        let seed = &self.holds.get_place(place).seed;
        for block in &blocks[..stored] {
            self.digest = self.digest.wrapping_add(term(seed, block.block_hash, 1));
        }
        self.held += stored;
        self.tags.retain(tag, stored as u64);
        // One use of each was there before it was known whether there is a block.
        self.holds.retain(hold, stored as u64);
        self.holds.release(hold, 1);
        paths.holders_mut().move_uses(NOBODY, set, stored as u64);
        paths.holders_mut().move_uses(set, NOBODY, 1);
        if stored > 0 {
            self.entries.add_kid(parent);
            self.entries.drop_kid(last);
        }
        (last, stored)
    }

    /// Removes blocks of one event from `place` as long as they are alike: held once and nowhere else, with no block
    /// below, and at nodes with the same holders. `found` says where they were found. Says how many were removed.
    pub(super) fn take_run(
        &mut self,
        paths: &mut Paths,
        hashes: &[BlockHash],
        found: &[Option<Found>],
        place: u32,
    ) -> usize {
        if self.kids.is_built() || !self.stranded.is_empty() || !self.to_detach.is_empty() {
            return 0;
        }
        let at = |at: usize| Some((*hashes.get(at)?, (*found.get(at)?)?));
        let Some((hash, found)) = at(0) else { return 0 };
        let Some(entry) = self.entries.peek(found.slot) else { return 0 };
        let packed = entry.packed();
        let facts = packed.map(Facts::unpacked).unwrap_or_default();
        // A slot that is free by now is not held.
        if entry.block_hash != hash.0 || facts.kids > 0 || !self.holds.is_one_copy(facts.hold, place) {
            return 0;
        }
        let set = paths.set(entry.node);
        let shape = Shape::of(self.holds.mask(facts.hold));
        let left = paths.holders_mut().change(set, self.slot, shape, Shape::ABSENT);
        let seed = self.holds.get_place(place).seed;
        let (mut slots, mut nodes) = (Freed::default(), Freed::default());
        let (mut digest, mut taken, mut ghost) = (self.digest, 0, None);
        while let Some((hash, found)) = at(taken)
            && ghost.is_none()
        {
            // What was removed a moment ago is not held.
            let Some(entry) = self.entries.peek(found.slot) else { break };
            let is_it = entry.block_hash == hash.0 && entry.packed() == packed;
            if !is_it || paths.set(entry.node) != set {
                break;
            }
            digest = digest.wrapping_sub(term(&seed, hash, 1));
            let parent = self.entries.remove_soon(&mut slots, found);
            if left == NOBODY {
                paths.drop_soon(&mut nodes, entry.node, || self.node_before(parent));
            } else {
                paths.put_set(entry.node, left);
            }
            if parent < UNKNOWN && self.entries.drop_kid(parent) {
                ghost = Some(parent);
            }
            taken += 1;
        }
        self.entries.flush(&mut slots);
        paths.flush(&mut nodes);
        self.digest = digest;
        self.held -= taken;
        self.holds.release(facts.hold, taken as u64);
        self.tags.release(facts.tag, taken as u64);
        // The first was moved to see where to.
        paths.holders_mut().move_uses(set, left, taken as u64 - 1);
        if let Some(ghost) = ghost {
            self.forget_ghost(paths, ghost);
        }
        taken
    }
}
