//! What is left in the part of a segment that sled's recovery did not take: messages that count, or the rests of an
//! earlier use. Pure.
//!
//! A segment that is used again is not zeroed first, so behind the end of a healthy log may stand whole messages of
//! its former life. They carry the number that the segment had then; only those of its present number, or of one
//! that the snapshot does not cover, are a loss.

use super::format::{
    MESSAGE_HEADER_BYTES_MAX, Message, MessageHeader, SEGMENT_HEADER_BYTES, crc_matches, read_message,
};

/// sled moves what is longer than this part of a segment into a file of its own: `MINIMUM_ITEMS_PER_SEGMENT`.
const MESSAGES_PER_SEGMENT_MIN: usize = 4;

/// Bytes that a search may hash, in segments. Bytes that look like headers everywhere are not worth more.
const HASHED_SEGMENTS_MAX: usize = 32;

/// Why bytes are a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Whole messages of the present log; the first begins at this offset of the file. A crash leaves this only
    /// where writes reached the disk out of order.
    Messages {
        /// Offset in the file.
        first: u64,
    },
    /// A message that is cut or changed, and no whole one after it: a crash in the middle of a write, or damage to
    /// the last message.
    Fragment,
    /// Too many bytes looked like messages to try them all.
    Unclear,
}

/// What stands in the searched part. Offsets are relative to the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    Zeros,
    /// Nothing that counts: rests of an earlier use, or padding.
    Rests,
    Messages {
        first: usize,
    },
    Fragment,
    Unclear,
}

/// What stands next in the log at the place where sled's recovery stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing of this log: zeros, or the rests of an earlier use of the segment.
    Blank,
    /// The mark that the segment holds nothing more.
    Cap,
    /// A message of this log that is cut, or fails its crc.
    Cut,
    /// A whole message, which sled does not take: part of an unfinished batch, or its blob is damaged.
    Whole,
}

/// What stands at `at` of a segment.
pub(super) fn next_at(segment: &[u8], at: usize, number: u64, segment_size: usize) -> Next {
    match read_message(segment, at, number, segment_size) {
        Message::Cap => Next::Cap,
        Message::Page { .. } | Message::Canceled { .. } | Message::BatchManifest { .. } => Next::Whole,
        Message::Corrupted | Message::Unreadable => {
            let header = MessageHeader::decode(segment.get(at..).unwrap_or_default());
            let end = (header.header_len as u64).saturating_add(header.body_len).saturating_add(at as u64);
            let fits = end <= segment_size as u64;
            if header.kind.is_some() && header.segment_number == number && fits {
                Next::Cut
            } else {
                Next::Blank
            }
        }
    }
}

/// What the rest of a segment whose number is known holds from `from` on.
///
/// `first_use`: the segment never held anything else, so that bytes of any kind are of this log.
pub(super) fn of_rest(
    segment: &[u8],
    from: usize,
    number: u64,
    segment_size: usize,
    first_use: bool,
) -> Remains {
    let rest = segment.get(from..).unwrap_or_default();
    if is_zero(rest) {
        return Remains::Zeros;
    }
    // Zeroing the rest of a segment, `advance_snapshot` leaves out its last byte.
    if segment.len() == segment_size && is_zero(&rest[..rest.len() - 1]) {
        return Remains::Rests;
    }
    let next = next_at(segment, from, number, segment_size);
    match search(segment, from, segment_size, |found| found == number, Others::Ignored) {
        Search::Hit { at, .. } => Remains::Messages { first: at },
        Search::GaveUp => Remains::Unclear,
        Search::None { .. } if next == Next::Cap => Remains::Rests,
        Search::None { .. } if next == Next::Cut || first_use => Remains::Fragment,
        Search::None { .. } => Remains::Rests,
    }
}

/// What a segment without a valid header holds from `from` on, as seen by a log that is covered by a snapshot below
/// segment number `min_number`.
pub(super) fn of_headless(segment: &[u8], from: usize, min_number: u64, segment_size: usize) -> Remains {
    if is_zero(segment) {
        return Remains::Zeros;
    }
    match search(
        segment,
        from.max(SEGMENT_HEADER_BYTES),
        segment_size,
        |found| found >= min_number,
        Others::Checked,
    ) {
        Search::Hit { at, .. } => Remains::Messages { first: at },
        Search::GaveUp => Remains::Unclear,
        // Its number is covered, so sled has no more use for it.
        Search::None { other: true } => Remains::Rests,
        Search::None { other: false } => Remains::Fragment,
    }
}

enum Search {
    Hit {
        at: usize,
    },
    /// `other`: there are messages, but none of them is wanted.
    None {
        other: bool,
    },
    GaveUp,
}

/// Whether messages of numbers that are not wanted are checked too, at the cost of hashing them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Checked,
    Ignored,
}

/// Looks for a whole message that holds data and whose segment number is wanted, at every byte.
fn search(
    segment: &[u8],
    from: usize,
    segment_size: usize,
    wanted: impl Fn(u64) -> bool,
    others: Others,
) -> Search {
    let body_max = (segment_size / MESSAGES_PER_SEGMENT_MIN) as u64;
    let mut budget = HASHED_SEGMENTS_MAX * segment_size;
    let mut other = false;
    let mut at = from;
    while at + MESSAGE_HEADER_BYTES_MAX <= segment_size && at < segment.len() {
        // Few values fit this byte, so most places are done with here.
        let kind = segment.get(at + 4).is_some_and(|kind| (1..=11).contains(kind));
        let Some(found) = kind.then(|| message_at(segment, at, body_max)).flatten() else {
            at += 1;
            continue;
        };
        let is_wanted = wanted(found.header.segment_number);
        if !is_wanted && others == Others::Ignored {
            at += 1;
            continue;
        }
        match budget.checked_sub(found.head.len() + found.body.len()) {
            Some(left) => budget = left,
            None => return Search::GaveUp,
        }
        if !crc_matches(&found.header, found.head, found.body) {
            at += 1;
            continue;
        }
        if is_wanted && found.is_data {
            return Search::Hit { at };
        }
        other |= !is_wanted;
        at += found.head.len() + found.body.len();
    }
    Search::None { other }
}

/// A message that may or may not be one: its crc is not checked.
struct Candidate<'a> {
    header: MessageHeader,
    head: &'a [u8],
    body: &'a [u8],
    is_data: bool,
}

fn message_at(segment: &[u8], at: usize, body_max: u64) -> Option<Candidate<'_>> {
    let rest = &segment[at..];
    let header = MessageHeader::decode(rest);
    let is_data = header.kind?.is_data();
    if is_data && header.body_len > body_max {
        return None;
    }
    let (head, rest) = rest.split_at_checked(header.header_len)?;
    let body = rest.get(..usize::try_from(header.body_len).ok()?)?;
    Some(Candidate { header, head, body, is_data })
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |bits, byte| bits | byte) == 0)
}
