//! `export`: all events as JSON Lines, to be read by `import` or by anything else.

use std::io::{BufWriter, Write, stdout};

use crate::event::DpRank;
use crate::journal::JournalView;

use super::args::ExportArgs;
use super::log::{LOCK_WAIT, to_json};
use super::{Failure, Outcome};

pub(super) fn run(args: ExportArgs) -> Result<Outcome, Failure> {
    let view = JournalView::open(&args.dir.dir, LOCK_WAIT)?;
    let mut out = BufWriter::new(stdout().lock());
    let ranks = match args.rank {
        Some(rank) => vec![DpRank(rank)],
        None => view.ranks(),
    };
    for rank in ranks {
        let reader = view.read(rank, 1)?;
        let mut reader = if args.no_payloads { reader } else { reader.with_payloads() };
        while let Some(frame) = reader.next_frame()? {
            for event in frame.events() {
                writeln!(out, "{}", to_json(rank, event?).to_line())?;
            }
        }
    }
    out.flush()?;
    Ok(Outcome::Fine)
}
