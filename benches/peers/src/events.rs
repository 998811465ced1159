//! The events that every side is given, made once before anything is measured.
//!
//! A stand-in for a real workload: runs of blocks that are stored, and now and then removed, with random hashes, so
//! that nothing compresses or repeats. Its mean encoded size is that of the events of a real trace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kvjournal::event::{Block, BlockHash, DpRank, EventData, Removed, Stored, TokensHash};
use kvjournal::journal::{Config, Journal, NewEvent};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::log::Message;

/// Blocks in a `Stored`, inclusive: at 18 bytes a block, with the `Removed` between, 272 bytes an event on average.
const STORED_BLOCKS: std::ops::RangeInclusive<u64> = 6..=21;
/// One event in this many removes blocks.
const REMOVED_EVERY: u64 = 8;

/// Longest wait for all events to be on disk, before their frames are read back.
const DURABLE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Seeded events, the same in every run.
pub(crate) fn stand_in(count: usize, seed: u64) -> Vec<EventData> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let blocks = rng.random_range(STORED_BLOCKS);
            if rng.random_range(0..REMOVED_EVERY) == 0 {
                let block_hashes = (0..blocks * 2).map(|_| BlockHash(rng.random())).collect();
                EventData::Removed(Removed { block_hashes, ..Removed::default() })
            } else {
                EventData::Stored(stored(&mut rng, blocks))
            }
        })
        .collect()
}

fn stored(rng: &mut StdRng, blocks: u64) -> Stored {
    let parent = Some(BlockHash(rng.random()));
    let mut block = || Block {
        block_hash: BlockHash(rng.random()),
        tokens_hash: Some(TokensHash(rng.random())),
        mm: None,
    };
    Stored { parent, blocks: (0..blocks).map(|_| block()).collect(), ..Stored::default() }
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
    fn events_have_the_stated_mean_size() {
        let mean = mean_bytes(&as_messages(&stand_in(10_000, 1)).unwrap());
        assert!(mean.abs_diff(272) < 8, "{mean}");
    }

    #[test]
    fn frames_are_mostly_full_and_within_their_limit() {
        let frames = as_frames(&stand_in(10_000, 1)).unwrap();
        assert!(mean_bytes(&frames) > 48 * 1024, "{}", mean_bytes(&frames));
        assert!(frames.iter().all(|message| message.bytes.len() <= 64 * 1024));
    }
}
