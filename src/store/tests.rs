//! One suite for every store, and what only one of them does.

use std::io;
use std::path::Path;

use bytes::Bytes;

use super::{MemoryStore, ROW_BYTES_MAX, Row, SledStore, Store, StoreError, Tree};

const EVENTS: Tree = Tree::Events { rank: 0, generation: 1 };
/// Trees whose names or order are close to that of `EVENTS`.
const NEIGHBOURS: [Tree; 4] = [
    Tree::Meta,
    Tree::Events { rank: 0, generation: 0 },
    Tree::Events { rank: 0, generation: 10 },
    Tree::Payloads { rank: 0, generation: 0 },
];

fn key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

fn row(id: u64, value: &'static str) -> Row {
    (key(id).to_vec(), Bytes::from_static(value.as_bytes()))
}

fn rows(store: &dyn Store, tree: Tree, from: u64) -> Vec<Row> {
    store.scan(tree, &key(from)).collect::<Result<_, _>>().unwrap()
}

fn ids(store: &dyn Store, tree: Tree) -> Vec<u64> {
    let id = |(key, _): &Row| u64::from_be_bytes(*key.first_chunk().unwrap());
    rows(store, tree, 0).iter().map(id).collect()
}

/// Runs a test against each store, empty.
fn with_each(test: impl Fn(&dyn Store)) {
    test(&MemoryStore::default());
    let dir = tempfile::tempdir().unwrap();
    test(&SledStore::open(dir.path()).unwrap());
}

fn sled(dir: &Path) -> SledStore {
    SledStore::open(dir).unwrap()
}

#[test]
fn an_empty_tree_has_nothing() {
    with_each(|store| {
        assert_eq!(store.get(EVENTS, &key(1)).unwrap(), None);
        assert_eq!(store.last(EVENTS).unwrap(), None);
        assert_eq!(store.at_or_below(EVENTS, &key(u64::MAX)).unwrap(), None);
        assert_eq!(rows(store, EVENTS, 0), []);
        assert_eq!(store.remove_below(EVENTS, &key(9), 10).unwrap(), 0);
        store.remove(EVENTS, &key(1)).unwrap();
        store.sync().unwrap();
    });
}

#[test]
fn rows_are_found_by_key_by_neighbour_and_in_order() {
    with_each(|store| {
        for (id, value) in [(1, "a"), (256, "b"), (1 << 40, "c")] {
            store.append(EVENTS, &key(id), value.as_bytes()).unwrap();
        }
        for tree in NEIGHBOURS {
            store.put(tree, &key(300), b"another tree's").unwrap();
        }
        assert_eq!(store.get(EVENTS, &key(256)).unwrap(), Some(Bytes::from_static(b"b")));
        assert_eq!(store.get(EVENTS, &key(257)).unwrap(), None);
        assert_eq!(store.last(EVENTS).unwrap(), Some(row(1 << 40, "c")));
        assert_eq!(store.at_or_below(EVENTS, &key(0)).unwrap(), None);
        assert_eq!(store.at_or_below(EVENTS, &key(1)).unwrap(), Some(row(1, "a")));
        assert_eq!(store.at_or_below(EVENTS, &key(255)).unwrap(), Some(row(1, "a")));
        assert_eq!(store.at_or_below(EVENTS, &key(u64::MAX)).unwrap(), Some(row(1 << 40, "c")));
        assert_eq!(rows(store, EVENTS, 0), [row(1, "a"), row(256, "b"), row(1 << 40, "c")]);
        assert_eq!(rows(store, EVENTS, 2), [row(256, "b"), row(1 << 40, "c")]);
        assert_eq!(rows(store, EVENTS, 256), [row(256, "b"), row(1 << 40, "c")]);
        assert_eq!(rows(store, EVENTS, (1 << 40) + 1), []);
        for tree in NEIGHBOURS {
            assert_eq!(rows(store, tree, 0), [row(300, "another tree's")]);
        }
        let mut trees = store.trees().unwrap();
        trees.sort();
        let mut expected = [&NEIGHBOURS[..], &[EVENTS]].concat();
        expected.sort();
        assert_eq!(trees, expected);
    });
}

#[test]
fn a_put_replaces_and_a_remove_removes() {
    with_each(|store| {
        store.put(Tree::Meta, b"identity", b"old").unwrap();
        store.put(Tree::Meta, b"identity", b"new").unwrap();
        assert_eq!(store.get(Tree::Meta, b"identity").unwrap(), Some(Bytes::from_static(b"new")));
        store.remove(Tree::Meta, b"identity").unwrap();
        assert_eq!(store.get(Tree::Meta, b"identity").unwrap(), None);
        assert_eq!(store.scan(Tree::Meta, &[]).count(), 0);
    });
}

#[test]
fn rows_below_a_key_go_a_few_at_a_time_from_the_first() {
    with_each(|store| {
        for id in 1..=10 {
            store.append(EVENTS, &key(id), b"x").unwrap();
            store.append(Tree::Payloads { rank: 0, generation: 0 }, &key(id), b"x").unwrap();
        }
        assert_eq!(store.remove_below(EVENTS, &key(8), 3).unwrap(), 3);
        assert_eq!(ids(store, EVENTS), [4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(store.remove_below(EVENTS, &key(8), 100).unwrap(), 4);
        assert_eq!(store.remove_below(EVENTS, &key(8), 100).unwrap(), 0);
        assert_eq!(ids(store, EVENTS), [8, 9, 10]);
        assert_eq!(ids(store, Tree::Payloads { rank: 0, generation: 0 }).len(), 10);
    });
}

#[test]
fn large_rows_are_read_back_without_what_the_store_lays_between_them() {
    with_each(|store| {
        let value = |id: u64| vec![id as u8; 64 * 1024];
        for id in (1..=2_000).step_by(50) {
            store.append(EVENTS, &key(id), &value(id)).unwrap();
        }
        store.sync().unwrap();
        let expected: Vec<u64> = (1..=2_000).step_by(50).collect();
        assert_eq!(ids(store, EVENTS), expected);
        assert!(rows(store, EVENTS, 0).iter().zip(&expected).all(|((_, found), id)| *found == value(*id)));
        assert_eq!(store.last(EVENTS).unwrap().unwrap().0, key(1_951));
        for id in 1..2_000 {
            let (found, _) = store.at_or_below(EVENTS, &key(id)).unwrap().unwrap();
            assert_eq!(found, key((id - 1) / 50 * 50 + 1));
        }
        while store.remove_below(EVENTS, &key(1_001), 7).unwrap() > 0 {}
        assert_eq!(ids(store, EVENTS), expected[20..]);
        while store.remove_below(EVENTS, &key(u64::MAX), 7).unwrap() > 0 {}
        assert_eq!(store.last(EVENTS).unwrap(), None);
    });
}

#[test]
fn a_scan_misses_no_row_that_is_there_from_its_start_to_its_end() {
    with_each(|store| {
        for id in 1..=4 {
            store.append(EVENTS, &key(id), b"x").unwrap();
        }
        let mut scan = store.scan(EVENTS, &key(1));
        assert_eq!(scan.next().unwrap().unwrap().0, key(1));
        store.remove_below(EVENTS, &key(3), 9).unwrap();
        store.append(EVENTS, &key(5), b"x").unwrap();
        let rest: Vec<_> = scan.map(|row| row.unwrap().0).collect();
        assert!(rest.is_sorted(), "{rest:?}");
        // Rows that come or go meanwhile may be seen or not: iterators are no snapshots.
        let stays: Vec<_> = rest.iter().filter(|k| [key(3), key(4)].iter().any(|stay| **k == stay)).collect();
        assert_eq!(stays.len(), 2, "{rest:?}");
    });
}

#[test]
fn sled_has_after_reopening_what_was_synced_and_takes_more() {
    let dir = tempfile::tempdir().unwrap();
    let store = sled(dir.path());
    for id in (1..=100).step_by(10) {
        store.append(EVENTS, &key(id), &vec![1; 8 * 1024]).unwrap();
    }
    store.put(Tree::Meta, b"identity", b"mine").unwrap();
    store.sync().unwrap();
    drop(store);
    let store = sled(dir.path());
    assert_eq!(ids(&store, EVENTS), (1..=100).step_by(10).collect::<Vec<_>>());
    assert_eq!(store.get(Tree::Meta, b"identity").unwrap(), Some(Bytes::from_static(b"mine")));
    store.append(EVENTS, &key(101), b"more").unwrap();
    drop(store);
    assert_eq!(sled(dir.path()).last(EVENTS).unwrap(), Some(row(101, "more")));
    assert!(sled(dir.path()).disk_bytes().unwrap() > 80 * 1024);
}

#[test]
fn sled_refuses_a_row_that_it_would_move_out_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = sled(dir.path());
    store.append(EVENTS, &key(1), &vec![0; ROW_BYTES_MAX]).unwrap();
    let long = vec![0; ROW_BYTES_MAX + 1];
    assert!(matches!(store.append(EVENTS, &key(2), &long), Err(StoreError::Misuse(_))));
    assert!(matches!(store.put(EVENTS, &key(2), &long), Err(StoreError::Misuse(_))));
    assert_eq!(ids(&store, EVENTS), [1]);
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_a_prefix_of_the_rest() {
    for keep in 0..=5 {
        let store = MemoryStore::default();
        store.append(EVENTS, &key(1), b"x").unwrap();
        store.append(EVENTS, &key(2), b"x").unwrap();
        store.sync().unwrap();
        assert_eq!((store.unsynced(), store.operations()), (0, 3));
        store.append(EVENTS, &key(3), b"x").unwrap();
        store.remove(EVENTS, &key(1)).unwrap();
        store.put(EVENTS, &key(2), b"y").unwrap();
        store.append(EVENTS, &key(4), b"x").unwrap();
        assert_eq!(store.unsynced(), 4);
        store.crash(keep);
        let expected: &[Row] = match keep {
            0 => &[row(1, "x"), row(2, "x")],
            1 => &[row(1, "x"), row(2, "x"), row(3, "x")],
            2 => &[row(2, "x"), row(3, "x")],
            3 => &[row(2, "y"), row(3, "x")],
            _ => &[row(2, "y"), row(3, "x"), row(4, "x")],
        };
        assert_eq!(rows(&store, EVENTS, 0), expected, "keep {keep}");
        assert_eq!(store.unsynced(), 0);
        store.crash(0);
        assert_eq!(rows(&store, EVENTS, 0), expected, "what a cut left is on the disk");
    }
}

#[test]
fn a_store_that_is_told_to_fail_fails_from_then_on_until_it_crashes() {
    let store = MemoryStore::default();
    store.fail_at(2, io::ErrorKind::StorageFull);
    store.append(EVENTS, &key(1), b"x").unwrap();
    store.sync().unwrap();
    for _ in 0..2 {
        let failed = |result: Result<(), StoreError>| {
            assert!(matches!(result, Err(StoreError::Io(e)) if e.kind() == io::ErrorKind::StorageFull));
        };
        failed(store.append(EVENTS, &key(2), b"x"));
        failed(store.put(EVENTS, &key(1), b"y"));
        failed(store.remove(EVENTS, &key(1)));
        failed(store.sync());
    }
    assert_eq!(rows(&store, EVENTS, 0), [row(1, "x")], "reading goes on, and nothing was written");
    store.crash(9);
    store.append(EVENTS, &key(2), b"x").unwrap();
    store.sync().unwrap();
    assert_eq!(ids(&store, EVENTS), [1, 2]);
}
