//! Cutting an engine's own bytes of one event to a part of what it announces, in whatever form and release it came.
//!
//! Only lists are shortened; every other byte stays as the engine wrote it. Where a list cannot be paired with the
//! blocks for certain, nothing is cut.

use std::ops::Range;

use bytes::Bytes;
use rmp::encode::write_array_len;

use crate::event::BlockHash;

use super::fields::{Fields, array, block_hash, number};
use super::msgpack::{Cursor, Malformed, Token};

/// How many blocks the bytes of a `BlockStored` announce; `None` if they are no such event.
pub fn payload_blocks(payload: &[u8]) -> Option<usize> {
    let fields = whole(payload, "BlockStored")?;
    list(fields.block_hashes).map(|(len, _)| len)
}

/// The bytes of a `BlockStored`, cut to its first `blocks` blocks: hashes, tokens and the keys of each block. All of
/// them: the same bytes.
///
/// `None` if the bytes are no such event, if it has fewer blocks, or if one of its lists cannot be paired with them:
/// tokens that are not blocks × block size, or a list of as many items under a name that is not known.
pub fn cut_stored(payload: &[u8], blocks: usize) -> Option<Bytes> {
    let fields = whole(payload, "BlockStored")?;
    let (len, hashes) = list(fields.block_hashes)?;
    if blocks >= len {
        return (blocks == len).then(|| Bytes::copy_from_slice(payload));
    }
    let mut cuts = vec![prefix(payload, fields.block_hashes?, hashes, blocks)?];
    if let Some((tokens, cursor)) = list(fields.token_ids).filter(|(tokens, _)| *tokens > 0) {
        let size = number(fields.block_size, "block_size").ok()?? as usize;
        if size == 0 || len.checked_mul(size) != Some(tokens) {
            return None;
        }
        cuts.push(prefix(payload, fields.token_ids?, cursor, blocks * size)?);
    }
    for keys in [fields.extra_keys, fields.mm_keys] {
        if let Some((keys_len, cursor)) = list(keys).filter(|(keys_len, _)| *keys_len > blocks) {
            if keys_len != len {
                return None;
            }
            cuts.push(prefix(payload, keys?, cursor, blocks)?);
        }
    }
    if has_other_list(payload, len, &cuts).ok()? {
        return None;
    }
    Some(replace(payload, cuts))
}

/// The bytes of a `BlockRemoved`, cut to the hashes in `keep`, each once. `None` if the bytes are no such event or do not
/// have all of them.
pub fn cut_removed(payload: &[u8], keep: &[BlockHash]) -> Option<Bytes> {
    let fields = whole(payload, "BlockRemoved")?;
    let (len, mut hashes) = list(fields.block_hashes)?;
    let mut wanted: std::collections::HashSet<BlockHash> = keep.iter().copied().collect();
    let count = wanted.len();
    let mut items = Vec::new();
    for _ in 0..len {
        let item = hashes.skip().ok()?;
        let hash = block_hash(Cursor::new(item).token().ok()?)?;
        if wanted.remove(&hash) {
            items.extend_from_slice(item);
        }
    }
    if !wanted.is_empty() {
        return None;
    }
    if count == len {
        return Some(Bytes::copy_from_slice(payload));
    }
    let place = place(payload, fields.block_hashes?)?;
    Some(replace(payload, vec![(place, with_head(count, &items)?)]))
}

/// The fields of an event that fills its bytes and has this tag.
fn whole<'a>(payload: &'a [u8], tag: &str) -> Option<Fields<'a>> {
    let mut cursor = Cursor::new(payload);
    cursor.skip().ok()?;
    if cursor.left() > 0 {
        return None;
    }
    Fields::gather(payload).ok().filter(|fields| fields.tag().is_ok_and(|found| found == tag))
}

fn list(value: Option<&[u8]>) -> Option<(usize, Cursor<'_>)> {
    array(value, "").ok().flatten()
}

/// A part of the payload, and what takes its place.
type Cut = (Range<usize>, Vec<u8>);

/// Where a part of the payload lies in it.
fn place(payload: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(payload.as_ptr() as usize)?;
    Some(start..start + part.len())
}

/// Cuts a list, whose items start at the cursor, to its first items.
fn prefix(payload: &[u8], value: &[u8], items: Cursor<'_>, count: usize) -> Option<Cut> {
    let mut end = items;
    for _ in 0..count {
        end.skip().ok()?;
    }
    Some((place(payload, value)?, with_head(count, &value[items.at()..end.at()])?))
}

fn with_head(len: usize, items: &[u8]) -> Option<Vec<u8>> {
    let mut list = Vec::with_capacity(items.len() + 5);
    write_array_len(&mut list, u32::try_from(len).ok()?).ok()?;
    list.extend_from_slice(items);
    Some(list)
}

/// Whether a list that is not cut has as many items as there are blocks: it may be one of theirs.
fn has_other_list(payload: &[u8], blocks: usize, cuts: &[Cut]) -> Result<bool, Malformed> {
    let mut cursor = Cursor::new(payload);
    let values = match cursor.token()? {
        Token::Array(len) => len,
        Token::Map(len) => len * 2,
        _ => 0,
    };
    for _ in 0..values {
        let start = cursor.at();
        let value = cursor.skip()?;
        let is_list = Cursor::new(value).token()? == Token::Array(blocks);
        if is_list && blocks > 0 && !cuts.iter().any(|(place, _)| place.start == start) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn replace(payload: &[u8], mut cuts: Vec<Cut>) -> Bytes {
    cuts.sort_by_key(|(place, _)| place.start);
    let mut out = Vec::with_capacity(payload.len());
    let mut at = 0;
    for (place, with) in cuts {
        out.extend_from_slice(&payload[at..place.start]);
        out.extend_from_slice(&with);
        at = place.end;
    }
    out.extend_from_slice(&payload[at..]);
    out.into()
}
