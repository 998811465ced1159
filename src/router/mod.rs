//! The router's side: following the streams of many workers.

mod place;
mod session;
mod speakers;
#[cfg(test)]
mod tests;

pub use place::{Misfit, Observed, Place};
pub use session::{Action, Freshness, Limits, Notice, Session};
