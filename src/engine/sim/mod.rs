//! An engine double: requests, from a trace or made up, through a prefix cache that evicts as engines do, into the
//! events that an engine would announce.

mod cache;
mod generator;
mod trace;

pub use cache::{CacheSpec, EngineDouble, TRACE_BLOCK_TOKENS};
pub use generator::Generator;
pub use trace::{Request, TraceError, read_trace};
