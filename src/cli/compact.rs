//! `compact`: the history of a journal that nobody uses, made small, and its space given back.

use std::io::{Write, stdout};
use std::time::Duration;

use serde_json::json;

use crate::error::Error;
use crate::event::{DpRank, EventId};
use crate::journal::{self, CompactOptions, Compacted, Config, Journal, JournalView, Retention};

use super::args::{CompactArgs, Format};
use super::log::LOCK_WAIT;
use super::output::{human_bytes, note, progress_ids, table};
use super::{Failure, Outcome};

/// What became of one rank.
struct Done {
    rank: DpRank,
    head: EventId,
    compacted: Compacted,
}

pub(super) fn run(args: CompactArgs, format: Format) -> Result<Outcome, Failure> {
    let compacted = compact(&args);
    if let Err(Failure::Journal(Error::InUse { .. })) = &compacted {
        note("note: whoever has the journal open compacts it: give it limits (`Config::retention`)");
    }
    let (done, disk_before, disk) = compacted?;
    match format {
        Format::Json => print_json(&args, &done, disk_before, disk)?,
        Format::Text => print_text(&args, &done, disk_before, disk)?,
    }
    Ok(Outcome::Fine)
}

fn compact(args: &CompactArgs) -> Result<(Vec<Done>, u64, u64), Failure> {
    let dir = &args.dir.dir;
    let keep = Retention {
        keep_events: args.keep_events,
        keep_bytes: args.keep_bytes,
        keep_age: args.keep_age,
        ..Retention::default()
    };
    let is_asked = |rank: &DpRank| args.rank.is_none_or(|asked| asked == rank.0);
    let mut done = Vec::new();
    // A look first: it refuses what cannot be opened, without beginning an epoch.
    let view = JournalView::open_copy(dir, LOCK_WAIT)?;
    let (ranks, before) = (view.ranks(), view.disk_bytes());
    if let Some(rank) = args.rank {
        view.rank(DpRank(rank))?;
    }
    if args.dry_run {
        for rank in ranks.into_iter().filter(is_asked) {
            let to = view.horizon_for(rank, &keep)?;
            let compacted = view.compact_dry(rank, to, &progress_ids())?;
            done.push(Done { rank, head: view.rank(rank)?.head, compacted });
        }
        return Ok((done, before, before));
    }
    drop(view);
    let journal = Journal::open(Config { lock_wait_max: LOCK_WAIT, ..Config::new(dir, None) })?;
    let options = CompactOptions { grace: Duration::ZERO, pace_bytes: None, dry_run: false };
    for rank in ranks.into_iter().filter(is_asked) {
        let to = journal.horizon_for(rank, &keep)?;
        let compacted = journal.compact_with(rank, to, options, &progress_ids())?;
        done.push(Done { rank, head: journal.head(rank), compacted });
    }
    let mut disk = journal.disk_bytes()?;
    journal.close()?;
    if args.reclaim {
        journal::migrate(dir, LOCK_WAIT, true, false)?;
        disk = JournalView::open_copy(dir, LOCK_WAIT)?.disk_bytes();
    }
    Ok((done, before, disk))
}

fn print_json(args: &CompactArgs, done: &[Done], disk_before: u64, disk: u64) -> Result<(), Failure> {
    for Done { rank, head, compacted } in done {
        let line = json!({
            "dp_rank": rank,
            "head": head,
            "horizon_before": compacted.horizon_before,
            "horizon": compacted.horizon,
            "events_before": compacted.events_before,
            "events": compacted.events,
            "frame_bytes_before": compacted.frame_bytes_before,
            "frame_bytes": compacted.frame_bytes,
            "payload_bytes_before": compacted.payload_bytes_before,
            "payload_bytes": compacted.payload_bytes,
            "copies": compacted.copies,
            "dry_run": args.dry_run,
        });
        writeln!(stdout(), "{line}")?;
    }
    let line =
        json!({ "disk_bytes_before": disk_before, "disk_bytes": disk, "reclaimed": is_reclaimed(args) });
    Ok(writeln!(stdout(), "{line}")?)
}

fn is_reclaimed(args: &CompactArgs) -> bool {
    args.reclaim && !args.dry_run
}

fn print_text(args: &CompactArgs, done: &[Done], disk_before: u64, disk: u64) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let mut rows = table(&["rank", "", "before", if args.dry_run { "would be" } else { "after" }]);
    for Done { rank, head, compacted: it } in done {
        if it.horizon == it.horizon_before {
            rows.add_row([rank.to_string(), format!("nothing to compact up to {}", it.horizon)]);
            continue;
        }
        let mut row = |what: &str, before: String, after: String| {
            rows.add_row([rank.to_string(), what.into(), before, after]);
        };
        row("horizon", it.horizon_before.to_string(), it.horizon.to_string());
        row("events one by one", (head - it.horizon_before).to_string(), (head - it.horizon).to_string());
        row("compacted events", it.events_before.to_string(), it.events.to_string());
        row("  their frames", human_bytes(it.frame_bytes_before), human_bytes(it.frame_bytes));
        row("  their payloads", human_bytes(it.payload_bytes_before), human_bytes(it.payload_bytes));
    }
    writeln!(out, "{rows}")?;
    if args.dry_run {
        writeln!(out, "\nNothing was changed. The store takes {}.", human_bytes(disk_before))?;
        return Ok(());
    }
    writeln!(out, "\nThe store took {} and takes {}.", human_bytes(disk_before), human_bytes(disk))?;
    if !args.reclaim {
        note("hint: a store does not shrink by itself; --reclaim writes it anew");
    }
    Ok(())
}
