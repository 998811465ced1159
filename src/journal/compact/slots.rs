//! What is left of each stored event: which of its blocks are still held, and what took the others.

use std::ops::{Index, IndexMut};

use crate::event::EventId;

/// The block is held by this event.
pub(super) const ALIVE: EventId = 0;
/// The event changed nothing for this block: the hash stood in it before, or a refresh found it held.
pub(super) const NOTHING: EventId = EventId::MAX;

/// A place in a stored event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) slot: u32,
    pub(super) index: u32,
}

/// One stored event, cut to what is left of it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) event: EventId,
    /// For each block that is left [`ALIVE`], [`NOTHING`], or the id of the event that took it.
    pub(super) fates: Vec<EventId>,
    alive: u32,
    /// Blocks that stay although they are not held any more: a hash owes its identity to them.
    anchors: Vec<u32>,
    /// The event cannot be cut.
    whole: bool,
    /// The event is a refresh, and some of its blocks were held.
    has_refresh: bool,
}

impl Slot {
    /// Whether something of it stays that may turn out not to be needed once the rest is gone: see [`Plan::is_rough`].
    ///
    /// [`Plan::is_rough`]: super::Plan::is_rough
    pub(super) fn is_rough(&self) -> bool {
        !self.anchors.is_empty() || self.has_refresh
    }
}

/// All stored events of which something is left.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes in an event; it stays only if [`Slots::settle`] finds something of it.
    pub(super) fn add(&mut self, event: EventId, fates: Vec<EventId>, refresh: bool, whole: bool) -> u32 {
        let alive = fates.iter().filter(|fate| **fate == ALIVE).count() as u32;
        let has_refresh = refresh && alive < fates.len() as u32;
        let slot = Slot { event, fates, alive, anchors: Vec::new(), whole, has_refresh };
        match self.free.pop() {
            Some(free) => {
                self[free] = slot;
                free
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// The number that the next event gets.
    pub(super) fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// `killer` takes a block. Call [`Slots::settle`] after it.
    pub(super) fn kill(&mut self, at: At, killer: EventId) {
        let slot = &mut self[at.slot];
        slot.fates[at.index as usize] = killer;
        slot.alive -= 1;
    }

    /// `killer` took what the block refreshed, if the block is left.
    pub(super) fn end_refresh(&mut self, at: At, event: EventId, killer: EventId) {
        if self.is_left(at, event) {
            self[at.slot].fates[at.index as usize] = killer;
        }
    }

    /// Whether a block of an event is left.
    pub(super) fn is_left(&self, at: At, event: EventId) -> bool {
        let slot = &self[at.slot];
        slot.event == event && (at.index as usize) < slot.fates.len()
    }

    pub(super) fn anchor(&mut self, at: At) {
        self[at.slot].anchors.push(at.index);
    }

    /// Call [`Slots::settle`] after it.
    pub(super) fn release(&mut self, at: At) {
        let anchors = &mut self[at.slot].anchors;
        if let Some(place) = anchors.iter().position(|index| *index == at.index) {
            anchors.swap_remove(place);
        }
    }

    /// Forgets the end of an event that nobody needs, and the event if nobody needs any of it.
    pub(super) fn settle(&mut self, number: u32) {
        let slot = &mut self[number];
        if slot.alive == 0 && slot.anchors.is_empty() {
            if slot.event != 0 {
                *slot = Slot::default();
                self.free.push(number);
            }
            return;
        }
        if slot.whole {
            return;
        }
        while let Some(last) = slot.fates.last() {
            let index = slot.fates.len() as u32 - 1;
            if *last == ALIVE || slot.anchors.contains(&index) {
                break;
            }
            slot.fates.pop();
        }
    }

    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }

    /// The events of which something is left.
    pub(super) fn into_left(self) -> impl Iterator<Item = Slot> {
        self.slots.into_iter().filter(|slot| slot.event != 0)
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }
}
