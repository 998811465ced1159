//! Who holds the blocks of a path: sets of streams with their tiers, each set kept once however many nodes share it.
//!
//! A run of blocks that the same streams hold in the same tiers has one set, so that a walk along it has nothing to
//! do. Sets never change: a node moves from one set to another.

use super::hash::mix2;
use super::interner::Interner;

/// The set of nodes that nobody refers to.
pub(super) const NOBODY: u32 = 0;

/// The tiers in which a block counts for matching, bit 0 for the device and so on downward; or that there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape(u8);

impl Shape {
    /// There is no block.
    pub(super) const ABSENT: Self = Self(16);
    /// A block that counts in no tier.
    pub(super) const NOWHERE: Self = Self(0);

    /// A block that counts in the tiers of a mask below 16.
    pub(super) fn of(mask: u8) -> Self {
        Self(mask)
    }

    fn has(self, tier: usize) -> u32 {
        u32::from(self.0 >> tier & 1)
    }

    fn blocks(self) -> u32 {
        u32::from(self != Self::ABSENT)
    }
}

/// What one stream has at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The stream's slot.
    pub(super) stream: u32,
    /// Its blocks there, also those that are remembered without being held.
    blocks: u32,
    /// Those of them that count in each tier.
    tiers: [u32; 4],
}

impl Member {
    /// The tiers in which a block counts.
    #[inline]
    pub(super) fn mask(&self) -> u8 {
        let bit = |tier: usize| u8::from(self.tiers[tier] > 0) << tier;
        bit(0) | bit(1) | bit(2) | bit(3)
    }

    fn hash(&self) -> u64 {
        let [a, b, c, d] = self.tiers.map(u64::from);
        mix2(mix2(u64::from(self.stream) << 32 | u64::from(self.blocks), a << 32 | b), c << 32 | d)
    }

    fn changed(mut self, from: Shape, to: Shape) -> Self {
        self.blocks = self.blocks + to.blocks() - from.blocks();
        for (tier, count) in self.tiers.iter_mut().enumerate() {
            *count = *count + to.has(tier) - from.has(tier);
        }
        self
    }
}

/// One change: a block of a stream at a node of the set `set` is now `to` and was `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    set: u32,
    stream: u32,
    from: Shape,
    to: Shape,
}

/// Changes that are remembered; a run of blocks repeats one.
const RECENT: usize = 8;

#[derive(Debug)]
pub(super) struct Holders {
    sets: Interner<Box<[Member]>>,
    recent: [Option<(Change, u32)>; RECENT],
    next: usize,
}

impl Default for Holders {
    fn default() -> Self {
        let mut sets = Interner::default();
        // The first value is number 0, and this use never ends.
        let nobody = sets.intern(0, Box::default());
        debug_assert_eq!(nobody, NOBODY);
        Self { sets, recent: [None; RECENT], next: 0 }
    }
}

impl Holders {
    /// The streams of a set, in the order of their slots.
    #[inline]
    pub(super) fn members(&self, set: u32) -> &[Member] {
        self.sets.get(set)
    }

    /// Whether the set is a single block.
    pub(super) fn is_one_block(&self, set: u32) -> bool {
        matches!(self.members(set), [one] if one.blocks == 1)
    }

    /// Blocks that a stream has in a set.
    pub(super) fn blocks_of(&self, set: u32, stream: u32) -> u32 {
        let members = self.members(set);
        let at = members.binary_search_by_key(&stream, |member| member.stream);
        at.map_or(0, |at| members[at].blocks)
    }

    /// Moves one node's use from `set` to the set with the change made, and says which that is.
    #[inline]
    pub(super) fn change(&mut self, set: u32, stream: u32, from: Shape, to: Shape) -> u32 {
        if from == to {
            return set;
        }
        let change = Change { set, stream, from, to };
        let known = self.recent.iter().flatten().find(|(known, _)| *known == change);
        let changed = match known {
            Some((_, changed)) => {
                let changed = *changed;
                self.sets.retain(changed, 1);
                changed
            }
            None => {
                let changed = self.make(change);
                self.recent[self.next % RECENT] = Some((change, changed));
                self.next = self.next.wrapping_add(1);
                changed
            }
        };
        self.release(set, 1);
        changed
    }

    /// Moves so many nodes' uses from one set to another.
    pub(super) fn move_uses(&mut self, from: u32, to: u32, nodes: u64) {
        if nodes > 0 {
            self.sets.retain(to, nodes);
            self.release(from, nodes);
        }
    }

    fn release(&mut self, set: u32, nodes: u64) {
        if set != NOBODY && self.sets.release_many(set, nodes).is_some() {
            // Its number may soon mean another set.
            for known in &mut self.recent {
                if known.is_some_and(|(change, changed)| change.set == set || changed == set) {
                    *known = None;
                }
            }
        }
    }

    fn make(&mut self, change: Change) -> u32 {
        let members = self.members(change.set);
        let absent = Member { stream: change.stream, blocks: 0, tiers: [0; 4] };
        let at = members.binary_search_by_key(&change.stream, |member| member.stream);
        let old = at.map_or(absent, |at| members[at]);
        let new = old.changed(change.from, change.to);
        let (at, after) = match at {
            Ok(at) => (at, at + 1),
            Err(at) => (at, at),
        };
        let hash_of = |member: &Member| if member.blocks == 0 { 0 } else { member.hash() };
        // A sum, so that a change costs the same whatever the size.
        let sum = self.sets.hash(change.set).wrapping_sub(hash_of(&old)).wrapping_add(hash_of(&new));
        let kept = (new.blocks > 0).then_some(new);
        if kept.is_none() && members.len() == 1 {
            return NOBODY;
        }
        let changed: Box<[Member]> =
            members[..at].iter().copied().chain(kept).chain(members[after..].iter().copied()).collect();
        self.sets.intern(sum, changed)
    }

    /// Sets, without that of nobody.
    pub(super) fn len(&self) -> usize {
        self.sets.len() - 1
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.sets.heap_bytes(|members| size_of_val(&**members))
    }
}
