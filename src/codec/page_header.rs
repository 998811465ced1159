//! The head of a page. All integers are big-endian; offsets are derived from the field before.

use crate::event::{DpRank, EventId, WorkerId};

use super::header::{get, put};

/// First bytes of each page.
pub(crate) const PAGE_MAGIC: [u8; 4] = *b"KVJP";

/// Version of the page's layout: the protocol's.
pub const PAGE_VERSION: u8 = 1;

/// Longest page, head and frames. NATS advises against messages above 8 MB.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Most epochs before the current one that a page names.
pub const PAGE_EPOCHS_MAX: usize = 16;

pub(super) const AT_MAGIC: usize = 0;
pub(super) const AT_VERSION: usize = AT_MAGIC + 4;
pub(super) const AT_FLAGS: usize = AT_VERSION + 1;
pub(super) const AT_SOURCE: usize = AT_FLAGS + 1;
pub(super) const AT_EPOCHS: usize = AT_SOURCE + 1;
pub(super) const AT_JOURNAL: usize = AT_EPOCHS + 1;
pub(super) const AT_WORKER: usize = AT_JOURNAL + 16;
pub(super) const AT_RANK: usize = AT_WORKER + 8;
pub(super) const AT_GENERATION: usize = AT_RANK + 4;
pub(super) const AT_EPOCH: usize = AT_GENERATION + 4;
pub(super) const AT_NONCE: usize = AT_EPOCH + 8;
pub(super) const AT_HORIZON: usize = AT_NONCE + 8;
pub(super) const AT_DURABLE: usize = AT_HORIZON + 8;
pub(super) const AT_NEXT: usize = AT_DURABLE + 8;
pub(super) const AT_DIGEST_ID: usize = AT_NEXT + 8;
pub(super) const AT_DIGEST: usize = AT_DIGEST_ID + 8;
pub(super) const AT_FRAMES_LEN: usize = AT_DIGEST + 16;
pub(super) const AT_CRC: usize = AT_FRAMES_LEN + 4;

/// Length of a page's head without the epochs that follow it.
pub const PAGE_HEADER_BYTES: usize = AT_CRC + 4;

/// Bytes of each epoch after the head.
pub(super) const EPOCH_BYTES: usize = 24;

const FLAG_RESET: u8 = 1;
const FLAG_DONE: u8 = 2;
const FLAG_HEARTBEAT: u8 = 4;
const FLAG_NOT_DURABLE: u8 = 8;
const FLAGS_KNOWN: u8 = FLAG_RESET | FLAG_DONE | FLAG_HEARTBEAT | FLAG_NOT_DURABLE;

/// What a page says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFlags {
    /// Forget the stream: what follows rebuilds it. Only a page of a replay says so.
    pub reset: bool,
    /// The last page of a replay: nothing more may be shown now.
    pub done: bool,
    /// Sent because there was nothing to send. It has no frames.
    pub heartbeat: bool,
    /// The frames may not be on stable storage: a crash of the worker may take them back.
    pub not_durable: bool,
}

/// What the worker knows of the engine that its events come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SourceState {
    /// There is no engine to be asked, or it was not heard of yet.
    #[default]
    Unknown = 0,
    /// It sends, or answers.
    Alive = 1,
    /// It was heard of, and is not any more.
    Silent = 2,
}

/// An epoch that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastEpoch {
    /// Its number.
    pub number: u64,
    /// Its nonce.
    pub nonce: u64,
    /// Last id that was kept of it, and of all before it.
    pub kept: EventId,
}

/// The head of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageHeader {
    /// What kind of page it is.
    pub flags: PageFlags,
    /// What is known of the engine.
    pub source: SourceState,
    /// Identity of the journal, drawn at random when it was made.
    pub journal: [u8; 16],
    /// The worker.
    pub worker: WorkerId,
    /// The rank.
    pub rank: DpRank,
    /// Number of the compacted history that the replay started with; 0 if it did not start with one.
    pub generation: u32,
    /// Number of the epoch that the worker writes.
    pub epoch: u64,
    /// Its nonce.
    pub nonce: u64,
    /// Ids at or below it are no longer kept one by one.
    pub horizon: EventId,
    /// Newest id on stable storage.
    pub durable: EventId,
    /// The id to ask for after this page, 1 or more.
    pub next: EventId,
    /// The id after which the digest was taken, and the digest of all that is held then, as
    /// [the index](crate::index#digest) sums it.
    pub digest: Option<(EventId, u128)>,
    /// Epochs before this one, the newest first, at most [`PAGE_EPOCHS_MAX`]: a reader that stands in one of them, at or
    /// below what was kept, may go on as if it stood in the current one.
    pub epochs: Vec<PastEpoch>,
}

impl PageHeader {
    /// Length of the head with its epochs.
    pub(super) fn len(&self) -> usize {
        PAGE_HEADER_BYTES + self.epochs.len() * EPOCH_BYTES
    }

    /// Writes the head to the start of `page`, which has room for it.
    pub(super) fn write(&self, page: &mut [u8], frames_len: u32) {
        put(page, AT_MAGIC, PAGE_MAGIC);
        page[AT_VERSION] = PAGE_VERSION;
        page[AT_FLAGS] = self.flags.to_byte();
        page[AT_SOURCE] = self.source as u8;
        page[AT_EPOCHS] = self.epochs.len() as u8;
        put(page, AT_JOURNAL, self.journal);
        put(page, AT_WORKER, self.worker.0.to_be_bytes());
        put(page, AT_RANK, self.rank.0.to_be_bytes());
        put(page, AT_GENERATION, self.generation.to_be_bytes());
        put(page, AT_EPOCH, self.epoch.to_be_bytes());
        put(page, AT_NONCE, self.nonce.to_be_bytes());
        put(page, AT_HORIZON, self.horizon.to_be_bytes());
        put(page, AT_DURABLE, self.durable.to_be_bytes());
        put(page, AT_NEXT, self.next.to_be_bytes());
        let (id, digest) = self.digest.unwrap_or_default();
        put(page, AT_DIGEST_ID, id.to_be_bytes());
        put(page, AT_DIGEST, digest.to_be_bytes());
        put(page, AT_FRAMES_LEN, frames_len.to_be_bytes());
        for (epoch, at) in self.epochs.iter().zip((PAGE_HEADER_BYTES..).step_by(EPOCH_BYTES)) {
            put(page, at, epoch.number.to_be_bytes());
            put(page, at + 8, epoch.nonce.to_be_bytes());
            put(page, at + 16, epoch.kept.to_be_bytes());
        }
        let crc = page_crc(page, self.len());
        put(page, AT_CRC, crc.to_be_bytes());
    }

    /// Reads a head and its epochs from the start of `page`. Says how long the frames after it are.
    ///
    /// # Errors
    /// What makes these bytes no page of this version.
    pub(super) fn read(page: &[u8]) -> Result<(Self, usize), PageHeaderError> {
        // Looked at first: another version may be shorter.
        if page.get(..AT_VERSION) != Some(&PAGE_MAGIC) {
            return Err(PageHeaderError::Magic);
        }
        match page.get(AT_VERSION) {
            Some(&PAGE_VERSION) => {}
            Some(&found) => return Err(PageHeaderError::Version { found }),
            None => return Err(PageHeaderError::Short { len: page.len() }),
        }
        if page.len() < PAGE_HEADER_BYTES {
            return Err(PageHeaderError::Short { len: page.len() });
        }
        let count = usize::from(page[AT_EPOCHS]);
        if count > PAGE_EPOCHS_MAX {
            return Err(PageHeaderError::Epochs { count });
        }
        let len = PAGE_HEADER_BYTES + count * EPOCH_BYTES;
        if page.len() < len {
            return Err(PageHeaderError::Short { len: page.len() });
        }
        let (stored, computed) = (u32::from_be_bytes(get(page, AT_CRC)), page_crc(page, len));
        if stored != computed {
            return Err(PageHeaderError::Crc { stored, computed });
        }
        let id = |at| u64::from_be_bytes(get(page, at));
        let epoch = |at: usize| PastEpoch { number: id(at), nonce: id(at + 8), kept: id(at + 16) };
        let digest = (id(AT_DIGEST_ID), u128::from_be_bytes(get(page, AT_DIGEST)));
        let header = Self {
            flags: PageFlags::from_byte(page[AT_FLAGS])?,
            source: SourceState::from_byte(page[AT_SOURCE])?,
            journal: get(page, AT_JOURNAL),
            worker: WorkerId(id(AT_WORKER)),
            rank: DpRank(u32::from_be_bytes(get(page, AT_RANK))),
            generation: u32::from_be_bytes(get(page, AT_GENERATION)),
            epoch: id(AT_EPOCH),
            nonce: id(AT_NONCE),
            horizon: id(AT_HORIZON),
            durable: id(AT_DURABLE),
            next: id(AT_NEXT),
            digest: (digest.0 > 0).then_some(digest),
            epochs: (PAGE_HEADER_BYTES..len).step_by(EPOCH_BYTES).map(epoch).collect(),
        };
        if header.next == 0 {
            return Err(PageHeaderError::Next);
        }
        Ok((header, u32::from_be_bytes(get(page, AT_FRAMES_LEN)) as usize))
    }
}

impl PageFlags {
    fn to_byte(self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.reset, FLAG_RESET)
            | bit(self.done, FLAG_DONE)
            | bit(self.heartbeat, FLAG_HEARTBEAT)
            | bit(self.not_durable, FLAG_NOT_DURABLE)
    }

    fn from_byte(byte: u8) -> Result<Self, PageHeaderError> {
        if byte & !FLAGS_KNOWN != 0 {
            return Err(PageHeaderError::Flags { found: byte });
        }
        let has = |bit: u8| byte & bit != 0;
        Ok(Self {
            reset: has(FLAG_RESET),
            done: has(FLAG_DONE),
            heartbeat: has(FLAG_HEARTBEAT),
            not_durable: has(FLAG_NOT_DURABLE),
        })
    }
}

impl SourceState {
    fn from_byte(byte: u8) -> Result<Self, PageHeaderError> {
        match byte {
            0 => Ok(Self::Unknown),
            1 => Ok(Self::Alive),
            2 => Ok(Self::Silent),
            found => Err(PageHeaderError::Source { found }),
        }
    }
}

/// The crc of a head of `len` bytes: over all of it but the crc itself. Each frame has one of its own.
fn page_crc(page: &[u8], len: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..AT_CRC]), &page[PAGE_HEADER_BYTES..len])
}

/// Why bytes are no head of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageHeaderError {
    /// Other first bytes.
    #[error("no page starts here")]
    Magic,
    /// A version that is not known.
    #[error("page version {found}, this release reads {PAGE_VERSION}")]
    Version {
        /// The version.
        found: u8,
    },
    /// Too few bytes for the head and its epochs.
    #[error("a page of {len} bytes ends in its head")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// More epochs than a page names.
    #[error("a page that names {count} epochs, the most is {PAGE_EPOCHS_MAX}")]
    Epochs {
        /// How many.
        count: usize,
    },
    /// The bytes were changed.
    #[error("page crc mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// The crc in the page.
        stored: u32,
        /// The crc of its bytes.
        computed: u32,
    },
    /// Flags that are not known.
    #[error("unknown page flags {found:#04x}")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// A source state that is not known.
    #[error("unknown source state {found}")]
    Source {
        /// The state.
        found: u8,
    },
    /// The id to ask for next is 0.
    #[error("a page after which id 0 comes next")]
    Next,
}
