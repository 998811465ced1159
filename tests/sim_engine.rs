//! The engine double announces exactly what its cache does: the fold of its events is what it holds, and it evicts
//! as a naive model of a leaf-first LRU says.

use std::collections::{HashMap, HashSet};

use kvjournal::engine::sim::{CacheSpec, Detail, EngineDouble, Load, LoadSpec, Request, SimEvent};
use kvjournal::engine::{EncodedForm, decode_batch, rules::DecodeOptions};
use kvjournal::event::{BlockHash, DpRank, EventData, JsonEvent};
use proptest::prelude::*;
use xxhash_rust::xxh3::Xxh3;

/// One block of a request, named by all that leads to it: its place in the prompt's ids, or in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Prompt { ids: Vec<u64>, part: u32 },
    Answer { request: usize, block: u64 },
}

/// A leaf-first LRU by search: slow, and written from the words of the contract.
#[derive(Default)]
struct Naive {
    /// Request that used the block last, and its depth in its chain.
    held: HashMap<Key, (usize, usize)>,
    requests: usize,
}

struct Expected {
    removed: Vec<Key>,
    found: usize,
    path: Vec<Key>,
}

impl Naive {
    fn step(&mut self, spec: CacheSpec, request: &Request) -> Expected {
        self.requests += 1;
        let parts = 512 / spec.block_size;
        let mut path = Vec::new();
        for end in 1..=request.hash_ids.len() {
            let ids = &request.hash_ids[..end];
            path.extend((0..parts).map(|part| Key::Prompt { ids: ids.to_vec(), part }));
        }
        let answer = request.output_length / u64::from(spec.block_size);
        path.extend((0..answer).map(|block| Key::Answer { request: self.requests, block }));
        path.truncate(spec.blocks);
        let found = path.iter().take_while(|key| self.held.contains_key(key)).count();
        for (depth, key) in path.iter().enumerate() {
            self.held.insert(key.clone(), (self.requests, depth));
        }
        let mut removed = Vec::new();
        while self.held.len() > spec.blocks {
            let old = self.held.iter().filter(|(_, (used, _))| *used < self.requests);
            let (key, _) =
                old.min_by_key(|(_, (used, depth))| (*used, usize::MAX - depth)).expect("a request fits");
            let key = key.clone();
            self.held.remove(&key);
            removed.push(key);
        }
        Expected { removed, found, path }
    }
}

/// The fold of the events, with the rules that an engine keeps checked on the way.
#[derive(Default)]
struct Fold {
    parent_of: HashMap<BlockHash, Option<BlockHash>>,
    children: HashMap<BlockHash, usize>,
}

impl Fold {
    fn apply(&mut self, event: &SimEvent) {
        match event {
            SimEvent::Removed(hashes) => {
                assert!(!hashes.is_empty());
                for hash in hashes {
                    let parent = self.parent_of.remove(hash).expect("only what is held is removed");
                    assert_eq!(self.children.get(hash).copied().unwrap_or(0), 0, "leaves go first");
                    if let Some(parent) = parent {
                        *self.children.get_mut(&parent).expect("it had this child") -= 1;
                    }
                }
            }
            SimEvent::Stored(stored) => {
                assert!(!stored.blocks.is_empty());
                let mut parent = stored.parent;
                for block in &stored.blocks {
                    if let Some(parent) = parent {
                        assert!(self.parent_of.contains_key(&parent), "a parent is held");
                        *self.children.entry(parent).or_default() += 1;
                    }
                    assert!(block.tokens_hash.is_some());
                    let before = self.parent_of.insert(block.block_hash, parent);
                    assert_eq!(before, None, "only what is missing is stored");
                    parent = Some(block.block_hash);
                }
            }
            SimEvent::Cleared => *self = Self::default(),
        }
    }

    fn held(&self) -> HashSet<BlockHash> {
        self.parent_of.keys().copied().collect()
    }
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    // Few ids, so that prompts meet and part again; an id may follow different ones, which a good trace has not.
    let request = (prop::collection::vec(0..5_u64, 0..6), 0..1200_u64)
        .prop_map(|(hash_ids, output_length)| Request { hash_ids, output_length, ..Request::default() });
    prop::collection::vec(request, 1..40)
}

fn specs() -> impl Strategy<Value = CacheSpec> {
    (1..60_usize, prop::sample::select(vec![64_u32, 128, 256, 512]))
        .prop_map(|(blocks, block_size)| CacheSpec { blocks, block_size })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_evicts_and_stores_what_the_naive_model_says(spec in specs(), requests in requests()) {
        let mut engine = EngineDouble::new(spec).unwrap();
        let (mut naive, mut fold) = (Naive::default(), Fold::default());
        let mut hash_of: HashMap<Key, BlockHash> = HashMap::new();
        for request in &requests {
            let expected = naive.step(spec, request);
            let mut events = engine.step(request, Detail::Hashes).into_iter().peekable();
            if !expected.removed.is_empty() {
                let removed = expected.removed.iter().map(|key| hash_of[key]).collect();
                let event = events.next();
                prop_assert_eq!(event.as_ref(), Some(&SimEvent::Removed(removed)));
                fold.apply(&event.unwrap());
            }
            let (found, missing) = expected.path.split_at(expected.found);
            if !missing.is_empty() {
                let event = events.next();
                let Some(SimEvent::Stored(stored)) = &event else { panic!("{event:?}") };
                prop_assert_eq!(stored.parent, found.last().map(|key| hash_of[key]));
                prop_assert_eq!(stored.blocks.len(), missing.len());
                for (key, block) in missing.iter().zip(&stored.blocks) {
                    let hash = *hash_of.entry(key.clone()).or_insert(block.block_hash);
                    prop_assert_eq!(hash, block.block_hash, "a block has the same hash whenever it is stored");
                }
                fold.apply(&event.unwrap());
            }
            prop_assert_eq!(events.next(), None);
            prop_assert!(engine.len() <= spec.blocks);
            prop_assert_eq!(engine.held().collect::<HashSet<_>>(), fold.held());
            prop_assert_eq!(engine.len(), naive.held.len());
        }
        let distinct: HashSet<&BlockHash> = hash_of.values().collect();
        prop_assert_eq!(distinct.len(), hash_of.len(), "different blocks have different hashes");
    }

    #[test]
    fn tokens_change_no_hash_and_are_as_many_as_the_blocks_hold(spec in specs(), requests in requests()) {
        let (mut plain, mut full) = (EngineDouble::new(spec).unwrap(), EngineDouble::new(spec).unwrap());
        for request in &requests {
            let hashed: Vec<EventData> =
                plain.step(request, Detail::Hashes).into_iter().map(SimEvent::into_data).collect();
            let raw: Vec<EventData> = full.serve(request).iter().map(|event| event.to_data()).collect();
            prop_assert_eq!(hashed, raw);
        }
    }
}

#[test]
fn a_generated_load_folds_to_what_its_ranks_may_hold_across_clears() {
    let cache = CacheSpec { blocks: 3_000, block_size: 64 };
    let spec = LoadSpec {
        cache,
        ranks: 3,
        clear_every: Some(500.try_into().unwrap()),
        events_max: Some(6_001),
        ..LoadSpec::default()
    };
    let mut folds: HashMap<DpRank, Fold> = HashMap::new();
    let (mut events, mut clears, mut last_ms) = (0, 0, 0);
    for batch in Load::generated(spec).unwrap() {
        assert!(!batch.events.is_empty());
        assert!(last_ms <= batch.timestamp_ms);
        last_ms = batch.timestamp_ms;
        let fold = folds.entry(batch.rank).or_default();
        for event in &batch.events {
            fold.apply(event);
            events += 1;
            clears += usize::from(*event == SimEvent::Cleared);
        }
        assert!(fold.parent_of.len() <= cache.blocks);
    }
    assert_eq!(events, 6_001);
    assert!((9..=12).contains(&clears), "{clears}");
    assert_eq!(folds.len(), 3);
}

#[test]
fn payloads_decode_to_the_events_that_the_lines_hold() {
    let spec = LoadSpec {
        cache: CacheSpec { blocks: 400, block_size: 64 },
        ranks: 2,
        clear_every: Some(60.try_into().unwrap()),
        events_max: Some(400),
        detail: Detail::Tokens,
        ..LoadSpec::default()
    };
    let options = DecodeOptions::default();
    for batch in Load::generated(spec).unwrap() {
        let payload = batch.payload(EncodedForm::Array, 1.7e9).unwrap();
        let decoded = decode_batch(&payload, options).unwrap();
        assert_eq!(decoded.rank, Some(batch.rank));
        let seconds = decoded.time.unwrap().as_seconds();
        assert!((seconds - 1.7e9 - batch.timestamp_ms as f64 / 1e3).abs() < 1e-3);
        assert!(decoded.events.iter().all(|event| event.notes.is_empty() && event.problem.is_none()));
        let rank = batch.rank;
        let lines: Vec<String> = batch.into_lines(Some(9)).collect();
        assert_eq!(lines.len(), decoded.events.len());
        for ((line, event), id) in lines.iter().zip(&decoded.events).zip(9..) {
            let line = JsonEvent::parse(line).unwrap();
            assert_eq!((line.event_id, line.dp_rank, &line.data), (Some(id), rank, &event.data));
        }
    }
}

#[test]
fn a_payload_needs_tokens() {
    let mut load = Load::generated(LoadSpec::default()).unwrap();
    assert_eq!(load.next().unwrap().payload(EncodedForm::Map, 0.0), None);
}

#[test]
fn an_answer_is_stored_after_its_prompt_and_never_found_again() {
    let mut engine = EngineDouble::new(CacheSpec { blocks: 100, block_size: 16 }).unwrap();
    let request = Request { hash_ids: vec![1], output_length: 47, ..Request::default() };
    let mut stored = || match &engine.step(&request, Detail::Hashes)[..] {
        [SimEvent::Stored(stored)] => stored.clone(),
        other => panic!("{other:?}"),
    };
    let (first, second) = (stored(), stored());
    assert_eq!((first.parent, first.blocks.len()), (None, 32 + 2));
    assert_eq!((second.parent, second.blocks.len()), (Some(first.blocks[31].block_hash), 2));
    assert_ne!(second.blocks[0], first.blocks[32]);
}

#[test]
fn a_request_longer_than_the_cache_is_cut() {
    let mut engine = EngineDouble::new(CacheSpec { blocks: 33, block_size: 16 }).unwrap();
    let long = Request { hash_ids: vec![1, 2], output_length: u64::MAX, ..Request::default() };
    let events = engine.step(&long, Detail::Hashes);
    let [SimEvent::Stored(stored)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((stored.blocks.len(), engine.len()), (33, 33));
    let answer = Request { output_length: u64::MAX, ..Request::default() };
    assert!(matches!(engine.step(&answer, Detail::Tokens)[..], [SimEvent::Removed(_), SimEvent::Stored(_)]));
}

/// Whoever changes this changes every load that was ever described by its seed.
#[test]
fn a_seed_always_makes_the_same_events() {
    let digest = |seed, ranks| {
        let cache = CacheSpec { blocks: 2_000, block_size: 64 };
        let spec = LoadSpec { seed, ranks, cache, events_max: Some(2_000), ..LoadSpec::default() };
        let mut hash = Xxh3::new();
        for batch in Load::generated(spec).unwrap() {
            hash.update(&batch.timestamp_ms.to_be_bytes());
            batch.into_lines(None).for_each(|line| hash.update(line.as_bytes()));
        }
        hash.digest()
    };
    assert_eq!(
        [digest(1, 1), digest(1, 2), digest(2, 1)],
        [4_636_080_892_820_791_148, 641_138_645_429_655_796, 14_014_094_826_580_382_470]
    );
}
