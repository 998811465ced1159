//! Which blocks hang below a block. Needed only where a block with others below it gets a new identity, so it is built
//! then, kept up for about as long as that took, and dropped.

use std::collections::BTreeSet;

use super::entries::Entries;

#[derive(Debug, Default)]
pub(super) struct Kids(Option<Built>);

#[derive(Debug)]
struct Built {
    pairs: BTreeSet<(u32, u32)>,
    /// Changes until it is dropped.
    left: usize,
}

impl Kids {
    pub(super) fn is_built(&self) -> bool {
        self.0.is_some()
    }

    /// Makes sure that it is built.
    pub(super) fn build(&mut self, entries: &Entries) {
        if self.0.is_none() {
            let pairs = entries.iter().filter_map(|(slot, _)| Some((entries.parent_slot(slot)?, slot)));
            self.0 = Some(Built { pairs: pairs.collect(), left: 0 });
        }
        if let Some(built) = &mut self.0 {
            built.left = built.pairs.len() + 1;
        }
    }

    /// The blocks below a block; none unless it is built.
    pub(super) fn of(&self, parent: u32) -> impl Iterator<Item = u32> {
        let pairs = self.0.iter().flat_map(move |built| built.pairs.range((parent, 0)..=(parent, u32::MAX)));
        pairs.map(|(_, kid)| *kid)
    }

    #[inline]
    pub(super) fn add(&mut self, parent: u32, kid: u32) {
        if self.0.is_some() {
            self.change(|pairs| pairs.insert((parent, kid)));
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, parent: u32, kid: u32) {
        if self.0.is_some() {
            self.change(|pairs| pairs.remove(&(parent, kid)));
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut BTreeSet<(u32, u32)>) -> bool) {
        if let Some(built) = &mut self.0 {
            change(&mut built.pairs);
            built.left = built.left.saturating_sub(1);
            if built.left == 0 {
                self.0 = None;
            }
        }
    }

    /// Bytes on the heap, about: a B-tree's nodes are about two thirds full.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |built| built.pairs.len() * size_of::<(u32, u32)>() * 3 / 2)
    }
}
