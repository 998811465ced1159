//! The fold and the match by their words, in plain maps: what the index is held against.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::event::{BlockHash, EventData, Placement, StorageTier, TokensHash};

use super::super::digest::{Digest, placement_seed, term};

/// What a block is, from the first `Stored` since it was not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) parent: Option<BlockHash>,
    pub(super) tokens: Option<TokensHash>,
    lora: Option<String>,
    salt: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) identity: Identity,
    /// Counts by the placement's `Debug` form, which tells placements apart and can be sorted.
    counts: BTreeMap<String, (Placement, u64)>,
}

/// One stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) blocks: BTreeMap<BlockHash, Held>,
}

impl Model {
    pub(super) fn apply(&mut self, event: &EventData) {
        match event {
            EventData::Stored(stored) => {
                let mut seen = HashSet::new();
                let mut parent = stored.parent;
                for block in &stored.blocks {
                    let identity = Identity {
                        parent,
                        tokens: block.tokens_hash,
                        lora: stored.lora.clone(),
                        salt: stored.salt.clone(),
                    };
                    parent = Some(block.block_hash);
                    if !seen.insert(block.block_hash) {
                        continue;
                    }
                    let held = self
                        .blocks
                        .entry(block.block_hash)
                        .or_insert(Held { identity, counts: BTreeMap::new() });
                    let place = (stored.placement.clone(), 0);
                    let (_, count) = held.counts.entry(format!("{:?}", stored.placement)).or_insert(place);
                    *count = if stored.refresh { (*count).max(1) } else { *count + 1 };
                }
            }
            EventData::Removed(removed) => {
                let hashes: BTreeSet<BlockHash> = removed.block_hashes.iter().copied().collect();
                for hash in hashes {
                    let Some(held) = self.blocks.get_mut(&hash) else { continue };
                    if let Some((_, count)) = held.counts.get_mut(&format!("{:?}", removed.placement)) {
                        *count -= 1;
                    }
                }
            }
            EventData::Cleared(cleared) => {
                for held in self.blocks.values_mut() {
                    for (placement, count) in held.counts.values_mut() {
                        let names = |tier: StorageTier| cleared.tiers.contains(&tier);
                        if cleared.tiers.is_empty() || placement.tier().is_some_and(names) {
                            *count = 0;
                        }
                    }
                }
            }
            EventData::Unknown(_) => {}
        }
        for held in self.blocks.values_mut() {
            held.counts.retain(|_, (_, count)| *count > 0);
        }
        self.blocks.retain(|_, held| !held.counts.is_empty());
    }

    pub(super) fn digest(&self) -> Digest {
        let mut sum = 0_u128;
        for (hash, held) in &self.blocks {
            for (placement, count) in held.counts.values() {
                sum = sum.wrapping_add(term(&placement_seed(placement), *hash, *count));
            }
        }
        Digest(sum)
    }

    /// Blocks matched on the device, then in host memory, on disk, outside.
    pub(super) fn find_match(&self, prompt: &[TokensHash]) -> [u32; 4] {
        let tiers = [StorageTier::Device, StorageTier::HostPinned, StorageTier::Disk, StorageTier::External];
        let mut counts = [0; 4];
        let mut tier = 0;
        let mut parents: Option<BTreeSet<BlockHash>> = None;
        for tokens in prompt {
            let is_below = |held: &Held| match (&parents, held.identity.parent) {
                (None, None) => true,
                (Some(parents), Some(parent)) => parents.contains(&parent),
                _ => false,
            };
            let here: Vec<(&BlockHash, &Held)> = self
                .blocks
                .iter()
                .filter(|(_, held)| held.identity.tokens == Some(*tokens) && is_below(held))
                .collect();
            let is_in = |tier: StorageTier| {
                here.iter()
                    .flat_map(|(_, held)| held.counts.values())
                    .any(|(placement, _)| placement.is_own_full_attention() && placement.tier() == Some(tier))
            };
            while tier < 4 && !is_in(tiers[tier]) {
                tier += 1;
            }
            if tier == 4 {
                break;
            }
            counts[tier] += 1;
            parents = Some(here.iter().map(|(hash, _)| **hash).collect());
        }
        counts
    }

    /// Some of the prompts that lead to held blocks, or would if their parents were held.
    pub(super) fn prompts(&self, len_max: usize, count_max: usize) -> Vec<Vec<TokensHash>> {
        let path = |held: &Held| {
            let mut path = Vec::new();
            let mut at = Some(held);
            // Parents may lead back.
            for _ in 0..len_max {
                let Some(held) = at else { break };
                path.extend(held.identity.tokens);
                at = held.identity.parent.and_then(|parent| self.blocks.get(&parent));
            }
            path.reverse();
            path
        };
        self.blocks.values().take(count_max).map(path).collect()
    }
}
