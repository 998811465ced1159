//! The tokens hash: what a router computes from a prompt to ask who holds it. `migrations/TOKENS_HASH.md` is its
//! document for other languages.

use dynamo_kv_hashing::{compute_block_hash, compute_salt_hash};

use crate::event::{MmInfo, TokensHash};

/// What sets the blocks of one adapter or tenant apart from those of others with the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    seed: u64,
}

impl Namespace {
    /// The namespace of a LoRA adapter and a cache salt. Empty names count as none.
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let seed = compute_salt_hash(salt, lora).expect("only a missing field fails, and there is none");
        Self { seed }
    }
}

/// The hash of one block: its tokens as little-endian u32, then the hashes of its multimodal objects in rising
/// order, as XXH3-64 seeded by the namespace.
pub fn tokens_hash(namespace: Namespace, tokens: &[u32], mm: Option<&MmInfo>) -> TokensHash {
    let mut bytes = Vec::with_capacity(tokens.len() * 4);
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    if let Some(mm) = mm {
        let mut hashes: Vec<u64> = mm.mm_objects.iter().map(|object| object.mm_hash).collect();
        hashes.sort_unstable();
        hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
    }
    TokensHash(compute_block_hash(&bytes, namespace.seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::MmObject;
    use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

    /// The document's rule, written down once more without the crate that sets it.
    fn by_the_document(tokens: &[u32], lora: Option<&str>, salt: Option<&str>) -> u64 {
        let mut seed = 1337_u64;
        if let Some(lora) = lora {
            seed = seed.wrapping_add(xxh3_64(lora.as_bytes()));
        }
        if let Some(salt) = salt {
            seed = seed.wrapping_add(xxh3_64_with_seed(salt.as_bytes(), 1));
        }
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, seed)
    }

    #[test]
    fn the_document_s_rule_and_vectors_hold() {
        let sixteen: Vec<u32> = (100..116).collect();
        let document = include_str!("../../migrations/TOKENS_HASH.md");
        let mut vectors = 0;
        for (tokens, lora, salt) in [
            (&[1, 2, 3, 4][..], None, None),
            (&sixteen[..], None, None),
            (&sixteen[..], Some("my-adapter"), None),
            (&sixteen[..], None, Some("tenant-a")),
            (&sixteen[..], Some("my-adapter"), Some("tenant-a")),
            (&[u32::MAX, 0, 0, 0][..], None, None),
        ] {
            let hash = tokens_hash(Namespace::new(lora, salt), tokens, None).0;
            assert_eq!(hash, by_the_document(tokens, lora, salt), "{tokens:?} {lora:?} {salt:?}");
            assert!(document.contains(&hash.to_string()), "{tokens:?} {lora:?} {salt:?}: {hash}");
            vectors += 1;
        }
        assert_eq!(vectors, 6);
    }

    #[test]
    fn the_document_s_vector_of_a_block_with_images_holds() {
        let tokens: Vec<u32> = (100..116).collect();
        let object = |mm_hash| MmObject { mm_hash, offsets: vec![] };
        let mm = MmInfo { mm_objects: vec![object(0xff), object(1)] };
        let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        bytes.extend_from_slice(&1_u64.to_le_bytes());
        bytes.extend_from_slice(&0xff_u64.to_le_bytes());
        let hash = tokens_hash(Namespace::new(None, None), &tokens, Some(&mm)).0;
        assert_eq!(hash, xxh3_64_with_seed(&bytes, 1337));
        let row = format!("| 100, 101 … 115, objects 255 and 1 | - | - | {hash} |");
        assert!(include_str!("../../migrations/TOKENS_HASH.md").contains(&row), "{row}");
    }

    #[test]
    fn a_name_as_adapter_as_salt_and_not_at_all_are_four_namespaces() {
        let of = |lora, salt| tokens_hash(Namespace::new(lora, salt), &[1, 2], None).0;
        let mut hashes = [of(None, None), of(Some("a"), None), of(None, Some("a")), of(Some("a"), Some("a"))];
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(of(Some(""), Some("")), of(None, None));
    }

    #[test]
    fn an_image_changes_the_hash_whatever_the_order_of_images() {
        let info = |hashes: &[u64]| MmInfo {
            mm_objects: hashes.iter().map(|hash| MmObject { mm_hash: *hash, offsets: vec![] }).collect(),
        };
        let plain = Namespace::new(None, None);
        let of = |mm: Option<&MmInfo>| tokens_hash(plain, &[7; 16], mm);
        assert_ne!(of(Some(&info(&[1]))), of(None));
        assert_eq!(of(Some(&info(&[1, 2]))), of(Some(&info(&[2, 1]))));
    }
}
