//! The events that every side is given, made once before anything is measured: those of one worker whose cache holds
//! 20,000 blocks of 512 tokens, serving the requests of a trace, or made-up ones with a trace's statistics.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kvjournal::engine::sim::{CacheSpec, Load, LoadSpec, SimEvent, read_trace};
use kvjournal::event::{DpRank, EventData};
use kvjournal::journal::{Config, Journal, NewEvent};

use crate::log::Message;

/// Longest wait for all events to be on disk, before their frames are read back.
const DURABLE_WAIT_MAX: Duration = Duration::from_secs(60);

/// So many events; the same in every run.
pub(crate) fn load(trace: Option<&Path>, count: u64) -> Result<Vec<EventData>> {
    let spec = LoadSpec {
        cache: CacheSpec { blocks: 20_000, block_size: 512 },
        events_max: Some(count),
        ..LoadSpec::default()
    };
    let load = match trace {
        None => Load::generated(spec)?,
        Some(path) => {
            let what = || format!("read {}", path.display());
            let requests = read_trace(BufReader::new(File::open(path).with_context(what)?));
            Load::looped(spec, requests.collect::<Result<_, _>>().with_context(what)?)?
        }
    };
    Ok(load.flat_map(|batch| batch.events).map(SimEvent::into_data).collect())
}

/// One message an event, encoded as an event is in a frame.
pub(crate) fn as_messages(events: &[EventData]) -> Result<Vec<Message>> {
    let config = bincode::config::standard().with_big_endian().with_fixed_int_encoding();
    events
        .iter()
        .map(|event| {
            let bytes = bincode::encode_to_vec(event, config).context("encode an event")?;
            Ok(Message { event: Some(event.clone().into()), bytes: bytes.into(), events: 1 })
        })
        .collect()
}

/// The same events as the frames that the journal itself makes of them, one message a frame.
pub(crate) fn as_frames(events: &[EventData]) -> Result<Vec<Message>> {
    const RANK: DpRank = DpRank(0);
    let dir = tempfile::tempdir().context("make a folder for frames")?;
    let journal = Journal::open(Config::new(dir.path().join("journal"), None))?;
    // In chunks, so that the queue in front of the writer always has room for the next.
    for chunk in events.chunks(4096) {
        let chunk: Vec<NewEvent> = chunk.iter().cloned().map(NewEvent::from).collect();
        journal.append(RANK, &chunk)?;
    }
    journal.wait_durable(RANK, journal.head(RANK), DURABLE_WAIT_MAX)?;
    let mut reader = journal.read(RANK, 1)?;
    let mut messages = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        let events = frame.events().count() as u64;
        messages.push(Message {
            event: None,
            bytes: Bytes::copy_from_slice(frame.frame().as_bytes()),
            events,
        });
    }
    let framed: u64 = messages.iter().map(|message| message.events).sum();
    ensure!(framed == events.len() as u64, "{framed} of {} events came back in frames", events.len());
    journal.close()?;
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_bytes(messages: &[Message]) -> usize {
        messages.iter().map(|message| message.bytes.len()).sum::<usize>() / messages.len()
    }

    #[test]
    fn events_have_the_size_of_a_trace_s() {
        let mean = mean_bytes(&as_messages(&load(None, 100_000).unwrap()).unwrap());
        assert!(mean.abs_diff(268) < 12, "{mean}");
    }

    #[test]
    fn frames_are_mostly_full_and_within_their_limit() {
        let frames = as_frames(&load(None, 10_000).unwrap()).unwrap();
        assert!(mean_bytes(&frames) > 48 * 1024, "{}", mean_bytes(&frames));
        assert!(frames.iter().all(|message| message.bytes.len() <= 64 * 1024));
    }
}
