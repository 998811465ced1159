//! The invariants of an index, looked at from all sides; for tests.

use std::collections::HashMap;

use super::entries::UNKNOWN;
use super::handle::Index;
use super::paths::{Paths, ROOT};
use super::stream::Stream;

impl Index {
    /// Panics if an invariant does not hold.
    pub(super) fn check(&self) {
        self.read().check();
    }
}

impl Stream {
    /// Adds the blocks of the stream at each node.
    pub(super) fn check(&self, paths: &Paths, at_nodes: &mut HashMap<u32, u32>) {
        let mut kids: HashMap<u32, u32> = HashMap::new();
        let (mut held, mut ghosts) = (0, 0);
        for (slot, entry) in self.entries.iter() {
            assert_eq!(self.entries.find(entry.block_hash), Some(slot));
            *at_nodes.entry(entry.node).or_default() += 1;
            let (facts, parent) = (self.entries.facts(slot), self.entries.parent(slot));
            if facts.is_held() {
                held += 1;
                assert!(parent != UNKNOWN);
            } else {
                ghosts += 1;
                assert!(facts.kids > 0 && facts.tag == 0);
                assert_eq!(self.ghosts.get(&{ entry.node }), Some(&slot));
                assert_eq!(paths.blocks_of(entry.node, self.slot), 1, "a ghost is alone");
            }
            if let Some(parent) = self.entries.parent_slot(slot) {
                *kids.entry(parent).or_default() += 1;
            }
            let is_detached = facts.no_tokens || parent == UNKNOWN || self.stranded.contains(&slot);
            if is_detached {
                assert!(paths.is_one_block(entry.node));
                assert!(paths.is_detached(entry.node));
            } else {
                let above = self.node_before(parent);
                assert_eq!(paths.child(above, paths.tokens(entry.node)), Some(entry.node));
            }
        }
        for (slot, _) in self.entries.iter() {
            assert_eq!(self.entries.facts(slot).kids, kids.get(&slot).copied().unwrap_or_default());
        }
        assert_eq!((held, ghosts), (self.held(), self.ghosts.len()));
        assert!(self.to_detach.is_empty());
        assert!(self.stranded.iter().all(|slot| self.entries.is_live(*slot)));
    }
}

impl Paths {
    /// Looks at the nodes, given how many blocks refer to each.
    pub(super) fn check(&self, at_nodes: &HashMap<u32, u32>) {
        assert_eq!(self.len(), at_nodes.len(), "no node is left over");
        let mut edges = 0;
        for (node, blocks) in at_nodes {
            let members = self.members(self.set(*node));
            assert_eq!(
                members.iter().map(|member| self.blocks_of(*node, member.stream)).sum::<u32>(),
                *blocks
            );
            assert!(*node != ROOT);
            edges += usize::from(self.has_edge(*node));
        }
        assert_eq!(self.edges(), edges, "no edge is left over");
    }
}
