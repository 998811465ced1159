//! Block operations and prompts a second, and a worker's whole path, ours and Dynamo's in turn in each round.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{
    KvIndexerInterface, KvIndexerMetrics, LocalKvIndexer, RadixTree, SyncIndexer, WorkerTask,
};
use dynamo_kv_router::protocols::{LocalBlockHash, RouterEvent};
use kvjournal::engine::sim::CacheSpec;
use kvjournal::event::{DpRank, EventData, TokensHash};
use kvjournal::index::{Index, MatchOptions, StreamId};
use kvjournal::journal::{Config, Journal, NewEvent};
use kvjournal::worker::LocalIndex;
use kvjournal_index_peers::streams::{self, Announced};
use kvjournal_index_peers::{dynamo, table};
use table::{Bar, Table};
use tokio_util::sync::CancellationToken;

const CACHE: CacheSpec = CacheSpec { blocks: 20_000, block_size: 512 };
/// Events that our index is given under one lock, as its followers do.
const BATCH: usize = 64;
/// Events of one `append`, as an engine's message has.
const APPEND: usize = 32;
/// Longest wait for the last event to be durable and applied.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Speed of kvjournal's index and of Dynamo's, in turn in each round.
#[derive(Debug, Parser)]
struct Args {
    /// Requests in Mooncake's trace format; made up with the same statistics without it.
    #[arg(long, env = "KVJ_TRACE")]
    trace: Option<PathBuf>,
    /// Rounds, after one that is thrown away. Default 7, quick 1.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Folder on the disk to write the journal to; made if it is not there. Default: in the build's target folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A twentieth of the events: shows that it works.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let requests = streams::requests(args.trace.as_deref(), 12_000)?;
    let prompts = streams::prompts(&requests, CACHE.block_size)?;
    let count = if args.quick { 20_000 } else { 400_000 };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 7 });
    let default_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/run");
    let dir = args.dir.unwrap_or(default_dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let mut table = Table::new(false, rounds as usize);
    for workers in [1, 8] {
        let events = streams::load(&requests, workers, CACHE, count)?;
        index(&mut table, rounds, workers, &events, &prompts);
    }
    worker_path(&mut table, rounds, &dir, streams::load(&requests, 1, CACHE, count)?)
}

/// Applies all events and asks for all prompts. Dynamo's trees take events by value, so that dropping them is in their
/// time; ours reads them where they are.
fn index(table: &mut Table, rounds: u64, workers: u32, events: &[Announced], prompts: &[Vec<TokensHash>]) {
    let theirs: Vec<RouterEvent> =
        events.iter().zip(1..).map(|((worker, event), id)| dynamo::event(*worker, id, event)).collect();
    let operations: usize = events.iter().map(|(_, event)| streams::operations(event)).sum();
    let their_prompts: Vec<Vec<LocalBlockHash>> =
        prompts.iter().map(|prompt| dynamo::prompt(prompt)).collect();
    let mut applied = [const { Vec::new() }; 3];
    let mut matched = [const { Vec::new() }; 3];
    for round in 0..=rounds {
        let (ours, our_time) = timed(|| apply_ours(events));
        let their_events = theirs.clone();
        let (tree, tree_time) = timed(|| {
            let mut tree = RadixTree::new();
            for event in their_events {
                tree.apply_event(event)
                    .expect("Dynamo takes every event of an engine that evicts leaves first");
            }
            tree
        });
        // All events wait in its channel before its one thread begins.
        let (sender, receiver) = flume::unbounded();
        for event in theirs.clone() {
            sender.send(WorkerTask::Event(event)).expect("the receiver is still here");
        }
        drop(sender);
        let compressed = ConcurrentRadixTreeCompressed::new();
        let ((), compressed_time) = timed(|| {
            compressed.worker(receiver, None).expect("its thread ends in order");
        });
        let times = [
            time_of(prompts, |prompt| {
                black_box(ours.find_matches(prompt, MatchOptions::default()));
            }),
            {
                // It takes prompts by value; who asks has made one anyway.
                let asked = their_prompts.clone();
                let start = Instant::now();
                asked.into_iter().for_each(|prompt| drop(black_box(tree.find_matches(prompt, false))));
                start.elapsed()
            },
            time_of(&their_prompts, |prompt| {
                black_box(SyncIndexer::find_matches(&compressed, prompt, false));
            }),
        ];
        if round == 0 {
            continue;
        }
        for (at, time) in [our_time, tree_time, compressed_time].into_iter().enumerate() {
            applied[at].push(operations as f64 / time.as_secs_f64() / 1e6);
            matched[at].push(prompts.len() as f64 / times[at].as_secs_f64() / 1e6);
        }
    }
    let what = [("apply, M blocks/s", applied, 2.0), ("find_matches, M prompts/s", matched, 1.5)];
    for (what, values, bar) in what {
        let ratio =
            |peer: usize| values[0].iter().zip(&values[peer]).map(|(ours, theirs)| ours / theirs).collect();
        let ratios: [Vec<f64>; 2] = [ratio(1), ratio(2)];
        let [ours, tree, compressed] = values;
        let name = |who: &str| format!("{workers} x 20,000: {what}: {who}");
        table.row(&name("ours"), Bar::None, ours);
        table.row(&name("RadixTree"), Bar::None, tree);
        table.row(&name("compressed"), Bar::None, compressed);
        let [to_tree, to_compressed] = ratios;
        table.row(&name("ours / RadixTree"), Bar::AtLeast(bar), to_tree);
        table.row(&name("ours / compressed"), Bar::None, to_compressed);
    }
}

fn apply_ours(events: &[Announced]) -> Index {
    let index = Index::new();
    for batch in events.chunks(BATCH) {
        for run in batch.chunk_by(|one, next| one.0 == next.0) {
            index.apply_batch(StreamId::new(run[0].0, 0), run.iter().map(|(_, event)| event));
        }
    }
    index
}

/// A worker's path from an event at hand until it is applied; ours is on stable storage by then as well.
fn worker_path(table: &mut Table, rounds: u64, dir: &Path, events: Vec<Announced>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start tokio")?;
    let theirs: Vec<RouterEvent> =
        events.iter().zip(1..).map(|((worker, event), id)| dynamo::event(*worker, id, event)).collect();
    let events: Vec<EventData> = events.into_iter().map(|(_, event)| event).collect();
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let given: Vec<NewEvent> = events.iter().cloned().map(NewEvent::from).collect();
        let our_time = journalled(dir, &given)?;
        let given = theirs.clone();
        let indexer = LocalKvIndexer::new(
            CancellationToken::new(),
            CACHE.block_size,
            Arc::new(KvIndexerMetrics::new_unregistered()),
            1024,
        );
        let start = Instant::now();
        runtime.block_on(async {
            for event in given {
                indexer.apply_event_with_buffer(event).await?;
            }
            indexer.flush().await;
            anyhow::Ok(())
        })?;
        let their_time = start.elapsed();
        indexer.shutdown();
        if round > 0 {
            our_rates.push(events.len() as f64 / our_time.as_secs_f64() / 1e3);
            their_rates.push(events.len() as f64 / their_time.as_secs_f64() / 1e3);
        }
    }
    let ratios = our_rates.iter().zip(&their_rates).map(|(ours, theirs)| ours / theirs).collect();
    table.row("worker's path, k events/s: ours, durable and applied", Bar::None, our_rates);
    table.row("worker's path, k events/s: LocalKvIndexer, applied", Bar::None, their_rates);
    table.row("worker's path: ours / LocalKvIndexer", Bar::AtLeast(1.0), ratios);
    Ok(())
}

fn journalled(dir: &Path, events: &[NewEvent]) -> Result<Duration> {
    const RANK: DpRank = DpRank(0);
    let dir = tempfile::tempdir_in(dir).context("make a folder for a journal")?;
    let journal = Arc::new(Journal::open(Config::new(dir.path().join("journal"), None))?);
    let index = LocalIndex::follow(Arc::clone(&journal))?;
    let start = Instant::now();
    for events in events.chunks(APPEND) {
        journal.append(RANK, events)?;
    }
    let head = journal.head(RANK);
    journal.wait_durable(RANK, head, WAIT_MAX)?;
    index.wait_applied(RANK, head, WAIT_MAX)?;
    Ok(start.elapsed())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn time_of<T>(values: &[T], mut each: impl FnMut(&T)) -> Duration {
    let start = Instant::now();
    values.iter().for_each(&mut each);
    start.elapsed()
}
