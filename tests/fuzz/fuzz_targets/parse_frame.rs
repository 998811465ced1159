//! Any bytes have an answer as a frame, and the events of a frame are the ones that its head says.
//!
//! Random bytes hardly ever pass a checksum, so each input is also tried with the length and the checksum that it
//! should have: what is left to get wrong is the rest of the head, and the body.
//!
//! Run as `decode_batch` is, with `-max_len=65536`. Good inputs to begin with are frames: in a folder, as files, the
//! `value` of the `events` rows of `tests/fixtures/format-1/rows.jsonl`, from hex.
#![no_main]

use bytes::Bytes;
use kvjournal::codec::{Frame, FrameError, HEADER_BYTES};
use libfuzzer_sys::fuzz_target;

/// Where the head has the length of the body, and then the checksum of all before it and of the body.
const AT_BODY_LEN: usize = HEADER_BYTES - 8;
const AT_CRC: usize = HEADER_BYTES - 4;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if bytes.len() >= HEADER_BYTES {
        read(&sealed(bytes));
    }
});

fn read(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(&frame.as_bytes()[..], bytes);
    let header = *frame.header();
    let cursor = frame.cursor();
    let events: Result<Vec<u64>, FrameError> = frame.events().map(|event| Ok(event?.id)).collect();
    let Ok(ids) = events else { return };
    assert!(cursor.is_ok(), "events without the cursor before them");
    assert_eq!(ids.len(), header.count as usize);
    assert!(ids.is_sorted_by(|a, b| a < b));
    assert_eq!(ids.last(), Some(&header.last));
    assert!(ids.first() >= Some(&header.first));
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let body_len = (bytes.len() - HEADER_BYTES) as u32;
    bytes[AT_BODY_LEN..AT_CRC].copy_from_slice(&body_len.to_be_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..AT_CRC]), &bytes[HEADER_BYTES..]);
    bytes[AT_CRC..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    bytes
}
