//! An engine double: requests, from a trace or made up, through a prefix cache that evicts as engines do, into the
//! events that an engine would announce.
//!
//! Nothing here reads a clock, a random source or a file: a seed or a trace always makes the same events.

mod cache;
mod engine;
mod event;
mod generator;
mod load;
mod quantiles;
mod tokens;
mod trace;

pub use engine::{CACHE_BLOCKS_MAX, CacheSpec, Detail, EngineDouble, SpecError};
pub use event::{SimBatch, SimEvent, SimStored};
pub use generator::Generator;
pub use load::{Load, LoadError, LoadSpec, RANKS_MAX};
pub use tokens::{TRACE_BLOCK_TOKENS, VOCABULARY};
pub use trace::{IDS_MAX, LINE_BYTES_MAX, Request, TraceError, read_trace};
