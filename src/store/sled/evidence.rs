//! What sled's recovery is about to overwrite, kept beside the database until it is known to be of no worth.
//!
//! sled zeroes what follows the first message that it cannot read. After a crash that is the rest of a write that
//! nobody was told of; after damage it may be all that `repair` could have saved. Which one it is shows only when the
//! opened store is held against the witness, so what is doomed is copied first, and dropped once all is well.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::SEGMENT_BYTES;
use super::log_scan::{Span, for_each_chunk, scan};

const EVIDENCE_FILE: &str = "evidence";

/// Bytes copied in one go.
const PIECE_BYTES: usize = 1024 * 1024;

/// Copies what opening the database would overwrite, durably. Nothing is written if there is nothing.
pub(crate) fn keep_evidence(dir: &Path) -> io::Result<()> {
    let found = scan(dir, SEGMENT_BYTES)?;
    let tip = found.tip.map_or(0, |tip| tip.offset);
    // Leftovers of a segment's earlier use end with the newest message, if its head is damaged.
    let recycled =
        found.recycled.iter().copied().filter(|span| span.offset + span.len > tip && found.refusal.is_some());
    let spans: Vec<Span> = found.doomed.iter().map(|doomed| doomed.span).chain(recycled).collect();
    if spans.is_empty() {
        return Ok(());
    }
    tracing::info!(spans = spans.len(), "keeping what the store's recovery will overwrite");
    let mut options = OpenOptions::new();
    // What an earlier try kept is still wanted.
    let mut evidence = options.append(true).create(true).mode(0o600).open(path(dir))?;
    for span in spans {
        let mut written = Ok(());
        for_each_chunk(dir, span, PIECE_BYTES, 0, |_, piece| {
            written = evidence.write_all(piece);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        written?;
    }
    evidence.sync_all()?;
    File::open(dir)?.sync_all()
}

/// Drops it: the store was found to hold all that it should.
pub(crate) fn drop_evidence(dir: &Path) -> io::Result<()> {
    match fs::remove_file(path(dir)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The files of a database that may hold rows: itself, and what an opening was about to overwrite.
pub(crate) fn raw_files(dir: &Path) -> Vec<PathBuf> {
    [dir.join("db"), path(dir)].into_iter().filter(|path| path.is_file()).collect()
}

fn path(dir: &Path) -> PathBuf {
    dir.join(EVIDENCE_FILE)
}
