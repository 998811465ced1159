//! Which events the state rests on: one pass over a history, in memory of the order of the live state.
//!
//! `Removed` is matched with the newest `Stored` that it may take a copy from. A pair leaves no trace, so both may go;
//! unless the stored event has to stay for other blocks behind this one, since an event can only be cut at its end.
//! Then the block stays in it, and what took it stays too, cut to the hashes that are needed.
//!
//! Matching the newest makes the result independent of how often, and where, a history was compacted before: what is
//! left of it is matched in the same way again. Only refreshes of what is held, and hashes that change their identity,
//! may leave a little more than is needed, which a second pass over what is left finds.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use crate::event::{BlockHash, Cleared, EventData, EventId, Placement, Removed, Stored};

use super::hold::{Added, Hold};
use super::plan::Plan;
use super::slots::{ALIVE, At, NOTHING, Slots};

/// Folds a history, to find out what of it must stay.
pub(crate) struct Planner<'a> {
    /// Events that cannot be cut, since their payload cannot.
    whole: &'a HashSet<EventId>,
    held: HashMap<BlockHash, Hold, foldhash::fast::RandomState>,
    placements: HashMap<Placement, u32, foldhash::quality::RandomState>,
    /// Copies held in each placement.
    copies: Vec<u64>,
    slots: Slots,
    /// Seeded, so that nobody can choose two identities that are taken for one.
    identities: foldhash::quality::RandomState,
}

impl<'a> Planner<'a> {
    /// For a history whose events of these ids have to be kept as a whole if they are kept.
    pub(crate) fn new(whole: &'a HashSet<EventId>) -> Self {
        Self {
            whole,
            held: HashMap::default(),
            placements: HashMap::default(),
            copies: Vec::new(),
            slots: Slots::default(),
            identities: foldhash::quality::RandomState::default(),
        }
    }

    /// The next event. Ids rise.
    pub(crate) fn apply(&mut self, id: EventId, data: &EventData) {
        match data {
            EventData::Stored(stored) => self.store(id, stored),
            EventData::Removed(removed) => self.remove(id, removed),
            EventData::Cleared(cleared) => self.clear(id, cleared),
            EventData::Unknown(_) => {}
        }
    }

    /// Stored events for which there is room.
    #[cfg(test)]
    pub(super) fn live_events(&self) -> usize {
        self.slots.room()
    }

    /// What stays.
    pub(crate) fn plan(self) -> Plan {
        Plan::new(self.slots.into_left(), self.copies.iter().sum())
    }

    fn placement(&mut self, placement: &Placement) -> u32 {
        if let Some(known) = self.placements.get(placement) {
            return *known;
        }
        let number = self.copies.len() as u32;
        self.placements.insert(placement.clone(), number);
        self.copies.push(0);
        number
    }

    fn store(&mut self, id: EventId, stored: &Stored) {
        let placement = self.placement(&stored.placement);
        let slot = self.slots.next();
        let context = self.identities.hash_one((&stored.lora, &stored.salt));
        let mut fates = Vec::with_capacity(stored.blocks.len());
        let mut parent = stored.parent;
        for (index, block) in stored.blocks.iter().enumerate() {
            let at = At { slot, index: index as u32 };
            let identity = self.identities.hash_one((context, parent, block.tokens_hash));
            parent = Some(block.block_hash);
            let added = match self.held.entry(block.block_hash) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Hold::new(placement, identity, at));
                    Added::Entry
                }
                Entry::Occupied(mut held) => {
                    held.get_mut().add(placement, identity, at, id, stored.refresh, &mut self.slots)
                }
            };
            fates.push(if added == Added::Entry { ALIVE } else { NOTHING });
            self.copies[placement as usize] += u64::from(added == Added::Entry);
        }
        let slot = self.slots.add(id, fates, stored.refresh, self.whole.contains(&id));
        self.slots.settle(slot);
    }

    fn remove(&mut self, id: EventId, removed: &Removed) {
        let Some(placement) = self.placements.get(&removed.placement).copied() else { return };
        // Nothing waits for another here, so the processor fetches side by side what has not been touched for long.
        let held = removed.block_hashes.iter().filter(|hash| self.held.contains_key(hash)).count();
        if held == 0 {
            return;
        }
        // Within one event a hash counts once: only one that is still held could be taken again.
        let mut still_held = HashSet::new();
        for hash in &removed.block_hashes {
            if !still_held.is_empty() && still_held.contains(hash) {
                continue;
            }
            let Entry::Occupied(mut hold) = self.held.entry(*hash) else { continue };
            if let Some(at) = hold.get().only(placement) {
                // As below, for what most blocks are.
                self.slots.kill(at, id);
                self.slots.settle(at.slot);
                self.copies[placement as usize] -= 1;
                hold.remove();
            } else if hold.get_mut().take(placement, id, &mut self.slots) {
                self.copies[placement as usize] -= 1;
                if hold.get().is_empty() {
                    hold.remove();
                } else {
                    still_held.insert(*hash);
                }
            }
        }
    }

    fn clear(&mut self, id: EventId, cleared: &Cleared) {
        let named = |placement: &Placement| {
            cleared.tiers.is_empty() || placement.tier().is_some_and(|tier| cleared.tiers.contains(&tier))
        };
        let emptied: Vec<u32> = self
            .placements
            .iter()
            .filter(|(placement, number)| named(placement) && self.copies[**number as usize] > 0)
            .map(|(_, number)| *number)
            .collect();
        for placement in &emptied {
            self.copies[*placement as usize] = 0;
        }
        if self.copies.iter().all(|copies| *copies == 0) {
            self.held.clear();
            self.slots.clear();
            return;
        }
        let slots = &mut self.slots;
        if !emptied.is_empty() {
            self.held.retain(|_, hold| {
                hold.empty(&emptied, id, slots);
                !hold.is_empty()
            });
        }
    }
}
