//! What a frame's body is made of: one record an event, and the cursor of the source they came from.

use std::collections::HashSet;

use bincode::config::{BigEndian, Configuration, Fixint, Limit};
use bincode::{Decode, Encode};

use crate::error::{Error, Result};
use crate::event::{EngineTime, EventData, Removed, Stored};

use super::header::{FRAME_BYTES_MAX, HEADER_BYTES};
use super::record_bytes::{decode_record, encode_record};

/// Longest encoded record; longer `Stored` and `Removed` events are split into several. It leaves room for the
/// head and a source cursor in a frame.
pub const RECORD_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES - SourceCursor::BYTES_MAX - 16;

/// Longest payload of one event: 16 MiB, over twenty times that of a prompt of 131,072 tokens.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most memory that decoding one record may claim, whatever lengths it holds: the in-memory form of a block is
/// under three times its encoded form.
const DECODE_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;

/// Big-endian and fixed-width, so that a layout can be read off a hex dump; limited, so that a wrong length
/// allocates nothing.
pub(crate) fn bincode_config() -> Configuration<BigEndian, Fixint, Limit<DECODE_BYTES_MAX>> {
    bincode::config::standard().with_big_endian().with_fixed_int_encoding().with_limit::<DECODE_BYTES_MAX>()
}

/// One event as it stands in a frame. Its id follows from its place there.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Record {
    /// What the event says.
    pub data: EventData,
    /// The engine's time, if it gave one.
    pub engine_time: Option<EngineTime>,
}

/// How far the batches of an engine were taken in: the batch last seen and how many of its records are in frames.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SourceCursor {
    /// Where the batch came from; one endpoint carries one rank.
    pub endpoint: String,
    /// The engine's number of the batch. It restarts at 0 with the engine.
    pub sequence: u64,
    /// 128-bit hash of the batch, so that a batch of another engine with the same number is told apart.
    pub hash: u128,
    /// Records of this batch that are in frames.
    pub done: u32,
    /// Records of this batch.
    pub total: u32,
}

impl SourceCursor {
    /// Longest name of an endpoint, in bytes.
    pub const ENDPOINT_BYTES_MAX: usize = 255;
    /// Longest encoded cursor.
    pub(crate) const BYTES_MAX: usize = 8 + Self::ENDPOINT_BYTES_MAX + 8 + 16 + 4 + 4;

    /// Whether all of the batch is in frames.
    pub fn is_complete(&self) -> bool {
        self.done == self.total
    }

    /// Whether both speak of the same batch of the same engine.
    pub fn same_batch(&self, other: &Self) -> bool {
        self.sequence == other.sequence && self.hash == other.hash && self.endpoint == other.endpoint
    }
}

/// Records encoded back to back, ready to be given ids: the work that an appender does before it takes the lock.
#[derive(Debug, Default)]
pub(crate) struct EncodedRecords {
    bytes: Vec<u8>,
    /// End of each record in `bytes`, and its payload.
    records: Vec<(usize, Option<bytes::Bytes>)>,
    payload_bytes: usize,
}

impl EncodedRecords {
    /// Encodes an event, as several records if it is too long for one.
    pub(crate) fn push(
        &mut self,
        data: &EventData,
        engine_time: Option<EngineTime>,
        payload: Option<bytes::Bytes>,
    ) -> Result<()> {
        let payload = payload.filter(|payload| !payload.is_empty());
        let payload_len = payload.as_ref().map_or(0, bytes::Bytes::len);
        if payload_len > PAYLOAD_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "a payload of {payload_len} bytes, the longest has {PAYLOAD_BYTES_MAX}"
            )));
        }
        self.push_split(data, engine_time, payload)?;
        self.payload_bytes += payload_len;
        Ok(())
    }

    /// Tries the whole event, then ever smaller pieces.
    fn push_split(
        &mut self,
        data: &EventData,
        engine_time: Option<EngineTime>,
        payload: Option<bytes::Bytes>,
    ) -> Result<()> {
        let Err(whole) = self.push_record(data, engine_time, payload.clone())? else { return Ok(()) };
        let (bytes, records) = (self.bytes.len(), self.records.len());
        let mut piece_items = items(data) / 2;
        while piece_items > 0 {
            // The payload stays with the first piece: whoever relays payloads sends it once.
            let mut payload = payload.clone();
            let mut fits = true;
            for piece in pieces(data, piece_items) {
                if self.push_record(&piece, engine_time, payload.take())?.is_err() {
                    fits = false;
                    break;
                }
            }
            if fits {
                return Ok(());
            }
            self.bytes.truncate(bytes);
            self.records.truncate(records);
            piece_items /= 2;
        }
        Err(Error::Invalid(format!("an event of {whole} bytes, the longest has {RECORD_BYTES_MAX}")))
    }

    /// Encodes one record, or says how long it would be.
    fn push_record(
        &mut self,
        data: &EventData,
        engine_time: Option<EngineTime>,
        payload: Option<bytes::Bytes>,
    ) -> Result<Result<(), usize>> {
        let start = self.bytes.len();
        encode_record(data, engine_time, &mut self.bytes)
            .map_err(|e| Error::Internal(format!("an event cannot be encoded: {e}")))?;
        let len = self.bytes.len() - start;
        if len > RECORD_BYTES_MAX {
            self.bytes.truncate(start);
            return Ok(Err(len));
        }
        self.records.push((self.bytes.len(), payload));
        Ok(Ok(()))
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes that wait for the disk once these records are queued.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.len() + self.payload_bytes
    }

    /// The records, in order: encoded bytes and payload.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&bytes::Bytes>)> {
        let mut start = 0;
        self.records.iter().map(move |(end, payload)| {
            let record = &self.bytes[start..*end];
            start = *end;
            (record, payload.as_ref())
        })
    }
}

/// An event as a journal keeps it: itself, or the pieces it is cut into if it is too long for a frame.
///
/// # Errors
/// `Invalid` if it cannot be cut small enough.
pub fn as_kept(data: &EventData) -> Result<Vec<EventData>> {
    let mut records = EncodedRecords::default();
    records.push(data, None, None)?;
    if records.len() == 1 {
        return Ok(vec![data.clone()]);
    }
    let decoded = records.iter().map(|(bytes, _)| decode_record(bytes).map(|(record, _)| record.data));
    decoded
        .collect::<Result<_, _>>()
        .map_err(|e| Error::Internal(format!("a piece cannot be read back: {e}")))
}

/// Blocks or hashes of an event: what it can be cut between.
fn items(data: &EventData) -> usize {
    match data {
        EventData::Stored(stored) => stored.blocks.len(),
        EventData::Removed(removed) => removed.block_hashes.len(),
        EventData::Cleared(_) | EventData::Unknown(_) => 0,
    }
}

/// An event as several of at most `piece_items` blocks or hashes, with the same fold as the whole.
///
/// Within one event a hash counts once. A hash that an earlier piece has would count twice, so it is left out,
/// and what follows it starts a piece that names it as its parent.
fn pieces(data: &EventData, piece_items: usize) -> Vec<EventData> {
    match data {
        EventData::Stored(stored) => stored_pieces(stored, piece_items).map(EventData::Stored).collect(),
        EventData::Removed(removed) => {
            let mut seen = HashSet::with_capacity(removed.block_hashes.len());
            let once: Vec<_> =
                removed.block_hashes.iter().copied().filter(|hash| seen.insert(*hash)).collect();
            once.chunks(piece_items)
                .map(|hashes| {
                    EventData::Removed(Removed {
                        block_hashes: hashes.to_vec(),
                        placement: removed.placement.clone(),
                    })
                })
                .collect()
        }
        EventData::Cleared(_) | EventData::Unknown(_) => vec![data.clone()],
    }
}

fn stored_pieces(stored: &Stored, piece_items: usize) -> impl Iterator<Item = Stored> {
    let mut pieces = Vec::new();
    let mut earlier = HashSet::new();
    let mut piece = Stored { blocks: Vec::new(), ..stored.clone() };
    for (index, block) in stored.blocks.iter().enumerate() {
        let repeated = earlier.contains(&block.block_hash);
        if !repeated {
            piece.blocks.push(block.clone());
        }
        if repeated || piece.blocks.len() == piece_items {
            earlier.extend(piece.blocks.iter().map(|block| block.block_hash));
            let next = Stored {
                parent: Some(block.block_hash),
                start_position: stored.start_position.map(|at| at.saturating_add(index as u32 + 1)),
                blocks: Vec::new(),
                ..stored.clone()
            };
            pieces.push(std::mem::replace(&mut piece, next));
        }
    }
    pieces.push(piece);
    pieces.into_iter().filter(|piece| !piece.blocks.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Block, BlockHash, TokensHash};

    fn stored(hashes: impl IntoIterator<Item = u64>) -> EventData {
        let block =
            |hash| Block { block_hash: BlockHash(hash), tokens_hash: Some(TokensHash(hash)), mm: None };
        EventData::Stored(Stored {
            start_position: Some(10),
            blocks: hashes.into_iter().map(block).collect(),
            ..Stored::default()
        })
    }

    fn chain(pieces: &[EventData]) -> Vec<(Option<u64>, u64)> {
        let mut links = Vec::new();
        for piece in pieces {
            let EventData::Stored(stored) = piece else { panic!("only stored events") };
            let mut parent = stored.parent.map(|hash| hash.0);
            for block in &stored.blocks {
                links.push((parent, block.block_hash.0));
                parent = Some(block.block_hash.0);
            }
        }
        links
    }

    #[test]
    fn a_long_event_becomes_pieces_that_chain_and_fit() {
        let mut records = EncodedRecords::default();
        let payload = bytes::Bytes::from_static(b"payload");
        records.push(&stored(1..=20_000), None, Some(payload.clone())).unwrap();
        assert!(records.len() > 1);
        let mut pieces = Vec::new();
        for (index, (bytes, kept)) in records.iter().enumerate() {
            assert!(bytes.len() <= RECORD_BYTES_MAX);
            assert_eq!(kept, (index == 0).then_some(&payload));
            let (record, _): (Record, usize) = bincode::decode_from_slice(bytes, bincode_config()).unwrap();
            pieces.push(record.data);
        }
        let links: Vec<_> = (1..=20_000).map(|hash| (Some(hash - 1).filter(|p| *p > 0), hash)).collect();
        assert_eq!(chain(&pieces), links);
        let EventData::Stored(second) = &pieces[1] else { panic!() };
        let EventData::Stored(first) = &pieces[0] else { panic!() };
        assert_eq!(second.start_position, Some(10 + first.blocks.len() as u32));
    }

    #[test]
    fn a_hash_repeated_across_pieces_counts_once_and_keeps_its_child() {
        let pieces = pieces(&stored([1, 2, 3, 1, 4, 2, 2, 5, 5]), 3);
        assert_eq!(
            chain(&pieces),
            [(None, 1), (Some(1), 2), (Some(2), 3), (Some(1), 4), (Some(2), 5), (Some(5), 5)]
        );
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_its_length() {
        let mut records = EncodedRecords::default();
        let unknown = EventData::Unknown(crate::event::Unknown { tag: "x".repeat(FRAME_BYTES_MAX) });
        let error = records.push(&unknown, None, None).unwrap_err().to_string();
        assert!(error.contains("the longest has"), "{error}");
        assert_eq!((records.len(), records.weight()), (0, 0));
    }
}
