//! Random choices that follow from a seed alone.

/// A small generator (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// The seed of this run: `KVJ_SEED`, or the test's own.
pub fn seed_or(usual: u64) -> u64 {
    let given = std::env::var("KVJ_SEED").ok();
    given.map_or(usual, |seed| seed.parse().expect("KVJ_SEED is a number"))
}
