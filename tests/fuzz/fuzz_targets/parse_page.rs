//! Any bytes have an answer as a page, and a page that is taken in can be sent again as it came.
//!
//! Random bytes hardly ever pass a checksum, so each input is also tried with the checksum and the length that its head
//! should have, and with those of one frame in it.
//!
//! Run as `decode_batch` is, with `-max_len=200000`. Good inputs to begin with are pages: the hex in
//! `src/codec/tests/pages.rs` with frames behind it as `parse_frame` takes them.
#![no_main]

use bytes::Bytes;
use kvjournal::codec::{FRAME_BYTES_MAX, HEADER_BYTES, PAGE_HEADER_BYTES, Page};
use libfuzzer_sys::fuzz_target;

/// Where a page's head has the number of its epochs, the length of its frames, and its checksum.
const AT_EPOCHS: usize = 7;
const AT_FRAMES_LEN: usize = PAGE_HEADER_BYTES - 8;
const AT_CRC: usize = PAGE_HEADER_BYTES - 4;
const EPOCH_BYTES: usize = 24;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if let Some(sealed) = sealed(bytes) {
        read(&sealed);
    }
});

fn read(bytes: &[u8]) {
    let Ok(page) = Page::parse(Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(page.len(), bytes.len());
    let sent = page.encode().expect("what was taken in can be sent");
    // A digest of no event is not sent again.
    if page.header.digest.is_some() {
        assert_eq!(&sent[..], bytes);
    }
    assert!(page.frames.iter().all(|frame| frame.header().last < page.header.next));
    for frame in &page.frames {
        frame.events().take_while(Result::is_ok).for_each(drop);
    }
}

/// With right checksums of the head and of one frame that fills the rest.
fn sealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let head = PAGE_HEADER_BYTES + usize::from(*bytes.get(AT_EPOCHS)? % 17) * EPOCH_BYTES;
    bytes[AT_EPOCHS] %= 17;
    let frame = bytes.get_mut(head..)?;
    if (HEADER_BYTES..FRAME_BYTES_MAX).contains(&frame.len()) {
        let body_len = (frame.len() - HEADER_BYTES) as u32;
        frame[HEADER_BYTES - 8..HEADER_BYTES - 4].copy_from_slice(&body_len.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..HEADER_BYTES - 4]), &frame[HEADER_BYTES..]);
        frame[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    }
    let frames_len = frame.len() as u32;
    bytes[AT_FRAMES_LEN..AT_CRC].copy_from_slice(&frames_len.to_be_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..AT_CRC]), &bytes[PAGE_HEADER_BYTES..head]);
    bytes[AT_CRC..PAGE_HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    Some(bytes)
}
