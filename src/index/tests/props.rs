//! Random streams over few hashes, tokens and placements, so that everything that can meet does.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{
    Block, BlockHash, Cleared, EventData, Placement, Removed, StorageTier, Stored, TokensHash, Unknown,
    WorkerId,
};

use super::super::StreamId;
use super::Pair;

#[derive(Clone, Debug)]
enum Operation {
    Apply(StreamId, Box<EventData>),
    Clear(StreamId),
    RemoveStream(StreamId),
    RemoveWorker(WorkerId),
}

/// How wild the streams are.
#[derive(Clone, Copy, Debug)]
struct World {
    hashes: u64,
    tokens: u64,
    placements: usize,
    /// A hash always means the same parent and tokens, as with a sane engine.
    is_chained: bool,
}

fn placement(at: usize) -> Placement {
    let on = |medium: &str| Placement { medium: Some(medium.into()), ..Placement::default() };
    match at {
        0 => on("GPU"),
        1 => on("CPU"),
        2 => Placement::default(),
        3 => on("disk"),
        4 => Placement { group: Some(1), kind: Some("sliding_window".into()), ..on("GPU") },
        5 => on("gpu"),
        6 => on("TAPE"),
        _ => Placement { locality: Some("REMOTE".into()), ..on("external") },
    }
}

impl World {
    /// The block before a hash, and its tokens: a tree in which each block has up to three below it.
    fn chained(self, hash: u64) -> (Option<BlockHash>, TokensHash) {
        let parent = (hash >= 2).then(|| BlockHash((hash - 2) / 3));
        (parent, TokensHash(hash % self.tokens))
    }

    fn placement(self) -> impl Strategy<Value = Placement> {
        // The first ones more often.
        (0..self.placements, 0..self.placements).prop_map(|(one, other)| placement(one.min(other)))
    }

    fn hash(self) -> impl Strategy<Value = BlockHash> {
        (0..self.hashes).prop_map(BlockHash)
    }

    fn stored(self) -> impl Strategy<Value = Stored> {
        let tokens =
            prop_oneof![9 => (0..self.tokens).prop_map(|tokens| Some(TokensHash(tokens))), 1 => Just(None)];
        let blocks = vec((self.hash(), tokens), 0..6);
        let lora = option::weighted(0.2, Just("lora".to_owned()));
        let salt = option::weighted(0.1, Just("salt".to_owned()));
        (option::weighted(0.7, self.hash()), blocks, self.placement(), lora, salt, any::<u8>()).prop_map(
            move |(parent, blocks, placement, lora, salt, refresh)| {
                let mut stored =
                    Stored { parent, placement, lora, salt, refresh: refresh < 40, ..Stored::default() };
                let mut hashes: Vec<(BlockHash, Option<TokensHash>)> = blocks;
                if self.is_chained {
                    // Downward from the first hash.
                    let Some((first, _)) = hashes.first().copied() else { return stored };
                    let (parent, tokens) = self.chained(first.0);
                    stored.parent = parent;
                    let mut line = vec![(first, Some(tokens))];
                    for (step, _) in &hashes[1..] {
                        let next = line[line.len() - 1].0.0 * 3 + 2 + step.0 % 3;
                        if next < self.hashes {
                            line.push((BlockHash(next), Some(self.chained(next).1)));
                        }
                    }
                    hashes = line;
                }
                let block = |(block_hash, tokens_hash)| Block { block_hash, tokens_hash, mm: None };
                stored.blocks = hashes.into_iter().map(block).collect();
                stored
            },
        )
    }

    fn event(self) -> impl Strategy<Value = EventData> {
        let removed = (vec(self.hash(), 0..5), self.placement());
        let tier = prop_oneof![
            Just(StorageTier::Device),
            Just(StorageTier::HostPinned),
            Just(StorageTier::Disk),
            Just(StorageTier::External),
        ];
        prop_oneof![
            20 => self.stored().prop_map(EventData::Stored),
            16 => removed.prop_map(|(block_hashes, placement)| EventData::Removed(Removed { block_hashes, placement })),
            1 => vec(tier, 0..3).prop_map(|tiers| EventData::Cleared(Cleared { tiers, ..Cleared::default() })),
            1 => Just(EventData::Unknown(Unknown::default())),
        ]
    }

    fn operation(self) -> impl Strategy<Value = Operation> {
        let stream = (1..3_u64, 0..2_u32).prop_map(|(worker, rank)| StreamId::new(worker, rank));
        prop_oneof![
            60 => (stream.clone(), self.event()).prop_map(|(stream, event)| Operation::Apply(stream, Box::new(event))),
            1 => stream.clone().prop_map(Operation::Clear),
            1 => stream.prop_map(Operation::RemoveStream),
            1 => (1..3_u64).prop_map(|worker| Operation::RemoveWorker(WorkerId(worker))),
        ]
    }

    fn run(self, operations: Vec<Operation>, prompts: &[Vec<u64>]) {
        let mut pair = Pair::default();
        for (at, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Apply(stream, event) => pair.apply(stream, &event),
                Operation::Clear(stream) => pair.clear(stream),
                Operation::RemoveStream(stream) => pair.remove_stream(stream),
                Operation::RemoveWorker(worker) => pair.remove_worker(worker),
            }
            pair.index.check();
            if at % 3 == 0 {
                pair.check();
                let prompt = &prompts[at / 3 % prompts.len()];
                pair.check_prompt(
                    &prompt.iter().map(|tokens| TokensHash(tokens % self.tokens)).collect::<Vec<_>>(),
                );
            }
            if at % 16 == 15 {
                pair.check_dumps();
            }
        }
        pair.check();
        pair.check_dumps();
        for stream in pair.index.streams() {
            pair.remove_stream(stream);
        }
        let left = pair.index.counters();
        assert_eq!((left.blocks, left.ghosts, left.nodes, left.holder_sets), (0, 0, 0, 0));
    }
}

fn case(world: World) -> impl Strategy<Value = (Vec<Operation>, Vec<Vec<u64>>)> {
    (vec(world.operation(), 1..120), vec(vec(0..8_u64, 0..7), 1..24))
}

const WILD: World = World { hashes: 10, tokens: 3, placements: 8, is_chained: false };
const CROWDED: World = World { hashes: 14, tokens: 2, placements: 2, is_chained: false };
const SANE: World = World { hashes: 120, tokens: 4, placements: 4, is_chained: true };

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("KVJ_LONG").is_some() { 20_000 } else { 256 };
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn wild_streams_fold_as_the_words_say((operations, prompts) in case(WILD)) {
        WILD.run(operations, &prompts);
    }

    #[test]
    fn blocks_that_crowd_the_same_paths_fold_as_the_words_say((operations, prompts) in case(CROWDED)) {
        CROWDED.run(operations, &prompts);
    }

    #[test]
    fn chained_streams_fold_as_the_words_say((operations, prompts) in case(SANE)) {
        SANE.run(operations, &prompts);
    }
}
