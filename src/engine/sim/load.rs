//! A load: requests dealt out to the ranks of a worker, as an endless or limited stream of engine messages.

use std::num::NonZeroU64;

use crate::event::DpRank;

use super::engine::{CacheSpec, Detail, EngineDouble, SpecError};
use super::event::SimBatch;
use super::generator::Generator;
use super::tokens::{below, mix};
use super::trace::Request;

/// Most ranks of a load.
pub const RANKS_MAX: u32 = 1024;

/// Requests without an event after which a rank is cleared: all that comes fits the caches by then, and nothing
/// would happen any more.
const IDLE_REQUESTS_MAX: u32 = 100_000;

/// What a load is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSpec {
    /// Seed of the requests that are made up; a trace needs none. Default 1.
    pub seed: u64,
    /// The cache of each rank.
    pub cache: CacheSpec,
    /// Ranks, 1 to [`RANKS_MAX`]. Default 1. All turns of a conversation go to one rank.
    pub ranks: u32,
    /// A rank's cache is reset after this many of its events. Default never.
    pub clear_every: Option<NonZeroU64>,
    /// Events after which the load ends, in all ranks together. Default never.
    pub events_max: Option<u64>,
    /// Whether tokens are made. Default hashes only; engine payloads need tokens.
    pub detail: Detail,
}

impl Default for LoadSpec {
    fn default() -> Self {
        Self {
            seed: 1,
            cache: CacheSpec::default(),
            ranks: 1,
            clear_every: None,
            events_max: None,
            detail: Detail::default(),
        }
    }
}

/// Why there is no such load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The caches cannot be.
    #[error(transparent)]
    Cache(#[from] SpecError),
    /// No ranks, or too many.
    #[error("{ranks} ranks, there are 1 to {RANKS_MAX}")]
    Ranks {
        /// Ranks that were asked for.
        ranks: u32,
    },
    /// A trace that would never make an event.
    #[error("none of the trace's {requests} requests has a block")]
    NoBlocks {
        /// Requests of the trace.
        requests: usize,
    },
}

/// An iterator of engine messages, none of them empty; the same for the same spec and trace.
#[derive(Debug)]
pub struct Load {
    spec: LoadSpec,
    requests: Requests,
    ranks: Vec<Rank>,
    events_left: u64,
    idle_requests: u32,
    now_ms: u64,
}

#[derive(Debug)]
struct Rank {
    engine: EngineDouble,
    events_since_clear: u64,
}

#[derive(Debug)]
enum Requests {
    Generated(Box<Generator>),
    Looped { trace: Vec<Request>, next: usize, pass_start_ms: u64 },
}

impl Load {
    /// A load of requests made up from the spec's seed.
    ///
    /// # Errors
    /// If a number of the spec is out of range.
    pub fn generated(spec: LoadSpec) -> Result<Self, LoadError> {
        Self::new(spec, Requests::Generated(Box::new(Generator::new(spec.seed))))
    }

    /// A load of the requests of a trace, over and over: the ids stay as they are, so that later passes meet a warm
    /// cache, and the time goes on.
    ///
    /// # Errors
    /// If a number of the spec is out of range, or no request of the trace has a block.
    pub fn looped(spec: LoadSpec, trace: Vec<Request>) -> Result<Self, LoadError> {
        if trace.iter().all(|request| request.hash_ids.is_empty()) {
            return Err(LoadError::NoBlocks { requests: trace.len() });
        }
        Self::new(spec, Requests::Looped { trace, next: 0, pass_start_ms: 0 })
    }

    fn new(spec: LoadSpec, requests: Requests) -> Result<Self, LoadError> {
        let ranks = spec.ranks;
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(LoadError::Ranks { ranks });
        }
        let rank = |rank| {
            let engine = EngineDouble::one_of(ranks, spec.cache, DpRank(rank))?;
            Ok(Rank { engine, events_since_clear: 0 })
        };
        Ok(Self {
            spec,
            requests,
            ranks: (0..ranks).map(rank).collect::<Result<_, SpecError>>()?,
            events_left: spec.events_max.unwrap_or(u64::MAX),
            idle_requests: 0,
            now_ms: 0,
        })
    }

    /// The rank whose cache is due to be cleared, if any.
    fn due(&self) -> Option<usize> {
        let every = self.spec.clear_every?.get();
        self.ranks.iter().position(|rank| rank.events_since_clear >= every)
    }

    fn clear(&mut self, at: usize) -> SimBatch {
        let rank = &mut self.ranks[at];
        rank.events_since_clear = 0;
        let events = vec![rank.engine.reset()];
        SimBatch { rank: DpRank(at as u32), timestamp_ms: self.now_ms, events }
    }

    /// Serves one request; the batch may be empty.
    fn serve(&mut self) -> SimBatch {
        let (request, timestamp_ms) = self.requests.next();
        // Times of a trace may go back; engines' messages of one worker are told in order all the same.
        self.now_ms = self.now_ms.max(timestamp_ms);
        let at = rank_of(&request, self.ranks.len());
        let rank = &mut self.ranks[at];
        let events = rank.engine.step(&request, self.spec.detail);
        rank.events_since_clear += events.len() as u64;
        SimBatch { rank: DpRank(at as u32), timestamp_ms: self.now_ms, events }
    }

    fn next_batch(&mut self) -> SimBatch {
        if let Some(at) = self.due() {
            return self.clear(at);
        }
        loop {
            let batch = self.serve();
            if !batch.events.is_empty() {
                self.idle_requests = 0;
                return batch;
            }
            self.idle_requests += 1;
            if self.idle_requests >= IDLE_REQUESTS_MAX {
                self.idle_requests = 0;
                return self.clear(batch.rank.0 as usize);
            }
        }
    }
}

impl Iterator for Load {
    type Item = SimBatch;

    fn next(&mut self) -> Option<SimBatch> {
        if self.events_left == 0 {
            return None;
        }
        let mut batch = self.next_batch();
        batch.events.truncate(usize::try_from(self.events_left).unwrap_or(usize::MAX));
        self.events_left -= batch.events.len() as u64;
        Some(batch)
    }
}

impl Requests {
    /// The next request and when it comes, counted over all passes.
    fn next(&mut self) -> (Request, u64) {
        match self {
            Self::Generated(generator) => {
                let request = generator.next().expect("the generator never ends");
                let timestamp_ms = request.timestamp_ms;
                (request, timestamp_ms)
            }
            Self::Looped { trace, next, pass_start_ms } => {
                let request = trace[*next].clone();
                let timestamp_ms = pass_start_ms.saturating_add(request.timestamp_ms);
                *next += 1;
                if *next == trace.len() {
                    *next = 0;
                    *pass_start_ms = timestamp_ms.saturating_add(1);
                }
                (request, timestamp_ms)
            }
        }
    }
}

/// The rank that serves a request: by its second id, since the first is often a system prompt that all share. So
/// the turns of a conversation meet the blocks of those before.
fn rank_of(request: &Request, ranks: usize) -> usize {
    let id = request.hash_ids.get(1).or(request.hash_ids.first()).copied().unwrap_or_default();
    below(mix(id, 0), ranks as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sim::SimEvent;

    fn request(timestamp_ms: u64, hash_ids: &[u64]) -> Request {
        Request { timestamp_ms, hash_ids: hash_ids.to_vec(), ..Request::default() }
    }

    #[test]
    fn a_load_that_fits_its_cache_is_cleared_rather_than_silent_for_ever() {
        let mut load = Load::looped(LoadSpec::default(), vec![request(0, &[1])]).unwrap();
        let kinds: Vec<SimEvent> = load.by_ref().take(3).flat_map(|batch| batch.events).collect();
        assert!(matches!(kinds[..], [SimEvent::Stored(_), SimEvent::Cleared, SimEvent::Stored(_)]));
    }

    #[test]
    fn time_goes_on_over_passes_and_never_back() {
        let trace = vec![request(10, &[1]), request(5, &[2]), request(20, &[3])];
        let spec = LoadSpec { cache: CacheSpec { blocks: 1, block_size: 512 }, ..LoadSpec::default() };
        let times: Vec<u64> = Load::looped(spec, trace).unwrap().take(6).map(|b| b.timestamp_ms).collect();
        assert_eq!(times, [10, 10, 20, 31, 31, 41]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_number() {
        let spec = LoadSpec::default();
        let refused = |spec| Load::generated(spec).unwrap_err().to_string();
        assert_eq!(refused(LoadSpec { ranks: 0, ..spec }), "0 ranks, there are 1 to 1024");
        let cache = CacheSpec { blocks: 0, ..spec.cache };
        assert_eq!(refused(LoadSpec { cache, ..spec }), "a cache of 0 blocks, it has 1 to 16777216");
        for block_size in [0, 48, 1024] {
            let cache = CacheSpec { block_size, ..spec.cache };
            assert_eq!(cache.check(), Err(SpecError::BlockSize { block_size }));
        }
        let empty = Load::looped(spec, vec![request(0, &[])]).unwrap_err();
        assert_eq!(empty, LoadError::NoBlocks { requests: 1 });
    }
}
