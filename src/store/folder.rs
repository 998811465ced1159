//! The journal's folder: who holds it, which generation of the store is the current one, and in which order files
//! are made so that a crash at any point leaves either the old journal or the new one.
//!
//! ```text
//! LOCK       held by the one process that uses the folder; its inode never changes
//! WITNESS    how far each rank was durable
//! CURRENT    format and generation; replaced as a whole
//! gen-N/     the store
//! ```
//!
//! The folder itself is never renamed, since it may be a mount point. WITNESS is made and synced before the first
//! generation, CURRENT after it: a store without a witness, or an identity without a store, is damage, never a
//! fresh start.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

use super::witness::{WITNESS_FILE, Witness, WitnessError, WitnessState};

const LOCK_FILE: &str = "LOCK";
const CURRENT_FILE: &str = "CURRENT";
const CURRENT_TEMP: &str = "CURRENT.new";
const GENERATION_PREFIX: &str = "gen-";
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// Longest CURRENT that is read.
const CURRENT_BYTES_MAX: u64 = 4096;

/// A folder that this process holds.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    /// Dropping it lets go of the folder.
    _lock: File,
}

/// The folder of one generation of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GenerationDir {
    pub(crate) number: u32,
    pub(crate) path: PathBuf,
}

/// What CURRENT says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) format: u32,
    pub(crate) generation: u32,
    /// Older generations that stay: what `repair` could not read is still there.
    pub(crate) keep: Vec<u32>,
}

/// What is in a folder.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing yet, or a journal whose making was cut off before it was ready to use.
    Fresh,
    /// A journal.
    Journal { current: Current, witness: WitnessState },
}

impl Folder {
    /// Takes the folder, retrying for up to `wait`.
    ///
    /// # Errors
    /// `InUse` if another process keeps it, `NotFound` without `create` if there is none.
    pub(crate) fn hold(dir: &Path, create: bool, wait: Duration) -> Result<Self> {
        if create {
            make_private_dir(dir).map_err(Error::io(format!("make the folder {}", dir.display())))?;
        } else if !dir.is_dir() {
            return Err(Error::NotFound { dir: dir.to_owned() });
        }
        let path = dir.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(0o600);
        let mut lock = match options.open(&path) {
            Ok(file) => file,
            Err(e) if !create && e.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NotFound { dir: dir.to_owned() });
            }
            // A read-only folder can still be read.
            Err(_) if !create => File::open(&path).map_err(Error::io(format!("open {}", path.display())))?,
            Err(e) => return Err(Error::io(format!("open {}", path.display()))(e)),
        };
        let deadline = Instant::now() + wait;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _unreadable_is_fine = (&mut lock).take(16).read_to_string(&mut holder);
                    return Err(Error::InUse { dir: dir.to_owned(), holder: holder.trim().parse().ok() });
                }
                Err(TryLockError::Error(e)) => return Err(Error::io(format!("lock {}", path.display()))(e)),
            }
        }
        // For people only: the lock is the file's, not the number's.
        let _pid_is_a_courtesy = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Says what is in the folder.
    ///
    /// # Errors
    /// `Damaged` if parts of a journal are missing or unreadable.
    pub(crate) fn find(&self) -> Result<Found> {
        let current = self.read_current()?;
        let generations = self.generations()?;
        let witness = match Witness::read(&self.dir) {
            // Cut off while it was first written, before there was anything else.
            Err(WitnessError::Damaged(_)) if current.is_none() && generations.is_empty() => None,
            read => read.map_err(|e| self.witness_error(e))?,
        };
        match (current, witness) {
            (Some(current), Some(witness)) => {
                if !generations.contains(&current.generation) {
                    return Err(Error::damaged(format!(
                        "{} names generation {}, which is not there",
                        CURRENT_FILE, current.generation
                    )));
                }
                Ok(Found::Journal { current, witness })
            }
            (Some(_), None) => Err(Error::damaged(format!("{WITNESS_FILE} is missing"))),
            // Epoch 0: it was never opened for writing, so nothing was ever in it.
            (None, Some(witness)) if witness.epoch == 0 => Ok(Found::Fresh),
            (None, Some(_)) => Err(Error::damaged(format!("{CURRENT_FILE} is missing"))),
            (None, None) if generations.is_empty() => Ok(Found::Fresh),
            (None, None) => Err(Error::damaged(format!("{CURRENT_FILE} and {WITNESS_FILE} are missing"))),
        }
    }

    /// The folder of a generation.
    pub(crate) fn generation(&self, number: u32) -> GenerationDir {
        GenerationDir { number, path: self.dir.join(format!("{GENERATION_PREFIX}{number}")) }
    }

    /// An empty folder for a new generation, beyond all there are.
    pub(crate) fn new_generation(&self) -> Result<GenerationDir> {
        let number = self.generations()?.into_iter().max().unwrap_or(0) + 1;
        let generation = self.generation(number);
        make_private_dir(&generation.path)
            .map_err(Error::io(format!("make the folder {}", generation.path.display())))?;
        Ok(generation)
    }

    /// Makes the names of a generation's files durable, then the folder's own. Its data was synced by the store.
    pub(crate) fn sync_names(&self, generation: &GenerationDir) -> Result<()> {
        let blobs = generation.path.join("blobs");
        for dir in [blobs.as_path(), &generation.path, &self.dir] {
            if dir.is_dir() {
                sync_dir(dir).map_err(Error::io(format!("sync the folder {}", dir.display())))?;
            }
        }
        Ok(())
    }

    /// Makes `current` the journal, in one step. What it names was synced before.
    pub(crate) fn set_current(&self, current: &Current) -> Result<()> {
        let (temp, path) = (self.dir.join(CURRENT_TEMP), self.dir.join(CURRENT_FILE));
        let replace = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
            file.write_all(current.to_text().as_bytes())?;
            file.sync_all()?;
            fs::rename(&temp, &path)?;
            sync_dir(&self.dir)
        };
        replace().map_err(Error::io(format!("replace {}", path.display())))
    }

    /// Removes what a cut-off creation, migration or repair left behind.
    pub(crate) fn sweep(&self, current: Option<&Current>) -> Result<()> {
        for number in self.generations()? {
            if current.is_some_and(|c| c.generation == number || c.keep.contains(&number)) {
                continue;
            }
            let path = self.generation(number).path;
            tracing::info!(path = %path.display(), "removing an unfinished or superseded generation");
            fs::remove_dir_all(&path).map_err(Error::io(format!("remove {}", path.display())))?;
        }
        match fs::remove_file(self.dir.join(CURRENT_TEMP)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove an unfinished CURRENT")(e))
            }
            _ => Ok(()),
        }
    }

    /// Numbers of the generations that have a folder.
    pub(crate) fn generations(&self) -> Result<Vec<u32>> {
        let list = || -> io::Result<Vec<u32>> {
            let mut numbers = Vec::new();
            for entry in fs::read_dir(&self.dir)? {
                let name = entry?.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix(GENERATION_PREFIX));
                numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
            }
            numbers.sort_unstable();
            Ok(numbers)
        };
        list().map_err(Error::io(format!("read the folder {}", self.dir.display())))
    }

    /// What CURRENT says; `None` if there is none.
    pub(crate) fn read_current(&self) -> Result<Option<Current>> {
        let path = self.dir.join(CURRENT_FILE);
        let mut text = Vec::new();
        match File::open(&path).and_then(|file| file.take(CURRENT_BYTES_MAX).read_to_end(&mut text)) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(format!("read {}", path.display()))(e)),
        }
        let current = std::str::from_utf8(&text).ok().and_then(Current::from_text);
        current.map(Some).ok_or_else(|| Error::damaged(format!("{CURRENT_FILE} is not as it was written")))
    }

    pub(crate) fn open_witness(&self) -> Result<Option<(Witness, WitnessState)>> {
        Witness::open(&self.dir).map_err(|e| self.witness_error(e))
    }

    pub(crate) fn create_witness(&self, state: &WitnessState) -> Result<Witness> {
        let what = || format!("write {}", self.dir.join(WITNESS_FILE).display());
        let witness = Witness::create(&self.dir, state).map_err(Error::io(what()))?;
        sync_dir(&self.dir).map_err(Error::io(what()))?;
        Ok(witness)
    }

    fn witness_error(&self, error: WitnessError) -> Error {
        match error {
            WitnessError::Io(e) => Error::io(format!("read {}", self.dir.join(WITNESS_FILE).display()))(e),
            WitnessError::Damaged(what) => Error::damaged(what),
        }
    }
}

impl Current {
    /// `kvjournal format=1 generation=2 keep=1 crc=1a2b3c4d`
    fn to_text(&self) -> String {
        let keep: Vec<_> = self.keep.iter().map(u32::to_string).collect();
        let text = format!(
            "kvjournal format={} generation={} keep={}",
            self.format,
            self.generation,
            keep.join(",")
        );
        let crc = crc32c::crc32c(text.as_bytes());
        format!("{text} crc={crc:08x}\n")
    }

    fn from_text(text: &str) -> Option<Self> {
        let (body, crc) = text.strip_suffix('\n')?.rsplit_once(" crc=")?;
        if crc != format!("{:08x}", crc32c::crc32c(body.as_bytes())) {
            return None;
        }
        let mut words = body.strip_prefix("kvjournal ")?.split(' ');
        let format = words.next()?.strip_prefix("format=")?.parse().ok()?;
        let generation = words.next()?.strip_prefix("generation=")?.parse().ok()?;
        let keep = words.next()?.strip_prefix("keep=")?;
        let keep =
            keep.split(',').filter(|n| !n.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { format, generation, keep })
    }
}

/// Makes a folder that only its owner may enter, with its parents, and makes each name durable.
fn make_private_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_private_dir(parent)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    sync_dir(parent)
}

/// Makes the names in a folder durable.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(dir: &Path) -> Folder {
        Folder::hold(dir, true, Duration::ZERO).unwrap()
    }

    #[test]
    fn a_second_holder_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = held(dir.path());
        let error = Folder::hold(dir.path(), true, Duration::from_millis(50)).unwrap_err();
        assert!(
            matches!(error, Error::InUse { holder: Some(pid), .. } if pid == std::process::id()),
            "{error}"
        );
        drop(first);
        held(dir.path());
    }

    #[test]
    fn a_new_folder_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        held(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn current_is_read_back_and_each_flipped_bit_is_seen() {
        let current = Current { format: 1, generation: 12, keep: vec![3, 4] };
        let text = current.to_text();
        assert_eq!(Current::from_text(&text), Some(current));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(String::from_utf8(bytes).ok().and_then(|t| Current::from_text(&t)), None, "bit {bit}");
        }
    }

    #[test]
    fn parts_of_a_journal_are_damage_and_never_a_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let folder = held(dir.path());
        assert!(matches!(folder.find(), Ok(Found::Fresh)));
        fs::write(dir.path().join(WITNESS_FILE), b"").unwrap();
        assert!(matches!(folder.find(), Ok(Found::Fresh)), "its making was cut off at the start");
        let mut state = WitnessState::default();
        folder.create_witness(&state).unwrap();
        folder.new_generation().unwrap();
        assert!(matches!(folder.find(), Ok(Found::Fresh)), "its making was cut off");
        state.epoch = 1;
        folder.create_witness(&state).unwrap();
        assert!(matches!(folder.find(), Err(Error::Damaged(_))), "CURRENT was lost");
        folder.set_current(&Current { format: 1, generation: 1, keep: vec![] }).unwrap();
        assert!(matches!(folder.find(), Ok(Found::Journal { .. })));
        fs::remove_file(dir.path().join(WITNESS_FILE)).unwrap();
        assert!(matches!(folder.find(), Err(Error::Damaged(_))), "WITNESS was lost");
        fs::remove_file(dir.path().join(CURRENT_FILE)).unwrap();
        assert!(matches!(folder.find(), Err(Error::Damaged(_))), "both were lost");
        folder.create_witness(&state).unwrap();
        folder.set_current(&Current { format: 1, generation: 1, keep: vec![] }).unwrap();
        fs::remove_dir(dir.path().join("gen-1")).unwrap();
        assert!(matches!(folder.find(), Err(Error::Damaged(_))), "the store was lost");
    }

    #[test]
    fn sweeping_leaves_the_current_generation_and_what_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = held(dir.path());
        for _ in 0..4 {
            folder.new_generation().unwrap();
        }
        folder.sweep(Some(&Current { format: 1, generation: 3, keep: vec![1] })).unwrap();
        assert_eq!(folder.generations().unwrap(), [1, 3]);
    }
}
