//! A block that others hang below gets another identity: it and they move to where they now belong.
//!
//! Engines' hashes are chained, so that a hash always means the same tokens after the same block; this happens where
//! a parent arrives after its children, where tokens become known later, and to hostile streams. Where the block is
//! alone at its node and nothing stands at the new place, the node itself moves, with all below it, at once.
//! Otherwise all blocks below move one by one. Nothing here recurses over a chain.

use super::entries::UNKNOWN;
use super::holders::{NOBODY, Shape};
use super::paths::{Paths, ROOT};
use super::stream::Stream;

impl Stream {
    /// Gives a block a new parent (a slot, none, or `UNKNOWN`) and tokens.
    pub(super) fn settle(&mut self, paths: &mut Paths, slot: u32, parent: u32, tokens: Option<u64>) {
        self.settle_one(paths, slot, parent, tokens);
        // Moving blocks may bring a ghost to where another block is.
        while let Some(ghost) = self.to_detach.pop() {
            if !self.entries.facts(ghost).is_held() {
                self.settle_one(paths, ghost, UNKNOWN, None);
            }
        }
    }

    /// Takes a ghost off its node, with all below it: nothing is known of it from now on.
    pub(super) fn detach(&mut self, paths: &mut Paths, ghost: u32) {
        self.settle(paths, ghost, UNKNOWN, None);
    }

    fn settle_one(&mut self, paths: &mut Paths, slot: u32, parent: u32, tokens: Option<u64>) {
        let old_parent = self.entries.parent(slot);
        let old_above = self.node_before(old_parent);
        self.stranded.remove(&slot);
        let is_stranded = tokens.is_some() && self.leads_to(parent, slot);
        if is_stranded {
            self.stranded.insert(slot);
        }
        let mut facts = self.entries.facts(slot);
        facts.no_tokens = tokens.is_none() && parent != UNKNOWN;
        self.entries.set_facts(slot, facts);
        self.entries.set_parent(slot, parent);
        // The old parent may be dropped with its node, so it counts until the end; but it may hang below the block,
        // where it is not to lead back.
        if parent != old_parent {
            self.kids.remove(old_parent, slot);
            self.adopt(parent, slot);
        }
        match tokens {
            Some(tokens) if !is_stranded && parent != UNKNOWN => {
                self.place_below(paths, slot, old_above, self.node_before(parent), tokens);
            }
            _ => self.place_nowhere(paths, slot, old_above, tokens.unwrap_or_default()),
        }
        if parent != old_parent
            && let Some(ghost) = self.disown(old_parent, slot)
        {
            self.forget_ghost(paths, ghost);
        }
        self.retry_stranded(paths, slot);
    }

    /// Whether the blocks from `from` on upward come to `to`, as far as they are placed below each other.
    fn leads_to(&self, from: u32, to: u32) -> bool {
        let mut at = from;
        loop {
            if at == to {
                return true;
            }
            if at >= UNKNOWN || self.entries.facts(at).no_tokens || self.stranded.contains(&at) {
                return false;
            }
            at = self.entries.parent(at);
        }
    }

    /// Places the stranded blocks whose parents no longer lead back to themselves.
    fn retry_stranded(&mut self, paths: &mut Paths, settled: u32) {
        if self.stranded.is_empty() {
            return;
        }
        let all: Vec<u32> = self.stranded.iter().copied().filter(|slot| *slot != settled).collect();
        for slot in all {
            let parent = self.entries.parent(slot);
            if self.stranded.contains(&slot) && !self.leads_to(parent, slot) {
                self.stranded.remove(&slot);
                let tokens = paths.tokens(self.entries.get(slot).node);
                let above = self.node_before(parent);
                self.place_below(paths, slot, ROOT, above, tokens);
            }
        }
    }

    fn place_nowhere(&mut self, paths: &mut Paths, slot: u32, old_above: u32, tokens: u64) {
        let node = self.entries.get(slot).node;
        if paths.is_one_block(node) {
            paths.unlink(node, old_above);
            paths.set_tokens(node, tokens);
            self.note_ghost(paths, slot, node);
        } else {
            let target = paths.add_detached(tokens);
            self.move_all(paths, slot, target, old_above);
        }
    }

    fn place_below(&mut self, paths: &mut Paths, slot: u32, old_above: u32, above: u32, tokens: u64) {
        let node = self.entries.get(slot).node;
        match paths.child(above, tokens) {
            Some(target) if target == node => self.note_ghost(paths, slot, node),
            Some(target) => self.move_all(paths, slot, target, old_above),
            None if paths.is_one_block(node) => {
                paths.unlink(node, old_above);
                paths.link(node, above, tokens);
                self.note_ghost(paths, slot, node);
            }
            None => {
                let target = paths.add_child(above, tokens);
                self.move_all(paths, slot, target, old_above);
            }
        }
    }

    /// Puts a ghost into the table of ghosts, or in line to be detached if others of the stream are at its node. A
    /// block that is held puts a ghost there in line.
    fn note_ghost(&mut self, paths: &Paths, slot: u32, node: u32) {
        if self.entries.facts(slot).is_held() {
            if let Some(ghost) = self.ghosts.get(&node).copied().filter(|ghost| *ghost != slot) {
                self.ghosts.remove(&node);
                self.to_detach.push(ghost);
            }
        } else if paths.blocks_of(node, self.slot) > 1 {
            self.to_detach.push(slot);
        } else {
            self.ghosts.insert(node, slot);
        }
    }

    /// Moves a block to the node `target`, and what hangs below it along.
    fn move_all(&mut self, paths: &mut Paths, slot: u32, target: u32, old_above: u32) {
        self.kids.build(&self.entries);
        // Nodes are freed at the end: until then the old nodes' children are still found by their numbers.
        let mut left = Vec::new();
        let mut line = vec![(slot, target, old_above)];
        while let Some((slot, target, old_above)) = line.pop() {
            let (node, shape) = (self.entries.get(slot).node, self.shape(slot));
            if self.ghosts.get(&node) == Some(&slot) {
                self.ghosts.remove(&node);
            }
            if paths.shift(node, self.slot, shape, Shape::ABSENT) {
                left.push((node, old_above));
            }
            paths.shift(target, self.slot, Shape::ABSENT, shape);
            self.entries.set_node(slot, target);
            self.note_ghost(paths, slot, target);
            for kid in self.kids.of(slot) {
                if self.entries.facts(kid).no_tokens || self.stranded.contains(&kid) {
                    continue;
                }
                let tokens = paths.tokens(self.entries.get(kid).node);
                let below = paths.child(target, tokens).unwrap_or_else(|| paths.add_child(target, tokens));
                line.push((kid, below, node));
            }
        }
        left.sort_unstable();
        left.dedup_by_key(|(node, _)| *node);
        left.retain(|(node, _)| paths.set(*node) == NOBODY);
        for (node, above) in &left {
            paths.unlink(*node, *above);
        }
        for (node, _) in left {
            paths.release(node);
        }
    }
}
