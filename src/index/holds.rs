//! How often a block is held in which placement. Few combinations occur, so a block has the number of its own.

use std::hash::{BuildHasher, RandomState};

use crate::event::{Placement, StorageTier};

use super::digest::placement_seed;
use super::hash::mix2;
use super::interner::Interner;

/// The combination of a block that is not held.
pub(super) const NOT_HELD: u32 = 0;

/// A placement and how often a block is held there: 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) placement: u32,
    pub(super) count: u64,
}

/// Holds of a block, in the order of their placements' numbers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Combination {
    holds: Box<[Hold]>,
    /// The tiers in which they count for matching.
    mask: u8,
}

/// A placement that some block of the stream has.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) placement: Placement,
    /// The tier of its medium, whether or not it counts for matching.
    pub(super) tier: Option<StorageTier>,
    /// What it puts into the digest.
    pub(super) seed: [u8; 16],
    /// The bit of its tier, 0 if it does not count for matching.
    mask: u8,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.placement == other.placement
    }
}

impl Eq for Place {}

impl Place {
    fn new(placement: &Placement) -> Self {
        let tier = placement.tier();
        let mask = tier.filter(|_| placement.is_own_full_attention()).map_or(0, |tier| 1 << tier as u8);
        Self { placement: placement.clone(), tier, seed: placement_seed(placement), mask }
    }
}

#[derive(Debug)]
pub(super) struct Holds {
    places: Interner<Place>,
    combinations: Interner<Combination>,
    hasher: RandomState,
    /// Held once in one placement: the usual combination, by number, with its placement.
    usual: (u32, u32),
}

impl Default for Holds {
    fn default() -> Self {
        let mut combinations = Interner::default();
        // The first value is number 0, and this use never ends.
        let not_held = combinations.intern(0, Combination::default());
        debug_assert_eq!(not_held, NOT_HELD);
        Self {
            places: Interner::default(),
            combinations,
            hasher: RandomState::new(),
            usual: (NOT_HELD, u32::MAX),
        }
    }
}

impl Holds {
    /// The number of a placement, to be used until it is [released](Holds::release_place).
    pub(super) fn place(&mut self, placement: &Placement) -> u32 {
        if let Some(usual) = self.usual_place(placement) {
            return usual;
        }
        let hash = self.hasher.hash_one(placement);
        if let Some(known) = self.places.find(hash, |place| place.placement == *placement) {
            self.places.retain(known, 1);
            return known;
        }
        self.places.intern(hash, Place::new(placement))
    }

    /// The number of a placement, to be used until it is [released](Holds::release_place), if a block has it.
    pub(super) fn known_place(&mut self, placement: &Placement) -> Option<u32> {
        if let Some(usual) = self.usual_place(placement) {
            return Some(usual);
        }
        let known =
            self.places.find(self.hasher.hash_one(placement), |place| place.placement == *placement)?;
        self.places.retain(known, 1);
        Some(known)
    }

    /// The usual placement, with one use more, if it is the one.
    fn usual_place(&mut self, placement: &Placement) -> Option<u32> {
        let (combination, place) = self.usual;
        let is_it = combination != NOT_HELD && self.places.get(place).placement == *placement;
        is_it.then(|| {
            self.places.retain(place, 1);
            place
        })
    }

    pub(super) fn release_place(&mut self, place: u32) {
        self.places.release(place);
    }

    pub(super) fn get_place(&self, place: u32) -> &Place {
        self.places.get(place)
    }

    /// The holds of a combination.
    pub(super) fn of(&self, combination: u32) -> &[Hold] {
        &self.combinations.get(combination).holds
    }

    /// The tiers in which a combination counts.
    #[inline]
    pub(super) fn mask(&self, combination: u32) -> u8 {
        self.combinations.get(combination).mask
    }

    /// How often a combination holds a placement.
    #[inline]
    pub(super) fn count(&self, combination: u32, place: u32) -> u64 {
        if combination == NOT_HELD {
            return 0;
        }
        if self.usual == (combination, place) {
            return 1;
        }
        self.of(combination).iter().find(|hold| hold.placement == place).map_or(0, |hold| hold.count)
    }

    /// Whether a combination is one copy in `place` and nothing else.
    pub(super) fn is_one_copy(&self, combination: u32, place: u32) -> bool {
        combination != NOT_HELD
            && matches!(self.of(combination), [Hold { placement, count: 1 }] if *placement == place)
    }

    /// Moves one use from a combination to the one that holds `place` `count` times, and says which that is.
    #[inline]
    pub(super) fn with_count(&mut self, combination: u32, place: u32, count: u64) -> u32 {
        let changed = if combination == NOT_HELD && count == 1 && self.usual.1 == place {
            self.combinations.retain(self.usual.0, 1);
            self.usual.0
        } else if count == 0 && self.usual == (combination, place) {
            NOT_HELD
        } else {
            self.make(combination, place, count)
        };
        self.release(combination, 1);
        changed
    }

    fn make(&mut self, combination: u32, place: u32, count: u64) -> u32 {
        let others = self.of(combination).iter().copied().filter(|hold| hold.placement != place);
        let mut holds: Vec<Hold> = others.collect();
        if count > 0 {
            let at = holds.partition_point(|hold| hold.placement < place);
            holds.insert(at, Hold { placement: place, count });
        }
        if holds.is_empty() {
            return NOT_HELD;
        }
        let hash = holds.iter().fold(0, |hash, hold| mix2(mix2(hash, u64::from(hold.placement)), hold.count));
        let mask = holds.iter().fold(0, |mask, hold| mask | self.places.get(hold.placement).mask);
        let usual_place = match holds[..] {
            [Hold { placement, count: 1 }] => Some(placement),
            _ => None,
        };
        let known = self.combinations.find(hash, |known| *known.holds == *holds);
        let made = match known {
            Some(known) => {
                self.combinations.retain(known, 1);
                known
            }
            None => {
                holds.iter().for_each(|hold| self.places.retain(hold.placement, 1));
                self.combinations.intern(hash, Combination { holds: holds.into_boxed_slice(), mask })
            }
        };
        if let Some(place) = usual_place {
            self.usual = (made, place);
        }
        made
    }

    /// Adds uses to a combination.
    pub(super) fn retain(&mut self, combination: u32, uses: u64) {
        self.combinations.retain(combination, uses);
    }

    #[inline]
    pub(super) fn release(&mut self, combination: u32, uses: u64) {
        if combination == NOT_HELD {
            return;
        }
        if let Some(dropped) = self.combinations.release_many(combination, uses) {
            if self.usual.0 == combination {
                self.usual = (NOT_HELD, u32::MAX);
            }
            for hold in dropped.holds {
                self.places.release(hold.placement);
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let texts =
            |at: &Placement| text(&at.medium) + text(&at.kind) + text(&at.locality) + text(&at.ownership);
        self.places.heap_bytes(|place| texts(&place.placement))
            + self.combinations.heap_bytes(|known| size_of_val(&*known.holds))
    }
}
