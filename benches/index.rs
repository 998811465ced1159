//! The index: bytes a block, block operations a second, prompts a second. `cargo bench --bench index`.
//!
//! Streams are made of chains of 300 blocks, in events of 5; prompts have 100 and 600 blocks. Every figure is the best
//! of several rounds, since machines are shared.
#![allow(clippy::print_stdout, reason = "it prints for people")]

use std::hint::black_box;
use std::time::Instant;

use kvjournal::event::{Block, BlockHash, EventData, Removed, Stored, TokensHash};
use kvjournal::index::{Index, MatchOptions, StreamId};

const EVENT: u64 = 5;
const ROUNDS: usize = 5;
const BATCH: usize = 64;

fn spread(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The hash of a block in a chain; tokens are the same in all streams.
fn tokens(chain: u64, at: u64) -> TokensHash {
    TokensHash(spread(chain << 20 | at))
}

fn hash(chain: u64, at: u64) -> BlockHash {
    BlockHash(spread(!(chain << 20 | at)))
}

/// Chains in events that take turns, so that events of several prompts mix as they do in an engine.
fn stored(chains: u64, length: u64, interleaved: u64) -> Vec<EventData> {
    let mut events = Vec::new();
    for group in 0..chains.div_ceil(interleaved) {
        for start in (0..length).step_by(EVENT as usize) {
            for chain in (group * interleaved..chains).take(interleaved as usize) {
                let block = |at| Block {
                    block_hash: hash(chain, at),
                    tokens_hash: Some(tokens(chain, at)),
                    mm: None,
                };
                events.push(EventData::Stored(Stored {
                    parent: start.checked_sub(1).map(|at| hash(chain, at)),
                    blocks: (start..(start + EVENT).min(length)).map(block).collect(),
                    ..Stored::default()
                }));
            }
        }
    }
    events
}

/// The same events taken back, the last first, as engines evict.
fn removed(stored: &[EventData]) -> Vec<EventData> {
    let take = |event: &EventData| match event {
        EventData::Stored(stored) => {
            let block_hashes = stored.blocks.iter().rev().map(|block| block.block_hash).collect();
            EventData::Removed(Removed { block_hashes, ..Removed::default() })
        }
        other => other.clone(),
    };
    stored.iter().rev().map(take).collect()
}

/// Nanoseconds of the fastest round for each of `count`.
fn best(count: usize, mut round: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / count as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn apply(index: &Index, stream: StreamId, events: &[EventData]) {
    for batch in events.chunks(BATCH) {
        index.apply_batch(stream, batch);
    }
}

fn size(name: &str, streams: u64, chains: u64, length: u64, interleaved: u64, shares: bool) -> Index {
    let index = Index::new();
    for worker in 0..streams {
        let first = if shares { 0 } else { worker * chains };
        let events = stored(first + chains, length, interleaved);
        apply(
            &index,
            StreamId::new(worker, 0),
            &events[events.len() - (events.len() / (first + chains) as usize) * chains as usize..],
        );
    }
    let counters = index.counters();
    println!(
        "{name}: {:.1} bytes a block ({} blocks, {} nodes, {} sets)",
        counters.heap_bytes as f64 / counters.blocks as f64,
        counters.blocks,
        counters.nodes,
        counters.holder_sets
    );
    index
}

fn main() {
    let stream = StreamId::new(0, 0);
    size("1 stream, one chain after another", 1, 1000, 300, 1, false);
    size("1 stream, 8 chains at a time", 1, 1000, 300, 8, false);
    size("8 streams of their own chains", 8, 67, 299, 4, false);
    size("8 streams of the same chains", 8, 67, 299, 4, true);
    for (name, chains, interleaved) in
        [("one after another", 1000, 1), ("8 at a time", 1000, 8), ("20,000 blocks, 8 at a time", 67, 8)]
    {
        let (store, index) = (stored(chains, 300, interleaved), Index::new());
        let take = removed(&store);
        let count = (chains * 300) as usize;
        let mut stores = f64::INFINITY;
        let both = best(2 * count, || {
            let start = Instant::now();
            apply(&index, stream, &store);
            stores = stores.min(start.elapsed().as_nanos() as f64 / count as f64);
            apply(&index, stream, &take);
        });
        println!(
            "apply, {name}: {:.1} M block operations/s ({both:.0} ns; stored {stores:.0} ns)",
            1e3 / both
        );
    }
    // A full cache: each chain that comes takes the place of the oldest.
    let (index, live) = (Index::new(), 1000_usize);
    let events = stored(3 * live as u64, 300, 1);
    let chain = events.len() / (3 * live);
    apply(&index, stream, &events[..live * chain]);
    let gone = removed(&events);
    let gone: Vec<&[EventData]> = gone.chunks(chain).rev().collect();
    let count = 2 * 2 * live * 300;
    let start = Instant::now();
    for (at, come) in events.chunks(chain).enumerate().skip(live) {
        index.apply_batch(stream, gone[at - live]);
        index.apply_batch(stream, come);
    }
    let nanos = start.elapsed().as_nanos() as f64 / count as f64;
    println!(
        "apply, 300,000 blocks, the oldest chain makes room: {:.1} M block operations/s ({nanos:.0} ns)",
        1e3 / nanos
    );
    for streams in [1, 8, 64] {
        let index = Index::new();
        for worker in 0..streams {
            apply(&index, StreamId::new(worker, 0), &stored(100, 600, 4));
        }
        for length in [16, 100, 600] {
            let prompts: Vec<Vec<TokensHash>> =
                (0..100).map(|chain| (0..length).map(|at| tokens(chain, at)).collect()).collect();
            let nanos = best(prompts.len() * 20, || {
                for prompt in prompts.iter().cycle().take(prompts.len() * 20) {
                    black_box(index.find_matches(black_box(prompt), MatchOptions::default()));
                }
            });
            println!("match, {streams} streams, {length} blocks: {:.2} M/s ({nanos:.0} ns)", 1e3 / nanos);
        }
    }
}
