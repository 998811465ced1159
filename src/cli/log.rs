//! `log`: events, as text or JSON, of one rank or all, and onward as they come.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write, stdout};
use std::time::Duration;

use crate::error::Error;
use crate::event::{DpRank, EventData, EventId, JsonEvent};
use crate::journal::{JournalView, ReadEvent, Reader, Start};

use super::args::{Format, LogArgs};
use super::output::{escape, note};
use super::{Failure, Outcome};

/// How long another process may keep the folder.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often `--follow` looks again.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Hashes of an event that are printed as text.
const HASHES_SHOWN: usize = 4;

pub(super) fn run(args: LogArgs, format: Format) -> Result<Outcome, Failure> {
    let mut next = BTreeMap::new();
    let mut out = BufWriter::new(stdout().lock());
    print_new(&args, format, &mut next, LOCK_WAIT, &mut out)?;
    if !args.follow {
        return Ok(Outcome::Fine);
    }
    loop {
        std::thread::sleep(FOLLOW_EVERY);
        // In use: whoever writes will let go some time. Gone or damaged: an end like any other.
        match print_new(&args, format, &mut next, Duration::ZERO, &mut out) {
            Err(Failure::Journal(Error::InUse { .. })) => {}
            printed => printed?,
        }
    }
}

/// Prints what was not printed yet, and lets go of the folder.
fn print_new(
    args: &LogArgs,
    format: Format,
    next: &mut BTreeMap<DpRank, EventId>,
    lock_wait: Duration,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let view = JournalView::open(&args.dir.dir, lock_wait)?;
    let ranks = match args.rank {
        Some(rank) => vec![DpRank(rank)],
        None => view.ranks(),
    };
    for rank in ranks {
        let seen = next.get(&rank).copied();
        let from = seen.unwrap_or(args.from);
        let reader = if args.salvaged { view.read_salvaged(rank, from)? } else { view.read(rank, from)? };
        if let (Start::Reset { horizon }, None) = (reader.start(), seen) {
            note(&format!(
                "note: rank {rank}: events up to {horizon} are no longer kept one by one; what is left of them comes first"
            ));
        }
        let reader = if args.payloads { reader.with_payloads() } else { reader };
        let position = print_events(reader, args.to, format, rank, out)?;
        next.insert(rank, position);
    }
    out.flush()?;
    Ok(())
}

fn print_events(
    mut reader: Reader,
    to: EventId,
    format: Format,
    rank: DpRank,
    out: &mut impl Write,
) -> Result<EventId, Failure> {
    while let Some(frame) = reader.next_frame()? {
        for event in frame.events() {
            let event = event?;
            if event.id > to {
                return Ok(event.id);
            }
            match format {
                Format::Json => writeln!(out, "{}", to_json(rank, event).to_line())?,
                Format::Text => writeln!(out, "{}", to_text(rank, &event))?,
            }
        }
    }
    Ok(reader.position())
}

pub(super) fn to_json(rank: DpRank, event: ReadEvent) -> JsonEvent {
    JsonEvent {
        event_id: Some(event.id),
        dp_rank: rank,
        data: event.data,
        engine_time: event.engine_time,
        payload: event.payload.map(|payload| payload.to_vec()),
    }
}

fn to_text(rank: DpRank, event: &ReadEvent) -> String {
    format!("{:>8} {rank} {}", event.id, data_text(&event.data))
}

/// What an event says, for people.
pub(super) fn data_text(data: &EventData) -> String {
    let shown = |hashes: &mut dyn Iterator<Item = u64>, len: usize| {
        let mut text: Vec<String> = hashes.take(HASHES_SHOWN).map(|hash| format!("{hash:016x}")).collect();
        if len > HASHES_SHOWN {
            text.push(format!("… {} in all", len));
        }
        text.join(" ")
    };
    match data {
        EventData::Stored(stored) => {
            let parent = stored.parent.map_or("-".into(), |parent| format!("{:016x}", parent.0));
            let blocks =
                shown(&mut stored.blocks.iter().map(|block| block.block_hash.0), stored.blocks.len());
            format!("stored  {} after {parent}: {blocks}", medium(stored.placement.medium.as_deref()))
        }
        EventData::Removed(removed) => {
            let hashes =
                shown(&mut removed.block_hashes.iter().map(|hash| hash.0), removed.block_hashes.len());
            format!("removed {}: {hashes}", medium(removed.placement.medium.as_deref()))
        }
        EventData::Cleared(cleared) if cleared.tiers.is_empty() => format!("cleared ({:?})", cleared.reason),
        EventData::Cleared(cleared) => format!("cleared {:?} ({:?})", cleared.tiers, cleared.reason),
        EventData::Unknown(unknown) => format!("unknown {}", escape(&unknown.tag)),
    }
}

fn medium(medium: Option<&str>) -> String {
    escape(medium.unwrap_or("GPU"))
}
