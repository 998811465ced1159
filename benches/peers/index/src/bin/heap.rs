//! Heap bytes a live block, ours and Dynamo's, from the same events: what stays allocated once all are applied.
#![allow(clippy::print_stdout, reason = "it prints for people")]

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{RadixTree, SyncIndexer, WorkerTask};
use kvjournal::engine::sim::CacheSpec;
use kvjournal::index::{Index, StreamId};
use kvjournal_index_peers::streams::{self, Announced};
use kvjournal_index_peers::{dynamo, table};
use peak_alloc::PeakAlloc;
use table::{Bar, Table};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Heap bytes a live block of kvjournal's index and of Dynamo's, from the same events.
#[derive(Debug, Parser)]
struct Args {
    /// Requests in Mooncake's trace format; made up with the same statistics without it.
    #[arg(long, env = "KVJ_TRACE")]
    trace: Option<PathBuf>,
    /// Caches of a tenth of the size: shows that it works.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let requests = streams::requests(args.trace.as_deref(), if args.quick { 2000 } else { 12_000 })?;
    let mut table = Table::new(false, 1);
    // Blocks of 128 tokens, so that the trace has enough different ones to fill the largest cache.
    for (workers, blocks) in [(1, 300_000), (8, 20_000)] {
        let blocks = if args.quick { blocks / 10 } else { blocks };
        let cache = CacheSpec { blocks, block_size: 128 };
        // As many events as requests: enough to fill the caches and then churn in them.
        let events = streams::load(&requests, workers, cache, requests.len() as u64)?;
        compare(&mut table, workers, &events);
    }
    Ok(())
}

fn compare(table: &mut Table, workers: u32, events: &[Announced]) {
    let stream = |worker: u64| StreamId::new(worker, 0);
    let mut live = 0;
    let ours = growth(|| {
        let index = Index::new();
        events.iter().for_each(|(worker, event)| index.apply(stream(*worker), event));
        live = index.counters().blocks;
        index
    });
    let tree = growth(|| {
        let mut tree = RadixTree::new();
        for (id, (worker, event)) in events.iter().enumerate() {
            let taken = tree.apply_event(dynamo::event(*worker, id as u64, event));
            taken.expect("Dynamo takes every event of an engine that evicts leaves first");
        }
        tree
    });
    let compressed = growth(|| {
        let tree = ConcurrentRadixTreeCompressed::new();
        let (sender, receiver) = flume::bounded(1024);
        std::thread::scope(|scope| {
            let events = events.iter().enumerate();
            scope.spawn(move || {
                for (id, (worker, event)) in events {
                    let event = WorkerTask::Event(dynamo::event(*worker, id as u64, event));
                    sender.send(event).expect("its thread takes events until we end");
                }
            });
            tree.worker(receiver, None).expect("its thread ends in order");
        });
        tree
    });
    let name = |what: &str| format!("{what}, {workers} x {} blocks", live / workers as usize);
    let each = |bytes: usize| vec![bytes as f64 / live as f64];
    table.row(&name("our bytes a block"), Bar::None, each(ours));
    table.row(&name("RadixTree"), Bar::None, each(tree));
    // Its table of a worker's blocks belongs to its thread and is gone with it: a lower bound.
    table.row(&name("ConcurrentRadixTreeCompressed, tree alone"), Bar::None, each(compressed));
    table.row(&name("ours, times RadixTree's"), Bar::AtMost(0.5), vec![ours as f64 / tree as f64]);
}

/// Bytes that stay allocated by what is built, before it is dropped.
fn growth<T>(build: impl FnOnce() -> T) -> usize {
    let before = HEAP.current_usage();
    let built = build();
    let after = HEAP.current_usage();
    drop(built);
    after.saturating_sub(before)
}
