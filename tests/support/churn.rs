//! A stream whose state stays small while its events go on for ever, each event told by its id alone; and a journal,
//! compacted or not, held against it.

use std::collections::BTreeMap;

use kvjournal::event::{Block, BlockHash, DpRank, EventData, Removed, Stored, TokensHash, WorkerId};
use kvjournal::index::{Index, StreamId};
use kvjournal::journal::{Journal, Start};

use super::random::Random;
use super::told::Told;

/// Stored events after which a row of blocks is gone for certain.
const LIFE: u64 = 400;
const ROW: u64 = 5;

/// Event `id`: rows of blocks are stored at odd ids, and lose blocks at even ones: ends, middles, or all that is left.
pub fn churn(id: u64) -> EventData {
    if id % 2 == 1 {
        let block = |index| {
            let hash = id * ROW + index;
            Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash)), mm: None }
        };
        return EventData::Stored(Stored { blocks: (0..ROW).map(block).collect(), ..Stored::default() });
    }
    let mut random = Random::new(id);
    let mut hashes = Vec::new();
    if let Some(old) = (id + 1).checked_sub(LIFE) {
        hashes.extend((0..ROW).rev().map(|index| BlockHash(old * ROW + index)));
    }
    let young = (id - 1).saturating_sub(2 * random.below(LIFE / 4));
    let first = random.below(ROW);
    let last = if random.below(3) == 0 { first + 1 } else { ROW };
    hashes.extend((first..last).rev().map(|index| BlockHash(young * ROW + index)));
    EventData::Removed(Removed { block_hashes: hashes, ..Removed::default() })
}

fn stream(rank: DpRank) -> StreamId {
    StreamId { worker_id: WorkerId(1), dp_rank: rank }
}

/// The fold of all events up to `head`.
pub fn fold(head: u64) -> Index {
    let index = Index::new();
    // What is older is gone.
    for id in head.saturating_sub(4 * LIFE).max(1)..=head {
        index.apply(stream(DpRank(0)), &churn(id));
    }
    index
}

/// Reads a rank from its start: whatever was compacted, the state is that of all events, each event above the horizon
/// is there, and each one below it is a part of what was appended. Says how many events there were, or what is wrong.
pub fn check(journal: &Journal, rank: DpRank) -> Result<u64, String> {
    let mut reader = journal.read(rank, 1).map_err(|e| e.to_string())?;
    let horizon = match reader.start() {
        Start::Reset { horizon } => horizon,
        Start::Continue | Start::Ahead { .. } => 0,
    };
    let head = journal.visible_head(rank);
    let index = Index::new();
    let (mut last, mut count) = (0, 0);
    while last < head {
        let frame = reader.next_frame().map_err(|e| format!("rank {rank} after event {last}: {e}"))?;
        let frame = frame.ok_or_else(|| format!("rank {rank} ends at {last}, not at {head}"))?;
        for event in frame.events() {
            let event = event.map_err(|e| e.to_string())?;
            if event.id > head {
                break;
            }
            let in_order =
                if event.id > horizon { event.id == last.max(horizon) + 1 } else { event.id > last };
            if !in_order || !is_part(&event.data, &churn(event.id), event.id <= horizon) {
                return Err(format!("rank {rank}: event {} after {last}, horizon {horizon}", event.id));
            }
            index.apply(stream(DpRank(0)), &event.data);
            (last, count) = (event.id, count + 1);
        }
    }
    let (found, expected) = (index.digest(stream(DpRank(0))), fold(head).digest(stream(DpRank(0))));
    if found == expected {
        Ok(count)
    } else {
        Err(format!("rank {rank}: the state at {head} (horizon {horizon}) is {found}, not {expected}"))
    }
}

/// Holds a reopened journal against what a child said that it was told: how many events it read, or what is wrong.
pub fn check_told(journal: &Journal, told: &Told, ranks: &[DpRank]) -> Result<u64, String> {
    let mut events = 0;
    for rank in ranks.iter().copied() {
        let at = |of: &BTreeMap<DpRank, u64>| of.get(&rank).copied().unwrap_or(0);
        let (head, durable, appending) = (journal.head(rank), at(&told.durable), at(&told.appending));
        if head < durable || head > appending {
            return Err(format!("rank {rank} ends at {head}: {durable} acknowledged, {appending} appended"));
        }
        if journal.horizon(rank) < at(&told.horizon) {
            return Err(format!("rank {rank}: the horizon went back to {}", journal.horizon(rank)));
        }
        if head > 0 {
            events += check(journal, rank)?;
        }
    }
    Ok(events)
}

fn is_part(found: &EventData, whole: &EventData, is_compacted: bool) -> bool {
    match (found, whole) {
        (found, whole) if !is_compacted => found == whole,
        (EventData::Stored(found), EventData::Stored(whole)) => whole.blocks.starts_with(&found.blocks),
        (EventData::Removed(found), EventData::Removed(whole)) => {
            found.block_hashes.iter().all(|hash| whole.block_hashes.contains(hash))
        }
        _ => false,
    }
}
