//! Databases that nothing happened to lose nothing, and the scan says so.

use super::super::{SnapshotFile, for_each_chunk, scan};
use super::*;
use std::ops::ControlFlow;

fn nothing_is_lost(load: Load, seed: u64) -> LogScan {
    println!("seed {seed}, {load:?}");
    let (dir, rows) = build(load, &mut Dice(seed));
    let before = fs::read(dir.path().join("db")).unwrap();
    let scan = scan(dir.path(), load.segment_size).unwrap();
    assert_eq!(fs::read(dir.path().join("db")).unwrap(), before, "the scan only reads");
    assert_eq!(scan.doomed, [], "{scan:?}");
    assert_eq!(scan.refusal, None);
    let (overwritten, opened) = overwritten_by_sled(dir.path(), load.segment_size);
    assert_eq!(opened, Opened::Fine(()));
    let unforeseen: Vec<_> = overwritten.iter().filter(|at| !foreseen(&scan, **at)).collect();
    assert!(unforeseen.is_empty(), "{} bytes, first {:?}, {scan:?}", unforeseen.len(), unforeseen.first());
    assert_eq!(rows_of_copy(dir.path(), load.segment_size), Opened::Fine(rows));
    scan
}

fn loads(end: End) -> impl Iterator<Item = (Load, u64)> {
    (0..24).map(move |seed| {
        let mut dice = Dice(seed);
        let segment_size = 1 << (16 + dice.below(4));
        let value_max = (segment_size as u64 / 20).max(200);
        let writes = 50 + dice.below(400);
        let keys = if dice.below(3) == 0 { 1 << 40 } else { 8 + dice.below(60) };
        let openings = 1 + dice.below(4);
        (Load { segment_size, writes, keys, value_max, openings, end }, seed)
    })
}

#[test]
fn a_closed_database_has_nothing_doomed() {
    let recycled: usize =
        loads(End::Closed).map(|(load, seed)| nothing_is_lost(load, seed).recycled.len()).sum();
    assert!(recycled > 0, "some of them should have used segments twice");
}

#[test]
fn a_database_killed_after_a_flush_has_nothing_doomed() {
    let recycled: usize =
        loads(End::Killed).map(|(load, seed)| nothing_is_lost(load, seed).recycled.len()).sum();
    assert!(recycled > 0, "some of them should have used segments twice");
}

#[test]
fn rows_of_64_kib_in_segments_of_1_mib_are_no_exception() {
    for (seed, end) in [(1, End::Closed), (2, End::Killed)] {
        let load =
            Load { segment_size: 1 << 20, writes: 120, keys: 30, value_max: 64 << 10, openings: 2, end };
        nothing_is_lost(load, seed);
    }
}

#[test]
fn values_in_blob_files_are_no_exception() {
    for (seed, end) in [(1, End::Closed), (2, End::Killed)] {
        let load =
            Load { segment_size: 1 << 14, writes: 60, keys: 30, value_max: 16 << 10, openings: 2, end };
        nothing_is_lost(load, seed);
    }
}

#[test]
fn a_new_folder_has_nothing_to_lose() {
    let dir = tempfile::tempdir().unwrap();
    let scan = scan(dir.path(), 1 << 23).unwrap();
    assert_eq!(scan.recovered_to, Some(0));
    assert_eq!(scan.snapshot, SnapshotFile::Absent);
    assert!(scan.doomed.is_empty() && scan.refusal.is_none());
}

#[test]
fn the_scan_ends_where_sled_goes_on() {
    let load =
        Load { segment_size: 1 << 16, writes: 80, keys: 20, value_max: 2000, openings: 1, end: End::Killed };
    let (dir, _) = build(load, &mut Dice(7));
    let before = scan(dir.path(), load.segment_size).unwrap();
    assert_eq!(with_sled(dir.path(), load.segment_size, |_| Ok(())), Opened::Fine(()));
    // Opening, sled notes in its snapshot how far it recovered.
    let after = scan(dir.path(), load.segment_size).unwrap();
    assert_eq!(after.snapshot, SnapshotFile::Present { stable_lsn: before.recovered_to });
}

#[test]
fn pieces_of_a_span_overlap_so_that_nothing_short_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("db"), (0..100).collect::<Vec<u8>>()).unwrap();
    let mut pieces = Vec::new();
    for_each_chunk(dir.path(), Span { offset: 10, len: 25 }, 10, 4, |offset, bytes| {
        assert_eq!(u64::from(bytes[0]), offset);
        pieces.push((offset, bytes.len()));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(pieces, [(10, 10), (16, 10), (22, 10), (28, 7)]);
}
