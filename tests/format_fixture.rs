//! Each released format stays readable: a journal of it, kept row by row so that it does not hang on the bytes of a
//! store, is built, brought to today's format and held against the events that it was made from.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvjournal::event::{
    Block, BlockHash, ClearReason, Cleared, DpRank, EngineTime, EventData, JsonEvent, MmInfo, MmObject,
    Placement, Removed, StorageTier, Stored, TokensHash, Unknown, WorkerId,
};
use kvjournal::journal::{
    CompactOptions, Config, Durability, FORMAT, Journal, JournalView, NewEvent, RankInfo, Source, migrate,
    verify,
};
use serde_json::{Value, json};
use support::files::contents;
use support::rows::{build, dump};

const RANKS: [DpRank; 2] = [DpRank(0), DpRank(7)];
const WORKER: WorkerId = WorkerId(0xfeed_0000_0000_0001);
const WAIT: Duration = Duration::from_secs(10);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

#[test]
fn a_journal_of_each_released_format_is_read_as_it_was_written() {
    for format in 1..=FORMAT {
        let fixture = fixtures().join(format!("format-{format}"));
        let dir = tempfile::tempdir().unwrap();
        build(&fixture, dir.path());
        let migrated = migrate(dir.path(), WAIT, false, false).unwrap();
        assert_eq!((migrated.from, migrated.to), (format, FORMAT));
        check(&fixture, dir.path());
        // Written anew, it is the same.
        migrate(dir.path(), WAIT, true, false).unwrap();
        check(&fixture, dir.path());
        let journal = Journal::open(Config::new(dir.path(), WORKER)).unwrap();
        for rank in RANKS {
            let head = journal.head(rank);
            let ids = journal.append(rank, &[Removed::default().into_event()]).unwrap().unwrap();
            assert_eq!(ids, head + 1..=head + 1, "ids go on");
        }
        journal.close().unwrap();
    }
}

/// Holds a journal against what the fixture says it is.
fn check(fixture: &Path, dir: &Path) {
    let (events, ranks) = told(dir);
    let lines = |name: &str| -> Vec<String> {
        fs::read_to_string(fixture.join(name)).unwrap().lines().map(str::to_owned).collect()
    };
    assert_eq!(events, lines("events.jsonl"));
    let ranks: Vec<Value> = ranks.iter().map(|rank| serde_json::from_str(rank).unwrap()).collect();
    let expected: Vec<Value> =
        lines("ranks.jsonl").iter().map(|rank| serde_json::from_str(rank).unwrap()).collect();
    assert_eq!(ranks, expected);
    assert_eq!(verify(dir, WAIT, |_, _| {}).unwrap().damage, []);
}

/// The events above the horizon of each rank, and what is known of each rank, as lines of JSON.
fn told(dir: &Path) -> (Vec<String>, Vec<String>) {
    let view = JournalView::open(dir, WAIT).unwrap();
    assert_eq!(view.worker(), WORKER);
    assert_eq!(view.ranks(), RANKS);
    let (mut events, mut ranks) = (Vec::new(), Vec::new());
    for rank in view.ranks() {
        ranks.push(rank_line(&view.rank(rank).unwrap()));
        let mut reader = view.read(rank, 1).unwrap().with_payloads();
        while let Some(frame) = reader.next_frame().unwrap() {
            for event in frame.events() {
                let event = event.unwrap();
                let line = JsonEvent {
                    event_id: Some(event.id),
                    dp_rank: rank,
                    data: event.data,
                    engine_time: event.engine_time,
                    payload: event.payload.map(|payload| payload.to_vec()),
                };
                events.push(line.to_line());
            }
        }
    }
    (events, ranks)
}

fn rank_line(info: &RankInfo) -> String {
    let source = info.source.as_ref().map(|source| {
        json!({"endpoint": source.endpoint, "sequence": source.sequence, "hash": format!("{:032x}", source.hash),
            "done": source.done, "total": source.total})
    });
    let epoch = |epoch: &kvjournal::journal::Epoch| {
        json!({"number": epoch.number, "nonce": epoch.nonce, "first": epoch.first, "kept": epoch.kept,
            "opened_us": epoch.opened_us})
    };
    let epochs: Vec<Value> = info.epochs.iter().map(epoch).collect();
    json!({"rank": info.rank, "head": info.head, "horizon": info.horizon, "witnessed": info.witnessed,
        "lost": info.lost, "source": source, "epochs": epochs})
    .to_string()
}

/// A short way to an event without time and payload.
trait IntoEvent {
    fn into_event(self) -> NewEvent;
}

impl IntoEvent for Removed {
    fn into_event(self) -> NewEvent {
        EventData::Removed(self).into()
    }
}

/// Each kind of event, each field of it set and not set.
fn each_kind() -> Vec<NewEvent> {
    let placement = Placement {
        medium: Some("cpu".into()),
        group: Some(1),
        kind: Some("sliding_window".into()),
        locality: Some("REMOTE".into()),
        ownership: Some("other".into()),
    };
    let block = |block_hash, tokens_hash| Block { block_hash: BlockHash(block_hash), tokens_hash, mm: None };
    let images = MmInfo {
        mm_objects: vec![
            MmObject { mm_hash: 77, offsets: vec![(0, 4), (9, 16)] },
            MmObject { mm_hash: u64::MAX, offsets: vec![] },
        ],
    };
    let plain = Stored {
        blocks: vec![block(1, Some(TokensHash(11))), block(u64::MAX, Some(TokensHash(u64::MAX)))],
        ..Stored::default()
    };
    let full = Stored {
        parent: Some(BlockHash(u64::MAX)),
        start_position: Some(2),
        blocks: vec![Block { mm: Some(Box::new(images)), ..block(3, Some(TokensHash(33))) }, block(4, None)],
        placement: placement.clone(),
        lora: Some("adapter ü".into()),
        salt: Some("salt".into()),
        block_size: Some(16),
        refresh: true,
    };
    let cleared = |reason, tiers: &[StorageTier]| {
        let tiers = tiers.to_vec();
        EventData::Cleared(Cleared { reason, tiers })
    };
    use StorageTier::{Device, Disk, External, HostPinned};
    let data = [
        EventData::Stored(plain),
        EventData::Stored(full),
        EventData::Stored(Stored::default()),
        EventData::Removed(Removed { block_hashes: vec![BlockHash(1), BlockHash(0)], ..Removed::default() }),
        EventData::Removed(Removed { block_hashes: vec![BlockHash(3)], placement }),
        cleared(ClearReason::Engine, &[]),
        cleared(ClearReason::EngineRestart, &[Device, HostPinned]),
        cleared(ClearReason::EngineGap, &[Disk, External]),
        cleared(ClearReason::JournalGap, &[]),
        EventData::Unknown(Unknown { tag: "BlockMoved".into() }),
    ];
    let times = [
        None,
        Some(EngineTime::from_seconds(1_700_000_000.25)),
        Some(EngineTime::from_seconds(f64::NAN)),
        Some(EngineTime::Millis(-1)),
    ];
    let payload = |n: usize| (n % 3 != 1).then(|| vec![0x90 + n as u8; 3 + n].into());
    let event = |(n, data)| NewEvent { data, engine_time: times[n % times.len()], payload: payload(n) };
    data.into_iter().enumerate().map(event).collect()
}

/// What a compacted history is made of: a block that is gone, in front of one that is held.
fn held_in_part() -> [NewEvent; 2] {
    let block = |hash| Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash)), mm: None };
    let stored = EventData::Stored(Stored { blocks: vec![block(8), block(9)], ..Stored::default() });
    let removed = EventData::Removed(Removed { block_hashes: vec![BlockHash(8)], ..Removed::default() });
    let payload = |bytes: &'static [u8]| Some(bytes.into());
    [
        NewEvent { payload: payload(b"what nobody can cut"), ..stored.into() },
        NewEvent { payload: payload(b"nor this"), ..removed.into() },
    ]
}

/// Writes the fixture's journal: two openings, two ranks, a trim, a compaction, cursors of all sorts, rows large enough for fences.
fn write_journal(dir: &Path) {
    let source = |sequence: u64| Source {
        endpoint: "tcp://127.0.0.1:5557".into(),
        sequence,
        hash: u128::from(sequence) << 64 | 0x5eed,
    };
    let first = Journal::open(Config::new(dir, WORKER)).unwrap();
    first.append(RANKS[0], &each_kind()).unwrap();
    first.sync().unwrap();
    first.append_batch(RANKS[0], &source(0), &each_kind()[..3]).unwrap();
    first.sync().unwrap();
    first.close().unwrap();
    let mut config = Config::new(dir, WORKER);
    config.durability = Durability::Os;
    config.first_id = 1_000;
    let second = Journal::open(config).unwrap();
    for sequence in 1..4 {
        let mut events = each_kind();
        events[0].payload = Some(vec![sequence as u8; 4_200].into());
        for rank in RANKS {
            second.append_batch(rank, &source(sequence), &events).unwrap();
        }
        if sequence == 1 {
            second.append(RANKS[1], &held_in_part()).unwrap();
        }
        second.sync().unwrap();
    }
    // One rank's cursor stands in its newest frame, the other's in its row.
    second.append_batch(RANKS[1], &source(4), &[]).unwrap();
    second.sync().unwrap();
    assert_eq!(second.trim(RANKS[0], 12).unwrap(), 10, "to the end of a frame");
    let compacted = second.compact(RANKS[1], 1_015, CompactOptions::default()).unwrap();
    assert_eq!((compacted.horizon, compacted.events), (1_011, 2), "a history of its own");
    second.close().unwrap();
}

#[test]
#[ignore = "writes the fixture"]
fn write_the_fixture_of_the_newest_format() {
    let fixture = fixtures().join(format!("format-{FORMAT}"));
    let dir = tempfile::tempdir().unwrap();
    write_journal(dir.path());
    // A released format never changes, so neither does its fixture.
    fs::create_dir(&fixture).expect("a fixture is written once");
    dump(dir.path(), &fixture);
    let (events, ranks) = told(dir.path());
    fs::write(fixture.join("events.jsonl"), events.join("\n") + "\n").unwrap();
    fs::write(fixture.join("ranks.jsonl"), ranks.join("\n") + "\n").unwrap();
    for (name, bytes) in contents(&fixture) {
        println!("{} bytes: {}", bytes.len(), name.display());
    }
}

#[test]
fn the_fixture_has_each_kind_of_event() {
    let events = fs::read_to_string(fixtures().join("format-1/events.jsonl")).unwrap();
    for told in [
        "\"stored\"",
        "\"removed\"",
        "\"cleared\"",
        "\"unknown\"",
        "\"lora\"",
        "\"salt\"",
        "\"refresh\"",
        "\"mm_objects\":[{",
        "\"placement\"",
        "\"engine_restart\"",
        "\"engine_gap\"",
        "\"journal_gap\"",
        "\"seconds_bits\"",
        "\"millis\"",
        "\"payload\"",
        "\"tokens_hash\":null",
        "\"block_size\"",
        "\"external\"",
    ] {
        assert!(events.contains(told), "{told}");
    }
}
