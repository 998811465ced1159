//! The second look at a history: each event is dropped, kept, or cut to what the state rests on.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::event::{BlockHash, EventData, EventId, Placement, Removed, Stored};

use super::slots::{ALIVE, NOTHING, Slot};

/// A placement, by its number, and a block there.
type Key = (u32, BlockHash);

/// What stays of a history.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What is left of each stored event that stays, for each of its blocks what became of it.
    stored: HashMap<EventId, Vec<EventId>>,
    /// All ids that may stay, in order.
    ids: Vec<EventId>,
    /// Copies of blocks held at the end.
    copies: u64,
    /// By the id of the event that takes them: blocks that are stored in what was kept, and not held at the end.
    taken: HashMap<EventId, HashSet<Key>>,
    /// Copies held by what was kept so far.
    counts: HashMap<Key, u64>,
    placements: HashMap<Placement, u32>,
    entries: u64,
    is_rough: bool,
}

impl Plan {
    pub(super) fn new(left: impl Iterator<Item = Slot>, copies: u64) -> Self {
        let mut is_rough = false;
        let left = left.inspect(|slot| is_rough |= slot.is_rough());
        let stored: HashMap<_, _> = left.map(|slot| (slot.event, slot.fates)).collect();
        let killers = stored.values().flatten().copied().filter(|fate| *fate != ALIVE && *fate != NOTHING);
        let mut ids: Vec<EventId> = stored.keys().copied().chain(killers).collect();
        ids.sort_unstable();
        ids.dedup();
        Self {
            stored,
            ids,
            copies,
            taken: HashMap::new(),
            counts: HashMap::new(),
            placements: HashMap::new(),
            entries: 0,
            is_rough,
        }
    }

    /// Whether any event of these ids may stay.
    pub(crate) fn touches(&self, ids: RangeInclusive<EventId>) -> bool {
        let at = self.ids.partition_point(|id| id < ids.start());
        self.ids.get(at).is_some_and(|id| ids.contains(id))
    }

    /// Copies of blocks held at the end.
    pub(crate) fn copies(&self) -> u64 {
        self.copies
    }

    /// Blocks and hashes in the events that stay, as far as they were asked for.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Whether compacting what was kept might drop some more of it.
    pub(crate) fn is_rough(&self) -> bool {
        self.is_rough
    }

    /// What stays of an event. Asked in the order of the ids, for each event that may stay.
    pub(crate) fn keep(&mut self, id: EventId, data: EventData) -> Option<EventData> {
        self.ids.binary_search(&id).ok()?;
        let kept = match data {
            EventData::Stored(stored) => EventData::Stored(self.keep_stored(id, stored)?),
            EventData::Removed(removed) => EventData::Removed(self.keep_removed(id, removed)?),
            EventData::Cleared(_) => {
                let taken = self.taken.remove(&id)?;
                let held = taken.into_iter().filter(|key| self.counts.remove(key).is_some()).count();
                (held > 0).then_some(data)?
            }
            EventData::Unknown(_) => return None,
        };
        self.entries += match &kept {
            EventData::Stored(stored) => stored.blocks.len() as u64,
            EventData::Removed(removed) => removed.block_hashes.len() as u64,
            EventData::Cleared(_) | EventData::Unknown(_) => 1,
        };
        Some(kept)
    }

    fn keep_stored(&mut self, id: EventId, mut stored: Stored) -> Option<Stored> {
        let fates = self.stored.remove(&id)?;
        stored.blocks.truncate(fates.len());
        let next = self.placements.len() as u32;
        let placement = *self.placements.entry(stored.placement.clone()).or_insert(next);
        let mut seen = HashSet::with_capacity(stored.blocks.len());
        for (block, fate) in stored.blocks.iter().zip(fates) {
            let key = (placement, block.block_hash);
            if fate != ALIVE && fate != NOTHING {
                self.taken.entry(fate).or_default().insert(key);
            }
            if seen.insert(block.block_hash) {
                let count = self.counts.entry(key).or_default();
                *count = if stored.refresh { (*count).max(1) } else { *count + 1 };
            }
        }
        Some(stored)
    }

    fn keep_removed(&mut self, id: EventId, mut removed: Removed) -> Option<Removed> {
        let mut taken = self.taken.remove(&id)?;
        let placement = *self.placements.get(&removed.placement)?;
        removed.block_hashes.retain(|hash| {
            // Once each; and not where a refresh that might have added a copy added none.
            let key = (placement, *hash);
            if !taken.remove(&key) {
                return false;
            }
            let Some(count) = self.counts.get_mut(&key) else { return false };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
            true
        });
        (!removed.block_hashes.is_empty()).then_some(removed)
    }

    /// Checks that what was kept holds as much as the whole history did.
    ///
    /// # Errors
    /// `Internal`: a fault of the planner, which must not reach a reader.
    pub(crate) fn check(&self) -> Result<()> {
        let kept: u64 = self.counts.values().sum();
        if kept == self.copies && self.stored.is_empty() {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "a compacted history holds {kept} copies of blocks, the whole one {}",
            self.copies
        )))
    }
}
