//! The paths that prompts take: a tree of tokens hashes that all streams share.
//!
//! A node is a sequence of blocks' tokens from the start of a prompt; who holds a block there is in its set of
//! holders. Nodes of one event lie in consecutive slots, so that the child of a node is first looked for in the next
//! slot; only other children stand in the table of edges.
//!
//! A node is there as long as a block of some stream refers to it. Blocks know the block before them, and that block
//! is at the node before, so a node knows nothing of its parent. **Detached** nodes lead nowhere: below them is what
//! cannot be reached from the start of a prompt. Only one block refers to such a node.

use hashbrown::HashTable;

use crate::event::Block;

use super::hash::{is_roomy, mix2, seed};
use super::holders::{Holders, Member, NOBODY, Shape};
use super::pages::{Freed, Pages};

/// The start of all prompts, which is no slot.
pub(super) const ROOT: u32 = u32::MAX;

/// The node is the child of the node in the slot before.
const NEXT: u32 = 1 << 31;
/// The node is a child that stands in the table of edges.
const EDGE: u32 = 1 << 30;
const SET: u32 = EDGE - 1;

/// Twelve bytes, since there is one for each block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub(super) struct Node {
    tokens: u64,
    /// The set of holders, and how the node hangs below its parent; neither `NEXT` nor `EDGE`: detached, or free.
    word: u32,
}

impl Node {
    #[inline]
    pub(super) fn set(self) -> u32 {
        self.word & SET
    }

    /// Whether this is the node that `tokens` lead to from the slot before.
    #[inline]
    pub(super) fn goes_on_with(self, tokens: u64) -> bool {
        self.tokens == tokens && self.word & NEXT != 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    parent: u32,
    node: u32,
}

#[derive(Debug)]
pub(super) struct Paths {
    nodes: Pages<Node>,
    edges: HashTable<Edge>,
    holders: Holders,
    seed: u64,
}

impl Default for Paths {
    fn default() -> Self {
        Self { nodes: Pages::default(), edges: HashTable::new(), holders: Holders::default(), seed: seed() }
    }
}

impl Paths {
    /// The node that `tokens` lead to.
    #[inline]
    pub(super) fn child(&self, parent: u32, tokens: u64) -> Option<u32> {
        // The slot after `ROOT` would be slot 0.
        if parent != ROOT {
            let next = parent + 1;
            if self.nodes.peek(next).is_some_and(|node| node.goes_on_with(tokens)) {
                return Some(next);
            }
        }
        let is_it = |edge: &Edge| edge.parent == parent && self.tokens(edge.node) == tokens;
        self.edges.find(self.edge_hash(parent, tokens), is_it).map(|edge| edge.node)
    }

    /// The nodes from `node` to the end of its page, in the order of their slots.
    #[inline]
    pub(super) fn run_from(&self, node: u32) -> &[Node] {
        self.nodes.rest_of_page(node)
    }

    #[inline]
    pub(super) fn set(&self, node: u32) -> u32 {
        self.nodes.get(node).set()
    }

    #[inline]
    pub(super) fn members(&self, set: u32) -> &[Member] {
        self.holders.members(set)
    }

    #[inline]
    pub(super) fn tokens(&self, node: u32) -> u64 {
        self.nodes.get(node).tokens
    }

    /// Notes the tokens of a detached node.
    pub(super) fn set_tokens(&mut self, node: u32, tokens: u64) {
        self.nodes.get_mut(node).tokens = tokens;
    }

    /// A new node below `parent`, which has no child with these tokens yet.
    pub(super) fn add_child(&mut self, parent: u32, tokens: u64) -> u32 {
        let node = Node { tokens, word: NOBODY };
        let slot = if parent == ROOT { self.nodes.add(node) } else { self.nodes.add_after(parent, node) };
        if parent != ROOT && slot == parent + 1 {
            self.nodes.get_mut(slot).word |= NEXT;
        } else {
            self.link(slot, parent, tokens);
        }
        slot
    }

    /// New nodes, each below the one before: the first below `parent`, which has no child with its tokens, and as many
    /// as fit beside one another. One more use of the set `set` must stand for each. Says the first, and how many.
    pub(super) fn add_chain(&mut self, parent: u32, tokens: &[Block], set: u32) -> (u32, usize) {
        let (first, len) = self.nodes.claim_after(parent, tokens.len());
        for (node, block) in self.nodes.run_mut(first, len).iter_mut().zip(tokens) {
            *node = Node { tokens: block.tokens_hash.unwrap_or_default().0, word: set | NEXT };
        }
        if first != parent.wrapping_add(1) {
            let node = self.nodes.get_mut(first);
            node.word = set;
            let tokens = node.tokens;
            self.link(first, parent, tokens);
        }
        (first, len)
    }

    /// A new node below nothing.
    pub(super) fn add_detached(&mut self, tokens: u64) -> u32 {
        self.nodes.add(Node { tokens, word: NOBODY })
    }

    /// Hangs a detached node below `parent`, which has no child with these tokens yet.
    pub(super) fn link(&mut self, node: u32, parent: u32, tokens: u64) {
        let slot = self.nodes.get_mut(node);
        slot.tokens = tokens;
        slot.word |= EDGE;
        let hash = self.edge_hash(parent, tokens);
        let (nodes, seed) = (&self.nodes, self.seed);
        let rehash = |edge: &Edge| edge_hash(seed, edge.parent, nodes.get(edge.node).tokens);
        self.edges.insert_unique(hash, Edge { parent, node }, rehash);
    }

    /// Detaches a node from `parent`, if it is not detached.
    pub(super) fn unlink(&mut self, node: u32, parent: u32) {
        let slot = self.nodes.get_mut(node);
        let (word, tokens) = (slot.word, slot.tokens);
        slot.word &= SET;
        if word & EDGE != 0 {
            let hash = self.edge_hash(parent, tokens);
            if let Ok(found) = self.edges.find_entry(hash, |edge| edge.node == node) {
                found.remove();
            }
        }
    }

    /// Detaches and frees a node that a block refers to and then nobody, at the latest with [`Paths::flush`]. `parent`
    /// is the node above it. The use of its set is still to be released.
    #[inline]
    pub(super) fn drop_soon(&mut self, freed: &mut Freed, node: u32, parent: impl FnOnce() -> u32) {
        if self.nodes.get(node).word & EDGE != 0 {
            self.unlink(node, parent());
        }
        *self.nodes.get_mut(node) = Node::default();
        self.nodes.give_back_soon(freed, node);
    }

    /// Frees the nodes that are to be freed soon.
    pub(super) fn flush(&mut self, freed: &mut Freed) {
        self.nodes.flush(freed);
    }

    /// Notes that the set of a node is another one, whose use is still to be counted.
    pub(super) fn put_set(&mut self, node: u32, set: u32) {
        let slot = self.nodes.get_mut(node);
        slot.word = slot.word & !SET | set;
    }

    /// The sets of holders.
    pub(super) fn holders_mut(&mut self) -> &mut Holders {
        &mut self.holders
    }

    /// Frees a detached node that nobody refers to.
    pub(super) fn release(&mut self, node: u32) {
        self.nodes.remove(node);
    }

    /// A block of a stream at `node` is now `to` and was `from`. Says whether nobody refers to the node any more.
    #[inline]
    pub(super) fn shift(&mut self, node: u32, stream: u32, from: Shape, to: Shape) -> bool {
        let slot = self.nodes.get_mut(node);
        let set = self.holders.change(slot.word & SET, stream, from, to);
        slot.word = slot.word & !SET | set;
        set == NOBODY
    }

    /// Whether exactly one block refers to the node.
    pub(super) fn is_one_block(&self, node: u32) -> bool {
        self.holders.is_one_block(self.set(node))
    }

    /// Blocks of a stream that refer to the node.
    pub(super) fn blocks_of(&self, node: u32, stream: u32) -> u32 {
        self.holders.blocks_of(self.set(node), stream)
    }

    fn edge_hash(&self, parent: u32, tokens: u64) -> u64 {
        edge_hash(self.seed, parent, tokens)
    }

    /// Gives the room back that the table of edges does not need any more.
    pub(super) fn shrink(&mut self) {
        if is_roomy(self.edges.len(), self.edges.num_buckets()) {
            let (nodes, seed) = (&self.nodes, self.seed);
            let rehash = |edge: &Edge| edge_hash(seed, edge.parent, nodes.get(edge.node).tokens);
            self.edges.shrink_to(2 * self.edges.len(), rehash);
        }
    }

    /// Whether [`Paths::compact`] is worth it.
    pub(super) fn is_sparse(&self) -> bool {
        self.nodes.is_sparse()
    }

    /// Moves all nodes together. Says for each old slot which one it is now.
    pub(super) fn compact(&mut self) -> Vec<u32> {
        let mut moved = vec![ROOT; self.nodes.end() as usize];
        let mut nodes = Pages::default();
        let mut last = ROOT;
        // In order, so that what was in the next slot still is.
        for (slot, node) in self.nodes.iter() {
            last = nodes.add_after(last, *node);
            moved[slot as usize] = last;
        }
        self.nodes = nodes;
        let (nodes, seed) = (&self.nodes, self.seed);
        let mut edges = HashTable::with_capacity(self.edges.len());
        for edge in &self.edges {
            let parent = if edge.parent == ROOT { ROOT } else { moved[edge.parent as usize] };
            let node = moved[edge.node as usize];
            let rehash = |edge: &Edge| edge_hash(seed, edge.parent, nodes.get(edge.node).tokens);
            let hash = edge_hash(seed, parent, nodes.get(node).tokens);
            edges.insert_unique(hash, Edge { parent, node }, rehash);
        }
        self.edges = edges;
        moved
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sets of holders.
    pub(super) fn sets(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.heap_bytes() + self.edges.allocation_size() + self.holders.heap_bytes()
    }
}

#[cfg(test)]
impl Paths {
    pub(super) fn is_detached(&self, node: u32) -> bool {
        self.nodes.get(node).word & (NEXT | EDGE) == 0
    }

    pub(super) fn has_edge(&self, node: u32) -> bool {
        self.nodes.get(node).word & EDGE != 0
    }

    pub(super) fn edges(&self) -> usize {
        self.edges.len()
    }
}

fn edge_hash(seed: u64, parent: u32, tokens: u64) -> u64 {
    mix2(seed ^ tokens, u64::from(parent))
}
