//! Finding frames, payloads and rows in raw bytes, whatever the store thinks of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::codec::{FRAME_MAGIC, Frame, FrameHeader, PAYLOAD_MAGIC, PayloadChunk, SEALED_MAGIC};
use crate::event::EventId;
use crate::store::ROW_BYTES_MAX;

use super::rows::{Identity, RankRow, decode_identity, decode_rank};

/// Bytes looked at in one go.
const WINDOW_BYTES: usize = 8 * 1024 * 1024;

/// Common to all that is looked for.
const MAGIC_START: &[u8] = b"KVJ";

/// What raw bytes hold. Frames and payloads are kept as places, so that memory does not grow with the journal's
/// bytes but with its rows.
#[derive(Debug, Default)]
pub(crate) struct Carved {
    pub(crate) identity: Option<Identity>,
    /// The newest row of each rank.
    pub(crate) ranks: BTreeMap<u32, RankRow>,
    /// By rank and first id: each version, with its place.
    pub(crate) frames: BTreeMap<(u32, EventId), Vec<(FrameHeader, Place)>>,
    /// By rank, generation, first id, epoch and chunk.
    pub(crate) payloads: BTreeMap<(u32, u32, EventId, u64, u32), Place>,
}

/// Where something was found: which file, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    file: usize,
    at: u64,
}

/// Looks through files, telling `progress` how far it is and how much there is.
pub(crate) fn carve(files: &[File], progress: &mut dyn FnMut(u64, u64)) -> io::Result<Carved> {
    let mut carved = Carved::default();
    let finder = Finder::new(MAGIC_START);
    let lens = files.iter().map(|file| Ok(file.metadata()?.len())).collect::<io::Result<Vec<u64>>>()?;
    let (mut done, all) = (0, lens.iter().sum());
    for (number, (file, len)) in files.iter().zip(lens).enumerate() {
        let mut start = 0;
        while start < len {
            // Windows overlap, so that what starts at the end of one is whole in it.
            let window = read(file, start, WINDOW_BYTES + ROW_BYTES_MAX)?;
            for at in finder.find_iter(&window).take_while(|at| *at < WINDOW_BYTES) {
                carved.look(&window, at, Place { file: number, at: start + at as u64 });
            }
            start += WINDOW_BYTES as u64;
            progress(done + start.min(len), all);
        }
        done += len;
    }
    Ok(carved)
}

/// Reads a frame from a place that was found before.
pub(crate) fn read_frame(files: &[File], header: &FrameHeader, place: Place) -> io::Result<Option<Frame>> {
    Ok(Frame::parse(read(&files[place.file], place.at, header.frame_len())?).ok())
}

/// Reads a chunk of payload from a place that was found before: its bytes, and its whole row.
pub(crate) fn read_chunk(files: &[File], place: Place) -> io::Result<Option<(Bytes, Bytes)>> {
    let row = read(&files[place.file], place.at, ROW_BYTES_MAX)?;
    Ok(PayloadChunk::parse_prefix(&row).map(|(chunk, len)| (chunk.bytes, row.slice(..len))))
}

fn read(file: &File, at: u64, len: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

impl Carved {
    fn look(&mut self, window: &Bytes, at: usize, place: Place) {
        let bytes = &window[at..];
        if bytes.starts_with(&FRAME_MAGIC) {
            let Ok(header) = FrameHeader::read(bytes) else { return };
            if bytes.len() < header.frame_len() {
                return;
            }
            if Frame::parse(window.slice(at..at + header.frame_len())).is_ok() {
                self.frames.entry((header.rank.0, header.first)).or_default().push((header, place));
            }
        } else if bytes.starts_with(&PAYLOAD_MAGIC) {
            if let Some((chunk, _)) = PayloadChunk::parse_prefix(&window.slice(at..)) {
                let key = (chunk.rank, chunk.generation, chunk.first, chunk.epoch, chunk.index);
                self.payloads.insert(key, place);
            }
        } else if bytes.starts_with(&SEALED_MAGIC) {
            if let Ok(identity) = decode_identity(bytes) {
                self.identity = Some(identity);
            } else if let Ok(row) = decode_rank(bytes)
                && self.ranks.get(&row.rank).is_none_or(|known| known.revision < row.revision)
            {
                self.ranks.insert(row.rank, row);
            }
        }
    }
}
