//! The load of the simulating verbs: requests, from a trace or made up, through an engine double.

use std::fs::File;
use std::io::BufReader;

use crate::engine::sim::{self, CacheSpec, LoadSpec, Request, read_trace};
use crate::event::EventData;

use super::Failure;
use super::args::Load;

/// Most requests of a trace that are kept to be repeated.
const TRACE_REQUESTS_MAX: usize = 1_000_000;

/// What the load asks for: requests and a cache, for one rank, without end and without tokens.
pub(super) fn spec(load: &Load, usual_block_size: u32) -> LoadSpec {
    let block_size = load.block_size.unwrap_or(usual_block_size);
    let cache = CacheSpec { blocks: load.cache_blocks, block_size };
    LoadSpec { seed: load.seed, cache, ..LoadSpec::default() }
}

/// The engine messages of a load; the same for the same load.
pub(super) fn batches(load: &Load, spec: LoadSpec) -> Result<sim::Load, Failure> {
    let made = match &load.trace {
        None => sim::Load::generated(spec),
        Some(path) => {
            let bad = |what: String| Failure::Input(format!("{}: {what}", path.display()));
            let file = File::open(path).map_err(|e| bad(e.to_string()))?;
            let requests = read_trace(BufReader::new(file)).take(TRACE_REQUESTS_MAX);
            let requests: Result<Vec<Request>, _> = requests.collect();
            sim::Load::looped(spec, requests.map_err(|e| bad(e.to_string()))?)
        }
    };
    made.map_err(|e| Failure::Input(e.to_string()))
}

/// So many events of a load, of rank 0.
pub(super) fn events(
    load: &Load,
    usual_block_size: u32,
    count: u64,
) -> Result<impl Iterator<Item = EventData>, Failure> {
    let spec = LoadSpec { events_max: Some(count), ..spec(load, usual_block_size) };
    Ok(batches(load, spec)?.flat_map(|batch| batch.events).map(sim::SimEvent::into_data))
}
