//! Single sentences of the fold and the match, each as a case to read.

use crate::event::{
    Block, BlockHash, Cleared, EventData, Placement, Removed, StorageTier, Stored, TokensHash,
};

use super::super::{Digest, Index, MatchOptions, StreamId, StreamMatch};

fn stream() -> StreamId {
    StreamId::new(1, 0)
}

fn on(medium: &str) -> Placement {
    Placement { medium: Some(medium.into()), ..Placement::default() }
}

/// Blocks whose tokens hash is a hundred more than their hash.
fn stored(parent: Option<u64>, hashes: &[u64], medium: &str) -> EventData {
    let block = |hash: &u64| Block {
        block_hash: BlockHash(*hash),
        tokens_hash: Some(TokensHash(hash + 100)),
        mm: None,
    };
    EventData::Stored(Stored {
        parent: parent.map(BlockHash),
        blocks: hashes.iter().map(block).collect(),
        placement: on(medium),
        ..Stored::default()
    })
}

fn removed(hashes: &[u64], medium: &str) -> EventData {
    let block_hashes = hashes.iter().copied().map(BlockHash).collect();
    EventData::Removed(Removed { block_hashes, placement: on(medium) })
}

fn found(index: &Index, hashes: &[u64]) -> Option<[u32; 4]> {
    let prompt: Vec<TokensHash> = hashes.iter().map(|hash| TokensHash(hash + 100)).collect();
    let found = index.find_matches(&prompt, MatchOptions::default());
    let counts = |found: &StreamMatch| [found.device, found.host_pinned, found.disk, found.external];
    found.first().map(counts)
}

fn index(events: &[EventData]) -> Index {
    let index = Index::new();
    index.apply_batch(stream(), events);
    index.check();
    index
}

#[test]
fn tiers_are_gone_through_once_from_the_fastest_down() {
    let index = index(&[
        stored(None, &[1, 2, 3, 4, 5], "GPU"),
        stored(None, &[1, 2, 3, 4, 5, 6], "CPU"),
        removed(&[3], "GPU"),
    ]);
    assert_eq!(found(&index, &[1, 2, 3, 4, 5, 6, 7]), Some([2, 4, 0, 0]));
    index.apply(stream(), &removed(&[5], "CPU"));
    assert_eq!(found(&index, &[1, 2, 3, 4, 5, 6, 7]), Some([2, 2, 0, 0]), "no way back to the device");
    index.apply(stream(), &stored(None, &[5], "external"));
    assert_eq!(found(&index, &[1, 2, 3, 4, 5, 6, 7]), Some([2, 2, 0, 1]));
    assert_eq!(found(&index, &[2]), None);
    assert_eq!(found(&index, &[]), None);
}

#[test]
fn a_block_in_the_middle_hides_all_below_it_until_it_is_back() {
    let index = index(&[stored(None, &[1, 2, 3, 4], "GPU"), removed(&[2], "GPU")]);
    assert_eq!(found(&index, &[1, 2, 3, 4]), Some([1, 0, 0, 0]));
    assert_eq!((index.blocks(stream()), index.counters().ghosts), (3, 1));
    index.apply(stream(), &stored(Some(1), &[2], "GPU"));
    assert_eq!(found(&index, &[1, 2, 3, 4]), Some([4, 0, 0, 0]));
    assert_eq!(index.counters().ghosts, 0);
}

#[test]
fn children_that_came_before_their_parent_are_found_once_it_is_there() {
    let index = index(&[stored(Some(2), &[3, 4], "GPU")]);
    assert_eq!(found(&index, &[1, 2, 3, 4]), None);
    index.apply(stream(), &stored(Some(1), &[2], "GPU"));
    assert_eq!(found(&index, &[1, 2, 3, 4]), None);
    index.apply(stream(), &stored(None, &[1], "GPU"));
    assert_eq!(found(&index, &[1, 2, 3, 4]), Some([4, 0, 0, 0]));
}

#[test]
fn copies_count_and_a_hash_counts_once_in_an_event() {
    let many: Vec<u64> = (0..40).chain(0..40).collect();
    for hashes in [&[1, 2, 1, 2][..], &many] {
        let index = index(&[stored(None, hashes, "GPU"), stored(None, hashes, "GPU")]);
        index.apply(stream(), &removed(hashes, "GPU"));
        assert_eq!(index.blocks(stream()), hashes.len() / 2);
        index.apply(stream(), &removed(hashes, "GPU"));
        assert_eq!((index.blocks(stream()), index.digest(stream())), (0, Digest::default()));
        assert_eq!(index.counters().nodes, 0);
    }
}

#[test]
fn media_written_differently_are_counted_apart_and_cleared_together() {
    let tier =
        |tiers: &[StorageTier]| EventData::Cleared(Cleared { tiers: tiers.to_vec(), ..Cleared::default() });
    let index = index(&[stored(None, &[1], "GPU"), stored(None, &[1], "gpu"), stored(None, &[1, 2], "TAPE")]);
    index.apply(stream(), &removed(&[1], "GPU"));
    index.apply(stream(), &removed(&[1], "GPU"));
    assert_eq!(found(&index, &[1]), Some([1, 0, 0, 0]));
    index.apply(stream(), &tier(&[StorageTier::Device]));
    assert_eq!((found(&index, &[1]), index.blocks(stream())), (None, 2));
    index.apply(stream(), &tier(&[]));
    assert_eq!(index.blocks(stream()), 0);
}

#[test]
fn only_streams_of_the_model_that_is_asked_for_take_part() {
    let index = Index::new();
    let (one, other) = (StreamId::new(1, 0), StreamId::new(2, 0));
    for (stream, model) in [(one, "a"), (other, "b")] {
        index.set_model(stream, Some(model));
        index.apply(stream, &stored(None, &[1], "GPU"));
    }
    let asked = |model| {
        let options = MatchOptions { model: Some(model), ..MatchOptions::default() };
        let found = index.find_matches(&[TokensHash(101)], options);
        found.into_iter().map(|found| found.stream).collect::<Vec<_>>()
    };
    assert_eq!((asked("a"), asked("b"), asked("c")), (vec![one], vec![other], vec![]));
    assert_eq!(index.model(one).as_deref(), Some("a"));
    index.set_model(one, None);
    assert_eq!((asked("a"), index.model(one)), (vec![], None));
}

#[test]
fn a_long_chain_that_comes_backward_and_joins_another_is_no_trouble() {
    let length = 100_000;
    let index = Index::new();
    let forward: Vec<u64> = (1..=length).collect();
    index.apply(StreamId::new(2, 0), &stored(None, &forward, "GPU"));
    for hash in (1..=length).rev() {
        index.apply(stream(), &stored((hash > 1).then(|| hash - 1), &[hash], "GPU"));
    }
    index.check();
    let prompt: Vec<TokensHash> = forward.iter().map(|hash| TokensHash(hash + 100)).collect();
    let found = index.find_matches(&prompt, MatchOptions::default());
    assert_eq!(found.iter().map(|found| found.device).collect::<Vec<_>>(), [length as u32; 2]);
    assert_eq!(index.counters().nodes, length as usize);
    // From the front, so that ghosts lead to more ghosts.
    for hash in 1..length {
        index.apply(stream(), &removed(&[hash], "GPU"));
    }
    index.check();
    assert!(index.counters().ghosts < 2000, "{:?}", index.counters());
    assert_eq!(index.blocks(stream()), 1);
}

#[test]
fn blocks_that_hang_below_themselves_are_held_and_never_found() {
    let index =
        index(&[stored(Some(2), &[1], "GPU"), stored(Some(1), &[2], "GPU"), stored(Some(3), &[3], "GPU")]);
    assert_eq!((index.blocks(stream()), found(&index, &[1]), found(&index, &[3])), (3, None, None));
    index.apply_batch(stream(), &[removed(&[2], "GPU"), stored(None, &[2], "GPU")]);
    index.check();
    assert_eq!(found(&index, &[2, 1]), Some([2, 0, 0, 0]));
    index.apply(stream(), &removed(&[1, 2, 3], "GPU"));
    assert_eq!(index.counters().nodes, 0);
}
