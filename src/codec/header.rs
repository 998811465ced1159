//! The fixed head of a frame. All integers are big-endian; offsets are derived from the field before.

use crate::event::{DpRank, EventId, WorkerId};

/// First bytes of each frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"KVJF";

/// Version of the frame's layout.
pub(crate) const FRAME_VERSION: u8 = 1;

/// Longest frame, head and body. Rows of 128 KiB and leaves of sixteen rows still fit a store's segment four
/// times over, so that no row is ever moved out of the log.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = AT_MAGIC + 4;
const AT_FLAGS: usize = AT_VERSION + 1;
const AT_RESERVED: usize = AT_FLAGS + 1;
const AT_JOURNAL: usize = AT_RESERVED + 2;
const AT_WORKER: usize = AT_JOURNAL + 16;
const AT_RANK: usize = AT_WORKER + 8;
const AT_GENERATION: usize = AT_RANK + 4;
const AT_EPOCH: usize = AT_GENERATION + 4;
const AT_EPOCH_FIRST: usize = AT_EPOCH + 8;
const AT_FIRST: usize = AT_EPOCH_FIRST + 8;
const AT_LAST: usize = AT_FIRST + 8;
const AT_PREVIOUS: usize = AT_LAST + 8;
const AT_APPENDED: usize = AT_PREVIOUS + 8;
const AT_COUNT: usize = AT_APPENDED + 8;
const AT_PAYLOAD_LEN: usize = AT_COUNT + 4;
const AT_PAYLOAD_CRC: usize = AT_PAYLOAD_LEN + 4;
const AT_BODY_LEN: usize = AT_PAYLOAD_CRC + 4;
const AT_CRC: usize = AT_BODY_LEN + 4;

/// Length of a frame's head.
pub const HEADER_BYTES: usize = AT_CRC + 4;

/// Each record is preceded by its id, since compaction left holes between them.
pub(crate) const FLAG_SPARSE: u8 = 1;
/// The body starts with a source cursor.
pub(crate) const FLAG_CURSOR: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_SPARSE | FLAG_CURSOR;

/// Whose frame it is and under which opening it was written: what all frames of a writer share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) journal: [u8; 16],
    pub(crate) worker: WorkerId,
    pub(crate) rank: DpRank,
    pub(crate) generation: u32,
    pub(crate) epoch: u64,
    pub(crate) epoch_first: EventId,
}

/// The head of a frame, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Layout flags.
    pub(crate) flags: u8,
    /// Identity of the journal, drawn at random when it was made.
    pub journal: [u8; 16],
    /// The worker.
    pub worker: WorkerId,
    /// The rank.
    pub rank: DpRank,
    /// The tree of the rank's events this frame was written to.
    pub generation: u32,
    /// Number of the opening that wrote it.
    pub epoch: u64,
    /// First id that opening could give. Older openings' frames at or past it are void.
    pub epoch_first: EventId,
    /// Id of the first event.
    pub first: EventId,
    /// Id of the last event.
    pub last: EventId,
    /// Id of the last event of the frame before this one, 0 if there is none: a lost frame breaks the chain.
    pub previous: EventId,
    /// When the frame was closed, microseconds since 1970.
    pub appended_us: u64,
    /// Number of events.
    pub count: u32,
    /// Length of the payloads that belong to the frame, 0 if there are none.
    pub payload_len: u32,
    /// CRC-32C of these payloads.
    pub payload_crc: u32,
    /// Length of the body.
    pub body_len: u32,
}

impl FrameHeader {
    /// Whether records carry their ids.
    pub(crate) fn is_sparse(&self) -> bool {
        self.flags & FLAG_SPARSE != 0
    }

    /// Length of the whole frame.
    pub fn frame_len(&self) -> usize {
        HEADER_BYTES + self.body_len as usize
    }

    /// Writes the head, with a crc over it and `body`, to the first [`HEADER_BYTES`] of `frame`.
    pub(crate) fn write(&self, frame: &mut [u8]) {
        frame[AT_MAGIC..AT_VERSION].copy_from_slice(&FRAME_MAGIC);
        frame[AT_VERSION] = FRAME_VERSION;
        frame[AT_FLAGS] = self.flags;
        put(frame, AT_RESERVED, [0; 2]);
        put(frame, AT_JOURNAL, self.journal);
        put(frame, AT_WORKER, self.worker.0.to_be_bytes());
        put(frame, AT_RANK, self.rank.0.to_be_bytes());
        put(frame, AT_GENERATION, self.generation.to_be_bytes());
        put(frame, AT_EPOCH, self.epoch.to_be_bytes());
        put(frame, AT_EPOCH_FIRST, self.epoch_first.to_be_bytes());
        put(frame, AT_FIRST, self.first.to_be_bytes());
        put(frame, AT_LAST, self.last.to_be_bytes());
        put(frame, AT_PREVIOUS, self.previous.to_be_bytes());
        put(frame, AT_APPENDED, self.appended_us.to_be_bytes());
        put(frame, AT_COUNT, self.count.to_be_bytes());
        put(frame, AT_PAYLOAD_LEN, self.payload_len.to_be_bytes());
        put(frame, AT_PAYLOAD_CRC, self.payload_crc.to_be_bytes());
        put(frame, AT_BODY_LEN, self.body_len.to_be_bytes());
        let crc = frame_crc(frame);
        put(frame, AT_CRC, crc.to_be_bytes());
    }

    /// Reads the head's fields from at least [`HEADER_BYTES`] bytes; the crc is not looked at yet.
    ///
    /// # Errors
    /// What makes these bytes no head of a frame of this version.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() < HEADER_BYTES {
            return Err(HeaderError::Short { len: bytes.len() });
        }
        if bytes[..AT_VERSION] != FRAME_MAGIC {
            return Err(HeaderError::Magic);
        }
        if bytes[AT_VERSION] != FRAME_VERSION {
            return Err(HeaderError::Version { found: bytes[AT_VERSION] });
        }
        let flags = bytes[AT_FLAGS];
        if flags & !FLAGS_KNOWN != 0 || get::<2>(bytes, AT_RESERVED) != [0; 2] {
            return Err(HeaderError::Flags { found: flags });
        }
        let header = Self {
            flags,
            journal: get(bytes, AT_JOURNAL),
            worker: WorkerId(u64::from_be_bytes(get(bytes, AT_WORKER))),
            rank: DpRank(u32::from_be_bytes(get(bytes, AT_RANK))),
            generation: u32::from_be_bytes(get(bytes, AT_GENERATION)),
            epoch: u64::from_be_bytes(get(bytes, AT_EPOCH)),
            epoch_first: u64::from_be_bytes(get(bytes, AT_EPOCH_FIRST)),
            first: u64::from_be_bytes(get(bytes, AT_FIRST)),
            last: u64::from_be_bytes(get(bytes, AT_LAST)),
            previous: u64::from_be_bytes(get(bytes, AT_PREVIOUS)),
            appended_us: u64::from_be_bytes(get(bytes, AT_APPENDED)),
            count: u32::from_be_bytes(get(bytes, AT_COUNT)),
            payload_len: u32::from_be_bytes(get(bytes, AT_PAYLOAD_LEN)),
            payload_crc: u32::from_be_bytes(get(bytes, AT_PAYLOAD_CRC)),
            body_len: u32::from_be_bytes(get(bytes, AT_BODY_LEN)),
        };
        header.check()?;
        Ok(header)
    }

    /// The relations between fields that every written head keeps.
    fn check(&self) -> Result<(), HeaderError> {
        let span = self.last.checked_sub(self.first).and_then(|span| span.checked_add(1));
        let counted = match span {
            Some(span) if self.is_sparse() => u64::from(self.count) <= span,
            Some(span) => u64::from(self.count) == span,
            None => false,
        };
        if self.first == 0
            || self.last == EventId::MAX
            || self.count == 0
            || !counted
            || self.previous >= self.first
        {
            return Err(HeaderError::Ids { first: self.first, last: self.last, count: self.count });
        }
        if self.frame_len() > FRAME_BYTES_MAX {
            return Err(HeaderError::Long { len: self.frame_len() });
        }
        Ok(())
    }
}

/// The crc that a frame stores.
pub(crate) fn stored_crc(frame: &[u8]) -> u32 {
    u32::from_be_bytes(get(frame, AT_CRC))
}

/// The crc that a frame should store: over the head before the crc, then over the body.
pub(crate) fn frame_crc(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..AT_CRC]), &frame[HEADER_BYTES..])
}

/// Why bytes are no head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Too few bytes.
    #[error("a frame's head has {HEADER_BYTES} bytes, not {len}")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// Other first bytes.
    #[error("no frame starts here")]
    Magic,
    /// A version that is not known.
    #[error("frame version {found}, this release reads {FRAME_VERSION}")]
    Version {
        /// The version.
        found: u8,
    },
    /// Flags that are not known.
    #[error("unknown frame flags {found:#04x}")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// Ids that contradict each other.
    #[error("impossible ids: {count} events from {first} to {last}")]
    Ids {
        /// First id.
        first: EventId,
        /// Last id.
        last: EventId,
        /// Number of events.
        count: u32,
    },
    /// Longer than any frame.
    #[error("a frame of {len} bytes, the longest has {FRAME_BYTES_MAX}")]
    Long {
        /// The length.
        len: usize,
    },
}

pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

pub(super) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::{assert_documented, document_table};

    #[test]
    fn the_document_s_table_is_that_of_the_code() {
        assert_documented(
            "Frame header",
            &[
                (AT_MAGIC, "magic"),
                (AT_VERSION, "version"),
                (AT_FLAGS, "flags"),
                (AT_RESERVED, "reserved"),
                (AT_JOURNAL, "journal"),
                (AT_WORKER, "worker"),
                (AT_RANK, "rank"),
                (AT_GENERATION, "generation"),
                (AT_EPOCH, "epoch"),
                (AT_EPOCH_FIRST, "epoch first"),
                (AT_FIRST, "first"),
                (AT_LAST, "last"),
                (AT_PREVIOUS, "previous"),
                (AT_APPENDED, "appended"),
                (AT_COUNT, "count"),
                (AT_PAYLOAD_LEN, "payload length"),
                (AT_PAYLOAD_CRC, "payload crc"),
                (AT_BODY_LEN, "body length"),
                (AT_CRC, "crc"),
                (HEADER_BYTES, "body"),
            ],
        );
        assert_eq!(document_table("Frame header").last().map(|row| row.0), Some(108));
    }
}
