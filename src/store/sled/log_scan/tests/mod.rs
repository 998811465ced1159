//! Against databases that sled itself wrote, and against sled's own recovery of them.

mod damage;
mod garbage;
mod healthy;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{LogScan, Span};

/// sled was seen to wait for ever over some damage.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(20);

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A small generator, so that a case is its seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// How a database is left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    /// Flushed, and copied while it was open: what a kill leaves.
    Killed,
}

/// What a database is filled with.
#[derive(Clone, Copy, Debug)]
struct Load {
    segment_size: usize,
    writes: u64,
    /// Fewer keys than writes make segments that are used again.
    keys: u64,
    value_max: u64,
    openings: u64,
    end: End,
}

fn config(dir: &Path, segment_size: usize) -> ::sled::Config {
    ::sled::Config::new().path(dir).segment_size(segment_size).flush_every_ms(None)
}

/// Waits until sled's last background thread let go of the file, which is after the database was dropped.
fn wait_until_released(dir: &Path) {
    let db = File::open(dir.join("db")).unwrap();
    let start = Instant::now();
    while db.try_lock().is_err() {
        assert!(start.elapsed() < OPEN_WAIT_MAX, "sled keeps its file locked");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Writes a database and hands a copy of its folder out.
fn build(load: Load, dice: &mut Dice) -> (TempDir, Rows) {
    let dir = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let mut rows = Rows::new();
    for opening in 1..=load.openings {
        let db = config(dir.path(), load.segment_size).open().unwrap();
        for _ in 0..load.writes / load.openings {
            let key = dice.below(load.keys).to_be_bytes().to_vec();
            if dice.below(16) == 0 {
                db.remove(&key).unwrap();
                rows.remove(&key);
            } else {
                let len = 100 + dice.below(load.value_max - 100) as usize;
                let value = dice.bytes(len);
                db.insert(&key, value.clone()).unwrap();
                rows.insert(key, value);
            }
            if dice.below(8) == 0 {
                db.flush().unwrap();
            }
        }
        db.flush().unwrap();
        if opening == load.openings && load.end == End::Killed {
            copy_folder(dir.path(), copy.path());
        }
        drop(db);
        wait_until_released(dir.path());
    }
    if load.end == End::Closed {
        copy_folder(dir.path(), copy.path());
    }
    (copy, rows)
}

/// sled may be removing a replaced blob while it is copied: then the file is left out.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else if let Err(e) = fs::copy(entry.path(), to) {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Opened<T> {
    Fine(T),
    Failed,
    Panicked,
    Hung,
}

/// Opens the database with sled, does something with it, and closes it.
fn with_sled<T: Send + 'static>(
    dir: &Path,
    segment_size: usize,
    work: impl FnOnce(&::sled::Db) -> Result<T, ::sled::Error> + Send + 'static,
) -> Opened<T> {
    let (done, outcome) = mpsc::channel();
    let config = config(dir, segment_size);
    thread::spawn(move || {
        let opened = catch_unwind(AssertUnwindSafe(|| config.open().and_then(|db| work(&db))));
        done.send(opened).ok();
    });
    match outcome.recv_timeout(OPEN_WAIT_MAX) {
        Ok(Ok(Ok(value))) => Opened::Fine(value),
        Ok(Ok(Err(_))) => Opened::Failed,
        Ok(Err(_)) => Opened::Panicked,
        Err(_) => Opened::Hung,
    }
}

/// The rows that sled finds in a copy of the folder.
fn rows_of_copy(dir: &Path, segment_size: usize) -> Opened<Rows> {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(dir, copy.path());
    with_sled(copy.path(), segment_size, |db| {
        db.iter().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
    })
}

/// The bytes of `db` that were not zero before sled opened and closed it, and are others now.
fn overwritten_by_sled(dir: &Path, segment_size: usize) -> (Vec<u64>, Opened<()>) {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(dir, copy.path());
    let before = fs::read(copy.path().join("db")).unwrap();
    let opened = with_sled(copy.path(), segment_size, |_| Ok(()));
    if opened != Opened::Hung {
        wait_until_released(copy.path());
    }
    let after = fs::read(copy.path().join("db")).unwrap();
    let changed = (0..before.len()).filter(|&at| before[at] != 0 && after.get(at) != Some(&before[at]));
    (changed.map(|at| at as u64).collect(), opened)
}

fn foreseen(scan: &LogScan, at: u64) -> bool {
    let within = |span: &Span| (span.offset..span.offset + span.len).contains(&at);
    scan.doomed.iter().any(|doomed| within(&doomed.span)) || scan.recycled.iter().any(within)
}
