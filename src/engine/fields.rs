//! The fields of one event, by name, from either form: an array whose places are fixed, or a map.

use crate::event::{BlockHash, Unknown};

use super::msgpack::{Cursor, Malformed, Token};

/// Names of the places of a `BlockStored` array, as vLLM added them release by release. SGLang 0.5.18 puts a map
/// with the cache salt where vLLM has the adapter's name.
const STORED: &[&str] = &[
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: &[&str] = &["type", "block_hashes", "medium", "group_idx"];

/// Why one event is kept without being understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventProblem {
    /// It is neither an array nor a map.
    #[error("an event is an array or a map")]
    NoEvent,
    /// It has no tag.
    #[error("the event has no tag")]
    NoTag,
    /// A tag that this release does not know.
    #[error("unknown event {0:?}")]
    UnknownTag(String),
    /// A field that must be there is not.
    #[error("the field {0} is missing")]
    Missing(&'static str),
    /// A field that is not what it should be.
    #[error("the field {field}: {what}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The fields as msgpack, not looked into yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) tag: Option<&'a [u8]>,
    pub(super) block_hashes: Option<&'a [u8]>,
    pub(super) parent: Option<&'a [u8]>,
    pub(super) token_ids: Option<&'a [u8]>,
    pub(super) block_size: Option<&'a [u8]>,
    pub(super) lora_id: Option<&'a [u8]>,
    pub(super) medium: Option<&'a [u8]>,
    pub(super) lora_name: Option<&'a [u8]>,
    pub(super) extra_keys: Option<&'a [u8]>,
    pub(super) mm_keys: Option<&'a [u8]>,
    pub(super) group: Option<&'a [u8]>,
    pub(super) kind: Option<&'a [u8]>,
    pub(super) cache_salt: Option<&'a [u8]>,
    pub(super) locality: Option<&'a [u8]>,
    pub(super) ownership: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    /// Gathers the fields of one event, whose bytes are known to be well formed.
    pub(super) fn gather(event: &'a [u8]) -> Result<Self, EventProblem> {
        Self::read(event).map_err(|_| EventProblem::NoEvent)?.ok_or(EventProblem::NoEvent)
    }

    fn read(event: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let mut fields = Self::default();
        let mut cursor = Cursor::new(event);
        match cursor.token()? {
            Token::Array(len) => {
                let mut names = STORED;
                for index in 0..len {
                    let value = cursor.skip()?;
                    if index == 0 && value.ends_with(b"Removed") {
                        names = REMOVED;
                    }
                    match names.get(index) {
                        Some(&"lora_name") if is_map(value) => fields.read_map(value)?,
                        Some(name) => fields.set(name.as_bytes(), value),
                        None => {}
                    }
                }
            }
            Token::Map(_) => fields.read_map(event)?,
            _ => return Ok(None),
        }
        Ok(Some(fields))
    }

    fn read_map(&mut self, map: &'a [u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(map);
        let Token::Map(len) = cursor.token()? else { return Ok(()) };
        for _ in 0..len {
            let key = cursor.skip()?;
            let value = cursor.skip()?;
            if let Ok(Token::Str(name)) = Cursor::new(key).token() {
                self.set(name, value);
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &[u8], value: &'a [u8]) {
        let field = match name {
            b"type" => &mut self.tag,
            b"block_hashes" => &mut self.block_hashes,
            b"parent_block_hash" => &mut self.parent,
            b"token_ids" => &mut self.token_ids,
            b"block_size" => &mut self.block_size,
            b"lora_id" => &mut self.lora_id,
            b"medium" => &mut self.medium,
            b"lora_name" => &mut self.lora_name,
            b"extra_keys" => &mut self.extra_keys,
            b"mm_keys" => &mut self.mm_keys,
            b"group_idx" => &mut self.group,
            b"kv_cache_spec_kind" => &mut self.kind,
            b"cache_salt" => &mut self.cache_salt,
            b"locality" => &mut self.locality,
            b"ownership" => &mut self.ownership,
            _ => return,
        };
        *field = Some(value);
    }

    /// The tag, cut to what is kept.
    pub(super) fn tag(&self) -> Result<String, EventProblem> {
        match self.tag.map(first_token) {
            Some(Token::Str(tag)) => Ok(cut_text(tag, Unknown::TAG_BYTES_MAX)),
            _ => Err(EventProblem::NoTag),
        }
    }
}

fn is_map(value: &[u8]) -> bool {
    matches!(first_token(value), Token::Map(_))
}

/// The first token of a value that is known to be well formed.
pub(super) fn first_token(value: &[u8]) -> Token<'_> {
    Cursor::new(value).token().unwrap_or(Token::Nil)
}

/// Text from outside: at most `bytes_max` bytes of it, with what is no UTF-8 replaced.
pub(super) fn cut_text(text: &[u8], bytes_max: usize) -> String {
    let mut text = String::from_utf8_lossy(&text[..text.len().min(bytes_max)]).into_owned();
    while text.len() > bytes_max {
        text.pop();
    }
    text
}

/// A block hash in vLLM's integer form: an integer's bits, or the last eight bytes of a longer hash.
pub(super) fn block_hash(token: Token<'_>) -> Option<BlockHash> {
    match token {
        Token::Int { bits, .. } => Some(BlockHash(bits)),
        Token::Bin(bytes) => bytes.last_chunk().map(|last| BlockHash(u64::from_be_bytes(*last))),
        _ => None,
    }
}

/// A field that is text or nil.
pub(super) fn text(
    value: Option<&[u8]>,
    field: &'static str,
    bytes_max: usize,
) -> Result<Option<String>, EventProblem> {
    match value.map(first_token) {
        None | Some(Token::Nil) => Ok(None),
        Some(Token::Str(text)) if text.len() > bytes_max => {
            Err(EventProblem::Field { field, what: "it is too long" })
        }
        Some(Token::Str(text)) => match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(EventProblem::Field { field, what: "it is no UTF-8" }),
        },
        Some(_) => Err(EventProblem::Field { field, what: "it is no text" }),
    }
}

/// A field that is a small number or nil.
pub(super) fn number(value: Option<&[u8]>, field: &'static str) -> Result<Option<u32>, EventProblem> {
    match value.map(first_token) {
        None | Some(Token::Nil) => Ok(None),
        Some(Token::Int { bits, negative: false }) if bits <= u64::from(u32::MAX) => Ok(Some(bits as u32)),
        Some(_) => Err(EventProblem::Field { field, what: "it is no number of 32 bits" }),
    }
}

/// The items of an array field; `None` for nil or no field.
pub(super) fn array<'a>(
    value: Option<&'a [u8]>,
    field: &'static str,
) -> Result<Option<(usize, Cursor<'a>)>, EventProblem> {
    let Some(value) = value else { return Ok(None) };
    let mut cursor = Cursor::new(value);
    match cursor.token() {
        Ok(Token::Nil) => Ok(None),
        Ok(Token::Array(len)) => Ok(Some((len, cursor))),
        _ => Err(EventProblem::Field { field, what: "it is no array" }),
    }
}
