//! The answer: which bytes of a database sled's recovery would throw away, and where its log would go on.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{Lsn, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::remains::{Holds, Next, Remains, is_zero, next_at, of_headless, of_rest};
use super::replay::{LogFile, Recovered, recover};
use super::snapshot::{Found, read_snapshot};

/// Bytes of the file `db`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First byte.
    pub(crate) offset: u64,
    /// Number of bytes; they end with the file at the latest.
    pub(crate) len: u64,
}

/// What sled would do about bytes that it does not recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They follow the last message that it takes, in the same segment: zeroed, or written over later.
    Tail,
    /// A later segment than the one it stops in: zeroed.
    Torn,
    /// They follow a bad message, with good segments after them: passed over; zeroed if the segment is free then.
    Skipped,
    /// The header of their segment is bad: passed over; zeroed if the segment is free then.
    Headless,
}

/// Bytes that hold something of the log and that sled would overwrite, or leave out and overwrite some day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doomed {
    /// Where; without the zeros around it.
    pub(crate) span: Span,
    /// What sled would do.
    pub(crate) fate: Fate,
    /// Why it would be a loss.
    pub(crate) holds: Holds,
}

/// The snapshot that sled would start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotFile {
    /// sled would read its whole log, which only goes well while no segment was used twice.
    Absent,
    /// sled would refuse to open. A name that ends in `.generating` is what a crash left of an unfinished snapshot;
    /// the one before it is still there then.
    Corrupt(PathBuf),
    /// Read; it covers the log below this position.
    Present {
        /// `None`: the log was empty.
        stable_lsn: Option<Lsn>,
    },
}

/// Why sled would not open the database. There may be others that are not foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The snapshot cannot be read. Nothing is written before.
    CorruptSnapshot,
    /// Two segments claim one position. Nothing is written before.
    DuplicateSegment {
        /// The position.
        lsn: Lsn,
    },
    /// The log ends before the snapshot does. sled notices after it zeroed the tail.
    LogBehindSnapshot {
        /// End of the log.
        log: Lsn,
        /// What the snapshot covers.
        snapshot: Lsn,
    },
    /// A page was never defined. sled panics after it zeroed the tail.
    PageUndefined,
    /// A page, or the tip, lies behind the end of the file. sled panics after it zeroed the tail.
    SegmentOutsideFile,
}

/// Where sled would go on writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tip {
    /// Offset in the file.
    pub(crate) offset: u64,
    /// What stands there.
    pub(crate) next: Next,
}

/// What opening the database with sled would come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogScan {
    /// First position of the log that sled would not recover: its next write. 0 where it would find nothing, `None`
    /// where it would refuse before it looked.
    pub(crate) recovered_to: Option<Lsn>,
    /// The snapshot.
    pub(crate) snapshot: SnapshotFile,
    /// `None` where sled would begin another segment.
    pub(crate) tip: Option<Tip>,
    /// What would be lost. Empty for a database that was closed, or flushed before it was killed.
    pub(crate) doomed: Vec<Doomed>,
    /// What would be overwritten too, and holds nothing that counts: rests of pages that were written anew elsewhere.
    pub(crate) recycled: Vec<Span>,
    /// Why sled would fail.
    pub(crate) refusal: Option<Refusal>,
}

impl LogScan {
    fn refused(snapshot: SnapshotFile, refusal: Refusal) -> Self {
        Self {
            recovered_to: None,
            snapshot,
            tip: None,
            doomed: Vec::new(),
            recycled: Vec::new(),
            refusal: Some(refusal),
        }
    }
}

/// Reads the database in `gen_dir`, which no one else may have open, as sled's recovery would.
///
/// It reads what sled reads (the segments at and above the snapshot, the headers of the others), and those free or
/// damaged segments that sled would write over. It holds one segment and a table of pages. `segment_size` is the one
/// that sled is opened with, a power of two from 256 to 16 MiB.
///
/// # Errors
///
/// Those of the file system. sled takes a read error for the end of the log, so it must not be opened after one.
pub(crate) fn scan(gen_dir: &Path, segment_size: usize) -> io::Result<LogScan> {
    if !segment_size.is_power_of_two() || !(256..=1 << 24).contains(&segment_size) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "sled takes no segments of this size"));
    }
    let (file, snapshot) = match read_snapshot(gen_dir, segment_size as u64)? {
        Found::Corrupt(path) => {
            return Ok(LogScan::refused(SnapshotFile::Corrupt(path), Refusal::CorruptSnapshot));
        }
        Found::Absent => (SnapshotFile::Absent, Default::default()),
        Found::Present(snapshot) => (SnapshotFile::Present { stable_lsn: snapshot.stable_lsn }, snapshot),
    };
    let covered = (snapshot.stable_lsn.unwrap_or(0), snapshot.active_segment);
    let mut log = LogFile::open(gen_dir, segment_size)?;
    let headers = log.headers()?;
    let recovered = match recover(&mut log, &headers, snapshot)? {
        Ok(recovered) => recovered,
        Err(refusal) => return Ok(LogScan::refused(file, refusal)),
    };
    let mut survey = Survey::new(log, &recovered, headers, covered);
    for base in survey.log.bases() {
        survey.look_at(base)?;
    }
    Ok(LogScan {
        recovered_to: Some(recovered.stable_lsn.unwrap_or(0)),
        snapshot: file,
        tip: survey.tip()?,
        doomed: survey.doomed,
        recycled: survey.recycled,
        refusal: recovered.refusal,
    })
}

/// Calls `f` with the bytes of a span in pieces of at most `piece_len`, each beginning with the last `overlap` bytes
/// of the one before, so that what is not longer than the overlap lies whole in one of them. `f` gets the offset of
/// the piece in the file.
pub(crate) fn for_each_chunk(
    gen_dir: &Path,
    span: Span,
    piece_len: usize,
    overlap: usize,
    mut f: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    assert!(overlap < piece_len, "pieces of {piece_len} bytes cannot share {overlap}");
    let file = File::open(gen_dir.join("db"))?;
    let end = file.metadata()?.len().min(span.offset.saturating_add(span.len));
    let mut piece = vec![0; piece_len];
    let mut offset = span.offset;
    while offset < end {
        let len = (end - offset).min(piece_len as u64);
        let bytes = &mut piece[..len as usize];
        file.read_exact_at(bytes, offset)?;
        if f(offset, bytes).is_break() || offset + len == end {
            break;
        }
        offset += len - overlap as u64;
    }
    Ok(())
}

/// Goes through the segments once the recovery's outcome is known.
struct Survey<'a> {
    log: LogFile,
    recovered: &'a Recovered,
    headers: BTreeMap<u64, SegmentHeader>,
    /// What the snapshot covers, and the segment in which that ends.
    covered: (Lsn, Option<u64>),
    /// The LSN of each segment that sled zeroes as torn, by its place.
    torn: BTreeMap<u64, Lsn>,
    used: HashSet<u64>,
    doomed: Vec<Doomed>,
    recycled: Vec<Span>,
}

impl<'a> Survey<'a> {
    fn new(
        log: LogFile,
        recovered: &'a Recovered,
        headers: BTreeMap<u64, SegmentHeader>,
        covered: (Lsn, Option<u64>),
    ) -> Self {
        let torn: BTreeMap<_, _> = recovered.unread.iter().map(|(&lsn, &base)| (base, lsn)).collect();
        let mut used = recovered.pages.used_segments();
        used.extend(recovered.active_segment);
        Self { log, recovered, headers, covered, torn, used, doomed: Vec::new(), recycled: Vec::new() }
    }

    /// Where and under which segment number sled goes on in a segment that it began before.
    fn active(&self) -> Option<(u64, usize, u64)> {
        let size = self.log.segment_size as Lsn;
        let lsn = self.recovered.stable_lsn?;
        Some((self.recovered.active_segment?, (lsn % size) as usize, (lsn / size) as u64))
    }

    fn tip(&mut self) -> io::Result<Option<Tip>> {
        let segment_size = self.log.segment_size;
        let Some((base, progress, number)) = self.active() else { return Ok(None) };
        let next = next_at(self.log.segment(base)?, progress, number, segment_size);
        Ok(Some(Tip { offset: base + progress as u64, next }))
    }

    /// Notes what of one segment would be lost. The order of the cases matters: sled also zeroes a segment that the
    /// snapshot calls active if the walk did not come to it.
    fn look_at(&mut self, base: u64) -> io::Result<()> {
        let size = self.log.segment_size;
        let first_use = |number: u64| number == base / size as u64;
        let (begin, fate, remains) = if let Some(&lsn) = self.torn.get(&base) {
            let number = lsn as u64 / size as u64;
            let segment = self.log.segment(base)?;
            let remains = of_rest(segment, SEGMENT_HEADER_BYTES, number, size, first_use(number));
            (0, Fate::Torn, remains)
        } else if let Some((_, progress, number)) = self.active().filter(|(active, ..)| *active == base) {
            let segment = self.log.segment(base)?;
            (progress, Fate::Tail, of_rest(segment, progress, number, size, first_use(number)))
        } else if let Some(&skipped) = self.recovered.skipped.get(&base) {
            let segment = self.log.segment(base)?;
            let first_use = first_use(skipped.number);
            let remains = of_rest(segment, skipped.progress, skipped.number, size, first_use);
            (skipped.progress, Fate::Skipped, remains)
        } else if !self.headers.contains_key(&base) {
            if self.log.is_blank(base)? {
                return Ok(());
            }
            let (covered, tip) = self.covered;
            let begin = if tip == Some(base) { (covered % size as Lsn) as usize } else { 0 };
            let min_number = covered as u64 / size as u64;
            (begin, Fate::Headless, of_headless(self.log.segment(base)?, begin, min_number, size))
        } else {
            // All of it was read, or was covered by the snapshot.
            (size, Fate::Headless, Remains::Zeros)
        };
        self.note(base, begin, fate, remains)
    }

    fn note(&mut self, base: u64, begin: usize, fate: Fate, remains: Remains) -> io::Result<()> {
        let written = matches!(fate, Fate::Torn | Fate::Tail);
        let freed = !self.used.contains(&base);
        let holds = match remains {
            Remains::Messages { first } => Some(Holds::Messages { first: base + first as u64 }),
            Remains::Fragment => Some(Holds::Fragment),
            Remains::Unclear => Some(Holds::Unclear),
            Remains::Zeros | Remains::Rests => None,
        };
        match holds {
            Some(holds) => {
                let span = self.nonzero(base, begin, self.log.segment_size)?;
                self.doomed.extend(span.map(|span| Doomed { span, fate, holds }));
                if freed && begin > 0 {
                    let span = self.nonzero(base, 0, begin)?;
                    self.recycled.extend(span);
                }
            }
            None if freed || fate == Fate::Torn => {
                let span = self.nonzero(base, 0, self.log.segment_size)?;
                self.recycled.extend(span);
            }
            None if written => {
                let span = self.nonzero(base, begin, self.log.segment_size)?;
                self.recycled.extend(span);
            }
            None => {}
        }
        Ok(())
    }

    /// A part of a segment without the zeros around it.
    fn nonzero(&mut self, base: u64, from: usize, to: usize) -> io::Result<Option<Span>> {
        let segment = self.log.segment(base)?;
        let part = segment.get(from..to.min(segment.len())).unwrap_or_default();
        if is_zero(part) {
            return Ok(None);
        }
        let first = part.iter().position(|byte| *byte != 0).unwrap_or(0);
        let last = part.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        Ok(Some(Span { offset: base + (from + first) as u64, len: (last - first + 1) as u64 }))
    }
}
