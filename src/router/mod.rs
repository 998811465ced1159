//! The router's side: following the streams of many workers.

mod place;
mod session;
mod speakers;

pub use place::{Misfit, Observed, Place};
pub use session::{Action, Freshness, Limits, Notice, Session};
