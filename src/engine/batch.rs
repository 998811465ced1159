//! A batch: what an engine puts into one message, `[ts, [events], dp_rank]` in msgpack.

use std::ops::Range;

use crate::event::{DpRank, EngineTime, EventData};

use super::fields::EventProblem;
use super::msgpack::{Cursor, Malformed, Token};
use super::rules::{DecodeOptions, Note, rule};

/// Longest batch that is decoded: 16 MiB. A prompt of 131,072 tokens makes 0.7 MiB.
pub const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most events of a batch that are decoded.
pub const EVENTS_MAX: usize = 16_384;

/// A batch, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The engine's time.
    pub time: Option<EngineTime>,
    /// The rank; `None` means that of the endpoint.
    pub rank: Option<DpRank>,
    /// The events, in order.
    pub events: Vec<DecodedEvent>,
}

/// One event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedEvent {
    /// What it says, by the [rules](super::rules).
    pub data: EventData,
    /// Its own bytes, as a range of the batch's.
    pub payload: Range<usize>,
    /// Why its blocks can never match a prompt, if so.
    pub notes: Vec<Note>,
    /// Why it was not understood, if so; it is kept as [`EventData::Unknown`] then.
    pub problem: Option<EventProblem>,
}

/// A batch that is damaged, with what could be read of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged batch at byte {offset}: {fault}; {} events were read", read.events.len())]
pub struct BatchError {
    /// What is wrong.
    pub fault: BatchFault,
    /// Where, from the start of the batch.
    pub offset: usize,
    /// What could be read: whole events only.
    pub read: Batch,
}

/// What is wrong with a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// It is no msgpack.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It is msgpack, but no batch.
    #[error("a batch is an array of time, events and rank: {0}")]
    NoBatch(&'static str),
    /// Longer than any batch.
    #[error("a batch of {len} bytes, the longest has {BATCH_BYTES_MAX}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// More events than any batch has.
    #[error("{count} events, the most are {EVENTS_MAX}")]
    TooMany {
        /// Events that are claimed.
        count: usize,
    },
    /// All of the batch was read, and bytes are left.
    #[error("{len} bytes after the end of the batch")]
    Trailing {
        /// Bytes that are left.
        len: usize,
    },
}

/// Decodes a batch.
///
/// # Errors
/// If it is damaged: what is wrong and where, with what could be read before. A batch with bytes after its end was
/// read whole.
pub fn decode_batch(bytes: &[u8], options: DecodeOptions) -> Result<Batch, Box<BatchError>> {
    let mut read = Batch::default();
    let mut cursor = Cursor::new(bytes);
    match decode_into(bytes, &mut cursor, options, &mut read) {
        Ok(()) => Ok(read),
        Err(fault) => Err(Box::new(BatchError { fault, offset: cursor.at(), read })),
    }
}

fn decode_into(
    bytes: &[u8],
    cursor: &mut Cursor<'_>,
    options: DecodeOptions,
    read: &mut Batch,
) -> Result<(), BatchFault> {
    if bytes.len() > BATCH_BYTES_MAX {
        return Err(BatchFault::TooLong { len: bytes.len() });
    }
    let Token::Array(parts) = cursor.token()? else { return Err(BatchFault::NoBatch("it is no array")) };
    if parts < 2 {
        return Err(BatchFault::NoBatch("it has fewer than two parts"));
    }
    read.time = match cursor.token()? {
        Token::Float(seconds) => Some(EngineTime::from_seconds(seconds)),
        Token::Int { bits, negative } if negative || bits <= i64::MAX as u64 => {
            Some(EngineTime::Millis(bits as i64))
        }
        Token::Nil => None,
        _ => return Err(BatchFault::NoBatch("its time is no number")),
    };
    let Token::Array(count) = cursor.token()? else {
        return Err(BatchFault::NoBatch("its events are no array"));
    };
    if count > EVENTS_MAX {
        return Err(BatchFault::TooMany { count });
    }
    // Backed by a byte each, so this is bounded by the input too; growing would hold half as much again.
    read.events.reserve_exact(count);
    for _ in 0..count {
        let start = cursor.at();
        let event = cursor.skip()?;
        let (data, notes, problem) = match rule(event, options) {
            Ok((data, notes)) => (data, notes, None),
            Err((unknown, problem)) => (EventData::Unknown(unknown), Vec::new(), Some(problem)),
        };
        read.events.push(DecodedEvent { data, payload: start..cursor.at(), notes, problem });
    }
    if parts > 2 {
        read.rank = match cursor.token()? {
            Token::Nil => None,
            Token::Int { bits, negative: false } if bits <= u64::from(u32::MAX) => Some(DpRank(bits as u32)),
            _ => return Err(BatchFault::NoBatch("its rank is no number of 32 bits")),
        };
    }
    for _ in 3..parts {
        cursor.skip()?;
    }
    match cursor.left() {
        0 => Ok(()),
        len => Err(BatchFault::Trailing { len }),
    }
}
