//! KV-cache events as plain types: what an engine says, in the field's own words.
//!
//! Nothing here does I/O or knows of a file format; the JSON form is that of Dynamo's `KvCacheEvent`.

mod data;
mod ids;
mod json;
mod placement;
mod time;

pub use data::{Block, ClearReason, Cleared, EventData, MmInfo, MmObject, Removed, Stored, Unknown};
pub use ids::{BlockHash, DpRank, EventId, TokensHash, WorkerId};
pub use json::JsonEvent;
pub use placement::{Placement, StorageTier};
pub use time::EngineTime;
