//! The laws of compaction, over random streams in which everything that can meet does.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{
    Block, BlockHash, Cleared, EventData, EventId, Placement, Removed, StorageTier, Stored, TokensHash,
    Unknown,
};

use super::{Plan, Planner};

type Events = Vec<(EventId, EventData)>;

/// Parent, tokens, LoRA adapter and salt.
type Identity = (Option<BlockHash>, Option<TokensHash>, Option<String>, Option<String>);

/// The fold by its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model(HashMap<BlockHash, (Identity, BTreeMap<String, u64>)>);

impl Model {
    fn of(events: &[(EventId, EventData)]) -> Self {
        let mut model = Self::default();
        events.iter().for_each(|(_, data)| model.apply(data));
        model
    }

    fn apply(&mut self, data: &EventData) {
        match data {
            EventData::Stored(stored) => {
                let mut parent = stored.parent;
                let mut seen = HashSet::new();
                for block in &stored.blocks {
                    let identity = (parent, block.tokens_hash, stored.lora.clone(), stored.salt.clone());
                    parent = Some(block.block_hash);
                    if seen.insert(block.block_hash) {
                        let (_, counts) =
                            self.0.entry(block.block_hash).or_insert((identity, BTreeMap::new()));
                        let count = counts.entry(name(&stored.placement)).or_default();
                        *count = if stored.refresh { (*count).max(1) } else { *count + 1 };
                    }
                }
            }
            EventData::Removed(removed) => {
                let hashes: HashSet<_> = removed.block_hashes.iter().collect();
                for hash in hashes {
                    if let Some((_, counts)) = self.0.get_mut(hash)
                        && let Some(count) = counts.get_mut(&name(&removed.placement))
                    {
                        *count -= 1;
                    }
                }
            }
            EventData::Cleared(cleared) => {
                for (_, counts) in self.0.values_mut() {
                    counts.retain(|name, _| {
                        let tier = placement(name).tier();
                        !(cleared.tiers.is_empty() || tier.is_some_and(|tier| cleared.tiers.contains(&tier)))
                    });
                }
            }
            EventData::Unknown(_) => {}
        }
        self.0.retain(|_, (_, counts)| {
            counts.retain(|_, count| *count > 0);
            !counts.is_empty()
        });
    }
}

fn placement(medium: &str) -> Placement {
    Placement { medium: Some(medium.to_owned()), ..Placement::default() }
}

fn name(placement: &Placement) -> String {
    placement.medium.clone().unwrap_or_default()
}

/// A history in short.
fn told(events: &[(EventId, EventData)]) -> String {
    let event = |(id, data): &(EventId, EventData)| match data {
        EventData::Stored(stored) => {
            let hashes: Vec<_> = stored.blocks.iter().map(|block| block.block_hash.0).collect();
            let sign = if stored.refresh { '~' } else { '+' };
            format!("{id}{sign}{hashes:?}{}", name(&stored.placement))
        }
        EventData::Removed(removed) => {
            let hashes: Vec<_> = removed.block_hashes.iter().map(|hash| hash.0).collect();
            format!("{id}-{hashes:?}{}", name(&removed.placement))
        }
        other => format!("{id}{other:?}"),
    };
    events.iter().map(event).collect::<Vec<_>>().join("  ")
}

fn plan(events: &[(EventId, EventData)], whole: &HashSet<EventId>) -> Plan {
    let mut planner = Planner::new(whole);
    events.iter().for_each(|(id, data)| planner.apply(*id, data));
    planner.plan()
}

fn compact_with(events: &[(EventId, EventData)], whole: &HashSet<EventId>) -> Events {
    let mut plan = plan(events, whole);
    let kept = events.iter().filter_map(|(id, data)| {
        let kept = plan.keep(*id, data.clone());
        assert!(kept.is_none() || plan.touches(*id..=*id));
        Some((*id, kept?))
    });
    let kept: Events = kept.collect();
    plan.check().unwrap();
    if plan.is_rough() && kept != events { compact_with(&kept, whole) } else { kept }
}

fn compact(events: &[(EventId, EventData)]) -> Events {
    compact_with(events, &HashSet::new())
}

fn stored(is_sane: bool) -> impl Strategy<Value = EventData> {
    let hash = || (0..9_u64).prop_map(BlockHash);
    let blocks = vec((hash(), option::weighted(0.9, (0..3_u64).prop_map(TokensHash))), 0..6);
    let lora = option::weighted(0.1, Just("lora".to_owned()));
    (option::of(hash()), blocks, media(), lora, any::<u8>()).prop_map(
        move |(parent, blocks, medium, lora, refresh)| {
            let mut stored = Stored {
                parent,
                lora,
                placement: placement(medium),
                refresh: refresh < 60,
                ..Stored::default()
            };
            let block = |(block_hash, tokens_hash)| Block { block_hash, tokens_hash, mm: None };
            stored.blocks = blocks.into_iter().map(block).collect();
            if is_sane {
                // Each hash has one parent and one tokens hash for ever: nine in a row.
                stored.lora = None;
                let first = stored.parent.map_or(0, |parent| parent.0 + 1);
                let hashes = first..(first + stored.blocks.len() as u64).min(9);
                stored.parent = first.checked_sub(1).map(BlockHash);
                let block = |hash| Block {
                    block_hash: BlockHash(hash),
                    tokens_hash: Some(TokensHash(hash)),
                    mm: None,
                };
                stored.blocks = hashes.map(block).collect();
            }
            EventData::Stored(stored)
        },
    )
}

fn media() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just("GPU"), 2 => Just("CPU"), 1 => Just("gpu"), 1 => Just("TAPE")]
}

fn events(is_sane: bool) -> impl Strategy<Value = Events> {
    let hashes = vec((0..9_u64).prop_map(BlockHash), 0..5);
    let removed = (hashes, media()).prop_map(|(block_hashes, medium)| {
        EventData::Removed(Removed { block_hashes, placement: placement(medium) })
    });
    let tiers = vec(prop_oneof![Just(StorageTier::Device), Just(StorageTier::HostPinned)], 0..2);
    let cleared = tiers.prop_map(|tiers| EventData::Cleared(Cleared { tiers, ..Cleared::default() }));
    let event = prop_oneof![
        20 => stored(is_sane),
        20 => removed,
        1 => cleared,
        1 => Just(EventData::Unknown(Unknown::default())),
    ];
    // Ids have gaps: a history may have been compacted before.
    vec((1..4_u64, event), 0..60).prop_map(|events| {
        let ids = events.iter().scan(0, |id, (step, _)| {
            *id += step;
            Some(*id)
        });
        ids.zip(events.iter().map(|(_, data)| data.clone())).collect()
    })
}

fn without_refreshes(events: impl Strategy<Value = Events>) -> impl Strategy<Value = Events> {
    events.prop_map(|mut events| {
        for (_, data) in &mut events {
            if let EventData::Stored(stored) = data {
                stored.refresh = false;
            }
        }
        events
    })
}

fn any_events() -> impl Strategy<Value = Events> {
    prop_oneof![events(true), events(false)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_state_is_the_same_at_the_horizon_and_after_all_that_follows(events in any_events(), at in 0..60_usize) {
        let at = at.min(events.len());
        let mut kept = compact(&events[..at]);
        prop_assert_eq!(Model::of(&kept), Model::of(&events[..at]));
        kept.extend_from_slice(&events[at..]);
        prop_assert_eq!(Model::of(&kept), Model::of(&events));
    }

    #[test]
    fn what_is_kept_is_a_part_of_the_history_in_its_order(events in any_events()) {
        let kept = compact(&events);
        prop_assert!(kept.is_sorted_by(|one, two| one.0 < two.0));
        let whole: BTreeMap<_, _> = events.into_iter().collect();
        for (id, data) in kept {
            match (data, &whole[&id]) {
                (EventData::Stored(kept), EventData::Stored(whole)) => {
                    prop_assert!(!kept.blocks.is_empty());
                    prop_assert_eq!(&kept.blocks[..], &whole.blocks[..kept.blocks.len()]);
                    prop_assert_eq!(Stored { blocks: Vec::new(), ..kept }, Stored { blocks: Vec::new(), ..whole.clone() });
                }
                (EventData::Removed(kept), EventData::Removed(whole)) => {
                    let unique: HashSet<_> = kept.block_hashes.iter().collect();
                    prop_assert!(!unique.is_empty() && unique.len() == kept.block_hashes.len());
                    prop_assert!(kept.block_hashes.iter().all(|hash| whole.block_hashes.contains(hash)));
                    prop_assert_eq!(kept.placement, whole.placement.clone());
                }
                (kept, whole) => prop_assert_eq!(&kept, whole),
            }
        }
    }

    #[test]
    fn compacting_again_changes_nothing(events in any_events()) {
        let once = compact(&events);
        prop_assert!(compact(&once) == once, "{}\n{}\n{}", told(&events), told(&once), told(&compact(&once)));
    }

    #[test]
    fn horizons_one_after_the_other_end_as_the_last_one_alone(events in without_refreshes(events(true)), step in 1..20_usize) {
        let mut kept = Events::new();
        for part in events.chunks(step) {
            kept.extend_from_slice(part);
            kept = compact(&kept);
        }
        prop_assert!(kept == compact(&events), "{}\n{}\n{}", told(&events), told(&kept), told(&compact(&events)));
    }

    #[test]
    fn horizons_one_after_the_other_leave_the_state_of_any_stream(events in events(false), step in 1..20_usize) {
        let mut kept = Events::new();
        for part in events.chunks(step) {
            kept.extend_from_slice(part);
            kept = compact(&kept);
        }
        prop_assert_eq!(Model::of(&kept), Model::of(&events));
    }

    #[test]
    fn what_cannot_be_cut_stays_whole(events in any_events(), ids in vec(0..120_u64, 0..40)) {
        let whole: HashSet<EventId> = ids.into_iter().collect();
        let kept = compact_with(&events, &whole);
        prop_assert_eq!(Model::of(&kept), Model::of(&events));
        let before: HashMap<_, _> = events.into_iter().collect();
        for (id, data) in kept {
            if let EventData::Stored(_) = data && whole.contains(&id) {
                prop_assert_eq!(&data, &before[&id]);
            }
        }
    }
}

/// Blocks whose parent is the block before.
fn row(hashes: std::ops::RangeInclusive<u64>) -> EventData {
    let block = |hash| Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash)), mm: None };
    EventData::Stored(Stored {
        parent: hashes.start().checked_sub(1).map(BlockHash),
        blocks: hashes.map(block).collect(),
        placement: placement("GPU"),
        ..Stored::default()
    })
}

fn gone(hashes: &[u64]) -> EventData {
    let block_hashes = hashes.iter().copied().map(BlockHash).collect();
    EventData::Removed(Removed { block_hashes, placement: placement("GPU") })
}

fn numbered(events: &[EventData]) -> Events {
    events.iter().cloned().enumerate().map(|(at, data)| (at as EventId + 1, data)).collect()
}

#[test]
fn a_dead_end_is_cut_and_leaves_no_removal() {
    let events = numbered(&[row(1..=5), gone(&[5]), gone(&[4, 3]), row(3..=3)]);
    assert_eq!(compact(&events), [(1, row(1..=2)), (4, row(3..=3))]);
}

#[test]
fn a_dead_middle_keeps_the_event_and_the_removal_that_names_it() {
    let events = numbered(&[row(1..=5), gone(&[5, 3]), row(7..=8), gone(&[7, 8])]);
    assert_eq!(compact(&events), [(1, row(1..=4)), (2, gone(&[3]))]);
}

#[test]
fn a_clear_drops_all_before_it_and_itself() {
    let cleared = EventData::Cleared(Cleared::default());
    let events = numbered(&[row(1..=5), gone(&[2]), cleared, row(1..=1)]);
    assert_eq!(compact(&events), [(4, row(1..=1))]);
}

#[test]
fn copies_survive_by_number() {
    let events = numbered(&[row(1..=2), row(1..=2), row(1..=2), gone(&[1, 2]), gone(&[2])]);
    assert_eq!(compact(&events), [(1, row(1..=2)), (2, row(1..=1))]);
}

#[test]
fn an_identity_outlives_the_placement_it_came_from() {
    // The host's copy has no tokens of its own.
    let on_host = EventData::Stored(Stored {
        blocks: vec![Block { block_hash: BlockHash(1), tokens_hash: None, mm: None }],
        placement: placement("CPU"),
        ..Stored::default()
    });
    let events = numbered(&[row(1..=1), on_host, gone(&[1])]);
    assert_eq!(compact(&events), events, "the removal is what says that the device has it no more");
}

#[test]
fn memory_is_that_of_the_live_state() {
    let whole = HashSet::new();
    let mut planner = Planner::new(&whole);
    for round in 0..10_000_u64 {
        let first = 1 + round * 10;
        planner.apply(round * 2 + 1, &row(first..=first + 9));
        planner.apply(round * 2 + 2, &gone(&(first..first + 10).rev().collect::<Vec<_>>()));
    }
    assert_eq!(planner.live_events(), 0);
}
