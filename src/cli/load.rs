//! The load of the simulating verbs: requests through an engine double, as an endless stream of events.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;

use crate::engine::RawEvent;
use crate::engine::sim::{CacheSpec, EngineDouble, Generator, Request, read_trace};

use super::Failure;
use super::args::Load;

/// Most requests of a trace that are kept to be repeated.
const TRACE_REQUESTS_MAX: usize = 1_000_000;

/// An endless stream of events; the same for the same load.
pub(super) struct Stream {
    engine: EngineDouble,
    requests: Box<dyn Iterator<Item = Request>>,
    ready: VecDeque<RawEvent>,
}

impl Stream {
    pub(super) fn new(load: &Load, usual_block_size: u32) -> Result<Self, Failure> {
        let block_size = load.block_size.unwrap_or(usual_block_size);
        let spec = CacheSpec { blocks: load.cache_blocks, block_size };
        let engine = EngineDouble::new(spec).ok_or_else(|| {
            Failure::Input(format!(
                "a cache of {} blocks of {} tokens: give it room, and a block size that divides 512",
                load.cache_blocks, block_size
            ))
        })?;
        Ok(Self { engine, requests: requests(load)?, ready: VecDeque::new() })
    }
}

fn requests(load: &Load) -> Result<Box<dyn Iterator<Item = Request>>, Failure> {
    let Some(path) = &load.trace else { return Ok(Box::new(Generator::new(load.seed))) };
    let bad = |what: String| Failure::Input(format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|e| bad(e.to_string()))?;
    let read: Result<Vec<Request>, _> = read_trace(BufReader::new(file)).take(TRACE_REQUESTS_MAX).collect();
    let requests = read.map_err(|e| bad(e.to_string()))?;
    if requests.iter().all(|request| request.hash_ids.is_empty()) {
        return Err(bad("it has no request with a block".into()));
    }
    Ok(Box::new(requests.into_iter().cycle()))
}

impl Iterator for Stream {
    type Item = RawEvent;

    fn next(&mut self) -> Option<RawEvent> {
        let mut idle = 0;
        while self.ready.is_empty() {
            let request = self.requests.next()?;
            self.ready.extend(self.engine.serve(&request));
            idle += 1;
            // A load that fits the cache whole makes no more events: starting over is what is left.
            if idle > TRACE_REQUESTS_MAX {
                self.ready.push_back(self.engine.clear());
            }
        }
        self.ready.pop_front()
    }
}
