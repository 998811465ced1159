//! Checking everything, on a copy: each frame, each event in it, each payload, and that none is missing.

use std::path::Path;
use std::time::Duration;

use crate::codec::{Frame, join_payloads};
use crate::error::{Damage, Error, Result};
use crate::event::{DpRank, EventId};
use crate::store::{Store, Tree};

use super::reader::read_payload_chunks;
use super::recover::{FoundRank, parse_frame};
use super::rows::key_first;
use super::view::JournalView;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Frames that are right.
    pub frames: u64,
    /// Events that are right.
    pub events: u64,
    /// Bytes of frames that are right.
    pub bytes: u64,
    /// Bytes of payloads that are right.
    pub payload_bytes: u64,
    /// What is wrong.
    pub damage: Vec<Damage>,
}

/// Checks the journal in `dir`, telling `progress` the bytes checked so far and in all.
///
/// # Errors
/// If it cannot be looked at: `InUse`, `NotFound`, `NewerFormat`, or what the file system says. Damage is no error
/// here: it is what is looked for.
pub fn verify(dir: &Path, lock_wait_max: Duration, mut progress: impl FnMut(u64, u64)) -> Result<Verified> {
    let mut verified = Verified::default();
    let view = match JournalView::open_copy(dir, lock_wait_max) {
        Ok(view) => view,
        Err(Error::Damaged(damage)) => {
            verified.damage.push(damage);
            return Ok(verified);
        }
        Err(e) => return Err(e),
    };
    for rank in view.ranks() {
        let (store, found) = view.parts(rank)?;
        check_rank(store, found, &mut verified, &mut |done| progress(done, view.disk_bytes()));
    }
    Ok(verified)
}

fn check_rank(store: &dyn Store, found: &FoundRank, verified: &mut Verified, progress: &mut dyn FnMut(u64)) {
    check_history(store, found, verified, progress);
    let rank = DpRank(found.row.rank);
    let mut previous = None;
    for row in store.scan(found.row.tree(), &[]) {
        let after = previous.unwrap_or(found.row.trimmed) + 1;
        let frame = row.map_err(Error::from).and_then(|(key, bytes)| {
            let first = key_first(rank.0, &key)?;
            let frame = parse_frame(rank, bytes)
                .map_err(|e| Error::damaged_ids(rank, first..=first, e.to_string()))?;
            if frame.header().first == first {
                Ok(frame)
            } else {
                Err(Error::damaged_ids(rank, first..=first, "a frame under another key"))
            }
        });
        let frame = match frame {
            Ok(frame) => frame,
            Err(Error::Damaged(damage)) if damage.ids.is_some() => {
                verified.damage.push(damage);
                continue;
            }
            Err(e) => {
                // The store cannot say what it lost: all that should come is in doubt.
                let ids = after..=found.head.max(after);
                verified.damage.push(Damage { rank: Some(rank), ids: Some(ids), what: e.to_string() });
                return;
            }
        };
        if frame.header().last <= found.row.trimmed {
            continue;
        }
        check_chain(found, previous, &frame, verified);
        previous = Some(frame.header().last);
        check_frame(store, &frame, verified);
        progress(verified.bytes + verified.payload_bytes);
    }
    if previous.unwrap_or(0) < found.previous {
        let ids = previous.unwrap_or(0) + 1..=found.previous;
        verified.damage.push(Damage { rank: Some(rank), ids: Some(ids), what: "no frame holds them".into() });
    }
}

/// Checks that the compacted history is whole.
fn check_history(
    store: &dyn Store,
    found: &FoundRank,
    verified: &mut Verified,
    progress: &mut dyn FnMut(u64),
) {
    let Some(history) = found.row.history else { return };
    let rank = found.row.rank;
    let generation = found.row.generation;
    let (mut at, mut events, mut damage) = (0, 0, None);
    for row in store.scan(Tree::Events { rank, generation }, &[]) {
        let frame = row.map_err(Error::from).and_then(|(_, bytes)| parse_frame(DpRank(rank), bytes));
        let frame = match frame {
            Ok(frame) if frame.header().previous == at && frame.header().generation == generation => frame,
            Ok(frame) => {
                let first = frame.header().first;
                damage = Some(format!("the frame of event {first} does not follow event {at}"));
                break;
            }
            Err(e) => {
                damage = Some(e.to_string());
                break;
            }
        };
        (at, events) = (frame.header().last, events + u64::from(frame.header().count));
        check_frame(store, &frame, verified);
        progress(verified.bytes + verified.payload_bytes);
    }
    if damage.is_none() && (at, events) != (history.last, history.events) {
        damage = Some(format!("{events} events up to {at} of {} up to {}", history.events, history.last));
    }
    if let Some(what) = damage {
        let what = format!("compacted history {generation}: {what}");
        let ids = Some(at + 1..=found.row.base.max(at + 1));
        verified.damage.push(Damage { rank: Some(DpRank(rank)), ids, what });
    }
}

fn check_chain(found: &FoundRank, before: Option<EventId>, frame: &Frame, verified: &mut Verified) {
    let header = frame.header();
    let whole = match before {
        Some(before) => header.previous == before,
        None => header.previous <= found.row.trimmed,
    };
    let missing = before.unwrap_or(found.row.trimmed) + 1..=header.first - 1;
    if !whole && !missing.is_empty() && !found.row.is_known_loss(&missing) {
        let what = format!("the frame of event {} follows event {}", header.first, header.previous);
        verified.damage.push(Damage { rank: Some(header.rank), ids: Some(missing), what });
    }
}

fn check_frame(store: &dyn Store, frame: &Frame, verified: &mut Verified) {
    let header = frame.header();
    let ids = header.first..=header.last;
    let mut damaged = |what: String| {
        verified.damage.push(Damage { rank: Some(header.rank), ids: Some(ids.clone()), what });
    };
    if let Some(Err(e)) = frame.events().find(Result::is_err) {
        return damaged(e.to_string());
    }
    if header.payload_len > 0 {
        let tree = Tree::Payloads { rank: header.rank.0, generation: header.generation };
        let joined = read_payload_chunks(store, tree, header.first)
            .map_err(|e| e.to_string())
            .and_then(|chunks| join_payloads(&chunks, header.payload_len, header.payload_crc, header.count));
        if let Err(what) = joined {
            return damaged(what);
        }
    }
    verified.frames += 1;
    verified.events += u64::from(header.count);
    verified.bytes += frame.as_bytes().len() as u64;
    verified.payload_bytes += u64::from(header.payload_len);
}
