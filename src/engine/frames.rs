//! The socket frames around a batch: live messages, and replies to a replay, in the old framing and the new.

/// Sequence that ends a replay.
const END: u64 = u64::MAX;

/// A live message: topic, sequence, batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The topic; empty by default.
    pub topic: &'a [u8],
    /// Number of the batch, from 0 at each start of the engine.
    pub sequence: u64,
    /// The batch.
    pub payload: &'a [u8],
}

/// One reply to a replay, as a DEALER sees it: after the empty delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A batch. Old engines (vLLM up to 0.25, SGLang up to 0.5.21) leave the topic out.
    Batch {
        /// The topic, in the new framing.
        topic: Option<&'a [u8]>,
        /// Number of the batch.
        sequence: u64,
        /// The batch.
        payload: &'a [u8],
    },
    /// The replay is over.
    End,
}

/// Why frames are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramesError {
    /// Another number of frames.
    #[error("{found} frames")]
    Count {
        /// How many.
        found: usize,
    },
    /// The delimiter is not empty.
    #[error("the first frame of a reply is empty, this one has {len} bytes")]
    Delimiter {
        /// Its length.
        len: usize,
    },
    /// The sequence is no u64.
    #[error("a sequence has 8 bytes, or 24 with an epoch, not {len}")]
    Sequence {
        /// Its length.
        len: usize,
    },
}

/// Reads a live message of three frames.
///
/// # Errors
/// What makes them no message.
pub fn decode_message<'a>(frames: &[&'a [u8]]) -> Result<Message<'a>, FramesError> {
    match frames {
        [topic, sequence, payload] => Ok(Message { topic, sequence: read_sequence(sequence)?, payload }),
        other => Err(FramesError::Count { found: other.len() }),
    }
}

/// Reads a reply to a replay, of three frames (old) or four (new).
///
/// # Errors
/// What makes them no reply.
pub fn decode_reply<'a>(frames: &[&'a [u8]]) -> Result<Reply<'a>, FramesError> {
    let (delimiter, topic, sequence, payload) = match frames {
        [delimiter, sequence, payload] => (delimiter, None, sequence, payload),
        [delimiter, topic, sequence, payload] => (delimiter, Some(*topic), sequence, payload),
        other => return Err(FramesError::Count { found: other.len() }),
    };
    if !delimiter.is_empty() {
        return Err(FramesError::Delimiter { len: delimiter.len() });
    }
    match read_sequence(sequence)? {
        END => Ok(Reply::End),
        sequence => Ok(Reply::Batch { topic, sequence, payload }),
    }
}

/// Eight bytes, big-endian; an epoch of 16 bytes may follow (vLLM pull request 57789).
fn read_sequence(frame: &[u8]) -> Result<u64, FramesError> {
    match frame.len() {
        8 | 24 => Ok(frame[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))),
        len => Err(FramesError::Sequence { len }),
    }
}
