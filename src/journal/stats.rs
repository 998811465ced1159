//! An open journal's figures.

/// Figures of an open journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events written since it was opened.
    pub events: u64,
    /// Frames written since it was opened.
    pub frames: u64,
    /// Bytes of frames written since it was opened.
    pub frame_bytes: u64,
    /// Syncs since it was opened.
    pub syncs: u64,
    /// Rows of trimmed frames deleted since it was opened.
    pub trimmed_rows: u64,
    /// Events that wait for the writer.
    pub queued_events: usize,
    /// Bytes that wait for the writer.
    pub queued_bytes: usize,
    /// Appends that had to wait for room in the queue.
    pub queue_waits: u64,
    /// Bytes of frames and payloads in the tails of all ranks.
    pub tail_bytes: usize,
}
