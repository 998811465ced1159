//! `inspect`: what a journal is and holds.

use std::io::{Write, stdout};

use serde_json::json;

use crate::error::Error;
use crate::event::DpRank;
use crate::journal::{JournalView, RankInfo};

use super::args::{Format, InspectArgs};
use super::fold::{Folded, fold};
use super::log::LOCK_WAIT;
use super::output::{escape, human_bytes, note, table};
use super::{Failure, Outcome};

pub(super) fn run(args: InspectArgs, format: Format) -> Result<Outcome, Failure> {
    let view = JournalView::open_copy(&args.dir.dir, LOCK_WAIT)?;
    let ranks = view.ranks().into_iter().map(|rank| Ok((view.rank(rank)?, held(&view, rank)?)));
    let ranks = ranks.collect::<Result<Vec<_>, Failure>>()?;
    match format {
        Format::Json => writeln!(stdout(), "{}", to_json(&view, &ranks))?,
        Format::Text => print_text(&view, &ranks)?,
    }
    Ok(Outcome::Fine)
}

/// What a rank holds; nothing if it is damaged, which is told and no reason to show nothing else.
fn held(view: &JournalView, rank: DpRank) -> Result<Option<Folded>, Failure> {
    match fold(view, rank, None, |_, _| {}) {
        Ok(folded) => Ok(Some(folded)),
        Err(Failure::Journal(error @ Error::Damaged(_))) => {
            note(&format!("note: what rank {rank} holds is not known: {}", escape(&error.to_string())));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn to_json(view: &JournalView, ranks: &[(RankInfo, Option<Folded>)]) -> serde_json::Value {
    let rank = |(info, folded): &(RankInfo, Option<Folded>)| {
        json!({
            "dp_rank": info.rank,
            "head": info.head,
            "horizon": info.horizon,
            "witnessed": info.witnessed,
            "history": info.history.map(|history| json!({
                "number": history.number, "events": history.events, "copies": history.copies,
            })),
            "blocks": folded.as_ref().map(Folded::blocks),
            "digest": folded.as_ref().map(|folded| folded.digest().to_string()),
            "events_folded": folded.as_ref().map(|folded| folded.events),
            "lost": info.lost,
            "epochs": info.epochs.iter().map(|epoch| json!({
                "number": epoch.number, "nonce": epoch.nonce, "first": epoch.first, "kept": epoch.kept,
                "opened_us": epoch.opened_us,
            })).collect::<Vec<_>>(),
            "source": info.source.as_ref().map(|source| json!({
                "endpoint": source.endpoint, "sequence": source.sequence, "done": source.done, "total": source.total,
            })),
        })
    };
    json!({
        "worker_id": view.worker(),
        "journal_id": hex(view.id()),
        "format": view.format(),
        "generation": view.generation(),
        "created_us": view.created_us(),
        "closed_in_order": view.closed_in_order(),
        "disk_bytes": view.disk_bytes(),
        "ranks": ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}

fn print_text(view: &JournalView, ranks: &[(RankInfo, Option<Folded>)]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    writeln!(out, "worker      {}", view.worker())?;
    writeln!(out, "journal     {}", hex(view.id()))?;
    writeln!(out, "format      {}, generation {}", view.format(), view.generation())?;
    writeln!(out, "on disk     {}", human_bytes(view.disk_bytes()))?;
    writeln!(out, "closed      {}", if view.closed_in_order() { "in order" } else { "not in order" })?;
    let mut rows = table(&[
        "rank",
        "head",
        "horizon",
        "history",
        "blocks",
        "digest",
        "epochs",
        "newest from",
        "lost",
        "source",
    ]);
    for (info, folded) in ranks {
        let newest = info.epochs.last();
        let lost: Vec<String> = info.lost.iter().map(|(first, last)| format!("{first}..={last}")).collect();
        rows.add_row([
            info.rank.to_string(),
            info.head.to_string(),
            info.horizon.to_string(),
            info.history.map_or_else(|| "-".into(), |history| format!("{} events", history.events)),
            folded.as_ref().map_or_else(|| "?".into(), |folded| folded.blocks().to_string()),
            folded.as_ref().map_or_else(|| "?".into(), |folded| folded.digest().to_string()),
            newest.map_or(0, |epoch| epoch.number).to_string(),
            newest.map_or(0, |epoch| epoch.first).to_string(),
            lost.join(" "),
            info.source.as_ref().map_or_else(String::new, |source| {
                format!("{} at {}", escape(&source.endpoint), source.sequence)
            }),
        ]);
    }
    if ranks.is_empty() {
        let none: DpRank = DpRank(0);
        writeln!(out, "no events yet: rank {none} will start at event 1")?;
    } else {
        writeln!(out, "\n{rows}\n")?;
        for (info, folded) in ranks {
            writeln!(out, "rank {} starts from {}", info.rank, recovery(info, folded.as_ref()))?;
        }
    }
    Ok(())
}

/// What a reader that starts anew is given, in its order.
fn recovery(info: &RankInfo, folded: Option<&Folded>) -> String {
    let log = match info.head - info.horizon {
        0 => "no event after it".to_owned(),
        _ => format!("events {} to {}", info.horizon + 1, info.head),
    };
    let all = folded.map_or_else(String::new, |folded| format!(" ({} events in all)", folded.events));
    match info.history {
        Some(history) => {
            format!("a history of {} events up to {}, then {log}{all}", history.events, info.horizon)
        }
        None if info.horizon > 0 => format!("nothing up to {}, then {log}{all}", info.horizon),
        None => format!("{log}{all}"),
    }
}
