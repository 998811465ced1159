//! sled's recovery over again, without its writes: which segments there are, how far the log is whole, and what the
//! pages are made of then.
//!
//! Mirrors `scan_segment_headers_and_tail`, `check_contiguity_in_unstable_tail`, `LogIter` and the deciding part of
//! `advance_snapshot`. It keeps one segment in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{
    Change, Lsn, MESSAGE_HEADER_BYTES_MAX, Message, SEGMENT_HEADER_BYTES, SegmentHeader, may_start_at,
    read_message,
};
use super::remains::is_zero;
use super::scan::Refusal;
use super::snapshot::{Pages, Snapshot};

/// Bytes that are looked at in one go where only zeros are expected.
const BLANK_PIECE_BYTES: usize = 32 * 1024;

/// The file `db`, one segment at a time.
pub(super) struct LogFile {
    dir: PathBuf,
    /// `None`: sled has not made it yet.
    file: Option<File>,
    pub(super) len: u64,
    pub(super) segment_size: usize,
    buffer: Vec<u8>,
    loaded: Option<u64>,
}

impl LogFile {
    pub(super) fn open(dir: &Path, segment_size: usize) -> io::Result<Self> {
        let file = match File::open(dir.join("db")) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let len = match &file {
            Some(file) => file.metadata()?.len(),
            None => 0,
        };
        Ok(Self { dir: dir.to_owned(), file, len, segment_size, buffer: Vec::new(), loaded: None })
    }

    /// Where the segments begin, the last of which may be cut short.
    pub(super) fn bases(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.len).step_by(self.segment_size)
    }

    /// The valid headers by the place of their segment, as `fetch` collects them.
    pub(super) fn headers(&self) -> io::Result<BTreeMap<u64, SegmentHeader>> {
        let mut headers = BTreeMap::new();
        for base in self.bases() {
            let mut bytes = [0; SEGMENT_HEADER_BYTES];
            if self.read_at(&mut bytes, base)? == bytes.len()
                && let Some(header) = SegmentHeader::decode(&bytes)
            {
                headers.insert(base, header);
            }
        }
        Ok(headers)
    }

    /// The bytes of a segment, fewer where the file ends.
    pub(super) fn segment(&mut self, base: u64) -> io::Result<&[u8]> {
        if self.loaded != Some(base) {
            self.loaded = None;
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(self.segment_size, 0);
            let read = self.read_at(&mut buffer, base)?;
            buffer.truncate(read);
            self.buffer = buffer;
            self.loaded = Some(base);
        }
        Ok(&self.buffer)
    }

    /// Whether a segment holds zeros only, as those that sled freed do once it was opened again. Read in pieces that
    /// stay in the processor's cache: a worn database has many such segments, and looking at them is most of a scan.
    pub(super) fn is_blank(&self, base: u64) -> io::Result<bool> {
        let end = self.len.min(base + self.segment_size as u64);
        let mut piece = [0; BLANK_PIECE_BYTES];
        let mut at = base;
        while at < end {
            let read = self.read_at(&mut piece[..BLANK_PIECE_BYTES.min((end - at) as usize)], at)?;
            if read == 0 || !is_zero(&piece[..read]) {
                return Ok(read == 0);
            }
            at += read as u64;
        }
        Ok(true)
    }

    /// Mirrors `pread_exact_or_eof`.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let Some(file) = &self.file else { return Ok(0) };
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(&mut bytes[read..], at + read as u64) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(read)
    }

    /// Mirrors `read_blob`: crc (4), kind (1), body; the crc covers what follows it.
    fn blob(&self, id: Lsn) -> io::Result<Blob> {
        let mut file = match File::open(self.dir.join("blobs").join(id.to_string())) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Blob::Missing),
            Err(e) => return Err(e),
        };
        let mut head = [0; 5];
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(Blob::Damaged),
            Err(e) => return Err(e),
        }
        let (stored, kind) = (u32::from_le_bytes([head[0], head[1], head[2], head[3]]), head[4]);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[kind]);
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                n => hasher.update(&chunk[..n]),
            }
        }
        Ok(if hasher.finalize() == stored { Blob::Whole } else { Blob::Damaged })
    }
}

enum Blob {
    Whole,
    Missing,
    Damaged,
}

/// The rest of a segment that the walk passed over because of a bad message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) progress: usize,
    pub(super) number: u64,
}

/// What sled's recovery comes to.
#[derive(Debug)]
pub(super) struct Recovered {
    /// Where the log goes on. `None`: nothing was found, sled starts anew.
    pub(super) stable_lsn: Option<Lsn>,
    pub(super) active_segment: Option<u64>,
    pub(super) pages: Pages,
    /// Segments that the walk did not come to, by their LSN: sled zeroes them.
    pub(super) unread: BTreeMap<Lsn, u64>,
    /// By the place of the segment.
    pub(super) skipped: BTreeMap<u64, Skipped>,
    /// Why sled fails in the end. Some of its writes may be done by then.
    pub(super) refusal: Option<Refusal>,
}

/// Mirrors `raw_segment_iter_from` and `advance_snapshot`. An error inside is a refusal before the first write.
pub(super) fn recover(
    log: &mut LogFile,
    headers: &BTreeMap<u64, SegmentHeader>,
    snapshot: Snapshot,
) -> io::Result<Result<Recovered, Refusal>> {
    let size = log.segment_size as Lsn;
    let min = snapshot.stable_lsn.unwrap_or(0) / size * size;
    let mut ordering = BTreeMap::new();
    let mut max_stable_lsn = min;
    for (&base, header) in headers.iter().filter(|(_, header)| header.lsn >= min) {
        max_stable_lsn = max_stable_lsn.max(header.max_stable_lsn);
        if ordering.insert(header.lsn, base).is_some() {
            return Ok(Err(Refusal::DuplicateSegment { lsn: header.lsn }));
        }
    }
    let max_lsn = end_of_tail(log, &ordering, max_stable_lsn)?;

    let old_stable_lsn = snapshot.stable_lsn;
    let mut pages = snapshot.pages;
    let mut walk = Walk::new(log, ordering, Some(max_lsn), true);
    while let Some(step) = walk.next()? {
        if old_stable_lsn.is_none_or(|stable| step.lsn >= stable) {
            pages.apply(step.change, step.page_id, step.lsn, step.segment);
        }
    }
    let Walk { segments: unread, base, cur_lsn, skipped, .. } = walk;

    let (stable_lsn, active_segment) = match cur_lsn {
        None => (old_stable_lsn, snapshot.active_segment),
        Some(cur) if cur % size + MESSAGE_HEADER_BYTES_MAX as Lsn >= size => {
            (Some((cur / size * size).saturating_add(size)), None)
        }
        Some(cur) => (Some(cur), base),
    };
    let refusal = if stable_lsn < old_stable_lsn {
        Some(Refusal::LogBehindSnapshot {
            log: stable_lsn.unwrap_or(0),
            snapshot: old_stable_lsn.unwrap_or(0),
        })
    } else {
        page_refusal(log, &pages, active_segment)
    };
    Ok(Ok(Recovered { stable_lsn, active_segment, pages, unread, skipped, refusal }))
}

/// What `write_snapshot` and `SegmentAccountant::initial_segments` panic over.
fn page_refusal(log: &LogFile, pages: &Pages, active_segment: Option<u64>) -> Option<Refusal> {
    let size = log.segment_size as u64;
    let end = log.len.div_ceil(size) * size;
    if pages.has_hole() {
        return Some(Refusal::PageUndefined);
    }
    // The tip may be a segment that was taken but not written to yet.
    if active_segment.is_some_and(|base| base > end) {
        return Some(Refusal::SegmentOutsideFile);
    }
    let outside = |base: &u64| *base >= end && Some(*base) != active_segment;
    pages.used_segments().iter().any(outside).then_some(Refusal::SegmentOutsideFile)
}

/// Mirrors `check_contiguity_in_unstable_tail`: the last position of the log up to which its newest segments join,
/// which is -1 if even the first of them is missing.
fn end_of_tail(log: &mut LogFile, ordering: &BTreeMap<Lsn, u64>, max_stable_lsn: Lsn) -> io::Result<Lsn> {
    let size = log.segment_size as Lsn;
    let mut expected = (max_stable_lsn / size * size).max(0);
    let mut missing = None;
    let mut tail = BTreeMap::new();
    for (&lsn, &base) in ordering.range(expected..) {
        if lsn != expected {
            missing = Some(expected);
            break;
        }
        tail.insert(lsn, base);
        expected = expected.saturating_add(size);
    }
    let mut walk = Walk::new(log, tail, missing, false);
    while walk.next()?.is_some() {}
    Ok(walk.cur_lsn.unwrap_or(0) - 1)
}

/// A page's message on the way.
struct Step {
    change: Change,
    page_id: u64,
    lsn: Lsn,
    segment: u64,
}

/// sled's `LogIter`.
struct Walk<'a> {
    log: &'a mut LogFile,
    segments: BTreeMap<Lsn, u64>,
    base: Option<u64>,
    max_lsn: Option<Lsn>,
    cur_lsn: Option<Lsn>,
    last_stage: bool,
    skipped: BTreeMap<u64, Skipped>,
}

impl<'a> Walk<'a> {
    fn new(
        log: &'a mut LogFile,
        segments: BTreeMap<Lsn, u64>,
        max_lsn: Option<Lsn>,
        last_stage: bool,
    ) -> Self {
        Self { log, segments, base: None, max_lsn, cur_lsn: None, last_stage, skipped: BTreeMap::new() }
    }

    /// Mirrors `LogIter::next`.
    fn next(&mut self) -> io::Result<Option<Step>> {
        let segment_size = self.log.segment_size;
        let size = segment_size as Lsn;
        loop {
            let place = self.cur_lsn.filter(|cur| may_start_at((cur % size) as usize, segment_size));
            let (base, lsn) = match (self.base, place) {
                (Some(base), Some(lsn)) => (base, lsn),
                _ => {
                    self.base = None;
                    match self.enter_segment() {
                        Some(entered) => entered,
                        None => return Ok(None),
                    }
                }
            };
            if self.max_lsn.is_some_and(|max| lsn > max) {
                return Ok(None);
            }
            let progress = (lsn % size) as usize;
            let number = (lsn / size) as u64;
            let passed = |len: usize| Some(lsn + len as Lsn);
            match read_message(self.log.segment(base)?, progress, number, segment_size) {
                Message::Page { change, page_id, blob, len } => {
                    match blob.map(|id| self.log.blob(id)).transpose()? {
                        None | Some(Blob::Whole) => {
                            self.cur_lsn = passed(len);
                            return Ok(Some(Step { change, page_id, lsn, segment: base }));
                        }
                        Some(Blob::Missing) => self.cur_lsn = passed(len),
                        Some(Blob::Damaged) => return Ok(None),
                    }
                }
                Message::Canceled { len } => self.cur_lsn = passed(len),
                Message::BatchManifest { last, len } => {
                    if self.max_lsn.is_some_and(|max| last > max) {
                        return Ok(None);
                    }
                    self.cur_lsn = passed(len);
                }
                Message::Cap => self.base = None,
                Message::Corrupted if self.last_stage => {
                    self.skipped.insert(base, Skipped { progress, number });
                    self.base = None;
                }
                Message::Corrupted | Message::Unreadable => return Ok(None),
            }
        }
    }

    /// Mirrors `read_segment`: the next segment and the position of its first message, if the walk may enter it. One
    /// that it may not enter stays in the list, for sled to zero.
    fn enter_segment(&mut self) -> Option<(u64, Lsn)> {
        let (&lsn, &base) = self.segments.first_key_value()?;
        if self.max_lsn.is_some_and(|max| lsn > max) || lsn % self.log.segment_size as Lsn != 0 {
            return None;
        }
        let first = lsn.checked_add(self.log.segment_size as Lsn)? - self.log.segment_size as Lsn
            + SEGMENT_HEADER_BYTES as Lsn;
        self.segments.remove(&lsn);
        self.base = Some(base);
        self.cur_lsn = Some(first);
        Some((base, first))
    }
}
