//! Payload rows and sealed rows.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::payload::digest;
use super::super::sealed::SEALED_BYTES_MAX;
use super::super::{PayloadChunk, PayloadRows, SealedKind, join_payloads, open_sealed, seal};
use super::{hex, payload};

fn rows() -> PayloadRows {
    PayloadRows { journal: *b"0123456789abcdef", rank: 3, generation: 4, first: 5, epoch: 2 }
}

/// The chunks of these rows, checked one by one.
fn chunks(rows: &PayloadRows, values: Vec<Vec<u8>>) -> Vec<Bytes> {
    let chunk = |(index, value): (usize, Vec<u8>)| {
        let value = Bytes::from(value);
        let (chunk, len) = PayloadChunk::parse_prefix(&value).expect("it was just written");
        assert_eq!(len, value.len());
        assert!(len <= 112 * 1024, "a store's row takes it");
        let found = (chunk.journal, chunk.rank, chunk.generation, chunk.first, chunk.index, chunk.epoch);
        assert_eq!(found, (rows.journal, rows.rank, rows.generation, rows.first, index as u32, rows.epoch));
        chunk.bytes
    };
    values.into_iter().enumerate().map(chunk).collect()
}

proptest! {
    #[test]
    fn payloads_come_back_from_their_rows(
        journal: [u8; 16],
        rank: u32,
        generation: u32,
        first: u64,
        epoch: u64,
        payloads in vec(payload(), 1..8),
    ) {
        let rows = PayloadRows { journal, rank, generation, first, epoch };
        let (len, crc) = digest(&payloads);
        let chunks = chunks(&rows, rows.encode(&payloads));
        prop_assert_eq!(join_payloads(&chunks, len, crc, payloads.len() as u32), Ok(payloads));
    }

    #[test]
    fn what_follows_a_row_is_left_alone(tail in vec(any::<u8>(), 0..40), body in vec(any::<u8>(), 0..40)) {
        let mut bytes = rows().encode(&[Some(body.clone().into())]).remove(0);
        let len = bytes.len();
        bytes.extend_from_slice(&tail);
        let (_, found) = PayloadChunk::parse_prefix(&bytes.into()).unwrap();
        prop_assert_eq!(found, len);
        let mut bytes = seal(SealedKind::Rank, 9, &body);
        bytes.extend_from_slice(&tail);
        prop_assert_eq!(open_sealed(&bytes), Ok((SealedKind::Rank, 9, &body[..])));
    }

    #[test]
    fn sealed_rows_open_to_what_was_sealed(identity: bool, revision: u64, body in vec(any::<u8>(), 0..300)) {
        let kind = if identity { SealedKind::Identity } else { SealedKind::Rank };
        let row = seal(kind, revision, &body);
        prop_assert_eq!(open_sealed(&row), Ok((kind, revision, &body[..])));
    }

    #[test]
    fn noise_is_no_row(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(open_sealed(&bytes).is_err());
        prop_assert_eq!(PayloadChunk::parse_prefix(&bytes.into()), None);
    }

    #[test]
    fn any_string_with_a_right_crc_is_joined_or_refused(
        string in vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..60),
        count in 0..8_u32,
    ) {
        let (len, crc) = (string.len() as u32, crc32c::crc32c(&string));
        if let Ok(payloads) = join_payloads(&[string.into()], len, crc, count) {
            prop_assert_eq!(digest(&payloads), (len, crc), "there is one way to write it");
        }
    }
}

#[test]
fn long_payloads_are_cut_into_rows_and_joined() {
    let payloads = [
        Some(Bytes::from(vec![1; 300_000])),
        None,
        Some(Bytes::from_static(b"x")),
        Some(vec![2; 98_304].into()),
    ];
    let (len, crc) = digest(&payloads);
    let chunks = chunks(&rows(), rows().encode(&payloads));
    assert_eq!(chunks.len(), 5);
    assert_eq!(join_payloads(&chunks, len, crc, 4).unwrap(), payloads);
    let refused = |chunks: &[Bytes], len, crc, count| join_payloads(chunks, len, crc, count).unwrap_err();
    assert!(refused(&chunks[..4], len, crc, 4).contains("the frame names"));
    assert!(refused(&[], len, crc, 4).contains("payloads of 0 bytes"));
    assert!(refused(&chunks, len, crc ^ 1, 4).contains("payload crc mismatch"));
    assert!(refused(&chunks, len, crc, 5).contains("4 payloads for 5 events"));
    let mut swapped = chunks.clone();
    swapped.swap(0, 4);
    assert!(refused(&swapped, len, crc, 4).contains("payload crc mismatch"));
}

#[test]
fn a_string_that_is_cut_is_refused() {
    let refused = |string: &'static [u8]| {
        let bytes = Bytes::from_static(string);
        join_payloads(&[bytes], string.len() as u32, crc32c::crc32c(string), 1).unwrap_err()
    };
    assert_eq!(refused(&[0, 0, 1]), "a payload's length is cut");
    assert_eq!(refused(&[0, 0, 0, 2, 7]), "a payload is cut");
    assert_eq!(refused(&[0xff; 8]), "a payload is cut");
}

#[test]
fn a_payload_row_has_the_bytes_that_are_pinned() {
    let rows = rows().encode(&[Some(Bytes::from_static(b"pay")), None]);
    assert_eq!(rows.len(), 1);
    assert_eq!(hex(&rows[0]), PAYLOAD_GOLDEN.split_whitespace().collect::<String>());
}

const PAYLOAD_GOLDEN: &str = "
    4b564a50 30313233343536373839616263646566
    00000003 00000004 0000000000000005 00000000 0000000000000002
    0000000b 56b7dc69
    00000003 706179 00000000
";

#[test]
fn a_sealed_row_has_the_bytes_that_are_pinned() {
    let row = seal(SealedKind::Rank, 0x0102, b"body");
    assert_eq!(hex(&row), SEALED_GOLDEN.split_whitespace().collect::<String>());
}

const SEALED_GOLDEN: &str = "
    4b564a4d 02 0000000000000102 00000004 3f54a100 626f6479
";

#[test]
fn each_flipped_bit_and_each_cut_of_a_row_is_seen() {
    let payload = rows().encode(&[Some(Bytes::from_static(b"pay"))]).remove(0);
    let sealed = seal(SealedKind::Identity, 7, b"body");
    for bit in 0..payload.len() * 8 {
        let mut flipped = payload.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(PayloadChunk::parse_prefix(&flipped.into()), None, "payload bit {bit}");
    }
    for bit in 0..sealed.len() * 8 {
        let mut flipped = sealed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(open_sealed(&flipped).is_err(), "sealed bit {bit}");
    }
    for len in 0..payload.len() {
        assert_eq!(PayloadChunk::parse_prefix(&payload[..len].to_vec().into()), None, "{len} bytes");
    }
    for len in 0..sealed.len() {
        assert!(open_sealed(&sealed[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn a_bad_sealed_row_is_refused_with_its_reason() {
    let row = seal(SealedKind::Rank, 1, b"body");
    let refused = |at: usize, value: u8| {
        let mut row = row.clone();
        row[at] = value;
        open_sealed(&row).unwrap_err()
    };
    assert_eq!(open_sealed(&row[..20]).unwrap_err(), "a row of 20 bytes");
    assert_eq!(refused(0, 0), "a row without its magic number");
    assert_eq!(refused(4, 3), "a row of unknown kind 3");
    assert_eq!(refused(13, 0xff), "a row that claims 4278190084 bytes");
    assert_eq!(refused(16, 5), "a row that claims 5 bytes");
    assert!(refused(21, 0).starts_with("row crc mismatch"));
    let long = vec![0; SEALED_BYTES_MAX];
    assert_eq!(open_sealed(&seal(SealedKind::Rank, 1, &long)), Ok((SealedKind::Rank, 1, &long[..])));
}
