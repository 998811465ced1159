//! Bytes: frames, pages, payload rows and sealed rows, each with a magic number and a checksum of its own, so that they
//! can be told from noise wherever they lie. `migrations/FORMAT.md` is their document.

mod frame;
mod header;
mod page;
mod page_header;
mod payload;
mod record;
mod record_bytes;
mod request;
mod sealed;
#[cfg(test)]
mod tests;

pub use frame::{Frame, FrameError, FrameEvent, FrameEvents};
pub use header::{FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, HeaderError};
pub use page::{Page, PageError};
pub use page_header::{
    PAGE_BYTES_MAX, PAGE_EPOCHS_MAX, PAGE_HEADER_BYTES, PAGE_VERSION, PageFlags, PageHeader, PageHeaderError,
    PastEpoch, SourceState,
};
pub use record::{PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, Record, SourceCursor, as_kept};
pub use request::{PAGE_BYTES_MIN, REQUEST_BYTES_MAX, Refusal, ReplayFormat, ReplayRequest};

pub(crate) use frame::{BuiltFrame, FrameBuilder};
pub(crate) use header::{FRAME_MAGIC, Stamp};
pub(crate) use payload::{PAYLOAD_MAGIC, PayloadChunk, PayloadRows, join_payloads};
pub(crate) use record::{EncodedRecords, bincode_config};
pub(crate) use sealed::{SEALED_MAGIC, SealedKind, open_sealed, seal};
