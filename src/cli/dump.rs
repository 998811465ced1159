//! `dump`: what is held, as events that rebuild it.

use std::io::{BufWriter, Write, stdout};

use crate::event::JsonEvent;
use crate::journal::JournalView;

use super::args::{DumpArgs, Format};
use super::fold::{fold, ranks};
use super::log::{LOCK_WAIT, data_text};
use super::output::note;
use super::{Failure, Outcome};

pub(super) fn run(args: DumpArgs, format: Format) -> Result<Outcome, Failure> {
    let view = JournalView::open(&args.dir.dir, LOCK_WAIT)?;
    let mut out = BufWriter::new(stdout().lock());
    for rank in ranks(&view, args.rank) {
        let folded = fold(&view, rank, args.at, |_, _| {})?;
        for data in folded.index.dump(folded.stream) {
            match format {
                Format::Json => {
                    let event =
                        JsonEvent { event_id: None, dp_rank: rank, data, engine_time: None, payload: None };
                    writeln!(out, "{}", event.to_line())?;
                }
                Format::Text => writeln!(out, "{rank} {}", data_text(&data))?,
            }
        }
        let (blocks, digest) = (folded.blocks(), folded.digest());
        note(&format!("rank {rank}: {blocks} blocks held at event {}, digest {digest}", folded.at));
    }
    out.flush()?;
    Ok(Outcome::Fine)
}
