//! The index gives memory back, and knows how much it has.
//!
//! The counting allocator is the process's own, so this file has one test.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may end by panicking, and prints for people"
)]

use kvjournal::event::{
    Block, BlockHash, Cleared, EventData, Placement, Removed, StorageTier, Stored, TokensHash,
};
use kvjournal::index::{Index, StreamId};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that may stay whatever is held: a page of each kind, small tables.
const SPARE: usize = 128 * 1024;

/// Bytes of a page of blocks and one of nodes: 512 of each.
const PAGES: usize = 512 * (16 + 12);

fn spread(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Block `at` of a chain has the number `chain << 12 | at`.
fn stored(chain: u64, at: std::ops::Range<u64>, placement: &Placement, lora: Option<&str>) -> EventData {
    let hash = |at: u64| BlockHash(spread(chain << 12 | at));
    let block = |at| Block {
        block_hash: hash(at),
        tokens_hash: Some(TokensHash(spread(!(chain << 12 | at)))),
        mm: None,
    };
    EventData::Stored(Stored {
        parent: at.start.checked_sub(1).map(hash),
        blocks: at.map(block).collect(),
        placement: placement.clone(),
        lora: lora.map(Into::into),
        ..Stored::default()
    })
}

fn removed(chain: u64, at: std::ops::Range<u64>, placement: &Placement) -> EventData {
    let block_hashes = at.map(|at| BlockHash(spread(chain << 12 | at))).collect();
    EventData::Removed(Removed { block_hashes, placement: placement.clone() })
}

struct Measured {
    index: Index,
    before: usize,
}

impl Measured {
    fn new() -> Self {
        let before = ALLOCATOR.current_usage();
        Self { index: Index::new(), before }
    }

    fn bytes(&self) -> usize {
        ALLOCATOR.current_usage() - self.before
    }

    fn check(&self, what: &str, allowed: usize) {
        let (bytes, counters) = (self.bytes(), self.index.counters());
        eprintln!("{what}: {bytes} bytes, {counters:?}");
        assert!(bytes <= allowed, "{what}: {bytes} bytes, allowed {allowed}");
        // Within 15 %, and the few kilobytes of what is small.
        assert!(
            counters.heap_bytes.abs_diff(bytes) <= bytes * 15 / 100 + 4096,
            "{what}: {bytes} {counters:?}"
        );
    }
}

#[test]
fn memory_is_what_is_live_and_is_told() {
    let stream = StreamId::new(1, 0);
    let nowhere = Placement::default();
    let fill = |measured: &Measured, chains: u64| {
        for chain in 0..chains {
            for at in (0..300).step_by(5) {
                measured.index.apply(stream, &stored(chain, at..at + 5, &nowhere, None));
            }
        }
    };
    // Long chains.
    let long = Measured::new();
    fill(&long, 1000);
    long.check("300,000 blocks", 300_000 * 44);
    drop(long);

    // A million branches that do not last, in either order, below chains that do.
    let branches = Measured::new();
    fill(&branches, 10);
    let base = branches.bytes();
    for chain in 0..1_000_000_u64 {
        let event = stored(1000 + chain, 0..3, &nowhere, None);
        let EventData::Stored(mut below) = event else { unreachable!("it is stored") };
        below.parent = Some(BlockHash(spread(((chain % 10) << 12) | (chain % 300))));
        branches.index.apply(stream, &EventData::Stored(below));
        let mut gone = removed(1000 + chain, 0..3, &nowhere);
        if let EventData::Removed(removed) = &mut gone
            && chain % 2 == 0
        {
            removed.block_hashes.reverse();
        }
        branches.index.apply(stream, &gone);
    }
    branches.check("after a million branches", base + base / 4 + PAGES);
    drop(branches);

    // Many at once, of which a few scattered ones stay.
    let peak = Measured::new();
    fill(&peak, 500);
    for chain in (0..500).filter(|chain| chain % 50 != 0) {
        peak.index.apply(stream, &removed(chain, 0..300, &nowhere));
    }
    for chain in (0..500).step_by(50) {
        peak.index.apply(stream, &removed(chain, 3..300, &nowhere));
    }
    peak.check("30 of 150,000 blocks are left", SPARE);
    fill(&peak, 500);
    let cleared = Cleared { tiers: vec![StorageTier::Device], ..Cleared::default() };
    peak.index.apply(stream, &EventData::Cleared(cleared));
    peak.check("after a clear", SPARE);
    drop(peak);

    // Streams come and go, with placements, adapters and models of their own.
    let streams = Measured::new();
    for round in 0..3_u64 {
        for worker in 0..100 {
            let id = StreamId::new(worker, round as u32);
            streams.index.set_model(id, Some(&format!("model {round} of {worker}")));
            let placement =
                Placement { medium: Some(format!("medium {worker} {round}")), ..Placement::default() };
            for chain in 0..4 {
                let lora = format!("adapter {chain} {worker}");
                for placement in [&placement, &nowhere] {
                    streams.index.apply(id, &stored(chain, 0..250, placement, Some(&lora)));
                }
            }
        }
        streams.check("100 streams of 1,000 blocks", 100 * 1000 * 44);
        for worker in 0..100_u64 {
            assert_eq!(streams.index.remove_worker(worker.into()), 1);
        }
        streams.check("without them", SPARE);
    }
}
