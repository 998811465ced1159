//! Bytes: frames, payload rows and sealed rows, each with a magic number and a checksum of its own, so that they
//! can be told from noise wherever they lie. `migrations/FORMAT.md` is their document.

mod frame;
mod header;
mod payload;
mod record;
mod record_bytes;
mod sealed;
#[cfg(test)]
mod tests;

pub use frame::{Frame, FrameError, FrameEvent, FrameEvents};
pub use header::{FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, HeaderError};
pub use record::{PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, Record, SourceCursor, as_kept};

pub(crate) use frame::{BuiltFrame, FrameBuilder};
pub(crate) use header::{FRAME_MAGIC, Stamp};
pub(crate) use payload::{PAYLOAD_MAGIC, PayloadChunk, PayloadRows, join_payloads};
pub(crate) use record::{EncodedRecords, bincode_config};
pub(crate) use sealed::{SEALED_MAGIC, SealedKind, open_sealed, seal};
