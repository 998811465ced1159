//! Pages: what goes in comes out, and nothing else does.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{DpRank, WorkerId};

use super::super::page_header::{
    AT_CRC, AT_DIGEST, AT_DIGEST_ID, AT_DURABLE, AT_EPOCH, AT_EPOCHS, AT_FLAGS, AT_FRAMES_LEN, AT_GENERATION,
    AT_HORIZON, AT_JOURNAL, AT_MAGIC, AT_NEXT, AT_NONCE, AT_RANK, AT_SOURCE, AT_VERSION, AT_WORKER,
    EPOCH_BYTES,
};
use super::super::{
    Frame, FrameError, HeaderError, PAGE_BYTES_MAX, PAGE_EPOCHS_MAX, PAGE_HEADER_BYTES, Page, PageError,
    PageFlags, PageHeader, PageHeaderError, PastEpoch, SourceState, Stamp,
};
use super::{Spec, assert_documented, hex, small_spec, spec};

/// A page of the small frame and one after it.
fn small_page() -> Page {
    let spec = small_spec();
    let second = Spec { first: 7, previous: 6, ..spec.clone() };
    let header = PageHeader {
        flags: PageFlags { reset: true, not_durable: true, ..PageFlags::default() },
        source: SourceState::Silent,
        journal: spec.stamp.journal,
        worker: spec.stamp.worker,
        rank: spec.stamp.rank,
        generation: 1,
        epoch: 2,
        nonce: 0xfeed,
        horizon: 4,
        durable: 8,
        next: 9,
        digest: Some((8, 0xd1)),
        epochs: vec![PastEpoch { number: 1, nonce: 0xbee, kept: 3 }],
    };
    Page { header, frames: vec![spec.build().frame, second.build().frame] }
}

/// The crc that these bytes should have as a head with its epochs.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let len = PAGE_HEADER_BYTES + usize::from(bytes[AT_EPOCHS]) * EPOCH_BYTES;
    let len = len.min(bytes.len());
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..AT_CRC]), &bytes[PAGE_HEADER_BYTES..len]).to_be_bytes()
}

/// Changes bytes of the small page and makes its crc right again.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> PageError {
    let mut bytes = small_page().encode().unwrap().to_vec();
    change(&mut bytes);
    let crc = crc(&bytes);
    bytes[AT_CRC..PAGE_HEADER_BYTES].copy_from_slice(&crc);
    Page::parse(bytes.into()).unwrap_err()
}

/// What is wrong with a page that cannot be sent, and would not be read either.
fn refused(change: impl FnOnce(&mut Page)) -> PageError {
    let mut page = small_page();
    change(&mut page);
    let error = page.encode().unwrap_err();
    // What was sent all the same.
    let mut bytes = vec![0; page.header.len()];
    let frames_len: usize = page.frames.iter().map(|frame| frame.as_bytes().len()).sum();
    page.header.write(&mut bytes, frames_len as u32);
    page.frames.iter().for_each(|frame| bytes.extend_from_slice(frame.as_bytes()));
    assert_eq!(Page::parse(bytes.into()).unwrap_err(), error);
    error
}

fn frame_of(change: impl FnOnce(&mut Spec)) -> Frame {
    let mut spec = small_spec();
    change(&mut spec);
    spec.build().frame
}

fn header() -> impl Strategy<Value = PageHeader> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(reset, done, not_durable)| PageFlags { reset, done, not_durable, heartbeat: false });
    let source = prop::sample::select(vec![SourceState::Unknown, SourceState::Alive, SourceState::Silent]);
    let epoch = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(number, nonce, kept)| PastEpoch {
        number,
        nonce,
        kept,
    });
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
    let digest = option::of((1..=u64::MAX, any::<u128>()));
    (flags, source, numbers, digest, vec(epoch, 0..=PAGE_EPOCHS_MAX)).prop_map(
        |(flags, source, (generation, nonce, horizon, durable), digest, epochs)| PageHeader {
            flags,
            source,
            generation,
            nonce,
            horizon,
            durable,
            digest,
            epochs,
            next: 1,
            ..PageHeader::default()
        },
    )
}

/// A page of frames of one stream, from specifications of any stream.
fn page() -> impl Strategy<Value = Page> {
    (header(), any::<Option<bool>>(), spec(), vec(spec(), 0..4)).prop_map(
        |(mut header, kind, first, others)| {
            if kind.is_none() {
                header.flags.heartbeat = true;
                return Page { header, frames: Vec::new() };
            }
            let mut frames: Vec<Frame> = Vec::new();
            let stamp = first.stamp;
            for spec in std::iter::once(first).chain(others) {
                let spec = match frames.last().map(|frame| *frame.header()) {
                    None => spec,
                    Some(before) => {
                        let first = before.last.saturating_add(1);
                        Spec { stamp: Stamp { ..stamp }, first, previous: before.last, ..spec }
                    }
                };
                // Far from the last id there is.
                if spec.first < u64::MAX / 2 {
                    frames.push(spec.build().frame);
                }
            }
            header.journal = stamp.journal;
            (header.worker, header.rank, header.epoch) = (stamp.worker, stamp.rank, stamp.epoch);
            header.next = frames.last().map_or(1, |frame| frame.header().last + 1);
            Page { header, frames }
        },
    )
}

proptest! {
    #[test]
    fn pages_read_back(page in page()) {
        let bytes = page.encode().unwrap();
        prop_assert_eq!(bytes.len(), page.len());
        prop_assert_eq!(Page::parse(bytes).unwrap(), page);
    }

    #[test]
    fn a_page_that_was_cut_or_changed_is_refused(page in page(), at: prop::sample::Index, bit in 0..8_u32) {
        let bytes = page.encode().unwrap();
        let at = at.index(bytes.len());
        prop_assert!(Page::parse(bytes.slice(..at)).is_err());
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1 << bit;
        prop_assert!(Page::parse(flipped.into()).is_err());
        let longer: Bytes = [&bytes[..], &bytes[..at + 1]].concat().into();
        prop_assert!(Page::parse(longer).is_err());
    }

    #[test]
    fn any_bytes_have_an_answer(bytes in vec(any::<u8>(), 0..400)) {
        let _nothing_panics = Page::parse(bytes.clone().into());
        let mut headed = small_page().encode().unwrap()[..8].to_vec();
        headed.extend(bytes);
        if headed.len() >= PAGE_HEADER_BYTES {
            let crc = crc(&headed);
            headed[AT_CRC..PAGE_HEADER_BYTES].copy_from_slice(&crc);
        }
        let _nothing_panics = Page::parse(headed.into());
    }
}

#[test]
fn the_document_s_table_is_that_of_the_code() {
    assert_documented(
        "Page header",
        &[
            (AT_MAGIC, "magic"),
            (AT_VERSION, "version"),
            (AT_FLAGS, "flags"),
            (AT_SOURCE, "source"),
            (AT_EPOCHS, "epochs"),
            (AT_JOURNAL, "journal"),
            (AT_WORKER, "worker"),
            (AT_RANK, "rank"),
            (AT_GENERATION, "generation"),
            (AT_EPOCH, "epoch"),
            (AT_NONCE, "nonce"),
            (AT_HORIZON, "horizon"),
            (AT_DURABLE, "durable"),
            (AT_NEXT, "next"),
            (AT_DIGEST_ID, "digest id"),
            (AT_DIGEST, "digest"),
            (AT_FRAMES_LEN, "frames length"),
            (AT_CRC, "crc"),
            (PAGE_HEADER_BYTES, "epochs"),
        ],
    );
}

#[test]
fn the_bytes_of_a_page_are_pinned() {
    let bytes = small_page().encode().unwrap();
    let head = PAGE_HEADER_BYTES + EPOCH_BYTES;
    assert_eq!(
        hex(&bytes[..head]),
        concat!(
            "4b564a50",
            "01",
            "09",
            "02",
            "01",
            "30313233343536373839616263646566",
            "0000000000000007",
            "00000003",
            "00000001",
            "0000000000000002",
            "000000000000feed",
            "0000000000000004",
            "0000000000000008",
            "0000000000000009",
            "0000000000000008",
            "000000000000000000000000000000d1",
            "000001dc",
            "9b6fa46e",
            "0000000000000001",
            "0000000000000bee",
            "0000000000000003",
        )
    );
    let frames: Vec<u8> = small_page().frames.iter().flat_map(|frame| frame.as_bytes().to_vec()).collect();
    assert_eq!(&bytes[head..], frames);
}

#[test]
fn each_fault_of_a_head_is_told() {
    let header = |error| PageError::Header(error);
    assert_eq!(changed(|bytes| bytes[0] = b'X'), header(PageHeaderError::Magic));
    assert_eq!(changed(|bytes| bytes[AT_VERSION] = 2), header(PageHeaderError::Version { found: 2 }));
    assert_eq!(changed(|bytes| bytes[AT_FLAGS] = 16), header(PageHeaderError::Flags { found: 16 }));
    assert_eq!(changed(|bytes| bytes[AT_SOURCE] = 3), header(PageHeaderError::Source { found: 3 }));
    assert_eq!(changed(|bytes| bytes[AT_EPOCHS] = 17), header(PageHeaderError::Epochs { count: 17 }));
    assert_eq!(changed(|bytes| bytes[AT_NEXT..AT_NEXT + 8].fill(0)), header(PageHeaderError::Next));
    assert_eq!(
        changed(|bytes| bytes.truncate(PAGE_HEADER_BYTES + EPOCH_BYTES - 1)),
        header(PageHeaderError::Short { len: PAGE_HEADER_BYTES + EPOCH_BYTES - 1 })
    );
    for len in [0, 3] {
        assert_eq!(Page::parse(vec![b'K'; len].into()), Err(header(PageHeaderError::Magic)));
    }
    assert_eq!(Page::parse(Bytes::from_static(b"KVJP")), Err(header(PageHeaderError::Short { len: 4 })));
    let mut bytes = small_page().encode().unwrap().to_vec();
    bytes[AT_HORIZON] ^= 1;
    assert!(matches!(Page::parse(bytes.into()), Err(PageError::Header(PageHeaderError::Crc { .. }))));
    let many = vec![PastEpoch { number: 1, nonce: 1, kept: 1 }; PAGE_EPOCHS_MAX + 1];
    assert_eq!(refused(|page| page.header.epochs = many), header(PageHeaderError::Epochs { count: 17 }));
    assert_eq!(refused(|page| page.header.next = 0), header(PageHeaderError::Next));
}

#[test]
fn each_fault_of_the_frames_is_told() {
    let frame_len = small_spec().build().frame.as_bytes().len();
    assert_eq!(
        changed(|bytes| bytes.truncate(bytes.len() - 1)),
        PageError::Length { expected: 2 * frame_len, found: 2 * frame_len - 1 }
    );
    let cut = |bytes: &mut Vec<u8>| {
        bytes.truncate(bytes.len() - 1);
        bytes[AT_FRAMES_LEN..AT_CRC].copy_from_slice(&(2 * frame_len as u32 - 1).to_be_bytes());
    };
    let short = FrameError::Length { expected: frame_len, found: frame_len - 1 };
    assert_eq!(changed(cut), PageError::Frame(short));
    assert!(matches!(
        changed(|bytes| *bytes.last_mut().unwrap() ^= 1),
        PageError::Frame(FrameError::Crc { .. })
    ));
    let noise = |bytes: &mut Vec<u8>| bytes[PAGE_HEADER_BYTES + EPOCH_BYTES] = 0;
    assert_eq!(changed(noise), PageError::Frame(FrameError::Header(HeaderError::Magic)));
    assert_eq!(refused(|page| page.header.flags.heartbeat = true), PageError::Heartbeat { frames: 2 });
    let stranger = PageError::Stranger { first: 5 };
    assert_eq!(refused(|page| page.header.journal[0] ^= 1), stranger);
    assert_eq!(refused(|page| page.header.worker = WorkerId(8)), stranger);
    assert_eq!(refused(|page| page.header.rank = DpRank(4)), stranger);
    assert_eq!(refused(|page| page.header.epoch = 1), stranger);
    assert_eq!(refused(|page| page.header.next = 8), PageError::Order { first: 8, after: 8 });
    assert_eq!(refused(|page| page.frames.swap(0, 1)), PageError::Order { first: 5, after: 8 });
    let gap = frame_of(|spec| (spec.first, spec.previous) = (8, 7));
    let follows = |page: &mut Page| (page.frames[1], page.header.next) = (gap, 10);
    assert_eq!(refused(follows), PageError::Order { first: 8, after: 6 });
    let other_history = frame_of(|spec| (spec.first, spec.previous, spec.stamp.generation) = (7, 6, 2));
    assert_eq!(refused(|page| page.frames[1] = other_history), PageError::Order { first: 7, after: 6 });
    let many = PAGE_BYTES_MAX / frame_len + 1;
    let chained = |at: u64| frame_of(|spec| (spec.first, spec.previous) = (5 + 2 * at, 4 + 2 * at));
    let long = |page: &mut Page| {
        page.frames = (0..many as u64).map(chained).collect();
        page.header.next = u64::MAX;
    };
    assert!(matches!(refused(long), PageError::Long { len } if len > PAGE_BYTES_MAX));
}

#[test]
fn the_log_follows_a_compacted_history_that_ends_before_it() {
    let mut page = small_page();
    let after =
        |previous| frame_of(|spec| (spec.first, spec.previous, spec.stamp.generation) = (1001, previous, 0));
    page.header.next = 1003;
    page.frames[1] = after(1000);
    assert_eq!(Page::parse(page.encode().unwrap()).unwrap(), page);
    page.frames[1] = after(5);
    assert_eq!(page.encode(), Err(PageError::Order { first: 1001, after: 6 }));
    let log_first = frame_of(|spec| spec.stamp.generation = 0);
    page.frames = vec![log_first, small_page().frames[1].clone()];
    assert_eq!(
        page.encode(),
        Err(PageError::Order { first: 7, after: 6 }),
        "a history never follows the log"
    );
}
