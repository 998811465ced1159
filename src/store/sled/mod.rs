//! The one place that knows sled 0.34.7, and what is measured to be wrong with it.
//!
//! | what sled does | what is done here |
//! | --- | --- |
//! | flushes with `sync_file_range`, which is no barrier for the disk's cache | after each flush we sync a handle of `db` that was opened before the first write |
//! | panics over damaged bytes | each call is wrapped; a panic becomes [`StoreError::Corrupt`] |
//! | syncs its snapshot, but neither the log that it speaks of, nor its name, nor its settings | the log is synced before it opens, the folder and all files in it after |
//! | takes a torn snapshot that it was still writing for its newest | `*.generating` is removed before it opens |
//! | overwrites what it cannot read when it opens | `evidence` copies it beforehand, by what `log_scan` foresees |
//! | moves large leaves into blob files that it never syncs | rows are bounded, and `blobs/` is checked to be empty |
//! | writes each row over four times when it splits leaves of large rows | `fence` keeps its leaves from splitting |

mod cache;
mod evidence;
mod fence;
mod log_scan;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Folder, ROW_BYTES_MAX, Row, Store, StoreError, Tree};
use cache::CacheTrim;
pub(crate) use evidence::{drop_evidence, keep_evidence, raw_files};
use fence::{Fence, is_fence};

/// A quarter of it, past which sled moves a leaf out of its log, holds sixteen of the longest rows.
const SEGMENT_BYTES: usize = 8 * 1024 * 1024;

/// Pages that sled keeps in memory. Recent frames are served from the tail, so this only helps long replays.
const CACHE_BYTES: u64 = 24 * 1024 * 1024;

const UNLOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const UNLOCK_RETRY: Duration = Duration::from_millis(5);

/// sled on one folder.
pub(crate) struct SledStore {
    dir: PathBuf,
    /// Held for as long as the database, and opened before its first write: the kernel reports a failed
    /// write-back once to each handle that was open when it failed.
    sync_handle: File,
    trees: Mutex<HashMap<Tree, Used>>,
    /// Dropped in [`Drop`], where a panic of it is caught, and after its trees.
    db: Option<::sled::Db>,
    /// Let go after the database: no other process may come before that.
    _folder: Option<Folder>,
}

/// A tree that was used.
enum Used {
    Open(Open),
    /// Opening it would make it anew.
    Dropped,
}

/// An open tree.
struct Open {
    sled: ::sled::Tree,
    fence: Fence,
    cache: CacheTrim,
}

impl SledStore {
    /// Opens the database in `dir`, which exists, making it if it is not there.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let sync_handle = options.open(dir.join("db"))?;
        // Opening, sled notes in a snapshot, synced, how far its log is good. What it sees of the log may be in the
        // kernel's cache only: a snapshot that is ahead of the log could never be opened again.
        sync_handle.sync_all()?;
        remove_unfinished_snapshots(dir)?;
        let config = ::sled::Config::new()
            .path(dir)
            .flush_every_ms(None)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .mode(::sled::Mode::HighThroughput);
        let db = open_unlocked(&config)?;
        sync_files(dir)?;
        let store =
            Self { dir: dir.to_owned(), sync_handle, trees: Mutex::default(), db: Some(db), _folder: None };
        store.check_blobs()?;
        Ok(store)
    }

    /// Keeps the folder for as long as the store is in use, by a reader too.
    pub(crate) fn holding(self, folder: Folder) -> Self {
        let mut store = self;
        store._folder = Some(folder);
        store
    }

    fn db(&self) -> &::sled::Db {
        self.db.as_ref().expect("it is only taken when the store is dropped")
    }

    /// Rows are bounded so that sled keeps them in its log; a blob would not be synced.
    fn check_blobs(&self) -> Result<(), StoreError> {
        let blobs = match fs::read_dir(self.dir.join("blobs")) {
            Ok(mut entries) => entries.next().is_some(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e.into()),
        };
        if blobs { Err(StoreError::Misuse("sled moved a row into a blob file".into())) } else { Ok(()) }
    }

    /// `None` if it was dropped.
    fn find_tree(&self, tree: Tree) -> Result<Option<::sled::Tree>, StoreError> {
        if matches!(self.lock_trees().get(&tree), Some(Used::Dropped)) {
            return Ok(None);
        }
        self.tree(tree).map(Some)
    }

    fn tree(&self, tree: Tree) -> Result<::sled::Tree, StoreError> {
        self.with_tree(tree, |open| Ok(open.sled.clone()))
    }

    fn lock_trees(&self) -> MutexGuard<'_, HashMap<Tree, Used>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_tree<T>(
        &self,
        tree: Tree,
        work: impl FnOnce(&mut Open) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut trees = self.lock_trees();
        let used = match trees.entry(tree) {
            Entry::Occupied(used) => used.into_mut(),
            Entry::Vacant(vacant) => {
                let sled = caught(|| self.db().open_tree(tree.to_string()))?;
                vacant.insert(Used::Open(Open { sled, fence: Fence::default(), cache: CacheTrim::default() }))
            }
        };
        match used {
            Used::Open(open) => work(open),
            Used::Dropped => Err(StoreError::Misuse(format!("{tree} was dropped"))),
        }
    }
}

impl Store for SledStore {
    fn append(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        check_row(value)?;
        self.with_tree(tree, |open| {
            for key in open.fence.before(key, value.len()) {
                caught(|| open.sled.insert(key, &[] as &[u8]))?;
            }
            caught(|| open.sled.insert(key, value))?;
            open.cache.passed(&open.sled, key, value.len())
        })
    }

    fn put(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        check_row(value)?;
        let tree = self.tree(tree)?;
        caught(|| tree.insert(key, value)).map(drop)
    }

    fn remove(&self, tree: Tree, key: &[u8]) -> Result<(), StoreError> {
        let tree = self.tree(tree)?;
        caught(|| tree.remove(key)).map(drop)
    }

    fn remove_below(&self, tree: Tree, key: &[u8], rows_max: usize) -> Result<usize, StoreError> {
        let tree = self.tree(tree)?;
        let keys = caught(|| tree.range(..key).keys().take(rows_max).collect::<Result<Vec<_>, _>>())?;
        // Rows first, then the fences among them: a leaf that still has its fences is neither merged nor
        // rewritten while its large rows go.
        let (fences, rows): (Vec<_>, Vec<_>) = keys.iter().partition(|key| is_fence(key));
        for key in rows.into_iter().chain(fences) {
            caught(|| tree.remove(key))?;
        }
        Ok(keys.len())
    }

    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let Some(tree) = self.find_tree(tree)? else { return Ok(None) };
        Ok(caught(|| tree.get(key))?.map(value))
    }

    fn at_or_below(&self, tree: Tree, key: &[u8]) -> Result<Option<Row>, StoreError> {
        let Some(tree) = self.find_tree(tree)? else { return Ok(None) };
        rows(tree.range(..=key).rev()).next().transpose()
    }

    fn last(&self, tree: Tree) -> Result<Option<Row>, StoreError> {
        let Some(tree) = self.find_tree(tree)? else { return Ok(None) };
        rows(tree.iter().rev()).next().transpose()
    }

    fn scan(&self, tree: Tree, key: &[u8]) -> Box<dyn Iterator<Item = Result<Row, StoreError>> + Send + '_> {
        match self.find_tree(tree) {
            Ok(None) => Box::new(std::iter::empty()),
            Ok(Some(tree)) => {
                let mut cache = CacheTrim::default();
                Box::new(rows(tree.range(key.to_vec()..)).map(move |row| {
                    let (key, value) = row?;
                    cache.passed(&tree, &key, value.len())?;
                    Ok((key, value))
                }))
            }
            Err(e) => Box::new(std::iter::once(Err(e))),
        }
    }

    fn drop_tree(&self, tree: Tree) -> Result<(), StoreError> {
        self.lock_trees().insert(tree, Used::Dropped);
        caught(|| self.db().drop_tree(tree.to_string())).map(drop)
    }

    fn trees(&self) -> Result<Vec<Tree>, StoreError> {
        Ok(self.db().tree_names().iter().filter_map(|name| parse_tree(name)).collect())
    }

    fn flush(&self) -> Result<(), StoreError> {
        caught(|| self.db().flush()).map(drop)
    }

    fn sync_flushed(&self) -> Result<(), StoreError> {
        self.sync_handle.sync_data()?;
        Ok(())
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        caught(|| self.db().size_on_disk())
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        let db = self.db.take();
        // sled flushes when it is dropped and may panic over a disk that refuses; the journal synced what it
        // promised before.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
            self.trees.lock().unwrap_or_else(PoisonError::into_inner).clear();
            drop(db);
        })) {
            tracing::warn!(reason = %describe(&*panic), "store panicked while it was closed");
        }
    }
}

/// sled's threads may keep its lock for a moment after a database was dropped. The folder is ours, so nobody else
/// has it.
fn open_unlocked(config: &::sled::Config) -> Result<::sled::Db, StoreError> {
    let deadline = Instant::now() + UNLOCK_WAIT_MAX;
    loop {
        match caught(|| config.open()) {
            Err(StoreError::Io(e)) if e.to_string().contains("lock") && Instant::now() < deadline => {
                std::thread::sleep(UNLOCK_RETRY);
            }
            // Its settings file says otherwise than ours, which never change.
            Err(StoreError::Misuse(what)) => return Err(StoreError::Corrupt(what)),
            opened => return opened,
        }
    }
}

/// Removes snapshots that sled was still writing. It would take a torn one for the newest, and not open.
fn remove_unfinished_snapshots(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Syncs all files of a database that was just opened, and their names: its settings, which sled never syncs, and
/// its snapshot, whose name must last before a segment is used again that only the old one needs.
fn sync_files(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

fn check_row(value: &[u8]) -> Result<(), StoreError> {
    if value.len() > ROW_BYTES_MAX {
        return Err(StoreError::Misuse(format!(
            "a row of {} bytes, the longest has {ROW_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}

/// Rows without the fences between them; stops after an error.
fn rows<I>(mut iter: I) -> impl Iterator<Item = Result<Row, StoreError>> + Send
where
    I: Iterator<Item = ::sled::Result<(::sled::IVec, ::sled::IVec)>> + Send,
{
    let mut failed = false;
    std::iter::from_fn(move || {
        loop {
            if failed {
                return None;
            }
            match caught(|| iter.next().transpose()) {
                Ok(None) => return None,
                Ok(Some((key, _))) if is_fence(&key) => {}
                Ok(Some((key, row))) => return Some(Ok((key.to_vec(), value(row)))),
                Err(e) => {
                    failed = true;
                    return Some(Err(e));
                }
            }
        }
    })
}

/// The value without a copy.
fn value(row: ::sled::IVec) -> Bytes {
    Bytes::from_owner(row)
}

fn parse_tree(name: &[u8]) -> Option<Tree> {
    let name = std::str::from_utf8(name).ok()?;
    let mut parts = name.split('/');
    let tree = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        ("meta", None, None, None) => Tree::Meta,
        ("events", Some(rank), Some(generation), None) => {
            Tree::Events { rank: rank.parse().ok()?, generation: generation.parse().ok()? }
        }
        ("payloads", Some(rank), Some(generation), None) => {
            Tree::Payloads { rank: rank.parse().ok()?, generation: generation.parse().ok()? }
        }
        _ => return None,
    };
    Some(tree)
}

/// Calls sled. A panic in it is an error like any other: it must not take the worker down.
fn caught<T>(call: impl FnOnce() -> ::sled::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(::sled::Error::Io(e))) => Err(StoreError::Io(e)),
        Ok(Err(::sled::Error::Unsupported(what))) => Err(StoreError::Misuse(what)),
        Ok(Err(other)) => Err(StoreError::Corrupt(other.to_string())),
        Err(panic) => Err(StoreError::Corrupt(format!("sled panicked: {}", describe(&*panic)))),
    }
}

fn describe(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
