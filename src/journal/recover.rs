//! What a store holds when it is opened: read, checked against the witness, and never guessed.

use bytes::Bytes;

use crate::codec::{Frame, SourceCursor};
use crate::error::{Error, Result};
use crate::event::{DpRank, EventId, WorkerId};
use crate::store::{LOG, Store, Tree, WitnessRank, WitnessState};

use super::rows::{FORMAT, Identity, RankRow, key_first, read_identity, read_ranks};

/// One rank as it was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundRank {
    pub(crate) row: RankRow,
    /// First id of the newest frame, 0 if there is none.
    pub(crate) newest_first: EventId,
    /// Last id of the newest frame, 0 if there is none.
    pub(crate) previous: EventId,
    /// Newest id that was given.
    pub(crate) head: EventId,
    pub(crate) cursor: Option<SourceCursor>,
    /// Numbers of compacted histories that are not the rank's.
    pub(crate) doomed: Vec<u32>,
}

impl FoundRank {
    pub(crate) fn witness(&self) -> WitnessRank {
        let epoch_first = self.row.epochs.last().map_or(0, |epoch| epoch.first);
        WitnessRank { rank: self.row.rank, durable_head: self.head, epoch_first, revision: self.row.revision }
    }
}

/// Reads a row as a frame of this rank.
pub(crate) fn parse_frame(rank: DpRank, row: Bytes) -> Result<Frame> {
    let frame = Frame::parse(row).map_err(|e| Error::damaged(format!("rank {rank}: {e}")))?;
    if frame.header().rank != rank {
        return Err(Error::damaged(format!("rank {rank} holds a frame of rank {}", frame.header().rank)));
    }
    Ok(frame)
}

/// Reads and checks the identity.
pub(crate) fn find_identity(
    store: &dyn Store,
    witness: &WitnessState,
    worker: Option<WorkerId>,
) -> Result<Identity> {
    let identity = read_identity(store)?;
    if identity.format > FORMAT {
        return Err(Error::NewerFormat { found: identity.format, supported: FORMAT });
    }
    if identity.journal != witness.journal {
        return Err(Error::damaged("the witness is that of another journal"));
    }
    match worker {
        Some(worker) if worker != identity.worker => {
            Err(Error::OtherWorker { found: identity.worker.0, wanted: worker.0 })
        }
        _ => Ok(identity),
    }
}

/// Reads all ranks and holds them against the witness.
///
/// # Errors
/// `Damaged` with the ids that are missing, if the store is behind what was durable.
pub(crate) fn find_ranks(
    store: &dyn Store,
    identity: &Identity,
    witness: &WitnessState,
) -> Result<Vec<FoundRank>> {
    let rows = read_ranks(store)?;
    for seen in witness.ranks.iter().filter(|seen| seen.durable_head > 0 || seen.revision > 0) {
        if !rows.iter().any(|row| row.rank == seen.rank) {
            let ids = 1..=seen.durable_head.max(1);
            return Err(Error::damaged_ids(DpRank(seen.rank), ids, "the row of the rank is missing"));
        }
    }
    let mut found =
        rows.into_iter().map(|row| find_rank(store, identity, witness, row)).collect::<Result<Vec<_>>>()?;
    for tree in store.trees()? {
        let (Tree::Events { rank, generation } | Tree::Payloads { rank, generation }) = tree else {
            continue;
        };
        let of_rank = found.iter_mut().find(|found| found.row.rank == rank);
        if let Some(found) = of_rank.filter(|found| ![LOG, found.row.generation].contains(&generation))
            && !found.doomed.contains(&generation)
        {
            found.doomed.push(generation);
        }
    }
    Ok(found)
}

fn find_rank(
    store: &dyn Store,
    identity: &Identity,
    witness: &WitnessState,
    row: RankRow,
) -> Result<FoundRank> {
    let rank = DpRank(row.rank);
    let mut found = FoundRank {
        newest_first: 0,
        previous: 0,
        head: row.floor.max(row.horizon),
        cursor: row.cursor.clone(),
        doomed: Vec::new(),
        row,
    };
    if let Some((key, bytes)) = store.last(found.row.tree())? {
        let first = key_first(rank.0, &key)?;
        let frame = parse_frame(rank, bytes).map_err(|e| {
            Error::damaged_ids(rank, first..=first.max(witness.durable_head(rank.0)), e.to_string())
        })?;
        let header = *frame.header();
        let epoch = found.row.epochs.iter().find(|epoch| epoch.number == header.epoch);
        let fits = header.first == first
            && header.journal == identity.journal
            && header.worker == identity.worker
            && epoch.is_none_or(|epoch| epoch.first == header.epoch_first)
            && found.row.epochs.last().is_some_and(|newest| header.epoch <= newest.number);
        if !fits {
            let what = "the newest frame does not fit the row of its rank";
            return Err(Error::damaged_ids(rank, header.first..=header.last, what));
        }
        found.newest_first = header.first;
        found.previous = header.last;
        found.head = found.head.max(header.last);
        if header.last > found.row.cursor_at
            && let Some(cursor) = frame.cursor().map_err(|e| Error::damaged(format!("rank {rank}: {e}")))?
        {
            found.cursor = Some(cursor);
        }
    }
    check_history(store, &found.row)?;
    let durable = witness.durable_head(rank.0);
    if found.head < durable {
        let what = format!("the store ends at {}, the witness saw {durable}", found.head);
        return Err(Error::damaged_ids(rank, found.head + 1..=durable, what));
    }
    if found.row.epochs.last().is_none_or(|newest| newest.number < witness.epoch)
        && witness.ranks.iter().any(|seen| seen.rank == rank.0)
    {
        return Err(Error::damaged(format!("rank {rank}: its row is older than epoch {}", witness.epoch)));
    }
    let seen = witness.ranks.iter().find(|seen| seen.rank == rank.0).map_or(0, |seen| seen.revision);
    if found.row.revision < seen {
        let what = format!(
            "its row is version {}, the witness saw version {seen}: horizon and source cursor are not known",
            found.row.revision
        );
        return Err(Error::damaged_ids(rank, 1..=found.head.max(1), what));
    }
    Ok(found)
}

/// Whether the compacted history ends where the row says; what is in it is checked when it is read.
fn check_history(store: &dyn Store, row: &RankRow) -> Result<()> {
    let Some(history) = row.history else { return Ok(()) };
    let newest = store.last(Tree::Events { rank: row.rank, generation: row.generation })?;
    let rank = DpRank(row.rank);
    let last =
        newest.map(|(_, bytes)| parse_frame(rank, bytes)).transpose()?.map(|frame| frame.header().last);
    if last == Some(history.last) {
        return Ok(());
    }
    let what = format!("compacted history {} ends at {last:?}, not at {}", row.generation, history.last);
    Err(Error::damaged_ids(rank, 1..=row.base, what))
}

/// Removes payload rows whose frame never came: they are written first, and a crash may lie between.
pub(crate) fn drop_orphan_payloads(store: &dyn Store, found: &FoundRank) -> Result<()> {
    while let Some((key, _)) = store.last(found.row.payloads())? {
        if key_first(found.row.rank, &key)? <= found.newest_first {
            break;
        }
        store.remove(found.row.payloads(), &key)?;
    }
    Ok(())
}
