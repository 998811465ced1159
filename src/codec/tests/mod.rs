//! Tests of the codec: round trips, pinned bytes, a rejection per error, and the document held against the code.

mod frames;
mod pages;
mod rows;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{
    Block, BlockHash, ClearReason, Cleared, DpRank, EngineTime, EventData, MmInfo, MmObject, Placement,
    Removed, StorageTier, Stored, TokensHash, Unknown, WorkerId,
};

use super::record::EncodedRecords;
use super::{BuiltFrame, FrameBuilder, SourceCursor, Stamp};

const FORMAT_DOCUMENT: &str = include_str!("../../../migrations/FORMAT.md");

/// A row of a byte table: offset, length (the last row may leave it out), name of the field.
type TableRow = (usize, Option<usize>, String);

/// The byte table under a heading of the format document. Its fields follow each other without a hole.
pub(super) fn document_table(heading: &str) -> Vec<TableRow> {
    let (_, section) =
        FORMAT_DOCUMENT.split_once(&format!("\n### {heading}\n")).expect("the heading is there");
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|l| l.starts_with('|'));
    let table: Vec<TableRow> = lines
        .skip(2)
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            (cells[1].parse().expect("an offset"), cells[2].parse().ok(), cells[3].to_owned())
        })
        .collect();
    for pair in table.windows(2) {
        assert_eq!(pair[0].1.map(|len| pair[0].0 + len), Some(pair[1].0), "after {}", pair[0].2);
    }
    table
}

/// Holds a table of the document against offsets and names of the code.
pub(super) fn assert_documented(heading: &str, code: &[(usize, &str)]) {
    let table = document_table(heading);
    let documented: Vec<_> = table.iter().map(|(at, _, name)| (*at, name.as_str())).collect();
    assert_eq!(documented, code, "{heading}");
}

/// What is needed to build one frame.
#[derive(Clone, Debug)]
struct Spec {
    stamp: Stamp,
    first: u64,
    previous: u64,
    appended_us: u64,
    cursor: Option<SourceCursor>,
    /// Each with what is to be left out before its id in a sparse frame.
    events: Vec<(EventData, Option<EngineTime>, Option<Bytes>, u64)>,
    sparse: bool,
}

impl Spec {
    /// The ids that the events get.
    fn ids(&self) -> Vec<u64> {
        let mut next = self.first;
        let id = |gap: &u64| {
            let id = next + if self.sparse { *gap } else { 0 };
            next = id + 1;
            id
        };
        self.events.iter().map(|(.., gap)| gap).map(id).collect()
    }

    fn build(&self) -> BuiltFrame {
        let mut builder = if self.sparse { FrameBuilder::sparse() } else { FrameBuilder::new(self.first) };
        for ((data, time, payload, _), id) in self.events.iter().zip(self.ids()) {
            let mut records = EncodedRecords::default();
            records.push(data, *time, payload.clone()).unwrap();
            let (record, payload) = records.iter().next().unwrap();
            assert_eq!(records.len(), 1);
            assert!(builder.fits(record, payload.map_or(0, Bytes::len)));
            if self.sparse {
                builder.push_at(id, record, payload.cloned());
            } else {
                builder.push(record, payload.cloned());
            }
        }
        if let Some(cursor) = &self.cursor {
            builder.set_cursor(cursor.clone());
        }
        builder.build(self.stamp, self.previous, self.appended_us)
    }
}

/// A small frame whose bytes are pinned.
fn small_spec() -> Spec {
    let stored = EventData::Stored(Stored {
        parent: Some(BlockHash(0xa0)),
        blocks: vec![Block { block_hash: BlockHash(0xb1), tokens_hash: Some(TokensHash(0xc2)), mm: None }],
        block_size: Some(16),
        ..Stored::default()
    });
    let cleared =
        EventData::Cleared(Cleared { reason: ClearReason::EngineRestart, tiers: vec![StorageTier::Disk] });
    Spec {
        stamp: Stamp {
            journal: *b"0123456789abcdef",
            worker: WorkerId(7),
            rank: DpRank(3),
            generation: 1,
            epoch: 2,
            epoch_first: 4,
        },
        first: 5,
        previous: 4,
        appended_us: 0x0102_0304_0506_0708,
        cursor: Some(SourceCursor { endpoint: "tcp".into(), sequence: 9, hash: 10, done: 2, total: 3 }),
        events: vec![
            (stored, Some(EngineTime::Millis(-1)), Some(Bytes::from_static(b"pay")), 0),
            (cleared, None, None, 0),
        ],
        sparse: false,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::of("[a-zß]{0,6}")
}

fn placement() -> impl Strategy<Value = Placement> {
    (text(), option::of(any::<u32>()), text(), text(), text()).prop_map(
        |(medium, group, kind, locality, ownership)| Placement { medium, group, kind, locality, ownership },
    )
}

fn block() -> impl Strategy<Value = Block> {
    let object = (any::<u64>(), vec(any::<(u32, u32)>(), 0..3))
        .prop_map(|(mm_hash, offsets)| MmObject { mm_hash, offsets });
    let images = option::of(vec(object, 0..3).prop_map(|mm_objects| Box::new(MmInfo { mm_objects })));
    (any::<u64>(), option::of(any::<u64>()), images).prop_map(|(hash, tokens, mm)| Block {
        block_hash: BlockHash(hash),
        tokens_hash: tokens.map(TokensHash),
        mm,
    })
}

fn event() -> impl Strategy<Value = EventData> {
    let parts = (option::of(any::<u64>()), option::of(any::<u32>()), vec(block(), 0..6), placement());
    let rest = (text(), text(), option::of(any::<u32>()), any::<bool>());
    let stored = (parts, rest).prop_map(
        |((parent, start_position, blocks, placement), (lora, salt, block_size, refresh))| {
            let parent = parent.map(BlockHash);
            EventData::Stored(Stored {
                parent,
                start_position,
                blocks,
                placement,
                lora,
                salt,
                block_size,
                refresh,
            })
        },
    );
    let removed = (vec(any::<u64>(), 0..6), placement()).prop_map(|(hashes, placement)| {
        EventData::Removed(Removed { block_hashes: hashes.into_iter().map(BlockHash).collect(), placement })
    });
    let reason = prop::sample::select(vec![
        ClearReason::Engine,
        ClearReason::EngineRestart,
        ClearReason::EngineGap,
        ClearReason::JournalGap,
    ]);
    let tier = prop::sample::select(vec![
        StorageTier::Device,
        StorageTier::HostPinned,
        StorageTier::Disk,
        StorageTier::External,
    ]);
    let cleared =
        (reason, vec(tier, 0..4)).prop_map(|(reason, tiers)| EventData::Cleared(Cleared { reason, tiers }));
    let unknown = "[A-Za-z]{0,20}".prop_map(|tag| EventData::Unknown(Unknown { tag }));
    prop_oneof![stored, removed, cleared, unknown]
}

fn engine_time() -> impl Strategy<Value = Option<EngineTime>> {
    let time =
        prop_oneof![any::<u64>().prop_map(EngineTime::Seconds), any::<i64>().prop_map(EngineTime::Millis)];
    option::of(time)
}

fn payload() -> impl Strategy<Value = Option<Bytes>> {
    // An empty payload is none.
    option::of(vec(any::<u8>(), 1..40).prop_map(Bytes::from))
}

fn cursor() -> impl Strategy<Value = SourceCursor> {
    ("[ -~]{0,255}", any::<u64>(), any::<u128>(), any::<u32>(), any::<u32>()).prop_map(
        |(endpoint, sequence, hash, done, total)| SourceCursor { endpoint, sequence, hash, done, total },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    let stamp = (any::<[u8; 16]>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
    let stamp = stamp.prop_map(|(journal, worker, rank, generation, epoch, epoch_first)| Stamp {
        journal,
        worker: WorkerId(worker),
        rank: DpRank(rank),
        generation,
        epoch,
        epoch_first,
    });
    let events = vec((event(), engine_time(), payload(), 0..1000_u64), 1..8);
    let ids = (1..u64::MAX / 2).prop_flat_map(|first| (Just(first), 0..first));
    (stamp, ids, any::<u64>(), option::of(cursor()), events, any::<bool>()).prop_map(
        |(stamp, (first, previous), appended_us, cursor, events, sparse)| Spec {
            stamp,
            first,
            previous,
            appended_us,
            cursor,
            events,
            sparse,
        },
    )
}
