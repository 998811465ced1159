//! The file `snap.*`: up to where sled had recovered its log, and in which segments each page lay then.
//!
//! Mirrors `read_snapshot`, `Snapshot::deserialize` and `Snapshot::apply`. Of the page table only that is kept
//! which says whether a segment is still used: less than sled itself holds in memory.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::format::{Change, Lsn, varint};

/// Length (8) and crc32 (4) at the end of the file.
const TRAILER_BYTES: u64 = 12;

/// What `read_snapshot` finds.
#[derive(Debug)]
pub(super) enum Found {
    Absent,
    /// sled does not open over it.
    Corrupt(PathBuf),
    Present(Snapshot),
}

/// A snapshot; the default is that of a new database.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// First position of the log that it does not cover. `None`: there was no log yet.
    pub(super) stable_lsn: Option<Lsn>,
    /// Where the segment that was being filled begins in the file.
    pub(super) active_segment: Option<u64>,
    pub(super) pages: Pages,
}

/// Finds and reads the snapshot that sled would take.
pub(super) fn read_snapshot(dir: &Path, segment_size: u64) -> io::Result<Found> {
    let Some(path) = last_candidate(dir)? else { return Ok(Found::Absent) };
    let mut file = File::open(&path)?;
    let Some(body_len) = checked_body(&mut file)? else { return Ok(Found::Corrupt(path)) };
    file.seek(SeekFrom::Start(0))?;
    match decode(&mut BufReader::new(file.take(body_len)), segment_size) {
        Ok(snapshot) => Ok(Found::Present(snapshot)),
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) => {
            Ok(Found::Corrupt(path))
        }
        Err(e) => Err(e),
    }
}

/// Mirrors `get_snapshot_files`, sorted, the last. That takes in a `.generating` file, which a crash while a
/// snapshot was written leaves behind: sled then reads the unfinished file and refuses to open.
fn last_candidate(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut last = None;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.starts_with("snap.") && !text.ends_with(".in___motion") {
            last = last.max(Some(name));
        }
    }
    Ok(last.map(|name| dir.join(name)))
}

/// The length of the body if its crc is right. The file may be large, so it is not held.
fn checked_body(file: &mut File) -> io::Result<Option<u64>> {
    let body_len = match file.metadata()?.len().checked_sub(TRAILER_BYTES) {
        None | Some(0) => return Ok(None),
        Some(body_len) => body_len,
    };
    let mut hasher = crc32fast::Hasher::new();
    let mut body = BufReader::new(Read::by_ref(file).take(body_len));
    loop {
        let chunk = body.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        hasher.update(chunk);
        let len = chunk.len();
        body.consume(len);
    }
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.seek(SeekFrom::Start(body_len))?;
    file.read_exact(&mut trailer)?;
    let stored = u32::from_le_bytes([trailer[8], trailer[9], trailer[10], trailer[11]]);
    Ok((hasher.finalize() == stored).then_some(body_len))
}

/// Mirrors `Snapshot::deserialize`. Bytes that make sled fail or panic are `InvalidData` or `UnexpectedEof`.
fn decode(body: &mut impl BufRead, segment_size: u64) -> io::Result<Snapshot> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let stable_lsn = match read_lsn(body)? {
        0 => None,
        shifted @ 1.. => Some(shifted - 1),
        _ => return Err(invalid()),
    };
    let active_segment = read_varint(body)?.checked_sub(1);
    if active_segment.is_some_and(|base| base % segment_size != 0) {
        return Err(invalid());
    }
    let mut pages = Pages::default();
    while !body.fill_buf()?.is_empty() {
        let page_id = pages.len;
        let items = match read_array::<1>(body)?[0] {
            0 => {
                let lsn = read_lsn(body)?;
                let segment = read_pointer(body)? / segment_size * segment_size;
                pages.apply(Change::Free, page_id, lsn, segment);
                continue;
            }
            items => items,
        };
        for item in 0..items {
            // sled takes the end of the file for the end of the fragments.
            if item > 0 && body.fill_buf()?.is_empty() {
                break;
            }
            let lsn = read_lsn(body)?;
            let segment = read_pointer(body)? / segment_size * segment_size;
            let _size = read_varint(body)?;
            pages.apply(if item == 0 { Change::Replace } else { Change::Link }, page_id, lsn, segment);
        }
    }
    Ok(Snapshot { stable_lsn, active_segment, pages })
}

/// Mirrors `DiskPtr::deserialize`: where in the file a message lies.
fn read_pointer(body: &mut impl BufRead) -> io::Result<u64> {
    match read_array::<1>(body)?[0] {
        0 => read_varint(body),
        1 => {
            let at = read_varint(body)?;
            let _blob = read_lsn(body)?;
            Ok(at)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn read_lsn(body: &mut impl BufRead) -> io::Result<Lsn> {
    Ok(Lsn::from_le_bytes(read_array(body)?))
}

fn read_varint(body: &mut impl BufRead) -> io::Result<u64> {
    let mut bytes = [0; 9];
    for len in 1..=bytes.len() {
        bytes[len - 1] = read_array::<1>(body)?[0];
        if let Some((number, _)) = varint(&bytes[..len]) {
            return Ok(number);
        }
    }
    unreachable!("a number has nine bytes at most")
}

fn read_array<const N: usize>(body: &mut impl BufRead) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    body.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Which segments each page lies in: sled's page table, `Snapshot::pt`.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: HashMap<u64, Page>,
    /// Length of sled's table, which also has entries for pages that were never defined.
    len: u64,
}

#[derive(Debug)]
enum Page {
    Free { segment: u64 },
    Present { last_lsn: Lsn, base: u64, links: Vec<u64> },
}

impl Pages {
    /// Mirrors `Snapshot::apply` for one message that lies in `segment`.
    pub(super) fn apply(&mut self, change: Change, page_id: u64, lsn: Lsn, segment: u64) {
        match change {
            Change::Replace => {
                self.put(page_id, Page::Present { last_lsn: lsn, base: segment, links: Vec::new() });
            }
            Change::Free => self.put(page_id, Page::Free { segment }),
            Change::Link => match self.pages.get_mut(&page_id) {
                Some(Page::Present { last_lsn, base, links }) => {
                    if *last_lsn < lsn {
                        *last_lsn = lsn;
                        if *links.last().unwrap_or(base) != segment {
                            links.push(segment);
                        }
                    }
                }
                // sled makes room for the page and takes only one entry back.
                Some(Page::Free { .. }) | None => self.len = self.len.max(page_id),
            },
        }
    }

    fn put(&mut self, page_id: u64, page: Page) {
        self.pages.insert(page_id, page);
        self.len = self.len.max(page_id.saturating_add(1));
    }

    /// Whether the table names a page that no message defined. sled panics over it.
    pub(super) fn has_hole(&self) -> bool {
        self.len != self.pages.len() as u64
    }

    /// The segments that hold something of a page that counts. sled takes all others for free.
    pub(super) fn used_segments(&self) -> HashSet<u64> {
        let mut used = HashSet::new();
        for page in self.pages.values() {
            match page {
                Page::Free { segment } => {
                    used.insert(*segment);
                }
                Page::Present { base, links, .. } => {
                    used.insert(*base);
                    used.extend(links);
                }
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_page_lets_its_old_segments_go() {
        let mut pages = Pages::default();
        pages.apply(Change::Replace, 0, 10, 0);
        pages.apply(Change::Link, 0, 300, 256);
        assert_eq!(pages.used_segments(), HashSet::from([0, 256]));
        pages.apply(Change::Replace, 0, 600, 512);
        assert_eq!(pages.used_segments(), HashSet::from([512]));
        assert!(!pages.has_hole());
    }

    #[test]
    fn a_link_to_an_undefined_page_leaves_the_holes_that_sled_panics_over() {
        let mut pages = Pages::default();
        pages.apply(Change::Link, 0, 10, 0);
        assert!(!pages.has_hole());
        pages.apply(Change::Link, 2, 20, 0);
        assert!(pages.has_hole());
    }
}
