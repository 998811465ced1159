//! The digest of what a stream holds: equal digests mean equal holds, in whatever order they came about.
//!
//! What is summed is laid out in the documentation of [`crate::index`], for readers in other languages.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use crate::event::{BlockHash, Placement};

/// Sum over all that a stream holds. Two streams that hold the same have the same digest.
///
/// What is summed is laid out in the documentation of [the index](super#digest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(
    /// The sum; 0 if nothing is held.
    pub u128,
);

impl fmt::Display for Digest {
    /// As 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a placement puts into the terms of its blocks.
pub(super) fn placement_seed(placement: &Placement) -> [u8; 16] {
    let mut bytes = Vec::with_capacity(64);
    let text = |bytes: &mut Vec<u8>, field: &Option<String>| match field {
        None => bytes.push(0),
        Some(text) => {
            bytes.push(1);
            // A text of 4 GiB fits no event.
            bytes.extend((text.len() as u32).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
    };
    text(&mut bytes, &placement.medium);
    match placement.group {
        None => bytes.push(0),
        Some(group) => {
            bytes.push(1);
            bytes.extend(group.to_be_bytes());
        }
    }
    text(&mut bytes, &placement.kind);
    text(&mut bytes, &placement.locality);
    text(&mut bytes, &placement.ownership);
    xxh3_128(&bytes).to_be_bytes()
}

/// The term of a block that is held `count` times in a placement; 0 if it is not held there.
#[inline]
pub(super) fn term(placement: &[u8; 16], block: BlockHash, count: u64) -> u128 {
    if count == 0 {
        return 0;
    }
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(placement);
    bytes[16..24].copy_from_slice(&block.0.to_be_bytes());
    bytes[24..].copy_from_slice(&count.to_be_bytes());
    xxh3_128(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(placement: &Placement, block: u64, count: u64) -> Digest {
        Digest(term(&placement_seed(placement), BlockHash(block), count))
    }

    #[test]
    fn the_terms_are_pinned() {
        let nowhere = Placement::default();
        let somewhere = Placement {
            medium: Some("GPU".into()),
            group: Some(1),
            kind: Some("mamba".into()),
            locality: Some("REMOTE".into()),
            ownership: Some("x".into()),
        };
        let found = [one(&nowhere, 1, 1), one(&nowhere, 1, 2), one(&somewhere, u64::MAX, 1)];
        assert_eq!(
            found.map(|digest| digest.to_string()),
            [
                "fcf7f42f5b9a6c646dbde1a7413c4222",
                "0daf85e1f436cf8a19ee0a2201ff93ac",
                "b2a6e8b3106d218fa7f32bb4eec3a399"
            ]
        );
        assert_eq!(one(&nowhere, 1, 0), Digest(0));
    }

    #[test]
    fn media_written_differently_are_different() {
        let on = |medium: Option<&str>| Placement { medium: medium.map(Into::into), ..Placement::default() };
        let digests = [on(None), on(Some("GPU")), on(Some("gpu"))].map(|placement| one(&placement, 7, 1));
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    }
}
