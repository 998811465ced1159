//! kvjournal: a durable journal of KV-cache events for LLM inference workers.

#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
pub mod engine;
mod error;
pub mod event;
pub mod index;
pub mod journal;
pub mod router;
mod store;
pub mod worker;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

pub use error::{Damage, Error, ErrorKind, Result};
