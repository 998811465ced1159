//! The bytes of sled 0.34.7's log: segment headers, message headers, messages. Pure; no file is read here.
//!
//! ```text
//! segment  20 bytes: crc32 ^ !0 (4) | lsn ^ i64::MAX (8) | max stable lsn ^ i64::MAX (8); then messages
//! message  crc32 ^ !0 (4) | kind (1) | len (varint) | segment number (varint) | page id (varint) | body (len)
//! ```
//!
//! Numbers are little-endian. A segment's crc covers the 16 bytes after it; a message's covers the body, then the
//! header behind the crc. A message never starts in the last 32 bytes of a segment.

/// A position in sled's log. It only grows; the place in the file is another matter, since segments are reused.
pub(crate) type Lsn = i64;

/// sled's `SEG_HEADER_LEN`.
pub(super) const SEGMENT_HEADER_BYTES: usize = 20;

/// sled's `MAX_MSG_HEADER_LEN`.
pub(super) const MESSAGE_HEADER_BYTES_MAX: usize = 32;

/// Bytes that sled's `read_message` takes in its first read, zeros where the file ends before.
const FIRST_READ_BYTES: usize = 128;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) lsn: Lsn,
    /// The log was whole up to here when the segment was begun.
    pub(super) max_stable_lsn: Lsn,
}

impl SegmentHeader {
    /// Mirrors `From<[u8; SEG_HEADER_LEN]> for SegmentHeader`; `None` where sled says `ok: false`.
    pub(super) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<Self> {
        let (stored, rest) = bytes.split_first_chunk::<4>()?;
        if crc32fast::hash(rest) != !u32::from_le_bytes(*stored) {
            return None;
        }
        let (lsn, max_stable_lsn) = rest.split_first_chunk::<8>()?;
        let max_stable_lsn = max_stable_lsn.first_chunk::<8>()?;
        Some(Self {
            lsn: Lsn::from_le_bytes(*lsn) ^ Lsn::MAX,
            max_stable_lsn: Lsn::from_le_bytes(*max_stable_lsn) ^ Lsn::MAX,
        })
    }
}

/// sled's `MessageKind`, without `Corrupted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Canceled,
    Cap,
    BatchManifest,
    Free,
    Counter,
    InlineMeta,
    BlobMeta,
    InlineNode,
    BlobNode,
    InlineLink,
    BlobLink,
}

impl Kind {
    /// Mirrors `From<u8> for MessageKind`; `None` where sled says `Corrupted`.
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Canceled,
            2 => Self::Cap,
            3 => Self::BatchManifest,
            4 => Self::Free,
            5 => Self::Counter,
            6 => Self::InlineMeta,
            7 => Self::BlobMeta,
            8 => Self::InlineNode,
            9 => Self::BlobNode,
            10 => Self::InlineLink,
            11 => Self::BlobLink,
            _ => return None,
        })
    }

    /// Whether something would be missed without it. The rest fills and brackets.
    pub(super) fn is_data(self) -> bool {
        !matches!(self, Self::Canceled | Self::Cap | Self::BatchManifest)
    }
}

/// How a message changes the page it names: sled's `LogKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replace,
    Link,
    Free,
}

/// The start of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    crc32: u32,
    /// `None` is sled's `Corrupted`.
    pub(super) kind: Option<Kind>,
    pub(super) body_len: u64,
    pub(super) segment_number: u64,
    pub(super) page_id: u64,
    pub(super) header_len: usize,
}

impl MessageHeader {
    /// Mirrors `MessageHeader::deserialize` over a read that is padded with zeros. All zeros are a header too, of
    /// kind `Corrupted`.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let mut padded = [0; MESSAGE_HEADER_BYTES_MAX];
        let len = bytes.len().min(padded.len());
        padded[..len].copy_from_slice(&bytes[..len]);
        let crc32 = u32::from_le_bytes([padded[0], padded[1], padded[2], padded[3]]);
        let kind = Kind::decode(padded[4]);
        let mut at = 5;
        let mut next = || {
            let (number, len) = varint(&padded[at..]).expect("three numbers of nine bytes fit behind five");
            at += len;
            number
        };
        let (body_len, segment_number, page_id) = (next(), next(), next());
        Self { crc32, kind, body_len, segment_number, page_id, header_len: at }
    }
}

/// Mirrors `u64::deserialize`: the number and the bytes it took, or `None` where the bytes end before it does.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    Some(match first {
        0..=240 => (u64::from(first), 1),
        241..=248 => (240 + 256 * (u64::from(first) - 241) + u64::from(*bytes.get(1)?), 2),
        249 => (2288 + 256 * u64::from(*bytes.get(1)?) + u64::from(*bytes.get(2)?), 3),
        250..=255 => {
            let len = usize::from(first) - 247;
            let mut number = [0; 8];
            number[..len].copy_from_slice(bytes.get(1..=len)?);
            (u64::from_le_bytes(number), len + 1)
        }
    })
}

/// What stands at a place in the log: sled's `LogRead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A change of a page. `blob` is the file that holds its body.
    Page { change: Change, page_id: u64, blob: Option<Lsn>, len: usize },
    /// To be passed over.
    Canceled { len: usize },
    /// The segment holds nothing more.
    Cap,
    /// The messages up to `last` count together or not at all.
    BatchManifest { last: Lsn, len: usize },
    /// Not a message, or not one of this segment's present use.
    Corrupted,
    /// The file ends before the message does: sled gets an error here, not `Corrupted`, or panics.
    Unreadable,
}

/// Mirrors `read_message` on the bytes of one segment, which may end early, for the message at `at`.
///
/// `at` is behind the segment's header and at least [`MESSAGE_HEADER_BYTES_MAX`] before its end.
pub(super) fn read_message(segment: &[u8], at: usize, number: u64, segment_size: usize) -> Message {
    let Some(rest) = segment.get(at..) else { return Message::Unreadable };
    let header = MessageHeader::decode(rest);
    let Some(room) = segment_size.checked_sub(at + header.header_len) else { return Message::Corrupted };
    let Some(kind) = header.kind else { return Message::Corrupted };
    let Ok(body_len) = usize::try_from(header.body_len) else { return Message::Corrupted };
    if body_len > room {
        return Message::Corrupted;
    }
    let end = header.header_len + body_len;
    let mut first_read = [0; FIRST_READ_BYTES];
    let message = match rest.get(..end) {
        Some(message) => message,
        // sled reads short messages with its first read and takes the zeros behind the end of the file along.
        None if end <= FIRST_READ_BYTES => {
            first_read[..rest.len()].copy_from_slice(rest);
            &first_read[..end]
        }
        None => return Message::Unreadable,
    };
    let (head, body) = message.split_at(header.header_len);
    if !crc_matches(&header, head, body) || header.segment_number != number {
        return Message::Corrupted;
    }
    let lsn = || <[u8; 8]>::try_from(body).map(Lsn::from_le_bytes);
    let page = |change, blob| Message::Page { change, page_id: header.page_id, blob, len: end };
    match kind {
        Kind::Canceled => Message::Canceled { len: end },
        Kind::Cap => Message::Cap,
        // sled panics over another length.
        Kind::BatchManifest => {
            lsn().map_or(Message::Unreadable, |last| Message::BatchManifest { last, len: end })
        }
        Kind::Free => page(Change::Free, None),
        Kind::Counter | Kind::InlineMeta | Kind::InlineNode => page(Change::Replace, None),
        Kind::InlineLink => page(Change::Link, None),
        Kind::BlobMeta | Kind::BlobNode => {
            lsn().map_or(Message::Unreadable, |id| page(Change::Replace, Some(id)))
        }
        Kind::BlobLink => lsn().map_or(Message::Unreadable, |id| page(Change::Link, Some(id))),
    }
}

/// Mirrors `calculate_message_crc32`.
pub(super) fn crc_matches(header: &MessageHeader, head: &[u8], body: &[u8]) -> bool {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(body);
    hasher.update(&head[4..]);
    !hasher.finalize() == header.crc32
}

/// Whether a message may start at this place of a segment: sled's `valid_entry_offset`.
pub(super) fn may_start_at(progress: usize, segment_size: usize) -> bool {
    progress >= SEGMENT_HEADER_BYTES && progress + MESSAGE_HEADER_BYTES_MAX <= segment_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_sled_writes_them() {
        let cases: [(&[u8], u64); 8] = [
            (&[0], 0),
            (&[240], 240),
            (&[241, 1], 241),
            (&[248, 255], 2287),
            (&[249, 0, 0], 2288),
            (&[249, 255, 255], 67823),
            (&[250, 0xff, 0xff, 0xff], 0x00ff_ffff),
            (&[255, 1, 2, 3, 4, 5, 6, 7, 8], 0x0807_0605_0403_0201),
        ];
        for (bytes, number) in cases {
            assert_eq!(varint(bytes), Some((number, bytes.len())));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn zeros_are_neither_a_segment_header_nor_a_message() {
        assert_eq!(SegmentHeader::decode(&[0; SEGMENT_HEADER_BYTES]), None);
        assert_eq!(read_message(&[0; 256], SEGMENT_HEADER_BYTES, 0, 256), Message::Corrupted);
    }

    #[test]
    fn a_message_that_the_end_of_the_file_cuts_is_unreadable() {
        let mut segment = vec![0; 64];
        segment[24] = 10;
        segment[25..29].copy_from_slice(&[250, 0, 1, 0]);
        assert_eq!(read_message(&segment, 20, 0, 1 << 16), Message::Unreadable);
        assert_eq!(read_message(&segment, 65, 0, 1 << 16), Message::Unreadable);
        assert_eq!(read_message(&segment, 20, 0, 256), Message::Corrupted);
    }
}
