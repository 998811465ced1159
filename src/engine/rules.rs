//! What of an engine's event is applied, and what is only kept.
//!
//! The fold reads nothing but the stored event. So what keeps a block from matching a prompt is decided here, once,
//! and stands in the event: in its placement, or as a tokens hash that is not known (`null` in JSON). Everything is
//! kept and relayed all the same, since other consumers read it.
//!
//! | the engine says | what is stored | why |
//! | --- | --- | --- |
//! | an event with a tag not known here | [`EventData::Unknown`], [`Note`] none, the bytes kept | a newer engine must not cost the rest of the batch |
//! | an event whose fields are not what they should be | [`EventData::Unknown`] with its tag, the bytes kept | one bad event must not cost its neighbours |
//! | `group_idx` other than 0 | the group, [`Note::OtherGroup`] | sliding-window and Mamba groups of a hybrid model hold no whole prefix |
//! | `kv_cache_spec_kind` other than full, MLA or sink attention | the kind, [`Note::OtherAttention`] | the same, said by kind |
//! | `locality` other than LOCAL | the locality, [`Note::Remote`] | the block is not on this worker |
//! | an `ownership` | the owner, [`Note::Foreign`] | the block is not this worker's to count on |
//! | a medium in any case of letters | as written; its tier by name | LMCache-backed connectors write `cpu`, vLLM `CPU` |
//! | a medium not known here | as written, no tier, [`Note::UnknownMedium`] | nobody knows how far away it is |
//! | no token ids, or block size 0 or nil | no tokens hashes, [`Note::Placeholder`] | only a location of blocks announced before |
//! | token ids that are not hashes × block size | no tokens hashes, [`Note::Unpaired`] | masked blocks: which hash belongs to which tokens is not said |
//! | a block size other than the configured one | no tokens hashes, [`Note::OtherBlockSize`] | partial blocks: routers hash whole ones |
//! | a token that is text, a pair, negative or above 2^32 - 1 | no tokens hash for its block, [`Note::OddTokens`] | digests among tokens and speculative pairs have no place in the hash |
//! | a multimodal key of a block | its hash; no tokens hash unless the key is Dynamo's routing hash (16 hex digits, 48 zeros), [`Note::Multimodal`] | the same tokens with another image are another block |
//! | another extra key of a block | no tokens hash for it, [`Note::OddKeys`] | prompt embeddings and keys of the future set blocks apart |
//! | a text in the extra keys of a prompt's first block that is not the adapter's name | the salt of all its blocks (without Dynamo's mark `dynamo-cache-salt:`) | where vLLM puts the cache salt |
//! | such a text that is empty, too long or no UTF-8 | no salt and no tokens hashes, [`Note::OddKeys`] | a salt read wrong would pass for another tenant's, or for none |
//! | such a text past a parent without the mark, or beside another salt | another extra key | vLLM gives the salt to the first block of a prompt only |
//! | `lora_id` without `lora_name` | the adapter `lora_id:N` | two adapters must never share a hash |
//! | the parent 5740354900026072187 from SGLang before 0.5.9 | no parent | Python's hash of the empty tuple: SGLang's root, which is never stored |
//! | a hash of 32 bytes | its last 8 bytes, big-endian | vLLM's own integer form |
//! | the same hash twice, itself as parent, a parent never stored, hash 0 | as said | the fold counts a hash once an event, and keeps a block whose parent is not held |

use crate::event::{
    Block, BlockHash, Cleared, EventData, MmInfo, MmObject, Placement, Removed, Stored, Unknown,
};

use super::fields::{EventProblem, Fields, array, block_hash, first_token, number, text};
use super::hash::{Namespace, tokens_hash};
use super::msgpack::{Cursor, Token};

/// Most hashes of one event that are applied: a prompt of 4 million tokens in blocks of 16.
pub const HASHES_MAX: usize = 262_144;

/// Longest name of a medium, adapter, salt, owner or kind, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// SGLang's root: CPython's hash of `()` on 64 bits.
const SGLANG_ROOT: BlockHash = BlockHash(5_740_354_900_026_072_187);

/// Dynamo's mark on a cache salt among vLLM's extra keys.
const SALT_MARK: &[u8] = b"dynamo-cache-salt:";

/// Most multimodal objects of one block.
const MM_OBJECTS_MAX: usize = 256;

/// Why blocks of an event are kept but can never match a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// Another group of a hybrid model.
    OtherGroup,
    /// Not full attention.
    OtherAttention,
    /// On another worker or node.
    Remote,
    /// Another party's.
    Foreign,
    /// A medium that is not known.
    UnknownMedium,
    /// No tokens: a location only.
    Placeholder,
    /// Tokens and hashes cannot be paired.
    Unpaired,
    /// A block size other than the configured one.
    OtherBlockSize,
    /// Tokens that are no tokens.
    OddTokens,
    /// Images and the like.
    Multimodal,
    /// Extra keys that are not known.
    OddKeys,
}

/// What decoding needs to know of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Tokens in a block, if it is configured. Blocks of another size are kept without tokens hashes.
    pub block_size: Option<u32>,
}

/// An event by the rules, with why it is only kept.
pub(super) type Ruled = (EventData, Vec<Note>);

/// Applies the rules to one event, whose bytes are known to be well formed.
pub(super) fn rule(event: &[u8], options: DecodeOptions) -> Result<Ruled, (Unknown, EventProblem)> {
    let unknown = |tag: &str, problem| (Unknown { tag: tag.to_owned() }, problem);
    let fields = Fields::gather(event).map_err(|e| unknown("", e))?;
    let tag = fields.tag().map_err(|e| unknown("", e))?;
    let ruled = match tag.as_str() {
        "BlockStored" => stored(&fields, options),
        "BlockRemoved" => removed(&fields),
        "AllBlocksCleared" => Ok((EventData::Cleared(Cleared::default()), Vec::new())),
        _ => Err(EventProblem::UnknownTag(tag.clone())),
    };
    ruled.map_err(|problem| unknown(&tag, problem))
}

fn removed(fields: &Fields<'_>) -> Result<Ruled, EventProblem> {
    let (placement, notes) = placement(fields)?;
    Ok((EventData::Removed(Removed { block_hashes: hashes(fields)?, placement }), notes))
}

fn stored(fields: &Fields<'_>, options: DecodeOptions) -> Result<Ruled, EventProblem> {
    let (placement, mut notes) = placement(fields)?;
    let hashes = hashes(fields)?;
    let parent = match fields.parent.map(first_token) {
        None | Some(Token::Nil) => None,
        Some(token) => {
            let hash = block_hash(token);
            Some(hash.ok_or(EventProblem::Field { field: "parent_block_hash", what: "it is no hash" })?)
        }
    };
    let block_size = number(fields.block_size, "block_size")?;
    let lora = match text(fields.lora_name, "lora_name", TEXT_BYTES_MAX)?.filter(|name| !name.is_empty()) {
        Some(name) => Some(name),
        None => number(fields.lora_id, "lora_id")?.map(|id| format!("lora_id:{id}")),
    };
    let parent = parent.filter(|parent| *parent != SGLANG_ROOT);
    let salt = text(fields.cache_salt, "cache_salt", TEXT_BYTES_MAX)?.filter(|salt| !salt.is_empty());
    let keys = BlockKeys::read(fields, hashes.len(), lora.as_deref(), salt, parent.is_none())?;
    let salt = keys.salt;
    let namespace = Namespace::new(lora.as_deref(), salt.as_deref());
    let mut tokens = Tokens::of(fields, hashes.len(), block_size, options, &mut notes)?;
    let mut blocks = Vec::with_capacity(hashes.len());
    let mut extra = keys.blocks.into_iter();
    for block_hash in hashes {
        let key = extra.next().unwrap_or_default();
        let usable = tokens.next_block();
        note(&mut notes, Note::OddTokens, usable == Some(false));
        let odd = key.odd || keys.salt_unreadable;
        note(&mut notes, Note::OddKeys, odd);
        note(&mut notes, Note::Multimodal, key.mm.is_some() && !key.routable);
        let hashed = usable == Some(true) && !odd && (key.mm.is_none() || key.routable);
        let hash = hashed.then(|| tokens_hash(namespace, &tokens.block, key.mm.as_ref()));
        blocks.push(Block { block_hash, tokens_hash: hash, mm: key.mm.map(Box::new) });
    }
    let stored =
        Stored { parent, start_position: None, blocks, placement, lora, salt, block_size, refresh: false };
    Ok((EventData::Stored(stored), notes))
}

fn note(notes: &mut Vec<Note>, note: Note, applies: bool) {
    if applies && !notes.contains(&note) {
        notes.push(note);
    }
}

fn hashes(fields: &Fields<'_>) -> Result<Vec<BlockHash>, EventProblem> {
    const FIELD: &str = "block_hashes";
    let (len, mut cursor) = array(fields.block_hashes, FIELD)?.ok_or(EventProblem::Missing(FIELD))?;
    if len > HASHES_MAX {
        return Err(EventProblem::Field { field: FIELD, what: "there are too many" });
    }
    let no_hash = EventProblem::Field { field: FIELD, what: "one is no integer and no 8 bytes or more" };
    (0..len).map(|_| cursor.token().ok().and_then(block_hash).ok_or_else(|| no_hash.clone())).collect()
}

fn placement(fields: &Fields<'_>) -> Result<(Placement, Vec<Note>), EventProblem> {
    let placement = Placement {
        medium: text(fields.medium, "medium", TEXT_BYTES_MAX)?,
        group: number(fields.group, "group_idx")?,
        kind: text(fields.kind, "kv_cache_spec_kind", TEXT_BYTES_MAX)?,
        locality: text(fields.locality, "locality", TEXT_BYTES_MAX)?,
        ownership: text(fields.ownership, "ownership", TEXT_BYTES_MAX)?,
    };
    let alone = |part: Placement| !part.is_own_full_attention();
    let mut notes = Vec::new();
    let none = Placement::default();
    note(&mut notes, Note::OtherGroup, alone(Placement { group: placement.group, ..none.clone() }));
    note(&mut notes, Note::OtherAttention, alone(Placement { kind: placement.kind.clone(), ..none.clone() }));
    note(&mut notes, Note::Remote, alone(Placement { locality: placement.locality.clone(), ..none.clone() }));
    note(&mut notes, Note::Foreign, placement.ownership.is_some());
    note(&mut notes, Note::UnknownMedium, placement.tier().is_none());
    Ok((placement, notes))
}

/// The tokens of one block after the other.
struct Tokens<'a> {
    cursor: Option<Cursor<'a>>,
    block_size: usize,
    /// The tokens of the block read last.
    block: Vec<u32>,
}

impl<'a> Tokens<'a> {
    fn of(
        fields: &Fields<'a>,
        hashes: usize,
        block_size: Option<u32>,
        options: DecodeOptions,
        notes: &mut Vec<Note>,
    ) -> Result<Self, EventProblem> {
        let size = block_size.unwrap_or(0) as usize;
        let (len, cursor) = match array(fields.token_ids, "token_ids")? {
            Some((len, cursor)) => (len, Some(cursor)),
            None => (0, None),
        };
        let why_not = if len == 0 || size == 0 {
            (hashes > 0).then_some(Note::Placeholder)
        } else if hashes.checked_mul(size) != Some(len) {
            Some(Note::Unpaired)
        } else if options.block_size.is_some_and(|configured| Some(configured) != block_size) {
            Some(Note::OtherBlockSize)
        } else {
            None
        };
        notes.extend(why_not);
        Ok(Self { cursor: cursor.filter(|_| why_not.is_none()), block_size: size, block: Vec::new() })
    }

    /// Reads the next block: whether its tokens can be hashed, `None` if tokens are of no use at all.
    fn next_block(&mut self) -> Option<bool> {
        let cursor = self.cursor.as_mut()?;
        self.block.clear();
        let mut sound = true;
        for _ in 0..self.block_size {
            let start = *cursor;
            match cursor.token().ok()? {
                Token::Int { bits, negative: false } if bits <= u64::from(u32::MAX) => {
                    self.block.push(bits as u32);
                }
                _ => {
                    *cursor = start;
                    cursor.skip().ok()?;
                    sound = false;
                }
            }
        }
        Some(sound)
    }
}

/// What sets blocks apart beside their tokens.
#[derive(Default)]
struct BlockKeys {
    salt: Option<String>,
    /// A salt is there that cannot be kept whole, so that no block of the event may count as unsalted.
    salt_unreadable: bool,
    /// The first block is that of a prompt: text without Dynamo's mark may be its salt.
    first_of_prompt: bool,
    blocks: Vec<BlockKey>,
}

#[derive(Default)]
struct BlockKey {
    mm: Option<MmInfo>,
    /// All multimodal keys are hashes that routers use too.
    routable: bool,
    odd: bool,
}

impl BlockKeys {
    fn read(
        fields: &Fields<'_>,
        blocks: usize,
        lora: Option<&str>,
        salt: Option<String>,
        first_of_prompt: bool,
    ) -> Result<Self, EventProblem> {
        let mut keys = Self { salt, first_of_prompt, ..Self::default() };
        for field in [fields.extra_keys, fields.mm_keys] {
            let Some((len, mut cursor)) = array(field, "extra_keys")? else { continue };
            keys.blocks.reserve_exact(len.min(blocks).saturating_sub(keys.blocks.len()));
            for index in 0..len.min(blocks) {
                let value = cursor
                    .skip()
                    .map_err(|_| EventProblem::Field { field: "extra_keys", what: "it is cut" })?;
                if keys.blocks.len() <= index {
                    keys.blocks.push(BlockKey { routable: true, ..BlockKey::default() });
                }
                keys.read_block(index, value, lora);
            }
        }
        Ok(keys)
    }

    fn read_block(&mut self, index: usize, value: &[u8], lora: Option<&str>) {
        let mut cursor = Cursor::new(value);
        let len = match cursor.token() {
            Ok(Token::Nil) => return,
            Ok(Token::Array(len)) => len,
            _ => {
                self.blocks[index].odd = true;
                return;
            }
        };
        let mut lora = lora;
        for _ in 0..len {
            let Ok(item) = cursor.skip() else { return };
            match first_token(item) {
                Token::Str(text) if lora.is_some_and(|name| name.as_bytes() == text) => lora = None,
                Token::Str(text) if routing_hash(text).is_some() => self.add_mm(index, text),
                Token::Str(text) if index == 0 && self.salt.is_none() && self.may_be_salt(text) => {
                    self.salt = readable_salt(text);
                    self.salt_unreadable |= self.salt.is_none();
                }
                Token::Str(text) if self.salt.as_deref().is_some_and(|s| s.as_bytes() == unmarked(text)) => {}
                Token::Array(_) | Token::Map(_) => match identifier(item) {
                    Some(id) => self.add_mm(index, id),
                    None => self.blocks[index].odd = true,
                },
                _ => self.blocks[index].odd = true,
            }
        }
    }

    fn may_be_salt(&self, text: &[u8]) -> bool {
        self.first_of_prompt || text.starts_with(SALT_MARK)
    }

    fn add_mm(&mut self, index: usize, id: &[u8]) {
        let block = &mut self.blocks[index];
        let routed = routing_hash(id);
        block.routable &= routed.is_some();
        let mm_hash = routed.unwrap_or_else(|| xxhash_rust::xxh3::xxh3_64(id));
        let objects = &mut block.mm.get_or_insert_default().mm_objects;
        // Most blocks have one; growing by doubling would set four aside for each.
        objects.reserve_exact(usize::from(objects.is_empty()));
        if objects.len() < MM_OBJECTS_MAX {
            objects.push(MmObject { mm_hash, offsets: Vec::new() });
        } else {
            block.odd = true;
        }
    }
}

fn unmarked(text: &[u8]) -> &[u8] {
    text.strip_prefix(SALT_MARK).unwrap_or(text)
}

/// A salt exactly as it came; `None` if it cannot be kept so.
fn readable_salt(text: &[u8]) -> Option<String> {
    let salt = std::str::from_utf8(unmarked(text)).ok()?;
    (!salt.is_empty() && salt.len() <= TEXT_BYTES_MAX).then(|| salt.to_owned())
}

/// The identifier of a multimodal key: `[identifier, offset]`, or a map with a `hash`.
fn identifier(item: &[u8]) -> Option<&[u8]> {
    let mut cursor = Cursor::new(item);
    match cursor.token().ok()? {
        Token::Array(len) if len >= 1 => match cursor.token().ok()? {
            Token::Str(id) => Some(id),
            _ => None,
        },
        Token::Map(len) => {
            for _ in 0..len {
                let key = cursor.token().ok()?;
                let value = cursor.skip().ok()?;
                if key == Token::Str(b"hash") {
                    return match first_token(value) {
                        Token::Str(id) | Token::Bin(id) => Some(id),
                        _ => None,
                    };
                }
            }
            None
        }
        _ => None,
    }
}

/// A routing hash as Dynamo's frontend writes it: 16 hex digits and 48 zeros.
fn routing_hash(text: &[u8]) -> Option<u64> {
    let (digits, zeros) = (text.len() == 64).then(|| text.split_at(16))?;
    let marked = digits.iter().all(u8::is_ascii_hexdigit) && zeros.iter().all(|zero| *zero == b'0');
    let digits = std::str::from_utf8(digits).ok()?;
    marked.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
