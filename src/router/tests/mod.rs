//! Tests of following one stream, by hand-made pages; `tests/follow_sim.rs` has those of a real journal.

mod places;
mod sessions;

use std::ops::RangeInclusive;

use crate::codec::{EncodedRecords, Frame, FrameBuilder, Page, PageFlags, PageHeader, PastEpoch, Stamp};
use crate::event::{BlockHash, DpRank, EventData, EventId, Removed, WorkerId};

use super::Place;

const JOURNAL: [u8; 16] = [7; 16];
/// The nonce of an epoch.
const fn nonce(epoch: u64) -> u64 {
    epoch * 100
}

/// A frame of the events of some ids.
fn frame(generation: u32, ids: RangeInclusive<EventId>, previous: EventId) -> Frame {
    let stamp = Stamp {
        journal: JOURNAL,
        worker: WorkerId(1),
        rank: DpRank(0),
        generation,
        epoch: 1,
        epoch_first: 1,
    };
    let mut builder = FrameBuilder::new(*ids.start());
    let mut records = EncodedRecords::default();
    for id in ids {
        let removed = Removed { block_hashes: vec![BlockHash(id)], ..Removed::default() };
        records.push(&EventData::Removed(removed), None, None).unwrap();
    }
    records.iter().for_each(|(record, payload)| builder.push(record, payload.cloned()));
    builder.build(stamp, previous, 0).frame
}

/// A page of epoch 3, which kept up to 50 of epoch 1 and up to 80 of epoch 2.
fn page(frames: Vec<Frame>, next: EventId) -> Page {
    let past = |number, kept| PastEpoch { number, nonce: nonce(number), kept };
    let header = PageHeader {
        journal: JOURNAL,
        worker: WorkerId(1),
        epoch: 3,
        nonce: nonce(3),
        next,
        epochs: vec![past(2, 80), past(1, 50)],
        ..PageHeader::default()
    };
    Page { header, frames }
}

/// The page of some ids of the log, in one frame.
fn of(ids: RangeInclusive<EventId>) -> Page {
    let next = ids.end() + 1;
    let previous = ids.start() - 1;
    page(vec![frame(0, ids, previous)], next)
}

fn heartbeat(head: EventId) -> Page {
    let mut page = page(Vec::new(), head + 1);
    page.header.flags.heartbeat = true;
    page
}

/// An answer.
fn answer(mut page: Page, reset: bool, done: bool) -> Page {
    page.header.flags = PageFlags { reset, done, ..PageFlags::default() };
    page
}

/// A place in an epoch.
fn place(epoch: u64, id: EventId) -> Place {
    Place { journal: JOURNAL, epoch, nonce: nonce(epoch), id, rebuilding: None }
}
