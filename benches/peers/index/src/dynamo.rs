//! Our events in Dynamo's types, and Dynamo's answers in ours.

use std::collections::BTreeMap;

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use kvjournal::event::{EventData, TokensHash};
use kvjournal::index::StreamMatch;

/// Leading blocks of a prompt by worker, those that hold none left out.
pub type Scores = BTreeMap<u64, u32>;

/// The event as Dynamo's indexers take it.
///
/// # Panics
/// If Dynamo has no such event: a block without a tokens hash, or an unknown event.
pub fn event(worker: u64, event_id: u64, data: &EventData) -> RouterEvent {
    let hash = |hash: u64| ExternalSequenceBlockHash(hash);
    let data = match data {
        EventData::Stored(stored) => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: stored.parent.map(|parent| hash(parent.0)),
            start_position: None,
            blocks: stored
                .blocks
                .iter()
                .map(|block| KvCacheStoredBlockData {
                    block_hash: hash(block.block_hash.0),
                    tokens_hash: LocalBlockHash(block.tokens_hash.expect("a block with tokens").0),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        EventData::Removed(removed) => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: removed.block_hashes.iter().map(|removed| hash(removed.0)).collect(),
        }),
        EventData::Cleared(_) => KvCacheEventData::Cleared,
        other => panic!("Dynamo has no event such as {other:?}"),
    };
    RouterEvent::new(worker, KvCacheEvent { event_id, data, dp_rank: 0 })
}

/// A prompt as Dynamo's indexers take it.
pub fn prompt(hashes: &[TokensHash]) -> Vec<LocalBlockHash> {
    hashes.iter().map(|hash| LocalBlockHash(hash.0)).collect()
}

/// Dynamo's answer.
pub fn scores(answer: &OverlapScores) -> Scores {
    answer
        .scores
        .iter()
        .map(|(worker, score)| (worker.worker_id, *score))
        .filter(|(_, score)| *score > 0)
        .collect()
}

/// Our answer.
pub fn our_scores(answer: &[StreamMatch]) -> Scores {
    answer.iter().map(|found| (found.stream.worker_id.0, found.total())).collect()
}
