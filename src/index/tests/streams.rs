//! The streams of the engine double against the model.

use std::num::NonZeroU64;

use crate::engine::sim::{CacheSpec, Load, LoadSpec};
use crate::event::WorkerId;

use super::super::StreamId;
use super::Pair;

#[test]
fn the_engine_double_s_streams_fold_as_the_words_say() {
    let mut pair = Pair::default();
    let cache = CacheSpec { blocks: 400, block_size: 128 };
    let clear_every = NonZeroU64::new(150);
    for seed in [1, 2] {
        let spec =
            LoadSpec { seed, cache, ranks: 3, clear_every, events_max: Some(900), ..LoadSpec::default() };
        let load = Load::generated(spec).unwrap();
        for (at, batch) in load.enumerate() {
            let stream = StreamId { worker_id: WorkerId(seed), dp_rank: batch.rank };
            for event in batch.events {
                pair.apply(stream, &event.into_data());
            }
            if at % 60 == 0 {
                pair.check();
            }
        }
    }
    pair.check();
    pair.check_dumps();
    assert!(pair.index.counters().blocks > 1500, "{:?}", pair.index.counters());
    pair.remove_worker(WorkerId(1));
    pair.check();
}
