//! Decoding allocates in proportion to its input, whatever the input claims.
//!
//! The counting allocator is the process's own, so this file has one test.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::path::Path;

use kvjournal::engine::decode_batch;
use kvjournal::engine::rules::DecodeOptions;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Most bytes that decoding holds at once.
fn peak(bytes: &[u8]) -> usize {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    drop(decode_batch(bytes, DecodeOptions::default()));
    ALLOCATOR.peak_usage() - before
}

fn array32(len: usize) -> Vec<u8> {
    [&[0xdd][..], &u32::try_from(len).unwrap().to_be_bytes()].concat()
}

/// A batch of one `BlockStored` with `count` hashes of one byte, and the same item for each block's extra keys.
fn dense(count: usize, keys: &[u8]) -> Vec<u8> {
    let mut out = b"\x92\xc0\x91\x99\xabBlockStored".to_vec();
    out.extend(array32(count));
    out.extend(std::iter::repeat_n(1, count));
    out.extend(b"\xc0\xc0\xc0\xc0\xc0\xc0");
    out.extend(array32(count));
    (0..count).for_each(|_| out.extend(keys));
    out
}

#[test]
fn memory_is_bounded_by_the_input_and_not_by_what_it_claims() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/samples"));
    let mut cases: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "msgpack"))
        .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
        .collect();
    assert!(cases.len() >= 20);
    let events = 16_000;
    let nils = [&[0x92, 0xc0][..], &array32(events), &vec![0xc0; events]].concat();
    let lies = [0xdd, 0xdf].map(|head| [0x92, 0xc0, 0x91, head, 255, 255, 255, 255]);
    cases.push((MANY_EVENTS.into(), nils));
    cases.push(("events that are not there".into(), b"\x92\xc0\xdc\x40\x00".to_vec()));
    cases.push(("an array that is not there".into(), lies[0].to_vec()));
    cases.push(("a map that is not there".into(), lies[1].to_vec()));
    cases.push(("a string that is not there".into(), b"\x92\xc0\x91\xdb\xff\xff\xff\xff".to_vec()));
    cases.push(("hashes of one byte".into(), dense(200_000, b"\xc0")));
    cases.push(("an image of two bytes for each block".into(), dense(200_000, b"\x91\x91\xa0")));
    cases.push(("a key nobody knows for each block".into(), dense(200_000, b"\x91\x01")));
    let (mut worst, mut sum) = (0.0_f64, 0);
    for (name, bytes) in &cases {
        let peak = peak(bytes);
        let claimed = if name == MANY_EVENTS { events } else { 16 };
        let allowed = BASE + MULTIPLE * bytes.len() + EVENT * claimed;
        assert!(peak <= allowed, "{name}: {peak} bytes for {} of input, allowed {allowed}", bytes.len());
        if name != MANY_EVENTS && bytes.len() > 100_000 {
            worst = worst.max(peak as f64 / bytes.len() as f64);
        }
        sum += peak;
    }
    assert!(sum > 0, "the allocator counts");
    eprintln!("worst of the large inputs: {worst:.1} times the input");
}

const MANY_EVENTS: &str = "events of one byte";

/// Bytes that any batch may take.
const BASE: usize = 4096;

/// Bytes for each byte of input: a hash of one byte becomes a block of 32, and its keys are held beside it.
const MULTIPLE: usize = 48;

/// Bytes for each event: one of a single byte is held like any other.
const EVENT: usize = 320;
