//! An engine's own bytes, cut to a part of their blocks, say exactly that part.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::path::Path;

use kvjournal::engine::rules::DecodeOptions;
use kvjournal::engine::{
    EncodedForm, RawEvent, cut_removed, cut_stored, decode_batch, encode_batch, payload_blocks,
};
use kvjournal::event::{BlockHash, EventData, Removed, Stored};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The bytes of each event of each sample.
fn sample_events() -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/samples"));
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "msgpack"));
    paths.sort();
    let mut events = Vec::new();
    for path in paths {
        let bytes = std::fs::read(path).unwrap();
        events.extend(events_of(&bytes));
    }
    assert!(events.len() >= 20);
    events
}

fn events_of(batch: &[u8]) -> Vec<Vec<u8>> {
    let Ok(read) = decode_batch(batch, DecodeOptions::default()) else { return Vec::new() };
    read.events.iter().map(|event| batch[event.payload.clone()].to_vec()).collect()
}

/// What an event's bytes say.
fn decode(payload: &[u8]) -> EventData {
    // A batch of one: no time, the event.
    let batch = [&[0x92, 0xc0, 0x91], payload].concat();
    decode_batch(&batch, DecodeOptions::default()).unwrap().events.remove(0).data
}

/// Checks all cuts of one event. Says how many there were.
fn check(payload: &[u8]) -> usize {
    match decode(payload) {
        EventData::Stored(stored) => check_stored(payload, &stored),
        EventData::Removed(removed) => check_removed(payload, &removed),
        EventData::Cleared(_) | EventData::Unknown(_) => {
            assert_eq!(
                (payload_blocks(payload), cut_stored(payload, 0), cut_removed(payload, &[])),
                (None, None, None)
            );
            0
        }
    }
}

fn check_stored(payload: &[u8], stored: &Stored) -> usize {
    let len = stored.blocks.len();
    assert_eq!(payload_blocks(payload), Some(len));
    assert_eq!(cut_stored(payload, len).as_deref(), Some(payload), "all of them: the same bytes");
    assert_eq!(cut_stored(payload, len + 1), None);
    let mut cuts = 0;
    for blocks in 0..len {
        let Some(cut) = cut_stored(payload, blocks) else { continue };
        cuts += 1;
        assert!(cut.len() < payload.len() + 5);
        let expected = Stored { blocks: stored.blocks[..blocks].to_vec(), ..stored.clone() };
        // Without a first block nothing says the salt.
        if blocks > 0 {
            assert_eq!(decode(&cut), EventData::Stored(expected));
        }
        assert_eq!(cut_stored(&cut, blocks / 2), cut_stored(payload, blocks / 2), "in two steps");
    }
    cuts
}

fn check_removed(payload: &[u8], removed: &Removed) -> usize {
    let mut cuts = 0;
    for step in 1..=3 {
        let mut keep: Vec<BlockHash> = Vec::new();
        for hash in removed.block_hashes.iter().step_by(step) {
            if !keep.contains(hash) {
                keep.push(*hash);
            }
        }
        let cut = cut_removed(payload, &keep).unwrap();
        if keep == removed.block_hashes {
            assert_eq!(cut, payload);
        }
        let EventData::Removed(found) = decode(&cut) else { panic!("no removal any more") };
        let sorted = |mut hashes: Vec<BlockHash>| {
            hashes.sort_unstable();
            hashes
        };
        assert_eq!((sorted(found.block_hashes), found.placement), (sorted(keep), removed.placement.clone()));
        cuts += 1;
    }
    let foreign = BlockHash(removed.block_hashes.iter().map(|hash| hash.0).fold(1, u64::wrapping_add));
    if !removed.block_hashes.contains(&foreign) {
        assert_eq!(cut_removed(payload, &[foreign]), None);
    }
    cuts
}

#[test]
fn each_sample_s_events_are_cut_as_their_blocks_are() {
    let mut cuts = 0;
    for payload in sample_events().iter().filter(|payload| payload.len() < 64 * 1024) {
        cuts += check(payload);
    }
    println!("{cuts} cuts");
    assert!(cuts > 40, "{cuts}");
}

#[test]
fn a_list_of_as_many_items_under_an_unknown_name_is_not_cut_past() {
    // {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [], "block_size": 0, "new": [3, 4]}
    let mut payload = vec![0x85];
    let text = |payload: &mut Vec<u8>, text: &str| {
        payload.push(0xa0 | text.len() as u8);
        payload.extend_from_slice(text.as_bytes());
    };
    for (name, value) in [
        ("type", None),
        ("block_hashes", Some(&[0x92, 1, 2][..])),
        ("token_ids", Some(&[0x90][..])),
        ("block_size", Some(&[0][..])),
        ("new", Some(&[0x92, 3, 4][..])),
    ] {
        text(&mut payload, name);
        match value {
            Some(value) => payload.extend_from_slice(value),
            None => text(&mut payload, "BlockStored"),
        }
    }
    assert_eq!(payload_blocks(&payload), Some(2));
    assert_eq!(cut_stored(&payload, 1), None);
}

fn raw_stored() -> impl Strategy<Value = RawEvent> {
    (any::<Option<u64>>(), 0_u32..20, vec(any::<u64>(), 0..8)).prop_flat_map(
        |(parent, block_size, block_hashes)| {
            let tokens = block_hashes.len() * block_size as usize;
            vec(any::<u32>(), tokens).prop_map(move |token_ids| RawEvent::Stored {
                parent,
                block_hashes: block_hashes.clone(),
                token_ids,
                block_size,
            })
        },
    )
}

fn raw_event() -> impl Strategy<Value = RawEvent> {
    prop_oneof![
        3 => raw_stored(),
        1 => vec(0..9_u64, 0..8).prop_map(|block_hashes| RawEvent::Removed { block_hashes }),
    ]
}

proptest! {
    #[test]
    fn any_event_of_an_engine_is_cut_as_its_blocks_are(
        event in raw_event(),
        form in select(vec![EncodedForm::Map, EncodedForm::Array, EncodedForm::Array6]),
    ) {
        let blocks = match &event {
            RawEvent::Stored { block_hashes, .. } => block_hashes.len(),
            _ => 3,
        };
        let payload = events_of(&encode_batch(form, 1.0, 0, &[event])).remove(0);
        prop_assert_eq!(check(&payload), blocks, "each cut is possible");
    }

    #[test]
    fn changed_bytes_are_cut_right_or_not_at_all(
        event in select(sample_events().into_iter().filter(|event| event.len() < 2048).collect::<Vec<_>>()),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        blocks in 0..6_usize,
    ) {
        let mut payload = event;
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        if let Some(cut) = cut_stored(&payload, blocks) {
            prop_assert!(cut.len() < payload.len() + 5);
            prop_assert_eq!(payload_blocks(&cut), Some(blocks));
        }
        let _any_answer = cut_removed(&payload, &[BlockHash(1)]);
    }

    #[test]
    fn any_bytes_are_answered(payload in vec(any::<u8>(), 0..200), blocks in 0..10_usize) {
        let _any_answer = (payload_blocks(&payload), cut_stored(&payload, blocks), cut_removed(&payload, &[]));
    }
}
