//! Frames: what goes in comes out, and nothing else does.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::event::{Block, BlockHash, EventData, Stored};

use super::super::header::{FLAG_CURSOR, FLAG_SPARSE, FrameHeader, frame_crc};
use super::super::record_bytes::{decode_record, encode_record};
use super::super::{
    FRAME_BYTES_MAX, Frame, FrameError, FrameEvent, HEADER_BYTES, HeaderError, RECORD_BYTES_MAX, Record,
    bincode_config,
};
use super::{Spec, engine_time, event, hex, small_spec, spec};

/// Changes bytes of the small frame and makes its crc right again.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Frame, FrameError> {
    let mut bytes = small_spec().build().frame.as_bytes().to_vec();
    change(&mut bytes);
    Frame::parse(sealed(bytes))
}

/// With the crc that these bytes should have.
fn sealed(mut bytes: Vec<u8>) -> Bytes {
    let crc = frame_crc(&bytes);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

fn read(frame: &Frame) -> Result<Vec<FrameEvent>, FrameError> {
    frame.events().collect()
}

fn header_error(result: Result<Frame, FrameError>) -> HeaderError {
    match result {
        Err(FrameError::Header(error)) => error,
        other => panic!("not refused by its head: {other:?}"),
    }
}

fn assert_reads_back(spec: &Spec) {
    let built = spec.build();
    let frame = Frame::parse(built.frame.as_bytes().clone()).unwrap();
    assert_eq!(frame, built.frame);
    let (header, ids) = (frame.header(), spec.ids());
    let stamp = spec.stamp;
    assert_eq!((header.journal, header.worker, header.rank), (stamp.journal, stamp.worker, stamp.rank));
    assert_eq!(
        (header.generation, header.epoch, header.epoch_first),
        (stamp.generation, stamp.epoch, stamp.epoch_first)
    );
    assert_eq!((header.first, header.last), (ids[0], *ids.last().unwrap()));
    assert_eq!((header.previous, header.appended_us), (spec.previous, spec.appended_us));
    assert_eq!(header.count as usize, spec.events.len());
    assert_eq!(header.frame_len(), frame.as_bytes().len());
    assert_eq!(frame.cursor().unwrap(), spec.cursor);
    let events: Vec<_> = read(&frame).unwrap().into_iter().map(|e| (e.id, e.data, e.engine_time)).collect();
    let expected: Vec<_> =
        ids.into_iter().zip(&spec.events).map(|(id, (data, time, ..))| (id, data.clone(), *time)).collect();
    assert_eq!(events, expected);
    let payloads: Vec<_> = spec.events.iter().map(|(_, _, payload, _)| payload.clone()).collect();
    if payloads.iter().any(Option::is_some) {
        assert_eq!(built.payloads, payloads);
    } else {
        assert_eq!((built.payloads.len(), header.payload_len, header.payload_crc), (0, 0, 0));
    }
}

/// A record by bincode alone, which the reading by hand must equal.
fn by_bincode(bytes: &[u8]) -> Option<(Record, usize)> {
    bincode::decode_from_slice(bytes, bincode_config()).ok()
}

proptest! {
    #[test]
    fn records_are_written_and_read_by_hand_as_by_bincode(data in event(), time in engine_time(), cut: prop::sample::Index, to: u8) {
        let mut bytes = bincode::encode_to_vec((&data, time), bincode_config()).unwrap();
        let mut by_hand = Vec::new();
        encode_record(&data, time, &mut by_hand).unwrap();
        prop_assert_eq!(&by_hand, &bytes);
        let whole = Record { data, engine_time: time };
        prop_assert_eq!(decode_record(&bytes).ok(), Some((whole.clone(), bytes.len())));
        prop_assert_eq!(by_bincode(&bytes), Some((whole, bytes.len())));
        let cut = cut.index(bytes.len());
        prop_assert!(decode_record(&bytes[..cut]).is_err());
        bytes[cut] = to;
        prop_assert_eq!(decode_record(&bytes).ok(), by_bincode(&bytes));
    }

    #[test]
    fn a_frame_reads_back_as_it_was_built(spec in spec()) {
        assert_reads_back(&spec);
    }

    #[test]
    fn random_bodies_with_a_right_crc_never_panic(
        flags in 0..4_u8,
        count in 1..20_u32,
        first in 1..u64::MAX / 2,
        body in vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..300),
    ) {
        let header = FrameHeader {
            flags,
            first,
            last: first + u64::from(count) - 1,
            previous: first - 1,
            count,
            body_len: body.len() as u32,
            ..*small_spec().build().frame.header()
        };
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(&body);
        header.write(&mut bytes);
        let frame = Frame::parse(bytes.into()).unwrap();
        let _either_is_fine = (frame.cursor(), read(&frame));
        prop_assert!(frame.events().count() <= count as usize);
    }

    #[test]
    fn changed_frames_with_a_right_crc_never_panic(
        spec in spec(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = spec.build().frame.as_bytes().to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(frame) = Frame::parse(sealed(bytes))
            // The last id of all is none that a journal gives.
            && frame.header().last < u64::MAX
        {
            let _either_is_fine = (frame.cursor(), read(&frame));
        }
    }

    #[test]
    fn noise_is_no_frame(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Frame::parse(bytes.into()).is_err());
    }
}

#[test]
fn a_small_frame_has_the_bytes_that_are_pinned() {
    let expected = GOLDEN.split_whitespace().collect::<String>();
    assert_eq!(hex(small_spec().build().frame.as_bytes()), expected);
}

/// The small frame, field by field as `migrations/FORMAT.md` has them.
const GOLDEN: &str = "
    4b564a46 01 02 0000
    30313233343536373839616263646566
    0000000000000007 00000003 00000001
    0000000000000002 0000000000000004
    0000000000000005 0000000000000006 0000000000000004
    0102030405060708
    00000002 0000000b 904fb398 00000082 d186f330
    0000000000000003 746370
    0000000000000009 0000000000000000000000000000000a 00000002 00000003
    00000000 0100000000000000a0 00 0000000000000001
    00000000000000b1 0100000000000000c2 00
    0000000000 00 00 0100000010 00
    01 00000001 ffffffffffffffff
    00000002 00000001 0000000000000001 00000002 00
";

#[test]
fn each_flipped_bit_of_a_frame_is_seen() {
    let bytes = small_spec().build().frame.as_bytes().to_vec();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::parse(flipped.into()).is_err(), "bit {bit}");
    }
}

#[test]
fn each_cut_and_each_added_byte_is_seen() {
    let bytes = small_spec().build().frame.as_bytes().clone();
    for len in 0..bytes.len() {
        assert!(Frame::parse(bytes.slice(..len)).is_err(), "{len} bytes");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    let (expected, found) = (bytes.len(), bytes.len() + 1);
    assert_eq!(Frame::parse(longer.into()), Err(FrameError::Length { expected, found }));
}

#[test]
fn a_bad_head_is_refused_with_its_reason() {
    assert_eq!(header_error(Frame::parse(Bytes::from_static(b"KVJF"))), HeaderError::Short { len: 4 });
    assert_eq!(header_error(changed(|bytes| bytes[0] = b'X')), HeaderError::Magic);
    assert_eq!(header_error(changed(|bytes| bytes[4] = 2)), HeaderError::Version { found: 2 });
    assert_eq!(header_error(changed(|bytes| bytes[5] |= 4)), HeaderError::Flags { found: 6 });
    assert_eq!(header_error(changed(|bytes| bytes[7] = 1)), HeaderError::Flags { found: 2 }, "reserved");
    let long = |bytes: &mut Vec<u8>| bytes[100..104].copy_from_slice(&[0, 1, 0, 0]);
    assert_eq!(header_error(changed(long)), HeaderError::Long { len: HEADER_BYTES + FRAME_BYTES_MAX });
}

#[test]
fn impossible_ids_are_refused() {
    let refused = |change: fn(&mut FrameHeader)| {
        let mut header = *small_spec().build().frame.header();
        change(&mut header);
        let mut bytes = vec![0; header.frame_len()];
        header.write(&mut bytes);
        let HeaderError::Ids { first, last, count } = header_error(Frame::parse(bytes.into())) else {
            panic!("another reason");
        };
        assert_eq!((first, last, count), (header.first, header.last, header.count));
    };
    refused(|header| (header.first, header.previous) = (0, 0));
    refused(|header| header.count = 0);
    refused(|header| header.last += 1);
    refused(|header| header.last = header.first - 1);
    refused(|header| header.previous = header.first);
    refused(|header| (header.first, header.last) = (0, u64::MAX));
    refused(|header| (header.flags, header.count) = (FLAG_SPARSE, 3));
}

#[test]
fn a_wrong_crc_is_told_with_the_event() {
    let mut bytes = small_spec().build().frame.as_bytes().to_vec();
    let right = frame_crc(&bytes);
    bytes[HEADER_BYTES - 1] ^= 1;
    let wrong = FrameError::Crc { first: 5, stored: right ^ 1, computed: right };
    assert_eq!(Frame::parse(bytes.into()), Err(wrong));
}

#[test]
fn a_body_that_its_head_does_not_describe_is_refused_once() {
    let body_error = |frame: Frame, says: &str| {
        let events: Vec<_> = frame.events().collect();
        let Some(Err(FrameError::Body { first: 5, what })) = events.last() else {
            panic!("{says}: {events:?}");
        };
        assert!(what.contains(says), "{what}");
        assert_eq!(events.iter().filter(|event| event.is_err()).count(), 1, "it ends after an error");
    };
    // A byte after the last event.
    let longer = changed(|bytes| {
        bytes.push(0);
        bytes[103] += 1;
    });
    body_error(longer.unwrap(), "1 bytes after the last event");
    // An event that is cut.
    let shorter = changed(|bytes| {
        bytes.pop();
        bytes[103] -= 1;
    });
    body_error(shorter.unwrap(), "event 6");
    // An endpoint that is longer than the frame.
    let cursor = changed(|bytes| bytes[HEADER_BYTES] = 0xff).unwrap();
    assert!(matches!(cursor.cursor(), Err(FrameError::Body { first: 5, .. })));
    body_error(cursor, "its cursor");
    // A case that there is none of.
    let case = changed(|bytes| bytes[HEADER_BYTES + 8 + 3 + 32 + 3] = 9);
    body_error(case.unwrap(), "event 5");
}

#[test]
fn ids_of_a_sparse_frame_rise_up_to_its_last() {
    let with_second_id = |id: u64| {
        let mut spec = Spec { sparse: true, cursor: None, ..small_spec() };
        spec.events.push(spec.events[1].clone());
        spec.events.swap(0, 2);
        spec.events.iter_mut().for_each(|event| event.3 = 10);
        let mut bytes = spec.build().frame.as_bytes().to_vec();
        // The first record is that of `Cleared` without a time: data, reason, one tier, no time.
        let at = HEADER_BYTES + 8 + (4 + 4 + 8 + 4 + 1);
        assert_eq!(bytes[at..at + 8], 26_u64.to_be_bytes());
        bytes[at..at + 8].copy_from_slice(&id.to_be_bytes());
        read(&Frame::parse(sealed(bytes)).unwrap())
    };
    let ids: Vec<_> = with_second_id(27).unwrap().iter().map(|event| event.id).collect();
    assert_eq!(ids, [15, 27, 37]);
    for id in [15, 38, u64::MAX] {
        assert!(matches!(with_second_id(id), Err(FrameError::Body { .. })), "{id}");
    }
}

#[test]
fn the_cursor_flag_is_all_that_says_a_cursor_is_there() {
    let without = Spec { cursor: None, ..small_spec() }.build().frame;
    assert_eq!(without.header().flags & FLAG_CURSOR, 0);
    assert_eq!(without.cursor(), Ok(None));
    assert_eq!(read(&without), read(&small_spec().build().frame));
}

#[test]
fn a_record_of_the_most_and_smallest_blocks_decodes() {
    let block = |hash| Block { block_hash: BlockHash(hash), tokens_hash: None, mm: None };
    let mut spec = Spec { cursor: None, ..small_spec() };
    // Ten bytes a block, and a hundred at most around them.
    let blocks = (0..(RECORD_BYTES_MAX as u64 - 100) / 10).map(block).collect();
    let stored = EventData::Stored(Stored { blocks, ..Stored::default() });
    spec.events = vec![(stored.clone(), None, None, 0)];
    let events = read(&spec.build().frame).unwrap();
    assert_eq!(events[0].data, stored);
}
