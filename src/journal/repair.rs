//! Saving what can be saved of a damaged journal, without ever opening the damaged store.
//!
//! Frames are carved from the raw bytes by their magic number and checksum and written to a new generation; the old
//! one is kept. What is lost is named. A state that rests on events with a hole in them would be wrong, so the
//! history that a reset rebuilds starts after the last hole; frames before it are kept for people. Ids go on past
//! any that a reader may have seen.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::codec::{Frame, FrameHeader};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId};
use crate::store::{
    Current, Folder, GenerationDir, LOG, SledStore, Store, Tree, WitnessRank, WitnessState, raw_files,
};

use super::carve::{Carved, Place, carve, read_chunk, read_frame};
use super::clock::{now_us, since_1970};
use super::epochs::{EPOCHS_MAX, Epoch, ShowsEarly, jump_past};
use super::phase::{Phase, enter};
use super::rows::{FORMAT, Identity, RankRow, frame_key, payload_key};

/// Ranges of lost ids that a rank remembers; older ones are merged into the first.
const LOST_MAX: usize = 256;

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Frames saved.
    pub frames: u64,
    /// Events saved.
    pub events: u64,
    /// Ids lost, for each rank that lost any, in order.
    pub lost: BTreeMap<DpRank, Vec<RangeInclusive<EventId>>>,
    /// Events whose payloads are lost.
    pub payloads_lost: BTreeMap<DpRank, Vec<RangeInclusive<EventId>>>,
    /// Generation of the store that was written.
    pub generation: u32,
    /// Generation that was damaged, and is kept: the newest one if CURRENT does not say which it was.
    pub kept: u32,
}

/// Repairs the journal in `dir`, telling `progress` how far it is.
///
/// # Errors
/// `InUse`, `NotFound`, `Damaged` if not even whose journal it is can be found, or what the file system says.
pub fn repair(dir: &Path, lock_wait_max: Duration, mut progress: impl FnMut(u64, u64)) -> Result<Repaired> {
    let _phase = enter(Phase::Repair);
    let folder = Folder::hold(dir, false, lock_wait_max)?;
    // Whatever cannot be read is what is repaired.
    let current = folder.read_current().ok().flatten();
    let (witness_file, witness) = folder.open_witness().ok().flatten().unzip();
    let numbers = folder.generations()?;
    let Some(newest) = numbers.last().copied() else {
        return Err(match witness {
            Some(witness) if witness.epoch > 0 => Error::damaged("no generation of the store is left"),
            _ => Error::NotFound { dir: dir.to_owned() },
        });
    };
    if let Some(current) = current.as_ref().filter(|current| current.format > FORMAT) {
        return Err(Error::NewerFormat { found: current.format, supported: FORMAT });
    }
    let named = current.as_ref().map(|current| current.generation).filter(|number| numbers.contains(number));
    // Without a CURRENT nobody knows which store is the journal, and the newest may be what a repair left that was
    // cut off: all of them are looked through, and all of them are kept.
    let (number, sources) = named.map_or((newest, numbers), |named| (named, vec![named]));
    let files = open_raw(&folder, &sources)?;
    let carved = carve(&files, &mut progress).map_err(Error::io(format!("read {}", dir.display())))?;
    let identity = identify(&carved, witness.as_ref())?;
    let generation = folder.new_generation()?;
    let mut repaired = Repaired { generation: generation.number, kept: number, ..Repaired::default() };
    let epoch = repair_epoch(&carved, witness.as_ref());
    let ranks = write(&files, &carved, &identity, witness.as_ref(), &epoch, &generation, &mut repaired)?;
    let witness = WitnessState {
        journal: identity.journal,
        epoch: epoch.number,
        clean: true,
        suspect: false,
        ranks: ranks.iter().map(witness_of).collect(),
    };
    folder.sync_names(&generation)?;
    let mut keep = current.map_or_else(Vec::new, |current| current.keep);
    keep.extend(sources);
    keep.sort_unstable();
    keep.dedup();
    folder.set_current(&Current { format: FORMAT, generation: generation.number, keep })?;
    // After CURRENT: the new store is nowhere behind the old witness, but the old store would be behind the new one.
    match witness_file {
        // In turn, so that a cut leaves one slot that can be read, and thereby a journal that opens.
        Some(mut file) => {
            let written = file.write(&witness).and_then(|()| file.write(&witness));
            written.map_err(Error::io("write the witness"))?;
        }
        None => drop(folder.create_witness(&witness)?),
    }
    Ok(repaired)
}

/// Opens the files of generations that may hold rows.
fn open_raw(folder: &Folder, generations: &[u32]) -> Result<Vec<File>> {
    let paths = generations.iter().flat_map(|number| raw_files(&folder.generation(*number).path));
    let open = |path: PathBuf| {
        // What is read is the disk's: see `check_before_open`.
        let synced = File::open(&path).and_then(|file| file.sync_all().map(|()| file));
        synced.map_err(Error::io(format!("read {}", path.display())))
    };
    paths.map(open).collect()
}

fn witness_of(row: &RankRow) -> WitnessRank {
    let epoch_first = row.epochs.last().map_or(0, |epoch| epoch.first);
    WitnessRank { rank: row.rank, durable_head: row.floor, epoch_first, revision: row.revision }
}

/// A repair is an opening of its own: whoever read from a later one than is left must not go on unasked.
fn repair_epoch(carved: &Carved, witness: Option<&WitnessState>) -> Epoch {
    let in_rows = carved.ranks.values().flat_map(|row| row.epochs.iter().map(|epoch| epoch.number));
    let in_frames = carved.frames.values().flatten().map(|(header, _)| header.epoch);
    let newest = in_rows.chain(in_frames).chain(witness.map(|witness| witness.epoch)).max();
    Epoch {
        number: newest.unwrap_or(0) + 1,
        nonce: rand::random(),
        first: 0,
        kept: 0,
        shows_early: ShowsEarly::Never,
        boot: [0; 16],
        opened_us: now_us(),
    }
}

/// Whose journal the bytes are: by the identity row, or by the witness and the frames.
fn identify(carved: &Carved, witness: Option<&WitnessState>) -> Result<Identity> {
    if let Some(identity) = carved.identity {
        return Ok(Identity { format: FORMAT, ..identity });
    }
    let headers = carved.frames.values().flatten().map(|(header, _)| header);
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for header in headers {
        *counts.entry((header.journal, header.worker)).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(whose, _)| whose);
    let known = witness.map(|witness| witness.journal);
    match most {
        Some((journal, worker)) => Ok(Identity { format: FORMAT, journal, worker, created_us: now_us() }),
        None => Err(Error::damaged(match known {
            Some(_) => "no frame and no identity is left in the store",
            None => "nothing of a journal is left",
        })),
    }
}

fn write(
    files: &[File],
    carved: &Carved,
    identity: &Identity,
    witness: Option<&WitnessState>,
    epoch: &Epoch,
    generation: &GenerationDir,
    repaired: &mut Repaired,
) -> Result<Vec<RankRow>> {
    let store = SledStore::open(&generation.path)?;
    identity.save(&store)?;
    let mut numbers: Vec<u32> = carved.ranks.keys().copied().collect();
    numbers.extend(carved.frames.keys().map(|(rank, _)| *rank));
    numbers.extend(witness.into_iter().flat_map(|witness| witness.ranks.iter().map(|seen| seen.rank)));
    numbers.sort_unstable();
    numbers.dedup();
    let mut rows = Vec::new();
    for rank in numbers {
        let seen = witness.and_then(|witness| witness.ranks.iter().find(|seen| seen.rank == rank).copied());
        let known = carved.ranks.get(&rank);
        let chosen = choose(carved, identity, rank, known, seen, witness.map_or(0, |w| w.epoch));
        let witnessed = seen.map_or(0, |seen| seen.revision);
        let mut row = known.cloned().unwrap_or_else(|| RankRow { rank, ..RankRow::default() });
        let row_known = known.is_some_and(|known| known.revision >= witnessed);
        row.revision = row.revision.max(witnessed);
        save_history(files, carved, identity, &store, &mut row, repaired)?;
        let saved = save_frames(files, carved, &store, &row, &chosen, repaired)?;
        settle(&mut row, &saved, row_known, witness.is_some(), seen.map_or(0, |s| s.durable_head), repaired);
        let kept = saved.last().map_or(0, |header| header.last);
        row.epochs.push(Epoch { first: row.floor + 1, kept, ..*epoch });
        let forgotten = row.epochs.len().saturating_sub(EPOCHS_MAX);
        row.epochs.drain(..forgotten);
        row.save(&store)?;
        rows.push(row);
    }
    store.sync()?;
    Ok(rows)
}

/// The frames of a rank that count, in order. Of each place the newest version; and frames of an opening end where
/// a later one began: what it wrote there was lost before, and its ids were given anew.
fn choose(
    carved: &Carved,
    identity: &Identity,
    rank: u32,
    known: Option<&RankRow>,
    seen: Option<WitnessRank>,
    epoch: u64,
) -> Vec<(FrameHeader, Place)> {
    let mut begins: BTreeMap<u64, EventId> = BTreeMap::new();
    let versions =
        || carved.frames.range((rank, 0)..=(rank, EventId::MAX)).flat_map(|(_, versions)| versions);
    let ours = |header: &FrameHeader| header.journal == identity.journal && header.worker == identity.worker;
    begins.extend(versions().filter(|(h, _)| ours(h)).map(|(h, _)| (h.epoch, h.epoch_first)));
    begins.extend(known.into_iter().flat_map(|row| row.epochs.iter().map(|e| (e.number, e.first))));
    begins.extend(seen.filter(|seen| seen.epoch_first > 0).map(|seen| (epoch, seen.epoch_first)));
    let ends_at =
        |epoch: u64| begins.range(epoch + 1..).map(|(_, first)| *first).min().unwrap_or(EventId::MAX);
    let trimmed = known.map_or(0, |row| row.trimmed);
    let mut chosen: BTreeMap<EventId, (FrameHeader, Place)> = BTreeMap::new();
    for (header, place) in versions() {
        if !ours(header)
            || header.generation != LOG
            || header.last <= trimmed
            || header.last >= ends_at(header.epoch)
        {
            continue;
        }
        let newer = |old: &(FrameHeader, Place)| header.epoch > old.0.epoch;
        if chosen.get(&header.first).is_none_or(newer) {
            chosen.insert(header.first, (*header, *place));
        }
    }
    chosen.into_values().collect()
}

/// Saves the compacted history, if all of it is there: a state without some of its events would be wrong.
fn save_history(
    files: &[File],
    carved: &Carved,
    identity: &Identity,
    store: &SledStore,
    row: &mut RankRow,
    repaired: &mut Repaired,
) -> Result<()> {
    let Some(history) = row.history else { return Ok(()) };
    let frames = carved.frames.range((row.rank, 0)..=(row.rank, EventId::MAX));
    let versions = frames.flat_map(|(_, versions)| versions);
    let of_history = versions.filter(|(header, _)| {
        (header.journal, header.worker, header.generation)
            == (identity.journal, identity.worker, row.generation)
    });
    let mut chosen: Vec<(FrameHeader, Place)> = of_history.copied().collect();
    // The same frame may lie in several places.
    chosen.dedup_by_key(|(header, _)| header.first);
    let (mut at, mut events) = (0, 0);
    for (header, _) in &chosen {
        if header.previous == at {
            (at, events) = (header.last, events + u64::from(header.count));
        }
    }
    if (at, events) == (history.last, history.events) {
        save_frames(files, carved, store, row, &chosen, repaired)?;
    } else {
        repaired.lost.entry(DpRank(row.rank)).or_default().push(1..=row.base);
        row.history = None;
    }
    Ok(())
}

/// Writes the chosen frames with their payloads, and gives their heads.
fn save_frames(
    files: &[File],
    carved: &Carved,
    store: &SledStore,
    row: &RankRow,
    chosen: &[(FrameHeader, Place)],
    repaired: &mut Repaired,
) -> Result<Vec<FrameHeader>> {
    let mut saved = Vec::with_capacity(chosen.len());
    for (header, place) in chosen {
        let Some(mut frame) = read_frame(files, header, *place).map_err(Error::io("read a frame"))? else {
            continue;
        };
        let (rank, generation) = (row.rank, header.generation);
        if header.payload_len > 0 {
            match payload_rows(files, carved, header)? {
                Some(rows) => {
                    for (index, value) in rows.iter().enumerate() {
                        let tree = Tree::Payloads { rank, generation };
                        store.append(tree, &payload_key(header.first, index as u16), value)?;
                    }
                }
                None => {
                    repaired.payloads_lost.entry(header.rank).or_default().push(header.first..=header.last);
                    frame = Frame::without_payloads(&frame);
                }
            }
        }
        store.append(Tree::Events { rank, generation }, &frame_key(header.first), frame.as_bytes())?;
        repaired.frames += 1;
        repaired.events += u64::from(header.count);
        saved.push(*frame.header());
    }
    Ok(saved)
}

/// The rows of a frame's payloads, if all of them are there and right.
fn payload_rows(files: &[File], carved: &Carved, header: &FrameHeader) -> Result<Option<Vec<bytes::Bytes>>> {
    let key = |chunk| (header.rank.0, header.generation, header.first, header.epoch, chunk);
    let (mut rows, mut chunks) = (Vec::new(), Vec::new());
    for place in carved.payloads.range(key(0)..=key(u32::MAX)).map(|(_, place)| *place) {
        let Some((chunk, row)) = read_chunk(files, place).map_err(Error::io("read a payload"))? else {
            return Ok(None);
        };
        chunks.push(chunk);
        rows.push(row);
    }
    let joined = crate::codec::join_payloads(&chunks, header.payload_len, header.payload_crc, header.count);
    Ok(joined.is_ok().then_some(rows))
}

/// Sets the row of a rank by what was saved: what is lost, where the history starts, where ids go on.
fn settle(
    row: &mut RankRow,
    saved: &[FrameHeader],
    row_known: bool,
    witness_known: bool,
    witnessed: EventId,
    repaired: &mut Repaired,
) {
    let mut lost: Vec<RangeInclusive<EventId>> = Vec::new();
    let mut at = row.trimmed;
    for (index, header) in saved.iter().enumerate() {
        let follows = if index == 0 { header.previous <= row.trimmed } else { header.previous == at };
        if !follows && header.first > at + 1 {
            lost.push(at + 1..=header.first - 1);
        }
        at = header.last;
    }
    let given = row.floor.max(row.horizon).max(at);
    if witnessed > given {
        lost.push(given + 1..=witnessed);
    }
    // Ranges that an earlier repair told of are no news.
    let known =
        |ids: &RangeInclusive<EventId>| row.lost.iter().any(|(a, b)| a <= ids.start() && ids.end() <= b);
    let news: Vec<_> = lost.into_iter().filter(|ids| !known(ids)).collect();
    let history_lost = repaired.lost.contains_key(&DpRank(row.rank));
    let in_doubt = !news.is_empty() || history_lost || !row_known || !witness_known;
    let head = given.max(witnessed);
    row.floor = head;
    if in_doubt {
        // Ids past the witness may have been seen too.
        row.floor = jump_past(head, since_1970()) - 1;
        row.horizon = row.floor;
        row.base = row.base.max(news.last().map_or(0, |ids| *ids.end()));
    }
    row.lost.extend(news.iter().map(|ids| (*ids.start(), *ids.end())));
    row.lost.sort_unstable();
    while row.lost.len() > LOST_MAX {
        let first = row.lost.remove(0);
        row.lost[0].0 = first.0;
    }
    if !row_known {
        row.epochs = epochs_of(saved);
    }
    if !news.is_empty() {
        repaired.lost.entry(DpRank(row.rank)).or_default().extend(news);
    }
}

/// Epochs as far as the frames show them. Their nonces are gone, so that every reader is reset.
fn epochs_of(saved: &[FrameHeader]) -> Vec<Epoch> {
    let mut epochs: BTreeMap<u64, Epoch> = BTreeMap::new();
    for header in saved {
        epochs.entry(header.epoch).or_insert(Epoch {
            number: header.epoch,
            nonce: rand::random(),
            first: header.epoch_first,
            kept: header.previous,
            shows_early: ShowsEarly::Never,
            boot: [0; 16],
            opened_us: header.appended_us,
        });
    }
    let skip = epochs.len().saturating_sub(EPOCHS_MAX);
    epochs.into_values().skip(skip).collect()
}
