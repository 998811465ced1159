//! The durable log: one writer, a bounded tail, readers from any retained id.

mod carve;
mod clock;
mod compact;
mod compaction;
#[cfg(test)]
mod compaction_model;
mod config;
mod doomed;
mod epochs;
mod handle;
mod input;
mod keeper;
mod measure;
#[cfg(test)]
mod model;
mod open;
mod phase;
mod queue;
mod rank;
mod reader;
mod recover;
mod repair;
mod resume;
mod retention;
mod rewrite;
mod rows;
mod stats;
mod syncer;
mod tail;
mod verify;
mod view;
mod watermark;
mod witnessing;
mod writer;

pub use compaction::{CompactOptions, Compacted};
pub use config::{Config, Durability, GroupLimits};
pub use epochs::{Cursor, EPOCHS_MAX, Epoch, ResetReason, Verdict, judge};
pub use handle::Journal;
pub use input::{NewEvent, Source};
pub use reader::{ReadEvent, ReadFrame, Reader, Start};
pub use repair::{Repaired, repair};
pub use resume::{Position, Resumed};
pub use retention::Retention;
pub use rewrite::{Migrated, migrate};
pub use rows::FORMAT;
pub use stats::Stats;
pub use verify::{Verified, verify};
pub use view::{HistoryInfo, JournalView, RankInfo};
