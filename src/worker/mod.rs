//! The worker's side: what lives beside an engine and its journal.

mod local_index;
mod replayer;

pub use local_index::{IndexProgress, LocalIndex};
pub use replayer::Replayer;
