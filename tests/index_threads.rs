//! The index under many readers beside its writers: what a reader sees is always the state after some event.
#![allow(clippy::unwrap_used, reason = "a test may end by panicking")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvjournal::event::{Block, BlockHash, EventData, Removed, Stored, TokensHash};
use kvjournal::index::{Index, MatchOptions, StreamId};

/// Blocks of each prompt, and those that its writer takes away and stores again.
const LENGTH: u64 = 40;
const STAYS: u64 = 25;
const STREAMS: u64 = 3;
const ROUNDS: u64 = 3_000;

fn stored(stream: u64, blocks: std::ops::Range<u64>) -> EventData {
    let hash = |at| BlockHash(stream << 32 | at);
    let block = |at| Block { block_hash: hash(at), tokens_hash: Some(TokensHash(at)), mm: None };
    EventData::Stored(Stored {
        parent: blocks.start.checked_sub(1).map(hash),
        blocks: blocks.map(block).collect(),
        ..Stored::default()
    })
}

/// The first block goes last: a reader that saw half of the event would count any number of blocks.
fn removed(stream: u64) -> EventData {
    let block_hashes = (STAYS..LENGTH).rev().map(|at| BlockHash(stream << 32 | at)).collect();
    EventData::Removed(Removed { block_hashes, ..Removed::default() })
}

#[test]
fn readers_never_see_half_an_event() {
    let index = Index::new();
    let prompt: Vec<TokensHash> = (0..LENGTH).map(TokensHash).collect();
    for stream in 0..STREAMS {
        index.apply(StreamId::new(stream, 0), &stored(stream, 0..LENGTH));
    }
    let done = AtomicBool::new(false);
    let [whole, cut] = [(); 2].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let matches = index.find_matches(&prompt, MatchOptions::default());
                    assert_eq!(matches.len() as u64, STREAMS, "each stream holds the beginning at any time");
                    for found in matches {
                        match u64::from(found.total()) {
                            LENGTH => whole.fetch_add(1, Ordering::Relaxed),
                            STAYS => cut.fetch_add(1, Ordering::Relaxed),
                            other => panic!("{other} blocks: half an event"),
                        };
                    }
                }
            });
        }
        let writers: Vec<_> = (0..STREAMS)
            .map(|stream| {
                let index = &index;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        index.apply(StreamId::new(stream, 0), &removed(stream));
                        std::thread::yield_now();
                        index.apply(StreamId::new(stream, 0), &stored(stream, STAYS..LENGTH));
                        // A worker that comes and goes.
                        index.apply(StreamId::new(100 + stream, 0), &stored(stream, 1..LENGTH));
                        index.remove_worker((100 + stream).into());
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let [whole, cut] = [whole, cut].map(AtomicU64::into_inner);
    assert!(whole > 0 && cut > 0, "both states were seen: {whole} and {cut} times");
    let expected = Index::new();
    expected.apply(StreamId::new(0, 0), &stored(0, 0..LENGTH));
    assert_eq!(index.digest(StreamId::new(0, 0)), expected.digest(StreamId::new(0, 0)));
    assert_eq!(index.streams().len() as u64, STREAMS, "nothing is kept of the workers that went");
}
