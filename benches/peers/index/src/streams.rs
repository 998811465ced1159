//! Streams of events as engines with a prefix cache make them, and the prompts that are asked for.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kvjournal::engine::sim::{
    CacheSpec, Detail, EngineDouble, Generator, Load, LoadSpec, Request, SimEvent, read_trace,
};
use kvjournal::event::{DpRank, EventData, TokensHash};

/// Blocks of a cache that a single request never fills: the longest of the trace has 126,000 tokens.
const COLD_BLOCKS: usize = 65_536;

/// An event and the worker that announced it.
pub type Announced = (u64, EventData);

/// The requests of a trace in Mooncake's format; without one, so many made up with a trace's statistics.
///
/// # Errors
/// If the trace cannot be read.
pub fn requests(trace: Option<&Path>, count: usize) -> Result<Vec<Request>> {
    let Some(path) = trace else { return Ok(Generator::new(1).take(count).collect()) };
    let what = || format!("read {}", path.display());
    let file = File::open(path).with_context(what)?;
    let requests: Vec<Request> =
        read_trace(BufReader::new(file)).collect::<Result<_, _>>().with_context(what)?;
    ensure!(!requests.is_empty(), "{} has no requests", path.display());
    Ok(requests)
}

/// The hashes of each request's blocks, its answer left out: a cold engine announces all of them.
///
/// # Errors
/// If `block_size` is none that an engine has.
pub fn prompts(requests: &[Request], block_size: u32) -> Result<Vec<Vec<TokensHash>>> {
    let mut engine = EngineDouble::for_rank(CacheSpec { blocks: COLD_BLOCKS, block_size }, DpRank(0))?;
    let mut prompt = |request: &Request| {
        let unanswered = Request { output_length: 0, ..request.clone() };
        let events = engine.step(&unanswered, Detail::default());
        engine.reset();
        events.into_iter().flat_map(stored_hashes).collect()
    };
    Ok(requests.iter().map(&mut prompt).collect())
}

fn stored_hashes(event: SimEvent) -> Vec<TokensHash> {
    match event {
        SimEvent::Stored(stored) => stored.blocks.iter().filter_map(|block| block.tokens_hash).collect(),
        SimEvent::Removed(_) | SimEvent::Cleared => Vec::new(),
    }
}

/// Engines that serve requests in turn, each with a cache of its own.
pub struct Fleet {
    engines: Vec<EngineDouble>,
    served: usize,
}

impl Fleet {
    /// So many engines, each with such a cache.
    ///
    /// # Errors
    /// If such a cache cannot be.
    pub fn new(workers: u32, cache: CacheSpec) -> Result<Self> {
        // The rank keeps the answers of two engines apart; prompts have the same hashes at all of them.
        let engines = (0..workers).map(|worker| EngineDouble::for_rank(cache, DpRank(worker)));
        Ok(Self { engines: engines.collect::<Result<_, _>>()?, served: 0 })
    }

    /// The next engine serves a request; these are its events.
    pub fn serve(&mut self, request: &Request) -> Vec<Announced> {
        let worker = self.served % self.engines.len();
        self.served += 1;
        let events = self.engines[worker].step(request, Detail::default());
        events.into_iter().map(|event| (worker as u64, event.into_data())).collect()
    }
}

/// So many events of engines that serve a trace over and over, all turns of a conversation at one of them.
///
/// # Errors
/// If such a load cannot be.
pub fn load(requests: &[Request], workers: u32, cache: CacheSpec, events: u64) -> Result<Vec<Announced>> {
    let spec = LoadSpec { cache, ranks: workers, events_max: Some(events), ..LoadSpec::default() };
    let load = Load::looped(spec, requests.to_vec())?;
    let announced = |worker: DpRank| move |event: SimEvent| (u64::from(worker.0), event.into_data());
    Ok(load.flat_map(|batch| batch.events.into_iter().map(announced(batch.rank))).collect())
}

/// Blocks that an event stores or removes.
pub fn operations(event: &EventData) -> usize {
    match event {
        EventData::Stored(stored) => stored.blocks.len(),
        EventData::Removed(removed) => removed.block_hashes.len(),
        _ => 0,
    }
}
