//! Databases that were damaged: whatever sled's recovery overwrites was foreseen, and what it loses was told.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::super::replay::LogFile;
use super::super::{Doomed, Fate, Holds, Next, Refusal, SnapshotFile, scan};
use super::*;

/// What happens to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Bits {
        count: u64,
    },
    Zeros {
        len: u64,
    },
    Noise {
        len: u64,
    },
    Cut,
    NoSnapshot,
    BitInSnapshot,
    /// A segment over another one.
    Misdirected,
    /// A bit in one of the 20-byte headers.
    BitInHeader,
}

impl Harm {
    fn throw(dice: &mut Dice) -> Self {
        match dice.below(12) {
            0..=3 => Self::Bits { count: 1 + dice.below(3) },
            4..=5 => Self::Zeros { len: 512 << dice.below(5) },
            6 => Self::Noise { len: 512 << dice.below(4) },
            7 => Self::Cut,
            8 => Self::NoSnapshot,
            9 => Self::BitInSnapshot,
            10 => Self::Misdirected,
            _ => Self::BitInHeader,
        }
    }

    fn inflict(self, dir: &Path, segment_size: u64, dice: &mut Dice) {
        let db = OpenOptions::new().read(true).write(true).open(dir.join("db")).unwrap();
        let len = db.metadata().unwrap().len();
        let segments = len.div_ceil(segment_size);
        let write = |bytes: &[u8], at: u64| {
            let end = (len.saturating_sub(at) as usize).min(bytes.len());
            db.write_all_at(&bytes[..end], at).unwrap();
        };
        let flip = |file: &fs::File, at: u64, bit: u64| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
        };
        match self {
            Self::Bits { count } => {
                for _ in 0..count {
                    flip(&db, dice.below(len), dice.below(8));
                }
            }
            Self::Zeros { len: zeros } => write(&vec![0; zeros as usize], dice.below(len) / 512 * 512),
            Self::Noise { len: noise } => {
                let at = dice.below(len) / 512 * 512;
                write(&dice.bytes(noise as usize), at);
            }
            Self::Cut => db.set_len(dice.below(len)).unwrap(),
            Self::NoSnapshot => snapshots(dir).into_iter().for_each(|path| fs::remove_file(path).unwrap()),
            Self::BitInSnapshot => {
                if let Some(path) = snapshots(dir).pop() {
                    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                    flip(&file, dice.below(file.metadata().unwrap().len()), dice.below(8));
                }
            }
            Self::Misdirected => {
                let (from, to) = (dice.below(segments) * segment_size, dice.below(segments) * segment_size);
                let mut bytes = vec![0; segment_size.min(len - from) as usize];
                db.read_exact_at(&mut bytes, from).unwrap();
                write(&bytes, to);
            }
            Self::BitInHeader => {
                flip(&db, (dice.below(segments) * segment_size + dice.below(20)).min(len - 1), dice.below(8));
            }
        }
    }
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("snap.")).collect()
}

/// Runs `cases` cases from `first_seed` on and prints what became of them. A seed gives the rows and the harm; where
/// sled's threads put the rows may differ.
fn foresee(first_seed: u64, cases: u64) {
    let (mut lossy, mut told, mut refused, mut needless) = (0, 0, 0, 0);
    for seed in first_seed..first_seed + cases {
        let mut dice = Dice(seed);
        let segment_size = 1 << (14 + dice.below(4));
        let load = Load {
            segment_size,
            writes: 30 + dice.below(150),
            keys: if dice.below(2) == 0 { 1 << 40 } else { 8 + dice.below(60) },
            value_max: (segment_size as u64 / 20).max(200),
            openings: 1 + dice.below(3),
            end: if dice.below(2) == 0 { End::Closed } else { End::Killed },
        };
        let (dir, rows) = build(load, &mut dice);
        let harm = Harm::throw(&mut dice);
        println!("seed {seed}, {harm:?}, {load:?}");
        harm.inflict(dir.path(), segment_size as u64, &mut dice);

        let scan = scan(dir.path(), segment_size).unwrap();
        let (overwritten, opened) = overwritten_by_sled(dir.path(), segment_size);
        let unforeseen: Vec<_> = overwritten.iter().filter(|at| !foreseen(&scan, **at)).collect();
        assert!(
            unforeseen.is_empty(),
            "seed {seed}: {} bytes, first {:?}, opened {opened:?}, {scan:?}",
            unforeseen.len(),
            unforeseen.first()
        );
        if scan.refusal.is_some() {
            refused += 1;
            assert_ne!(opened, Opened::Fine(()), "seed {seed}: {scan:?}");
        }
        if opened != Opened::Fine(()) {
            continue;
        }
        let Opened::Fine(found) = rows_of_copy(dir.path(), segment_size) else { continue };
        if found == rows {
            needless += u64::from(!scan.doomed.is_empty());
        } else {
            lossy += 1;
            if !scan.doomed.is_empty() {
                told += 1;
            } else {
                println!("seed {seed}: rows are lost and nothing is doomed, {harm:?}, {scan:?}");
                // What is not in the file any more cannot be found in it.
                assert!(
                    matches!(harm, Harm::Cut | Harm::Zeros { .. } | Harm::Noise { .. } | Harm::Misdirected),
                    "seed {seed}: {} rows of {} are left, {scan:?}",
                    found.len(),
                    rows.len()
                );
            }
        }
    }
    println!(
        "{cases} cases: sled lost rows silently in {lossy}, {told} of them told, \
         {needless} more without a loss; {refused} refusals foreseen"
    );
}

#[test]
fn sled_overwrites_nothing_unforeseen_first_part() {
    foresee(1_000, 120);
}

#[test]
fn sled_overwrites_nothing_unforeseen_second_part() {
    foresee(2_000, 120);
}

const SEGMENT_SIZE: usize = 1 << 15;

/// A database of many segments, some used twice, and the scan of it.
fn grown(end: End) -> (TempDir, LogScan) {
    let load =
        Load { segment_size: SEGMENT_SIZE, writes: 200, keys: 1 << 40, value_max: 1600, openings: 2, end };
    let (dir, _) = build(load, &mut Dice(3));
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert_eq!(scan.doomed, []);
    (dir, scan)
}

fn patch(dir: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(dir.join("db")).unwrap().write_all_at(bytes, at).unwrap();
}

/// Where the segment with this position of the log lies.
fn base_of(dir: &Path, lsn: u64) -> u64 {
    let size = SEGMENT_SIZE as u64;
    let headers = LogFile::open(dir, SEGMENT_SIZE).unwrap().headers().unwrap();
    let found = headers.iter().find(|(_, header)| header.lsn as u64 / size == lsn / size);
    *found.expect("the log has the position").0
}

fn end_of(scan: &LogScan) -> u64 {
    scan.recovered_to.unwrap() as u64
}

#[test]
fn a_bad_message_dooms_all_that_follows_it() {
    let (dir, healthy) = grown(End::Killed);
    let size = SEGMENT_SIZE as u64;
    let base = base_of(dir.path(), end_of(&healthy) - size);
    patch(dir.path(), base + size / 2, &[0xaa; 8]);
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    let hit = scan.doomed.iter().find(|doomed| doomed.span.offset / size == base / size).expect("it is told");
    assert!(matches!(hit.fate, Fate::Tail | Fate::Skipped), "{scan:?}");
    assert!((base + 20..=base + size / 2).contains(&hit.span.offset), "{scan:?}");
    assert!(matches!(hit.holds, Holds::Messages { first } if first > base + size / 2), "{scan:?}");
}

#[test]
fn a_last_message_that_was_changed_is_a_fragment() {
    let (dir, healthy) = grown(End::Killed);
    let at = healthy.tip.unwrap().offset - 1;
    patch(dir.path(), at, &[!fs::read(dir.path().join("db")).unwrap()[at as usize]]);
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert_eq!(scan.tip.unwrap().next, Next::Cut);
    assert!(matches!(scan.doomed[..], [Doomed { fate: Fate::Tail, holds: Holds::Fragment, .. }]), "{scan:?}");
}

#[test]
fn a_segment_that_lost_its_header_is_doomed() {
    let (dir, healthy) = grown(End::Killed);
    let base = base_of(dir.path(), end_of(&healthy));
    patch(dir.path(), base, &[0; 20]);
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    let hit = scan
        .doomed
        .iter()
        .find(|doomed| doomed.span.offset / SEGMENT_SIZE as u64 == base / SEGMENT_SIZE as u64);
    assert_eq!(hit.map(|doomed| doomed.fate), Some(Fate::Headless), "{scan:?}");
}

#[test]
fn an_unfinished_snapshot_is_refused_by_both() {
    let (dir, healthy) = grown(End::Closed);
    let unfinished = dir.path().join(format!("snap.{:016X}.generating", end_of(&healthy)));
    fs::write(&unfinished, b"half").unwrap();
    let scanned = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert_eq!(scanned.snapshot, SnapshotFile::Corrupt(unfinished.clone()));
    assert_eq!(scanned.refusal, Some(Refusal::CorruptSnapshot));
    assert_eq!(with_sled(dir.path(), SEGMENT_SIZE, |_| Ok(())), Opened::Failed);
    // The finished one is still there.
    fs::remove_file(unfinished).unwrap();
    assert_eq!(scan(dir.path(), SEGMENT_SIZE).unwrap(), healthy);
}

#[test]
fn a_log_that_ends_before_its_snapshot_is_refused_after_its_tail_was_zeroed() {
    let (dir, healthy) = grown(End::Closed);
    // Opening, sled covers the whole log with its snapshot.
    assert_eq!(with_sled(dir.path(), SEGMENT_SIZE, |_| Ok(())), Opened::Fine(()));
    wait_until_released(dir.path());
    let base = base_of(dir.path(), end_of(&healthy));
    patch(dir.path(), base + 20, &[0xaa; 8]);
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert!(matches!(scan.refusal, Some(Refusal::LogBehindSnapshot { .. })), "{scan:?}");
    assert!(matches!(scan.doomed[..], [Doomed { fate: Fate::Tail, .. }]), "{scan:?}");
    let (overwritten, opened) = overwritten_by_sled(dir.path(), SEGMENT_SIZE);
    assert_ne!(opened, Opened::Fine(()));
    assert!(overwritten.iter().any(|at| *at > base + 28));
}

#[test]
fn a_lost_snapshot_and_a_free_segment_near_the_end_cost_the_whole_log() {
    let (dir, healthy) = grown(End::Closed);
    // As sled leaves a segment whose pages were all written anew.
    let free = base_of(dir.path(), end_of(&healthy) - SEGMENT_SIZE as u64);
    patch(dir.path(), free, &[0; SEGMENT_SIZE]);
    snapshots(dir.path()).into_iter().for_each(|path| fs::remove_file(path).unwrap());
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert_eq!(scan.recovered_to, Some(0));
    assert!(scan.doomed.len() > 2 && scan.doomed.iter().all(|doomed| doomed.fate == Fate::Torn), "{scan:?}");
    assert_eq!(rows_of_copy(dir.path(), SEGMENT_SIZE), Opened::Fine(Rows::new()));
}

#[test]
fn what_a_lost_snapshot_costs_is_told() {
    for seed in 0..20 {
        println!("seed {seed}");
        let load = Load {
            segment_size: 1 << 14,
            writes: 300,
            keys: 4,
            value_max: 800,
            openings: 8 + seed,
            end: End::Closed,
        };
        let (dir, rows) = build(load, &mut Dice(seed));
        snapshots(dir.path()).into_iter().for_each(|path| fs::remove_file(path).unwrap());
        let scan = scan(dir.path(), load.segment_size).unwrap();
        let told = !scan.doomed.is_empty() || scan.refusal.is_some();
        assert!(
            told || rows_of_copy(dir.path(), load.segment_size) == Opened::Fine(rows),
            "seed {seed}: {scan:?}"
        );
    }
}
