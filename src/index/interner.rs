//! Values that many share, each kept once and dropped with its last use.

use hashbrown::HashTable;

use super::hash::is_roomy;
use super::pages::Pages;

/// Values by number. The hash of a value is the caller's, so that it may be one that is cheap to carry along.
#[derive(Debug)]
pub(super) struct Interner<T> {
    slots: Pages<Slot<T>>,
    by_hash: HashTable<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    value: T,
    hash: u64,
    uses: u64,
}

impl<T: Default> Default for Slot<T> {
    fn default() -> Self {
        Self { value: T::default(), hash: 0, uses: 0 }
    }
}

impl<T: Default> Default for Interner<T> {
    fn default() -> Self {
        Self { slots: Pages::default(), by_hash: HashTable::new() }
    }
}

impl<T: Default + Eq> Interner<T> {
    /// The number of a value, if anybody uses it.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        let same = |id: &u32| {
            let slot = self.slots.get(*id);
            slot.hash == hash && is_it(&slot.value)
        };
        self.by_hash.find(hash, same).copied()
    }

    /// The number of a value, with one use more.
    pub(super) fn intern(&mut self, hash: u64, value: T) -> u32 {
        if let Some(id) = self.find(hash, |known| *known == value) {
            self.retain(id, 1);
            return id;
        }
        let id = self.slots.add(Slot { value, hash, uses: 1 });
        let slots = &self.slots;
        self.by_hash.insert_unique(hash, id, |id| slots.get(*id).hash);
        id
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &T {
        &self.slots.get(id).value
    }

    pub(super) fn hash(&self, id: u32) -> u64 {
        self.slots.get(id).hash
    }

    #[inline]
    pub(super) fn retain(&mut self, id: u32, uses: u64) {
        self.slots.get_mut(id).uses += uses;
    }

    /// Takes one use; the last gives the value back.
    #[inline]
    pub(super) fn release(&mut self, id: u32) -> Option<T> {
        self.release_many(id, 1)
    }

    /// Takes so many uses; the last gives the value back.
    #[inline]
    pub(super) fn release_many(&mut self, id: u32, uses: u64) -> Option<T> {
        let slot = self.slots.get_mut(id);
        slot.uses -= uses;
        if slot.uses > 0 {
            return None;
        }
        let hash = slot.hash;
        if let Ok(found) = self.by_hash.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        let slot = self.slots.remove(id);
        if is_roomy(self.by_hash.len(), self.by_hash.num_buckets()) {
            let slots = &self.slots;
            self.by_hash.shrink_to(2 * self.by_hash.len(), |id| slots.get(*id).hash);
        }
        Some(slot.value)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes on the heap, with what `of` says that a value owns.
    pub(super) fn heap_bytes(&self, of: impl Fn(&T) -> usize) -> usize {
        let owned: usize = self.slots.iter().map(|(_, slot)| of(&slot.value)).sum();
        owned + self.slots.heap_bytes() + self.by_hash.allocation_size()
    }
}
