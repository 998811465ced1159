//! Rows on disk: one small interface over sled, the folder around it, and the witness outside it.
//!
//! sled is named in `store/sled` only. Whatever it does wrong is answered there: its sync, its panics, its
//! silence about damage.

mod folder;
#[cfg(test)]
mod memory;
mod sled;
#[cfg(test)]
mod tests;
mod witness;

use std::fmt;

use bytes::Bytes;

use crate::error::Error;

pub(crate) use folder::{Current, Folder, Found, GenerationDir};
#[cfg(test)]
pub(crate) use memory::MemoryStore;
pub(crate) use sled::{SledStore, drop_evidence, keep_evidence, raw_files};
pub(crate) use witness::{RANKS_MAX, Witness, WitnessRank, WitnessState};

/// Longest value of a row. Seventeen of them, the most a leaf of sled can hold, stay below a quarter of a segment,
/// past which sled would move values into files that it never syncs.
pub(crate) const ROW_BYTES_MAX: usize = 112 * 1024;

/// A key and its value.
pub(crate) type Row = (Vec<u8>, Bytes);

/// The trees of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tree {
    /// Identity and one row a rank.
    Meta,
    /// The frames of one rank, by the id of their first event.
    Events {
        /// The rank.
        rank: u32,
        /// [`LOG`], or the number of a compacted history.
        generation: u32,
    },
    /// The payloads of one rank, by first event id and chunk.
    Payloads {
        /// The rank.
        rank: u32,
        /// As that of the frames.
        generation: u32,
    },
}

/// The generation of the trees that are appended to. Those of compacted histories are counted from 1.
pub(crate) const LOG: u32 = 0;

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta => f.write_str("meta"),
            Self::Events { rank, generation } => write!(f, "events/{rank}/{generation}"),
            Self::Payloads { rank, generation } => write!(f, "payloads/{rank}/{generation}"),
        }
    }
}

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The store found its own bytes changed, or panicked over them.
    #[error("{0}")]
    Corrupt(String),
    /// The store was used in a way it does not support.
    #[error("{0}")]
    Misuse(String),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Io(source) => Self::Io { what: "use the store".into(), source },
            StoreError::Corrupt(what) => Self::damaged(format!("the store: {what}")),
            StoreError::Misuse(what) => Self::Internal(what),
        }
    }
}

/// Rows in trees. Keys start with a big-endian u64.
///
/// Writes become durable with the next [`sync`](Store::sync), in the order they were made: after a crash a
/// prefix of them is there. One thread writes; any number read.
pub(crate) trait Store: Send + Sync {
    /// Writes a row whose key is above all others of its tree.
    fn append(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Writes or replaces a small row.
    fn put(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes a row.
    fn remove(&self, tree: Tree, key: &[u8]) -> Result<(), StoreError>;

    /// Removes up to `rows_max` of the first rows of a tree whose keys are below `key`; says how many it was.
    fn remove_below(&self, tree: Tree, key: &[u8], rows_max: usize) -> Result<usize, StoreError>;

    /// One row.
    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// The last row whose key is at or below `key`.
    fn at_or_below(&self, tree: Tree, key: &[u8]) -> Result<Option<Row>, StoreError>;

    /// The last row.
    fn last(&self, tree: Tree) -> Result<Option<Row>, StoreError>;

    /// Rows from `key` on, in order.
    fn scan(&self, tree: Tree, key: &[u8]) -> Box<dyn Iterator<Item = Result<Row, StoreError>> + Send + '_>;

    /// Forgets a tree, which holds no rows any more. Whoever still reads it finds nothing.
    fn drop_tree(&self, tree: Tree) -> Result<(), StoreError>;

    /// The trees there are.
    fn trees(&self) -> Result<Vec<Tree>, StoreError>;

    /// Hands all earlier writes to the kernel: they survive this process, not the machine.
    fn flush(&self) -> Result<(), StoreError>;

    /// Makes durable what was flushed. May be called beside a thread that writes, flushing included.
    fn sync_flushed(&self) -> Result<(), StoreError>;

    /// Makes all earlier writes durable.
    fn sync(&self) -> Result<(), StoreError> {
        self.flush()?;
        self.sync_flushed()
    }

    /// Bytes on disk.
    fn disk_bytes(&self) -> Result<u64, StoreError>;
}
