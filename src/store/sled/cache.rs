//! Keeping sled's page cache to its size.
//!
//! sled looks at the size of its cache only once 64 accesses have piled up in one of 256 shards. With leaves of a
//! hundred kilobytes that are each accessed a few times, as here, gigabytes gather before it evicts anything: a
//! replay of a long journal would hold all of it in memory. So whoever has passed such a leaf accesses it until
//! the shard is full, which makes sled evict the leaves before it. What stays is about one leaf a shard.

use super::{StoreError, caught};

/// Accesses that fill a shard's queue.
const ACCESSES: usize = 64;

/// Bytes passed between two rounds: about a leaf of large rows.
const EVERY_BYTES: usize = 128 * 1024;

/// Counts what passes through sled's cache.
#[derive(Debug, Default)]
pub(super) struct CacheTrim {
    bytes: usize,
}

impl CacheTrim {
    /// A row was written or read.
    pub(super) fn passed(&mut self, tree: &::sled::Tree, key: &[u8], len: usize) -> Result<(), StoreError> {
        self.bytes += len;
        if self.bytes < EVERY_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        caught(|| {
            for _ in 0..ACCESSES {
                tree.contains_key(key)?;
            }
            Ok(())
        })
    }
}
