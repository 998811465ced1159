//! A record as bytes. The two long lists, of blocks and of block hashes, are written and read by hand: element by
//! element, bincode takes longer over them than everything else in an append or a replay. It does the rest, and the
//! bytes are those that it would write.

use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

use crate::event::{Block, BlockHash, EngineTime, EventData, Removed, Stored, TokensHash};

use super::record::{Record, bincode_config};

/// Encoded length of a hash, and of a length.
const U64_BYTES: usize = size_of::<u64>();
/// Encoded length of a block that has a tokens hash and no images, as nearly all blocks are: hash, 1, hash, 0.
const PLAIN_BLOCK_BYTES: usize = U64_BYTES + 1 + U64_BYTES + 1;
/// Shortest encoded length of a block: a hash, then 0 twice.
const SHORTEST_BLOCK_BYTES: usize = U64_BYTES + 2;

/// Variants of [`EventData`], as bincode numbers them.
const STORED: u32 = 0;
const REMOVED: u32 = 1;

/// Bytes of a record beside its lists, where its texts are short as usual.
const USUAL_REST_BYTES: usize = 128;

/// Appends a record to `out`.
pub(super) fn encode_record(
    data: &EventData,
    engine_time: Option<EngineTime>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match data {
        EventData::Stored(stored) => {
            let Stored { parent, start_position, blocks, placement, lora, salt, block_size, refresh } =
                stored;
            out.reserve(blocks.len() * PLAIN_BLOCK_BYTES + USUAL_REST_BYTES);
            put((STORED, parent, start_position), out)?;
            put_blocks(blocks, out)?;
            put((placement, lora, salt, block_size, refresh), out)?;
        }
        EventData::Removed(Removed { block_hashes, placement }) => {
            out.reserve(block_hashes.len() * U64_BYTES + USUAL_REST_BYTES);
            put((REMOVED, block_hashes.len() as u64), out)?;
            block_hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0.to_be_bytes()));
            put(placement, out)?;
        }
        EventData::Cleared(_) | EventData::Unknown(_) => put(data, out)?,
    }
    put(engine_time, out)
}

fn put_blocks(blocks: &[Block], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    put(blocks.len() as u64, out)?;
    for block in blocks {
        match block {
            Block { block_hash, tokens_hash: Some(tokens_hash), mm: None } => {
                let mut plain = [0; PLAIN_BLOCK_BYTES];
                plain[..U64_BYTES].copy_from_slice(&block_hash.0.to_be_bytes());
                plain[U64_BYTES] = 1;
                plain[U64_BYTES + 1..PLAIN_BLOCK_BYTES - 1].copy_from_slice(&tokens_hash.0.to_be_bytes());
                out.extend_from_slice(&plain);
            }
            other => put(other, out)?,
        }
    }
    Ok(())
}

/// What bincode writes.
fn put<T: Encode>(value: T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    bincode::encode_into_std_write(value, out, bincode_config()).map(drop)
}

/// The record that `bytes` begin with, and its length. What it allocates is a small multiple of the input.
pub(super) fn decode_record(bytes: &[u8]) -> Result<(Record, usize), DecodeError> {
    let mut rest = bytes;
    let data = match take(&mut rest)? {
        STORED => EventData::Stored(stored(&mut rest)?),
        REMOVED => {
            let block_hashes = hashes(&mut rest)?;
            EventData::Removed(Removed { block_hashes, placement: take(&mut rest)? })
        }
        _ => {
            rest = bytes;
            take(&mut rest)?
        }
    };
    let engine_time: Option<EngineTime> = take(&mut rest)?;
    Ok((Record { data, engine_time }, bytes.len() - rest.len()))
}

fn stored(rest: &mut &[u8]) -> Result<Stored, DecodeError> {
    let (parent, start_position) = take(rest)?;
    let blocks = blocks(rest)?;
    let (placement, lora, salt, block_size, refresh) = take(rest)?;
    Ok(Stored { parent, start_position, blocks, placement, lora, salt, block_size, refresh })
}

fn blocks(rest: &mut &[u8]) -> Result<Vec<Block>, DecodeError> {
    let count = list_len(rest, SHORTEST_BLOCK_BYTES)?;
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        let block = match rest.split_first_chunk::<PLAIN_BLOCK_BYTES>() {
            Some((plain, after)) if plain[U64_BYTES] == 1 && plain[PLAIN_BLOCK_BYTES - 1] == 0 => {
                *rest = after;
                Block {
                    block_hash: BlockHash(u64_at(&plain[..U64_BYTES])),
                    tokens_hash: Some(TokensHash(u64_at(&plain[U64_BYTES + 1..PLAIN_BLOCK_BYTES - 1]))),
                    mm: None,
                }
            }
            _ => take(rest)?,
        };
        blocks.push(block);
    }
    Ok(blocks)
}

fn hashes(rest: &mut &[u8]) -> Result<Vec<BlockHash>, DecodeError> {
    let count = list_len(rest, U64_BYTES)?;
    let (list, after) = rest.split_at(count * U64_BYTES);
    *rest = after;
    Ok(list.chunks_exact(U64_BYTES).map(|hash| BlockHash(u64_at(hash))).collect())
}

/// A list's length, of which as many elements can follow.
fn list_len(rest: &mut &[u8], element_bytes: usize) -> Result<usize, DecodeError> {
    let count: u64 = take(rest)?;
    let possible = rest.len() / element_bytes;
    match usize::try_from(count) {
        Ok(count) if count <= possible => Ok(count),
        _ => Err(DecodeError::OtherString(format!("a list of {count}, at most {possible} can follow"))),
    }
}

fn u64_at(bytes: &[u8]) -> u64 {
    let mut fixed = [0; U64_BYTES];
    fixed.copy_from_slice(bytes);
    u64::from_be_bytes(fixed)
}

/// What bincode reads, taken off the front.
fn take<T: Decode<()>>(rest: &mut &[u8]) -> Result<T, DecodeError> {
    let (value, len) = bincode::decode_from_slice(rest, bincode_config())?;
    *rest = &rest[len..];
    Ok(value)
}
