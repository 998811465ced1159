//! kvjournal: a durable journal of KV-cache events for LLM inference workers.

#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
pub mod engine;
mod error;
pub mod event;
pub mod journal;
mod store;

pub use error::{Damage, Error, ErrorKind, Result};
