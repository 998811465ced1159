//! The witness: a small file beside the store that remembers how far each rank was durable.
//!
//! sled opens a damaged database as a shorter one and says nothing. The witness is what it is held against: an
//! open that ends below it is damage, not a crash. It has two slots that are written in turn, each synced, so that
//! a write that is cut leaves the other one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bincode::{Decode, Encode};

use crate::event::EventId;

/// Name of the file in the journal's folder.
pub(crate) const WITNESS_FILE: &str = "WITNESS";

const MAGIC: [u8; 4] = *b"KVJW";
const VERSION: u32 = 1;
/// Two pages of the usual size: a slot is torn by a power cut without touching the other.
const SLOT_BYTES: usize = 8 * 1024;
const SLOTS: u64 = 2;
const HEAD_BYTES: usize = 4 + 4 + 8 + 4 + 4;

/// Ranks that fit a slot with room to spare: each takes 28 bytes.
pub(crate) const RANKS_MAX: usize = 256;

/// What the witness remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WitnessState {
    pub(crate) journal: [u8; 16],
    /// Number of the newest opening for writing; 0 while the journal is being made.
    pub(crate) epoch: u64,
    /// The journal was closed in order, and the durable heads are its heads.
    pub(crate) clean: bool,
    /// A sync failed: the kernel may have dropped pages that it still shows. The store must be written anew.
    pub(crate) suspect: bool,
    pub(crate) ranks: Vec<WitnessRank>,
}

/// How far one rank was durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WitnessRank {
    pub(crate) rank: u32,
    pub(crate) durable_head: EventId,
    /// First id that the newest opening could give to this rank.
    pub(crate) epoch_first: EventId,
    /// Revision of the rank's row that is known to be on stable storage: an older one, which a damaged store may show,
    /// has another horizon and another source cursor.
    pub(crate) revision: u64,
}

impl WitnessState {
    pub(crate) fn durable_head(&self, rank: u32) -> EventId {
        self.ranks.iter().find(|r| r.rank == rank).map_or(0, |r| r.durable_head)
    }
}

/// The witness file, open for writing.
#[derive(Debug)]
pub(crate) struct Witness {
    file: File,
    sequence: u64,
}

/// Why there is no witness.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WitnessError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("neither slot of the witness can be read: {0}")]
    Damaged(String),
}

impl Witness {
    /// Makes the file in `dir` and syncs it. The caller syncs the folder.
    pub(crate) fn create(dir: &Path, state: &WitnessState) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(dir.join(WITNESS_FILE))?;
        file.set_len(SLOTS * SLOT_BYTES as u64)?;
        let mut witness = Self { file, sequence: 0 };
        // Both slots, so that neither is ever unreadable in a sound file.
        witness.write(state)?;
        witness.write(state)?;
        Ok(witness)
    }

    /// Opens the file for writing and reads its newest slot; `None` if there is no file.
    pub(crate) fn open(dir: &Path) -> Result<Option<(Self, WitnessState)>, WitnessError> {
        Self::open_with(dir, OpenOptions::new().read(true).write(true))
    }

    /// Reads the newest slot; `None` if there is no file.
    pub(crate) fn read(dir: &Path) -> Result<Option<WitnessState>, WitnessError> {
        Ok(Self::open_with(dir, OpenOptions::new().read(true))?.map(|(_, state)| state))
    }

    fn open_with(dir: &Path, options: &OpenOptions) -> Result<Option<(Self, WitnessState)>, WitnessError> {
        let file = match options.open(dir.join(WITNESS_FILE)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut newest: Option<(u64, WitnessState)> = None;
        let mut faults = Vec::new();
        for slot in 0..SLOTS {
            match read_slot(&file, slot)? {
                Ok((sequence, state)) if newest.as_ref().is_none_or(|(n, _)| sequence > *n) => {
                    newest = Some((sequence, state));
                }
                Ok(_) => {}
                Err(fault) => faults.push(format!("slot {slot}: {fault}")),
            }
        }
        let (sequence, state) = newest.ok_or_else(|| WitnessError::Damaged(faults.join("; ")))?;
        Ok(Some((Self { file, sequence }, state)))
    }

    /// Replaces the older slot and syncs it.
    pub(crate) fn write(&mut self, state: &WitnessState) -> io::Result<()> {
        let sequence = self.sequence + 1;
        let body = bincode::encode_to_vec(state, config()).map_err(io::Error::other)?;
        let mut slot = Vec::with_capacity(SLOT_BYTES);
        slot.extend_from_slice(&MAGIC);
        slot.extend_from_slice(&VERSION.to_be_bytes());
        slot.extend_from_slice(&sequence.to_be_bytes());
        slot.extend_from_slice(&(body.len() as u32).to_be_bytes());
        slot.extend_from_slice(&crc32c::crc32c_append(crc32c::crc32c(&slot), &body).to_be_bytes());
        slot.extend_from_slice(&body);
        if slot.len() > SLOT_BYTES {
            return Err(io::Error::other(format!("a witness of {} ranks", state.ranks.len())));
        }
        slot.resize(SLOT_BYTES, 0);
        self.file.write_all_at(&slot, (sequence % SLOTS) * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        self.sequence = sequence;
        Ok(())
    }
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_big_endian().with_fixed_int_encoding().with_limit::<{ 4 * SLOT_BYTES }>()
}

fn read_slot(file: &File, slot: u64) -> io::Result<Result<(u64, WitnessState), String>> {
    let mut bytes = vec![0; SLOT_BYTES];
    match file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64) {
        Ok(()) => Ok(parse_slot(&bytes)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Err("it is cut".into())),
        Err(e) => Err(e),
    }
}

fn parse_slot(bytes: &[u8]) -> Result<(u64, WitnessState), String> {
    let field =
        |at: usize, len: usize| bytes[at..at + len].iter().fold(0, |n: u64, b| n << 8 | u64::from(*b));
    if bytes[..4] != MAGIC {
        return Err("no magic number".into());
    }
    if field(4, 4) != u64::from(VERSION) {
        return Err(format!("version {}", field(4, 4)));
    }
    let len = field(16, 4) as usize;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES + len.min(SLOT_BYTES)).ok_or("its length is wrong")?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..20]), body);
    if field(20, 4) != u64::from(computed) {
        return Err(format!("crc mismatch: stored {:#010x}, computed {computed:#010x}", field(20, 4)));
    }
    let (state, _) = bincode::decode_from_slice(body, config()).map_err(|e| e.to_string())?;
    Ok((field(8, 8), state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(head: EventId) -> WitnessState {
        let ranks = vec![WitnessRank { rank: 3, durable_head: head, epoch_first: 1, revision: 4 }];
        WitnessState { journal: [7; 16], epoch: 2, clean: false, suspect: false, ranks }
    }

    #[test]
    fn the_newest_slot_counts_and_a_torn_one_leaves_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut witness = Witness::create(dir.path(), &state(0)).unwrap();
        for head in 1..=5 {
            witness.write(&state(head)).unwrap();
        }
        assert_eq!(Witness::read(dir.path()).unwrap().unwrap().durable_head(3), 5);
        let newest = (witness.sequence % SLOTS) * SLOT_BYTES as u64;
        witness.file.write_all_at(&[0xff; 40], newest + 10).unwrap();
        let (mut witness, found) = Witness::open(dir.path()).unwrap().unwrap();
        assert_eq!(found.durable_head(3), 4);
        witness.write(&state(6)).unwrap();
        assert_eq!(Witness::read(dir.path()).unwrap().unwrap().durable_head(3), 6);
    }

    #[test]
    fn two_bad_slots_are_damage_and_no_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Witness::open(dir.path()).unwrap().is_none());
        let witness = Witness::create(dir.path(), &state(1)).unwrap();
        witness.file.set_len(100).unwrap();
        assert!(matches!(Witness::read(dir.path()), Err(WitnessError::Damaged(_))));
    }

    #[test]
    fn each_flipped_bit_of_a_slot_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let witness = Witness::create(dir.path(), &state(9)).unwrap();
        let mut slot = vec![0; SLOT_BYTES];
        witness.file.read_exact_at(&mut slot, 0).unwrap();
        let used = HEAD_BYTES + bincode::encode_to_vec(state(9), config()).unwrap().len();
        for bit in 0..used * 8 {
            slot[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_slot(&slot).is_err(), "bit {bit}");
            slot[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(parse_slot(&slot).unwrap().1, state(9));
    }

    #[test]
    fn the_most_ranks_fit() {
        let dir = tempfile::tempdir().unwrap();
        let mut full = state(1);
        full.ranks =
            (0..RANKS_MAX as u32).map(|rank| WitnessRank { rank, ..WitnessRank::default() }).collect();
        Witness::create(dir.path(), &full).unwrap();
        assert_eq!(Witness::read(dir.path()).unwrap().unwrap(), full);
    }
}
