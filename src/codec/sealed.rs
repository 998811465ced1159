//! Sealed rows: small values that change in place, with a magic number, a revision and a checksum, so that
//! `repair` finds the newest one in raw bytes.

use bytes::BufMut;

/// First bytes of each sealed row.
pub(crate) const SEALED_MAGIC: [u8; 4] = *b"KVJM";

/// Longest body of a sealed row. A rank's row with all the epochs and lost ranges it may hold is far below.
pub(crate) const SEALED_BYTES_MAX: usize = 64 * 1024;

const AT_KIND: usize = 4;
const AT_REVISION: usize = AT_KIND + 1;
const AT_LEN: usize = AT_REVISION + 8;
const AT_CRC: usize = AT_LEN + 4;
const AT_BODY: usize = AT_CRC + 4;

/// What a sealed row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SealedKind {
    /// The journal's identity.
    Identity = 1,
    /// The state of one rank.
    Rank = 2,
}

/// Wraps a body.
pub(crate) fn seal(kind: SealedKind, revision: u64, body: &[u8]) -> Vec<u8> {
    debug_assert!(body.len() <= SEALED_BYTES_MAX);
    let mut row = Vec::with_capacity(AT_BODY + body.len());
    row.put_slice(&SEALED_MAGIC);
    row.put_u8(kind as u8);
    row.put_u64(revision);
    row.put_u32(body.len() as u32);
    row.put_u32(crc32c::crc32c_append(crc32c::crc32c(&row), body));
    row.put_slice(body);
    row
}

/// Unwraps a row that starts `bytes`, which may go on after it: kind, revision, body.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn open_sealed(bytes: &[u8]) -> Result<(SealedKind, u64, &[u8]), String> {
    let head: &[u8; AT_BODY] =
        bytes.first_chunk().ok_or_else(|| format!("a row of {} bytes", bytes.len()))?;
    if head[..AT_KIND] != SEALED_MAGIC {
        return Err("a row without its magic number".into());
    }
    let kind = match head[AT_KIND] {
        1 => SealedKind::Identity,
        2 => SealedKind::Rank,
        other => return Err(format!("a row of unknown kind {other}")),
    };
    let field = |at: usize, len: usize| head[at..at + len].iter().fold(0, |n, b| n << 8 | u64::from(*b));
    let (len, stored) = (field(AT_LEN, 4) as usize, field(AT_CRC, 4) as u32);
    let body =
        bytes.get(AT_BODY..AT_BODY + len.min(SEALED_BYTES_MAX + 1)).filter(|_| len <= SEALED_BYTES_MAX);
    let body = body.ok_or_else(|| format!("a row that claims {len} bytes"))?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&head[..AT_CRC]), body);
    if stored != computed {
        return Err(format!("row crc mismatch: stored {stored:#010x}, computed {computed:#010x}"));
    }
    Ok((kind, field(AT_REVISION, 8), body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_s_table_is_that_of_the_code() {
        crate::codec::tests::assert_documented(
            "Sealed row",
            &[
                (0, "magic"),
                (AT_KIND, "kind"),
                (AT_REVISION, "revision"),
                (AT_LEN, "length"),
                (AT_CRC, "crc"),
                (AT_BODY, "body"),
            ],
        );
    }
}
