//! `repair` and `migrate`: a journal's store, written anew.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use crate::event::{DpRank, EventId};
use crate::journal::{self, repair, verify};

use super::args::{Format, MigrateArgs, RepairArgs};
use super::log::LOCK_WAIT;
use super::output::{note, progress_bytes};
use super::{Failure, Outcome};

pub(super) fn run(args: RepairArgs, format: Format) -> Result<Outcome, Failure> {
    let dir = &args.dir.dir;
    if !args.force && verify(dir, LOCK_WAIT, progress_bytes())?.damage.is_empty() {
        note("nothing is damaged; the journal was left alone");
        return Ok(Outcome::Fine);
    }
    let repaired = repair(dir, LOCK_WAIT, progress_bytes())?;
    let report = json!({
        "frames_saved": repaired.frames,
        "events_saved": repaired.events,
        "lost": ranges(&repaired.lost),
        "payloads_lost": ranges(&repaired.payloads_lost),
        "generation": repaired.generation,
        "kept_generation": repaired.kept,
    });
    writeln!(stdout(), "{report}")?;
    if format == Format::Text {
        note(&format!(
            "{} events saved; the damaged store is kept as gen-{} and may be deleted once it is of no more use",
            repaired.events, repaired.kept
        ));
    }
    let whole = repaired.lost.is_empty() && repaired.payloads_lost.is_empty();
    Ok(if whole { Outcome::Fine } else { Outcome::Problems })
}

fn ranges(lost: &BTreeMap<DpRank, Vec<RangeInclusive<EventId>>>) -> Value {
    let one = |(rank, ranges): (&DpRank, &Vec<RangeInclusive<EventId>>)| {
        let ids: Vec<_> = ranges.iter().map(|ids| [*ids.start(), *ids.end()]).collect();
        json!({ "dp_rank": rank, "ids": ids })
    };
    lost.iter().map(one).collect()
}

pub(super) fn migrate(args: MigrateArgs, format: Format) -> Result<Outcome, Failure> {
    let migrated = journal::migrate(&args.dir.dir, LOCK_WAIT, args.force, args.dry_run)?;
    let journal::Migrated { from, to, written } = migrated;
    match format {
        Format::Json => writeln!(stdout(), "{}", json!({ "from": from, "to": to, "written": written }))?,
        Format::Text if written => writeln!(stdout(), "format {from} to {to}: the store was written anew")?,
        Format::Text if from == to => writeln!(stdout(), "format {from} is the newest; nothing to do")?,
        Format::Text => writeln!(stdout(), "format {from} would be brought to {to}")?,
    }
    Ok(Outcome::Fine)
}
