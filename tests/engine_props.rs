//! Whatever bytes come, decoding answers; whatever the simulator writes, decoding reads back.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::path::Path;

use kvjournal::engine::rules::DecodeOptions;
use kvjournal::engine::{EncodedForm, Namespace, RawEvent, decode_batch, encode_batch, tokens_hash};
use kvjournal::event::{Block, BlockHash, DpRank, EngineTime, EventData};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn samples() -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/samples"));
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "msgpack"));
    paths.sort();
    let mut samples: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    // The prompt of 131,072 tokens would take all the time, and nests no other way.
    samples.retain(|sample| sample.len() < 4096);
    assert!(samples.len() >= 20);
    samples
}

/// What holds for any bytes: the events lie in the bytes, in order, and what is read of damage is a prefix.
fn answers(bytes: &[u8]) {
    for block_size in [None, Some(16)] {
        let result = decode_batch(bytes, DecodeOptions { block_size });
        let read = match &result {
            Ok(batch) => batch,
            Err(error) => {
                assert!(error.offset <= bytes.len(), "{error}");
                &error.read
            }
        };
        let mut end = 0;
        for event in &read.events {
            assert!(event.payload.start >= end && event.payload.end <= bytes.len());
            assert!(!event.payload.is_empty());
            end = event.payload.end;
            assert_eq!(event.problem.is_some(), matches!(event.data, EventData::Unknown(_)));
        }
        assert_eq!(
            decode_batch(bytes, DecodeOptions { block_size }),
            result,
            "decoding depends on bytes alone"
        );
    }
}

fn raw_event() -> impl Strategy<Value = RawEvent> {
    let stored = (any::<Option<u64>>(), 0_u32..20, vec(any::<u64>(), 0..8)).prop_flat_map(
        |(parent, block_size, block_hashes)| {
            let tokens = block_hashes.len() * block_size as usize;
            vec(any::<u32>(), tokens).prop_map(move |token_ids| RawEvent::Stored {
                parent,
                block_hashes: block_hashes.clone(),
                token_ids,
                block_size,
            })
        },
    );
    let removed = vec(any::<u64>(), 0..40).prop_map(|block_hashes| RawEvent::Removed { block_hashes });
    prop_oneof![4 => stored, 2 => removed, 1 => Just(RawEvent::Cleared)]
}

/// Holds one event against what was written.
fn same(event: &RawEvent, data: &EventData, medium: Option<&str>) {
    match (event, data) {
        (RawEvent::Stored { parent, block_hashes, token_ids, block_size }, EventData::Stored(stored)) => {
            let plain = Namespace::new(None, None);
            let size = *block_size as usize;
            let blocks: Vec<Block> = block_hashes
                .iter()
                .enumerate()
                .map(|(index, hash)| Block {
                    block_hash: BlockHash(*hash),
                    tokens_hash: (size > 0)
                        .then(|| tokens_hash(plain, &token_ids[index * size..(index + 1) * size], None)),
                    mm: None,
                })
                .collect();
            assert_eq!(stored.blocks, blocks);
            assert_eq!(stored.parent, parent.map(BlockHash));
            assert_eq!(stored.block_size, Some(*block_size));
            assert_eq!((&stored.lora, &stored.salt), (&None, &None));
            assert_eq!(stored.placement.medium.as_deref(), medium);
            assert!(stored.placement.is_own_full_attention());
        }
        (RawEvent::Removed { block_hashes }, EventData::Removed(removed)) => {
            let hashes: Vec<BlockHash> = block_hashes.iter().copied().map(BlockHash).collect();
            assert_eq!(removed.block_hashes, hashes);
            assert_eq!(removed.placement.medium.as_deref(), medium);
        }
        (RawEvent::Cleared, EventData::Cleared(_)) => {}
        other => panic!("{other:?}"),
    }
}

proptest! {
    // A failure prints its smallest input; nothing is written beside the tests.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_have_an_answer(bytes in vec(any::<u8>(), 0..600)) {
        answers(&bytes);
    }

    /// Bytes that start as a batch get further than those that are all random.
    #[test]
    fn any_bytes_in_the_place_of_events_have_an_answer(bytes in vec(any::<u8>(), 0..600), count in 0_u8..16) {
        answers(&[&[0x93, 0xc0, 0x90 | count][..], &bytes].concat());
    }

    #[test]
    fn a_sample_with_some_bytes_changed_cut_or_added_has_an_answer(
        sample in select(samples()),
        changes in vec((any::<Index>(), any::<u8>()), 0..8),
        cut in proptest::option::of(any::<Index>()),
        added in vec(any::<u8>(), 0..4),
    ) {
        let mut bytes = sample;
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes.extend(added);
        answers(&bytes);
    }

    #[test]
    fn what_is_written_in_any_form_is_read_back(
        form in select(vec![EncodedForm::Map, EncodedForm::Array, EncodedForm::Array6]),
        seconds in any::<f64>(),
        rank in any::<u32>(),
        events in vec(raw_event(), 0..20),
    ) {
        let bytes = encode_batch(form, seconds, rank, &events);
        let batch = decode_batch(&bytes, DecodeOptions::default()).unwrap();
        prop_assert_eq!(batch.time, Some(EngineTime::from_seconds(seconds)));
        prop_assert_eq!(batch.rank, Some(DpRank(rank)));
        prop_assert_eq!(batch.events.len(), events.len());
        let medium = (form != EncodedForm::Array6).then_some("GPU");
        for (event, decoded) in events.iter().zip(&batch.events) {
            same(event, &decoded.data, medium);
        }
    }

    #[test]
    fn a_written_batch_that_is_cut_gives_its_whole_events_and_an_error(
        events in vec(raw_event(), 1..6),
        cut in any::<Index>(),
    ) {
        let bytes = encode_batch(EncodedForm::Map, 1.5, 0, &events);
        let all = decode_batch(&bytes, DecodeOptions::default()).unwrap().events;
        let len = cut.index(bytes.len());
        let error = decode_batch(&bytes[..len], DecodeOptions::default()).unwrap_err();
        let whole = all.iter().filter(|event| event.payload.end <= len).count();
        prop_assert!(error.read.events.len() <= whole);
        prop_assert_eq!(&error.read.events[..], &all[..error.read.events.len()]);
    }
}
