//! LoRA adapters and cache salts of blocks, each pair kept once.

use std::hash::{BuildHasher, RandomState};

use super::interner::Interner;

/// A LoRA adapter and a salt.
pub(super) type Tag = (Option<String>, Option<String>);

/// Pairs by number; 0 is the pair of nothing.
#[derive(Debug)]
pub(super) struct Tags {
    known: Interner<Tag>,
    hasher: RandomState,
}

impl Default for Tags {
    fn default() -> Self {
        let mut known = Interner::default();
        // The first value is number 0, and this use never ends.
        known.intern(0, (None, None));
        Self { known, hasher: RandomState::new() }
    }
}

impl Tags {
    /// The number of a pair, with one use more.
    pub(super) fn intern(&mut self, lora: &Option<String>, salt: &Option<String>) -> u32 {
        if lora.is_none() && salt.is_none() {
            return 0;
        }
        let hash = self.hasher.hash_one((lora, salt));
        match self.known.find(hash, |(known_lora, known_salt)| known_lora == lora && known_salt == salt) {
            Some(tag) => {
                self.retain(tag, 1);
                tag
            }
            None => self.known.intern(hash, (lora.clone(), salt.clone())),
        }
    }

    pub(super) fn retain(&mut self, tag: u32, uses: u64) {
        if tag != 0 {
            self.known.retain(tag, uses);
        }
    }

    pub(super) fn release(&mut self, tag: u32, uses: u64) {
        if tag != 0 {
            self.known.release_many(tag, uses);
        }
    }

    pub(super) fn get(&self, tag: u32) -> &Tag {
        self.known.get(tag)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        self.known.heap_bytes(|(lora, salt)| text(lora) + text(salt))
    }
}
