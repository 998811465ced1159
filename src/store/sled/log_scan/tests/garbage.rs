//! Bytes that no sled wrote: the scan answers or refuses, and never panics.

use super::super::scan;
use super::*;

const SEGMENT_SIZE: usize = 1 << 12;

fn segment_header(lsn: i64, max_stable_lsn: i64) -> Vec<u8> {
    let mut rest = (lsn ^ i64::MAX).to_le_bytes().to_vec();
    rest.extend((max_stable_lsn ^ i64::MAX).to_le_bytes());
    let mut header = (!crc32fast::hash(&rest)).to_le_bytes().to_vec();
    header.extend(rest);
    header
}

/// A message with a right crc. The numbers are written in their longest form, which sled reads too.
fn message(kind: u8, number: u64, page_id: u64, body: &[u8]) -> Vec<u8> {
    let mut head = vec![kind];
    for field in [body.len() as u64, number, page_id] {
        head.push(255);
        head.extend(field.to_le_bytes());
    }
    let mut hashed = body.to_vec();
    hashed.extend(&head);
    let mut message = (!crc32fast::hash(&hashed)).to_le_bytes().to_vec();
    message.extend(head);
    message.extend(body);
    message
}

fn extreme(dice: &mut Dice) -> i64 {
    let size = SEGMENT_SIZE as i64;
    let any = dice.next() as i64;
    let cases = [0, size, 2 * size, -1, i64::MIN, i64::MAX, i64::MAX / size * size, any, any / size * size];
    cases[dice.below(cases.len() as u64) as usize]
}

fn segment(dice: &mut Dice) -> Vec<u8> {
    let lsn = extreme(dice);
    let mut segment = segment_header(lsn, extreme(dice));
    while dice.below(12) != 0 {
        let number = if dice.below(8) == 0 { dice.next() } else { lsn.max(0) as u64 / SEGMENT_SIZE as u64 };
        let page_id = if dice.below(4) == 0 { extreme(dice) as u64 } else { dice.below(8) };
        let body = match dice.below(3) {
            0 => extreme(dice).to_le_bytes().to_vec(),
            1 => Vec::new(),
            _ => {
                let len = dice.below(600) as usize;
                dice.bytes(len)
            }
        };
        segment.extend(message(dice.below(13) as u8, number, page_id, &body));
    }
    segment.resize(SEGMENT_SIZE, 0);
    segment
}

fn snapshot(dice: &mut Dice) -> Vec<u8> {
    let mut body = extreme(dice).to_le_bytes().to_vec();
    let len = dice.below(60) as usize;
    body.extend(dice.bytes(len));
    let mut bytes = body.clone();
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(crc32fast::hash(&body).to_le_bytes());
    bytes
}

#[test]
fn bytes_of_any_kind_are_scanned_without_a_panic() {
    for seed in 0..400 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut db = Vec::new();
        for _ in 0..dice.below(6) {
            match dice.below(4) {
                0 => db.extend(dice.bytes(SEGMENT_SIZE)),
                1 => db.extend([dice.next() as u8; SEGMENT_SIZE]),
                _ => db.extend(segment(&mut dice)),
            }
        }
        if dice.below(2) == 0 {
            db.truncate(dice.below(db.len() as u64 + 1) as usize);
        }
        fs::write(dir.path().join("db"), &db).unwrap();
        if dice.below(2) == 0 {
            let bytes = if dice.below(4) == 0 { dice.bytes(40) } else { snapshot(&mut dice) };
            fs::write(dir.path().join("snap.0000000000000000"), bytes).unwrap();
        }
        let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
        let spans = scan.doomed.iter().map(|doomed| &doomed.span).chain(&scan.recycled);
        for span in spans {
            assert!(span.len > 0 && span.offset + span.len <= db.len() as u64, "seed {seed}: {scan:?}");
        }
    }
}

#[test]
fn bytes_that_all_look_like_headers_are_given_up_in_time() {
    let dir = tempfile::tempdir().unwrap();
    // Each byte may begin a message of kind 1 and of a length that fits.
    let size = 1 << 20;
    fs::write(dir.path().join("db"), [1, 1, 1, 250, 1, 0, 3].repeat(size / 7)).unwrap();
    let started = Instant::now();
    let scan = scan(dir.path(), size).unwrap();
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(scan.doomed.len(), 1);
}

#[test]
fn two_segments_at_one_position_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = segment_header(SEGMENT_SIZE as i64, 0);
    segment.resize(SEGMENT_SIZE, 0);
    fs::write(dir.path().join("db"), segment.repeat(2)).unwrap();
    let scan = scan(dir.path(), SEGMENT_SIZE).unwrap();
    assert!(scan.refusal.is_some() && scan.doomed.is_empty());
    assert_eq!(with_sled(dir.path(), SEGMENT_SIZE, |_| Ok(())), Opened::Panicked);
}
