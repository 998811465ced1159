//! `simulate`: the events of an engine double, as JSON Lines or as engine payloads.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write, stdout};
use std::path::Path;

use crate::engine::EncodedForm;
use crate::engine::sim::{self, Detail, LoadSpec};
use crate::event::{DpRank, EventId};

use super::args::{Format, SimulateArgs};
use super::load::{batches, spec};
use super::output::note;
use super::{Failure, Outcome};

/// When the load starts, in seconds since 1970: a fixed time, so that a seed always makes the same bytes.
const START_SECONDS: f64 = 1_700_000_000.0;

pub(super) fn run(args: SimulateArgs, format: Format) -> Result<Outcome, Failure> {
    let detail = if args.payloads.is_some() { Detail::Tokens } else { Detail::Hashes };
    let spec = LoadSpec {
        ranks: args.ranks,
        clear_every: args.clear_every,
        events_max: Some(args.events),
        detail,
        ..spec(&args.load, 16)
    };
    let load = batches(&args.load, spec)?;
    match &args.payloads {
        Some(dir) => {
            let form = if args.arrays { EncodedForm::Array } else { EncodedForm::Map };
            let files = write_payloads(dir, form, load)?;
            if format == Format::Text {
                note(&format!("{files} batches written to {}", dir.display()));
            }
        }
        None => write_lines(load)?,
    }
    Ok(Outcome::Fine)
}

/// JSON Lines; each rank's ids start at 1.
fn write_lines(load: sim::Load) -> Result<(), Failure> {
    let mut out = BufWriter::new(stdout().lock());
    let mut next: BTreeMap<DpRank, EventId> = BTreeMap::new();
    for batch in load {
        let next = next.entry(batch.rank).or_insert(1);
        let first = *next;
        *next += batch.events.len() as EventId;
        for line in batch.into_lines(Some(first)) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(out.flush()?)
}

fn write_payloads(dir: &Path, form: EncodedForm, load: sim::Load) -> Result<u64, Failure> {
    std::fs::create_dir_all(dir)?;
    let mut files = 0;
    for batch in load {
        let bytes = batch.payload(form, START_SECONDS).expect("the tokens were asked for");
        std::fs::write(dir.join(format!("{files:08}.msgpack")), bytes)?;
        files += 1;
    }
    Ok(files)
}
