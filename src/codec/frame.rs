//! A frame: consecutive events encoded together. It is the unit on disk, in the tail and on the wire.

use bytes::Bytes;

use crate::event::{EngineTime, EventData, EventId};

use super::header::{
    FLAG_CURSOR, FLAG_SPARSE, FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, HeaderError, Stamp, frame_crc,
    stored_crc,
};
use super::record::{SourceCursor, bincode_config};
use super::record_bytes::decode_record;

/// Payload bytes after which a frame is closed, so that its payloads fit one row unless one event alone is
/// longer.
const PAYLOAD_TARGET_BYTES: usize = 64 * 1024;

/// A whole frame whose checksum was found right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    header: FrameHeader,
    bytes: Bytes,
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The head makes no sense.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Fewer or more bytes than the head says.
    #[error("a frame of {expected} bytes in {found}")]
    Length {
        /// Length by the head.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// The bytes were changed.
    #[error("frame crc mismatch at event {first}: stored {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// First event, by the head.
        first: EventId,
        /// The crc in the frame.
        stored: u32,
        /// The crc of its bytes.
        computed: u32,
    },
    /// The body is not what its head says, although the checksum is right: a fault of the writer.
    #[error("frame body at event {first}: {what}")]
    Body {
        /// First event of the frame.
        first: EventId,
        /// What is wrong.
        what: String,
    },
}

/// One event of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameEvent {
    /// Its id.
    pub id: EventId,
    /// What it says.
    pub data: EventData,
    /// The engine's time.
    pub engine_time: Option<EngineTime>,
}

impl Frame {
    /// Checks that `bytes` are one whole frame.
    ///
    /// # Errors
    /// The first thing that is wrong; the body is decoded later, by [`Frame::events`].
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let header = FrameHeader::read(&bytes)?;
        if header.frame_len() != bytes.len() {
            return Err(FrameError::Length { expected: header.frame_len(), found: bytes.len() });
        }
        let (stored, computed) = (stored_crc(&bytes), frame_crc(&bytes));
        if stored != computed {
            return Err(FrameError::Crc { first: header.first, stored, computed });
        }
        Ok(Self { header, bytes })
    }

    /// The same frame, without the payloads that it names.
    pub(crate) fn without_payloads(frame: &Self) -> Self {
        let header = FrameHeader { payload_len: 0, payload_crc: 0, ..frame.header };
        let mut bytes = frame.bytes.to_vec();
        header.write(&mut bytes);
        Self { header, bytes: bytes.into() }
    }

    /// The frame's head.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The frame as it stands on disk and on the wire.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Where the source was when the frame was closed.
    ///
    /// # Errors
    /// If the body is not what the head says.
    pub fn cursor(&self) -> Result<Option<SourceCursor>, FrameError> {
        Ok(self.read_cursor()?.0)
    }

    fn read_cursor(&self) -> Result<(Option<SourceCursor>, usize), FrameError> {
        if self.header.flags & FLAG_CURSOR == 0 {
            return Ok((None, HEADER_BYTES));
        }
        let (cursor, len) = bincode::decode_from_slice(&self.bytes[HEADER_BYTES..], bincode_config())
            .map_err(|e| self.body_error(format!("its cursor: {e}")))?;
        Ok((Some(cursor), HEADER_BYTES + len))
    }

    /// The events, decoded one by one.
    pub fn events(&self) -> FrameEvents<'_> {
        match self.read_cursor() {
            Ok((_, at)) => FrameEvents {
                frame: self,
                at,
                next: self.header.first,
                left: self.header.count,
                failed: None,
            },
            Err(e) => FrameEvents { frame: self, at: 0, next: 0, left: 0, failed: Some(e) },
        }
    }

    fn body_error(&self, what: impl Into<String>) -> FrameError {
        FrameError::Body { first: self.header.first, what: what.into() }
    }
}

/// Iterator over a frame's events; it ends after the first error.
#[derive(Debug)]
pub struct FrameEvents<'a> {
    frame: &'a Frame,
    at: usize,
    next: EventId,
    left: u32,
    failed: Option<FrameError>,
}

impl FrameEvents<'_> {
    fn decode_next(&mut self) -> Result<FrameEvent, FrameError> {
        let bytes = &self.frame.bytes;
        let mut id = self.next;
        if self.frame.header.is_sparse() {
            let (given, len): (u64, usize) = bincode::decode_from_slice(&bytes[self.at..], bincode_config())
                .map_err(|e| self.frame.body_error(format!("an id: {e}")))?;
            if given < self.next || given > self.frame.header.last {
                return Err(self.frame.body_error(format!("id {given} is out of order")));
            }
            (id, self.at) = (given, self.at + len);
        }
        let (record, len) = decode_record(&bytes[self.at..])
            .map_err(|e| self.frame.body_error(format!("event {id}: {e}")))?;
        self.at += len;
        self.left -= 1;
        self.next = id + 1;
        if self.left == 0 && (self.at != bytes.len() || id != self.frame.header.last) {
            return Err(self
                .frame
                .body_error(format!("{} bytes after the last event", bytes.len() - self.at)));
        }
        Ok(FrameEvent { id, data: record.data, engine_time: record.engine_time })
    }
}

impl Iterator for FrameEvents<'_> {
    type Item = Result<FrameEvent, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        if self.left == 0 {
            return None;
        }
        let event = self.decode_next();
        if event.is_err() {
            self.left = 0;
        }
        Some(event)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize + usize::from(self.failed.is_some())))
    }
}

/// Collects records until the frame is full.
#[derive(Debug)]
pub(crate) struct FrameBuilder {
    records: Vec<u8>,
    first: EventId,
    next: EventId,
    count: u32,
    cursor: Option<SourceCursor>,
    payloads: Vec<Option<Bytes>>,
    payload_bytes: usize,
    sparse: bool,
}

/// What a builder made: the frame and the payloads of its events, one entry an event, or none at all.
#[derive(Clone, Debug)]
pub(crate) struct BuiltFrame {
    pub(crate) frame: Frame,
    pub(crate) payloads: Vec<Option<Bytes>>,
}

impl FrameBuilder {
    /// A frame whose first event gets the id `first`.
    pub(crate) fn new(first: EventId) -> Self {
        Self {
            records: Vec::new(),
            first,
            next: first,
            count: 0,
            cursor: None,
            payloads: Vec::new(),
            payload_bytes: 0,
            sparse: false,
        }
    }

    /// A frame of a compacted history, whose events keep the ids they have.
    pub(crate) fn sparse() -> Self {
        Self { sparse: true, ..Self::new(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Records in it.
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes of records and payloads in it.
    pub(crate) fn weight(&self) -> usize {
        self.records.len() + self.payload_bytes
    }

    /// Whether another record still fits.
    pub(crate) fn fits(&self, record: &[u8], payload_len: usize) -> bool {
        let len = HEADER_BYTES + SourceCursor::BYTES_MAX + self.records.len() + record.len() + 8;
        len <= FRAME_BYTES_MAX
            && (self.is_empty()
                || payload_len == 0
                || self.payload_bytes + payload_len <= PAYLOAD_TARGET_BYTES)
    }

    /// Adds a record that [fits](Self::fits).
    pub(crate) fn push(&mut self, record: &[u8], payload: Option<Bytes>) {
        self.push_at(self.next, record, payload);
    }

    /// Adds a record with an id of its own, above all before it.
    pub(crate) fn push_at(&mut self, id: EventId, record: &[u8], payload: Option<Bytes>) {
        if self.sparse {
            if self.is_empty() {
                self.first = id;
            }
            self.records.extend_from_slice(&id.to_be_bytes());
        }
        if self.records.is_empty() {
            // At once what a full frame needs: growing step by step costs more than the copy of a record.
            self.records.reserve(FRAME_BYTES_MAX);
        }
        self.records.extend_from_slice(record);
        self.next = id + 1;
        self.count += 1;
        self.payload_bytes += payload.as_ref().map_or(0, Bytes::len);
        self.payloads.push(payload);
    }

    /// Where the source is after the record added last.
    pub(crate) fn set_cursor(&mut self, cursor: SourceCursor) {
        self.cursor = Some(cursor);
    }

    /// Closes the frame. Call it only with at least one record.
    pub(crate) fn build(mut self, stamp: Stamp, previous: EventId, appended_us: u64) -> BuiltFrame {
        if self.payload_bytes == 0 {
            self.payloads.clear();
        }
        let (payload_len, payload_crc) = super::payload::digest(&self.payloads);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + SourceCursor::BYTES_MAX + self.records.len());
        bytes.resize(HEADER_BYTES, 0);
        if let Some(cursor) = &self.cursor {
            bincode::encode_into_std_write(cursor, &mut bytes, bincode_config())
                .expect("a cursor within its limits encodes into memory");
        }
        bytes.append(&mut self.records);
        let header = FrameHeader {
            flags: if self.sparse { FLAG_SPARSE } else { 0 }
                | if self.cursor.is_some() { FLAG_CURSOR } else { 0 },
            journal: stamp.journal,
            worker: stamp.worker,
            rank: stamp.rank,
            generation: stamp.generation,
            epoch: stamp.epoch,
            epoch_first: stamp.epoch_first,
            first: self.first,
            last: self.next - 1,
            previous,
            appended_us,
            count: self.count,
            payload_len,
            payload_crc,
            body_len: (bytes.len() - HEADER_BYTES) as u32,
        };
        header.write(&mut bytes);
        BuiltFrame { frame: Frame { header, bytes: bytes.into() }, payloads: self.payloads }
    }
}
