//! What is appended.

use bytes::Bytes;

use crate::event::{EngineTime, EventData};

/// An event to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What it says.
    pub data: EventData,
    /// The engine's time, kept as it is.
    pub engine_time: Option<EngineTime>,
    /// The engine's own bytes, kept as they are.
    pub payload: Option<Bytes>,
}

impl From<EventData> for NewEvent {
    fn from(data: EventData) -> Self {
        Self { data, engine_time: None, payload: None }
    }
}

/// Which batch of an engine events came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where the batch came from, at most [`SourceCursor::ENDPOINT_BYTES_MAX`](crate::codec::SourceCursor::ENDPOINT_BYTES_MAX) bytes.
    pub endpoint: String,
    /// The engine's number of the batch.
    pub sequence: u64,
    /// 128-bit hash of the whole batch.
    pub hash: u128,
}
