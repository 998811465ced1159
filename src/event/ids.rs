//! The numbers of the field as types, so that a worker id is never taken for a block hash.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The number of an event in its stream. It lasts: it is never given to another event, and within an epoch the
/// ids are contiguous. The first is 1; 0 stands for "before the first".
pub type EventId = u64;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(
            /// The bare number.
            pub $inner,
        );

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id! {
    /// An inference worker, unique within a deployment. Any u64.
    WorkerId(u64)
}
id! {
    /// A data parallel rank of a worker. 0 where there is only one.
    DpRank(u32)
}
id! {
    /// The engine's own hash of a block and all blocks before it. Any u64: 0 is a legal hash.
    ///
    /// Engines write it signed, unsigned, or as 32 bytes; this is vLLM's integer form: the two's complement
    /// bits of a signed hash, the last eight bytes (big-endian) of a longer one.
    BlockHash(u64)
}
id! {
    /// Hash of the tokens of one block, with its LoRA adapter and cache salt, but not of the blocks before it.
    ///
    /// The value is that of `dynamo-kv-hashing`, so that routers of that family can look it up.
    TokensHash(u64)
}
