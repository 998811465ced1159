//! Payload rows: the engines' own bytes of a frame's events, cut into chunks that fit a store's row.
//!
//! The payloads of a frame are laid out as one string, a u32 length and the bytes for each event (length 0: the
//! event has none). The frame names the string's length and crc; the string is cut into chunks, one a row.

use bytes::{BufMut, Bytes, BytesMut};

use crate::event::EventId;

/// First bytes of each chunk.
pub(crate) const PAYLOAD_MAGIC: [u8; 4] = *b"KVJP";

/// Bytes of payload in one row. Seventeen such rows, the most a leaf of the store can hold, stay below a quarter
/// of its segment.
const CHUNK_BYTES: usize = 96 * 1024;

const AT_JOURNAL: usize = 4;
const AT_RANK: usize = AT_JOURNAL + 16;
const AT_GENERATION: usize = AT_RANK + 4;
const AT_FIRST: usize = AT_GENERATION + 4;
const AT_CHUNK: usize = AT_FIRST + 8;
const AT_EPOCH: usize = AT_CHUNK + 4;
const AT_LEN: usize = AT_EPOCH + 8;
const AT_CRC: usize = AT_LEN + 4;
const CHUNK_HEADER_BYTES: usize = AT_CRC + 4;

/// Length and crc of the payload string of these payloads; 0 and 0 if there are none.
pub(crate) fn digest(payloads: &[Option<Bytes>]) -> (u32, u32) {
    let (mut len, mut crc) = (0, 0);
    for payload in payloads {
        let bytes = payload.as_deref().unwrap_or_default();
        crc = crc32c::crc32c_append(crc, &(bytes.len() as u32).to_be_bytes());
        crc = crc32c::crc32c_append(crc, bytes);
        len += 4 + bytes.len();
    }
    (len as u32, crc)
}

/// The rows of one frame's payloads.
pub(crate) struct PayloadRows {
    pub(crate) journal: [u8; 16],
    pub(crate) rank: u32,
    /// Of the tree that the rows are in.
    pub(crate) generation: u32,
    pub(crate) first: EventId,
    pub(crate) epoch: u64,
}

impl PayloadRows {
    /// Chunks in order, each a row's value.
    pub(crate) fn encode(&self, payloads: &[Option<Bytes>]) -> Vec<Vec<u8>> {
        let mut string = BytesMut::new();
        for payload in payloads {
            let bytes = payload.as_deref().unwrap_or_default();
            string.put_u32(bytes.len() as u32);
            string.put_slice(bytes);
        }
        string.chunks(CHUNK_BYTES).enumerate().map(|(index, chunk)| self.chunk(index as u32, chunk)).collect()
    }

    fn chunk(&self, index: u32, bytes: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(CHUNK_HEADER_BYTES + bytes.len());
        row.put_slice(&PAYLOAD_MAGIC);
        row.put_slice(&self.journal);
        row.put_u32(self.rank);
        row.put_u32(self.generation);
        row.put_u64(self.first);
        row.put_u32(index);
        row.put_u64(self.epoch);
        row.put_u32(bytes.len() as u32);
        row.put_u32(crc32c::crc32c_append(crc32c::crc32c(&row), bytes));
        row.put_slice(bytes);
        row
    }
}

/// One row of payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PayloadChunk {
    pub(crate) journal: [u8; 16],
    pub(crate) rank: u32,
    /// Of the tree that the rows are in.
    pub(crate) generation: u32,
    pub(crate) first: EventId,
    pub(crate) index: u32,
    pub(crate) epoch: u64,
    pub(crate) bytes: Bytes,
}

impl PayloadChunk {
    /// Reads a chunk from the start of `bytes`, which may go on after it; `None` if it is none or was changed.
    pub(crate) fn parse_prefix(bytes: &Bytes) -> Option<(Self, usize)> {
        if bytes.len() < CHUNK_HEADER_BYTES || bytes[..AT_JOURNAL] != PAYLOAD_MAGIC {
            return None;
        }
        let u32_at = |at: usize| Some(u32::from_be_bytes(bytes[at..at + 4].try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_be_bytes(bytes[at..at + 8].try_into().ok()?));
        let len = u32_at(AT_LEN)? as usize;
        if len > CHUNK_BYTES || bytes.len() < CHUNK_HEADER_BYTES + len {
            return None;
        }
        let body = bytes.slice(CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + len);
        if crc32c::crc32c_append(crc32c::crc32c(&bytes[..AT_CRC]), &body) != u32_at(AT_CRC)? {
            return None;
        }
        let chunk = Self {
            journal: bytes[AT_JOURNAL..AT_RANK].try_into().ok()?,
            rank: u32_at(AT_RANK)?,
            generation: u32_at(AT_GENERATION)?,
            first: u64_at(AT_FIRST)?,
            index: u32_at(AT_CHUNK)?,
            epoch: u64_at(AT_EPOCH)?,
            bytes: body,
        };
        Some((chunk, CHUNK_HEADER_BYTES + len))
    }
}

/// The payloads of a frame from the chunks of its rows: one entry an event.
///
/// # Errors
/// What does not fit the length and crc that the frame names.
pub(crate) fn join_payloads(
    chunks: &[Bytes],
    len: u32,
    crc: u32,
    count: u32,
) -> Result<Vec<Option<Bytes>>, String> {
    let string = match chunks {
        [one] => one.clone(),
        many => many.concat().into(),
    };
    if string.len() != len as usize {
        return Err(format!("payloads of {} bytes, the frame names {len}", string.len()));
    }
    let found = crc32c::crc32c(&string);
    if found != crc {
        return Err(format!("payload crc mismatch: the frame names {crc:#010x}, computed {found:#010x}"));
    }
    let mut payloads = Vec::with_capacity(count.min(len) as usize);
    let mut at = 0;
    while at < string.len() {
        let head = string.get(at..at + 4).ok_or("a payload's length is cut")?;
        let len = u32::from_be_bytes(head.try_into().map_err(|_| "a payload's length is cut")?) as usize;
        let end = at.checked_add(4 + len).filter(|end| *end <= string.len()).ok_or("a payload is cut")?;
        payloads.push((len > 0).then(|| string.slice(at + 4..end)));
        at = end;
    }
    if payloads.len() != count as usize {
        return Err(format!("{} payloads for {count} events", payloads.len()));
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_s_table_is_that_of_the_code() {
        crate::codec::tests::assert_documented(
            "Payload row",
            &[
                (0, "magic"),
                (AT_JOURNAL, "journal"),
                (AT_RANK, "rank"),
                (AT_GENERATION, "generation"),
                (AT_FIRST, "first"),
                (AT_CHUNK, "chunk"),
                (AT_EPOCH, "epoch"),
                (AT_LEN, "length"),
                (AT_CRC, "crc"),
                (CHUNK_HEADER_BYTES, "bytes"),
            ],
        );
    }
}
