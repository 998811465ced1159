//! Hashing for tables whose keys are hashes or small numbers already.
//!
//! One multiplication spreads a key over the table; there is no protection against keys that were chosen to
//! collide beyond a seed drawn for each index. Keys that are text go through the standard library's hasher instead.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// Odd, with its bits well mixed: the fraction of the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a key over 64 bits.
#[inline]
pub(super) fn mix(key: u64) -> u64 {
    let wide = u128::from(key ^ 0x5851_f42d_4c95_7f2d) * u128::from(SPREAD);
    (wide >> 64) as u64 ^ wide as u64
}

/// Spreads two keys.
#[inline]
pub(super) fn mix2(one: u64, two: u64) -> u64 {
    mix(one ^ two.wrapping_mul(SPREAD).rotate_left(29))
}

/// A seed that nobody outside the process knows.
pub(super) fn seed() -> u64 {
    RandomState::new().hash_one(SPREAD)
}

/// A map from a slot to something.
pub(super) type SlotMap<V> = hashbrown::HashMap<u32, V, BuildHasherDefault<SlotHasher>>;

/// Hashes one slot number.
#[derive(Default)]
pub(super) struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, slot: u32) {
        self.0 = mix2(self.0, u64::from(slot));
    }
}

/// Whether a table of so many buckets has so many more than `len` needs that it should shrink. A table doubles, so it
/// is between 44 % and 88 % full while it grows; a fifth leaves room for coming and going. Its capacity would not do:
/// what was removed may still count against that.
pub(super) fn is_roomy(len: usize, buckets: usize) -> bool {
    buckets > 64 && len < buckets / 5
}

/// Shrinks a map that [is roomy](is_roomy).
pub(super) fn shrink_map<V>(map: &mut SlotMap<V>) {
    let buckets = map.allocation_size() / (size_of::<(u32, V)>() + 1);
    if is_roomy(map.len(), buckets) {
        map.shrink_to(2 * map.len());
    }
}
