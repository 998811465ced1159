//! The seam: what a log under measurement does, and the feed that holds the clock while it does it.
//!
//! The feed stamps publishes and acks itself, for every side alike, so that no side can be timed differently.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use kvjournal::journal::NewEvent;

/// What is published in one go: one event, or a frame of many.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The event as a value, for a log that encodes events itself; `None` for a frame.
    pub(crate) event: Option<NewEvent>,
    /// The encoded form, for a log that takes bytes.
    pub(crate) bytes: Bytes,
    /// Events in it.
    pub(crate) events: u64,
}

/// A log on an empty folder, with one producer.
pub(crate) trait DurableLog {
    /// Publishes what the feed gives, in order, until it gives no more, and reports every ack to it.
    ///
    /// An ack means what the log's setting makes of it. The log keeps [`Feed::has_room`]. It may be called again
    /// with another feed, to go on.
    fn publish_all(&mut self, feed: &mut Feed<'_>) -> Result<()>;

    /// The process that does a part of the work outside this one, whose CPU time and writes count too.
    fn server_pid(&self) -> Option<u32> {
        None
    }
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most messages.
    pub(crate) messages: u64,
    /// Longest time in which messages are given out; acks still outstanding then are waited for.
    pub(crate) time: Duration,
    /// Most messages that are published and not yet acked.
    pub(crate) window: u64,
}

/// Gives out messages, over and over, until a limit is reached, and keeps the times.
#[derive(Debug)]
pub(crate) struct Feed<'a> {
    messages: &'a [Message],
    limits: Limits,
    started: Instant,
    /// When each message was given out, since the start.
    published: Vec<Duration>,
    /// Nanoseconds from being given out to the ack, in the order of the messages.
    latencies_ns: Vec<u64>,
    bytes: u64,
    events: u64,
    finished: Duration,
    /// Time is up: once closed, a feed stays so.
    closed: bool,
}

impl<'a> Feed<'a> {
    /// A feed whose clock runs from now.
    pub(crate) fn start(messages: &'a [Message], limits: Limits) -> Self {
        Self {
            messages,
            limits,
            started: Instant::now(),
            published: Vec::new(),
            latencies_ns: Vec::new(),
            bytes: 0,
            events: 0,
            finished: Duration::ZERO,
            closed: messages.is_empty(),
        }
    }

    /// The next message, whose clock runs from now; `None` once a limit is reached, and ever after.
    pub(crate) fn next(&mut self) -> Option<&'a Message> {
        let now = self.started.elapsed();
        let given = self.published.len() as u64;
        self.closed |= given >= self.limits.messages || now >= self.limits.time;
        if self.closed {
            return None;
        }
        let message = &self.messages[given as usize % self.messages.len()];
        self.published.push(now);
        self.bytes += message.bytes.len() as u64;
        self.events += message.events;
        Some(message)
    }

    /// Whether one more message may be in flight.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight() < self.limits.window
    }

    /// Messages that were given out and not acked yet.
    pub(crate) fn in_flight(&self) -> u64 {
        (self.published.len() - self.latencies_ns.len()) as u64
    }

    /// Most messages in flight.
    pub(crate) fn window(&self) -> u64 {
        self.limits.window
    }

    /// Messages that were acked.
    pub(crate) fn acked(&self) -> u64 {
        self.latencies_ns.len() as u64
    }

    /// The first `count` messages of this feed are acked.
    pub(crate) fn acked_through(&mut self, count: u64) {
        let now = self.started.elapsed();
        let from = self.latencies_ns.len();
        let to = usize::try_from(count).expect("fewer messages than memory").min(self.published.len());
        if to > from {
            let waits = self.published[from..to].iter().map(|published| (now - *published).as_nanos() as u64);
            self.latencies_ns.extend(waits);
            self.finished = now;
        }
    }

    /// What was measured: bytes and events published, the time up to the last ack, the latencies in nanoseconds.
    pub(crate) fn finish(self) -> Timing {
        Timing {
            unacked: self.in_flight(),
            events: self.events,
            bytes: self.bytes,
            elapsed: self.finished,
            latencies_ns: self.latencies_ns,
        }
    }
}

/// The times of one run.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies_ns: Vec<u64>,
    /// Messages never acked: a log that leaves any has broken its promise.
    pub(crate) unacked: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        vec![Message { event: None, bytes: Bytes::from_static(b"four"), events: 2 }]
    }

    #[test]
    fn a_feed_ends_at_its_count_and_counts_what_was_acked() {
        let messages = messages();
        let limits = Limits { messages: 3, time: Duration::from_secs(60), window: 2 };
        let mut feed = Feed::start(&messages, limits);
        assert!(feed.next().is_some() && feed.has_room());
        assert!(feed.next().is_some() && !feed.has_room());
        feed.acked_through(1);
        assert_eq!((feed.in_flight(), feed.acked()), (1, 1));
        assert!(feed.next().is_some());
        assert!(feed.next().is_none());
        feed.acked_through(9);
        let timing = feed.finish();
        assert_eq!((timing.events, timing.bytes, timing.unacked), (6, 12, 0));
        assert_eq!(timing.latencies_ns.len(), 3);
    }

    #[test]
    fn a_feed_without_time_gives_nothing() {
        let messages = messages();
        let limits = Limits { messages: 3, time: Duration::ZERO, window: 2 };
        assert!(Feed::start(&messages, limits).next().is_none());
    }
}
