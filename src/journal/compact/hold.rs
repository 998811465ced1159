//! Who holds one block hash, and which stored event its identity comes from.

use smallvec::SmallVec;

use crate::event::EventId;

use super::slots::{At, Slots};

/// A block that was added and not taken back yet.
#[derive(Clone, Copy, Debug)]
struct Entry {
    placement: u32,
    at: At,
}

/// A block that a refresh found held.
#[derive(Clone, Copy, Debug)]
struct Refresh {
    entry: Entry,
    event: EventId,
}

/// One block hash that is held somewhere.
#[derive(Debug)]
pub(super) struct Hold {
    /// Of its identity, which is that of the first event that stored it.
    identity: u64,
    /// Oldest first. `Removed` takes the newest of its placement, so that what is left was there all the time.
    entries: SmallVec<[Entry; 1]>,
    extra: Option<Box<Extra>>,
}

/// What most hashes have none of.
#[derive(Debug, Default)]
struct Extra {
    refreshes: Vec<Refresh>,
    /// Blocks of which each was held before the one before it was taken, from one that had the identity to one that
    /// is held. Kept once some event gave the hash another identity: without an unbroken chain from the first one the
    /// compacted history would end with that.
    chain: Vec<At>,
}

/// What an event meant to a hash that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    Entry,
    Nothing,
}

impl Hold {
    pub(super) fn new(placement: u32, identity: u64, at: At) -> Self {
        let entries = SmallVec::from_elem(Entry { placement, at }, 1);
        Self { identity, entries, extra: None }
    }

    /// A hash that is held is stored by `event` again. The event has no slot yet, only the number of it.
    pub(super) fn add(
        &mut self,
        placement: u32,
        identity: u64,
        at: At,
        event: EventId,
        refresh: bool,
        slots: &mut Slots,
    ) -> Added {
        let newest = self.entries.iter().rev().find(|entry| entry.placement == placement);
        if newest.is_some_and(|newest| newest.at.slot == at.slot) {
            return Added::Nothing;
        }
        let is_held_there = newest.is_some();
        if identity != self.identity && self.extra.as_ref().is_none_or(|extra| extra.chain.is_empty()) {
            // Whatever is held has the first identity until now.
            let first = self.entries[0].at;
            self.extra.get_or_insert_default().chain.push(first);
            slots.anchor(first);
        }
        let entry = Entry { placement, at };
        if refresh && is_held_there {
            let refreshes = &mut self.extra.get_or_insert_default().refreshes;
            if refreshes.len().is_power_of_two() {
                let is_left = |old: &Refresh| old.event == event || slots.is_left(old.entry.at, old.event);
                refreshes.retain(is_left);
            }
            refreshes.push(Refresh { entry, event });
            return Added::Nothing;
        }
        self.entries.push(entry);
        Added::Entry
    }

    /// Where the copy is, if there is one alone, in this placement, and nothing else is known of the hash.
    pub(super) fn only(&self, placement: u32) -> Option<At> {
        match self.entries[..] {
            [Entry { placement: known, at }] if known == placement && self.extra.is_none() => Some(at),
            _ => None,
        }
    }

    /// Takes one copy from a placement. Says whether there was one.
    pub(super) fn take(&mut self, placement: u32, killer: EventId, slots: &mut Slots) -> bool {
        let newest = self.entries.iter().rposition(|entry| entry.placement == placement);
        let Some(newest) = newest else { return false };
        let taken = self.entries.remove(newest);
        self.took(&[taken], killer, slots);
        true
    }

    /// Takes all copies from some placements.
    pub(super) fn empty(&mut self, placements: &[u32], killer: EventId, slots: &mut Slots) {
        let mut taken = Vec::new();
        self.entries.retain(|entry| {
            let goes = placements.contains(&entry.placement);
            if goes {
                taken.push(*entry);
            }
            !goes
        });
        self.took(&taken, killer, slots);
    }

    fn took(&mut self, taken: &[Entry], killer: EventId, slots: &mut Slots) {
        for entry in taken {
            slots.kill(entry.at, killer);
        }
        if let Some(extra) = &mut self.extra {
            let still = |placement| self.entries.iter().any(|entry| entry.placement == placement);
            for entry in taken.iter().filter(|entry| !still(entry.placement)) {
                extra.end_refreshes(entry.placement, killer, slots);
            }
            match self.entries.first() {
                None => {
                    for at in extra.chain.drain(..) {
                        slots.release(at);
                        slots.settle(at.slot);
                    }
                }
                Some(oldest) if taken.iter().any(|entry| extra.chain.last() == Some(&entry.at)) => {
                    extra.chain.push(oldest.at);
                    slots.anchor(oldest.at);
                }
                Some(_) => {}
            }
        }
        for entry in taken {
            slots.settle(entry.at.slot);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Extra {
    /// A placement does not hold the hash any more. Should the entries before a refresh go from the history, the refresh
    /// adds a copy of its own, which the same event takes.
    fn end_refreshes(&mut self, placement: u32, killer: EventId, slots: &mut Slots) {
        self.refreshes.retain(|refresh| {
            let ends = refresh.entry.placement == placement;
            if ends {
                slots.end_refresh(refresh.entry.at, refresh.event, killer);
            }
            !ends
        });
    }
}
