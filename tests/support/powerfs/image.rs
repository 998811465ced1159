//! What is on the disk and what only seems to be: the pure model, without FUSE.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use crate::support::random::Random;

pub const ROOT: u64 = 1;
pub const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// What a cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing.
    LoseAll,
    /// A random subset of pages, torn at sector size, and a random prefix of each folder's changes.
    Random,
}

/// Why an operation fails; the serving side has the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoEntry,
    Exists,
    NotEmpty,
    Input,
    NotDir,
}

type Page = Arc<[u8; PAGE]>;

#[derive(Clone, Debug, Default)]
struct Content {
    pages: BTreeMap<u64, Page>,
    size: u64,
}

#[derive(Clone, Debug, Default)]
pub struct File {
    now: Content,
    durable: Content,
    /// Pages that the next sync writes.
    dirty: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Add(OsString, u64),
    Remove(OsString),
    Rename(OsString, OsString, u64),
}

#[derive(Clone, Debug, Default)]
pub struct Dir {
    now: BTreeMap<OsString, u64>,
    durable: BTreeMap<OsString, u64>,
    /// Changes that the next sync of the folder makes durable.
    unsynced: Vec<NameChange>,
}

#[derive(Clone, Debug)]
pub enum Body {
    File(File),
    Dir(Dir),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub mode: u16,
    pub body: Body,
}

/// The whole file system.
pub struct Image {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    boot: u64,
    operations: u64,
    cut_at: Option<u64>,
    cut: bool,
    pub fail_fsync: Option<String>,
    pub ignore_fdatasync: bool,
}

impl Default for Image {
    fn default() -> Self {
        let root = Node { mode: 0o700, body: Body::Dir(Dir::default()) };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            boot: 1,
            operations: 0,
            cut_at: None,
            cut: false,
            fail_fsync: None,
            ignore_fdatasync: false,
        }
    }
}

type Answer<T> = Result<T, Fault>;

impl Image {
    pub fn boot(&self) -> u64 {
        self.boot
    }

    pub fn operations(&self) -> u64 {
        self.operations
    }

    pub fn is_cut(&self) -> bool {
        self.cut
    }

    pub fn cut_at(&mut self, operations: u64) {
        self.cut_at = Some(self.operations + operations);
    }

    /// Counts a change or a sync; fails once the power is cut.
    pub fn step(&mut self) -> Answer<()> {
        self.alive()?;
        self.operations += 1;
        if self.cut_at.is_some_and(|at| self.operations >= at) {
            self.cut = true;
        }
        self.alive()
    }

    pub fn alive(&self) -> Answer<()> {
        if self.cut { Err(Fault::Input) } else { Ok(()) }
    }

    pub fn node(&self, ino: u64) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(Fault::Input)
    }

    pub fn lookup(&self, parent: u64, name: &OsStr) -> Answer<u64> {
        self.dir(parent)?.now.get(name).copied().ok_or(Fault::NoEntry)
    }

    pub fn entries(&self, ino: u64) -> Answer<Vec<(OsString, u64)>> {
        Ok(self.dir(ino)?.now.iter().map(|(name, ino)| (name.clone(), *ino)).collect())
    }

    pub fn is_dir(&self, ino: u64) -> bool {
        matches!(self.node(ino), Ok(Node { body: Body::Dir(_), .. }))
    }

    pub fn size(&self, ino: u64) -> u64 {
        match self.node(ino) {
            Ok(Node { body: Body::File(file), .. }) => file.now.size,
            _ => 0,
        }
    }

    pub fn make(&mut self, parent: u64, name: &OsStr, mode: u16, body: Body) -> Answer<u64> {
        if self.dir(parent)?.now.contains_key(name) {
            return Err(Fault::Exists);
        }
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, Node { mode, body });
        let dir = self.dir_mut(parent)?;
        dir.now.insert(name.to_owned(), ino);
        dir.unsynced.push(NameChange::Add(name.to_owned(), ino));
        Ok(ino)
    }

    pub fn remove(&mut self, parent: u64, name: &OsStr) -> Answer<()> {
        let ino = self.lookup(parent, name)?;
        if let Ok(dir) = self.dir(ino)
            && !dir.now.is_empty()
        {
            return Err(Fault::NotEmpty);
        }
        let dir = self.dir_mut(parent)?;
        dir.now.remove(name);
        dir.unsynced.push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    pub fn rename(&mut self, parent: u64, name: &OsStr, to_parent: u64, to: &OsStr) -> Answer<()> {
        let ino = self.lookup(parent, name)?;
        self.dir_mut(parent)?.now.remove(name);
        self.dir_mut(to_parent)?.now.insert(to.to_owned(), ino);
        if parent == to_parent {
            let change = NameChange::Rename(name.to_owned(), to.to_owned(), ino);
            self.dir_mut(parent)?.unsynced.push(change);
        } else {
            self.dir_mut(parent)?.unsynced.push(NameChange::Remove(name.to_owned()));
            self.dir_mut(to_parent)?.unsynced.push(NameChange::Add(to.to_owned(), ino));
        }
        Ok(())
    }

    pub fn read(&self, ino: u64, offset: u64, len: usize) -> Answer<Vec<u8>> {
        let content = &self.file(ino)?.now;
        let len = len.min(content.size.saturating_sub(offset) as usize);
        let mut out = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let (page, within) = ((at / PAGE) as u64, at % PAGE);
            let take = (PAGE - within).min(len - done);
            if let Some(page) = content.pages.get(&page) {
                out[done..done + take].copy_from_slice(&page[within..within + take]);
            }
            done += take;
        }
        Ok(out)
    }

    pub fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Answer<()> {
        let file = self.file_mut(ino)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset as usize + done;
            let (number, within) = ((at / PAGE) as u64, at % PAGE);
            let take = (PAGE - within).min(bytes.len() - done);
            let page = file.now.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + take].copy_from_slice(&bytes[done..done + take]);
            file.dirty.insert(number);
            done += take;
        }
        file.now.size = file.now.size.max(offset + bytes.len() as u64);
        Ok(())
    }

    pub fn truncate(&mut self, ino: u64, size: u64) -> Answer<()> {
        let file = self.file_mut(ino)?;
        let keep = size.div_ceil(PAGE as u64);
        file.now.pages.retain(|page, _| *page < keep);
        file.dirty.retain(|page| *page < keep);
        let within = size as usize % PAGE;
        if let Some(page) = file.now.pages.get_mut(&(size / PAGE as u64)).filter(|_| within > 0) {
            Arc::make_mut(page)[within..].fill(0);
            file.dirty.insert(size / PAGE as u64);
        }
        file.now.size = size;
        Ok(())
    }

    pub fn chmod(&mut self, ino: u64, mode: u16) -> Answer<()> {
        self.nodes.get_mut(&ino).ok_or(Fault::Input)?.mode = mode;
        Ok(())
    }

    /// Syncs a file; a failure that was asked for marks its pages clean all the same.
    pub fn sync_file(&mut self, ino: u64, data_only: bool) -> Answer<()> {
        let fails = self.fail_fsync.as_ref().is_some_and(|name| self.is_named(ino, name));
        if data_only && self.ignore_fdatasync {
            return Ok(());
        }
        let file = self.file_mut(ino)?;
        let dirty = std::mem::take(&mut file.dirty);
        if fails {
            self.fail_fsync = None;
            return Err(Fault::Input);
        }
        let keep = file.now.size.div_ceil(PAGE as u64);
        file.durable.pages.retain(|page, _| *page < keep);
        for page in dirty {
            if let Some(bytes) = file.now.pages.get(&page) {
                file.durable.pages.insert(page, Arc::clone(bytes));
            }
        }
        file.durable.size = file.now.size;
        Ok(())
    }

    pub fn sync_dir(&mut self, ino: u64) -> Answer<()> {
        let dir = self.dir_mut(ino)?;
        dir.durable = dir.now.clone();
        dir.unsynced.clear();
        Ok(())
    }

    /// Forgets, and starts anew with fresh numbers, so that nothing of the old boot is taken for the new.
    pub fn reboot(&mut self, policy: Policy, seed: u64) {
        let mut random = Random::new(seed);
        for node in self.nodes.values_mut() {
            match &mut node.body {
                Body::File(file) => file.forget(policy, &mut random),
                Body::Dir(dir) => dir.forget(policy, &mut random),
            }
        }
        let old = std::mem::take(&mut self.nodes);
        self.adopt(&old, ROOT, ROOT);
        self.boot += 1;
        self.cut = false;
        self.cut_at = None;
    }

    fn adopt(&mut self, old: &BTreeMap<u64, Node>, from: u64, to: u64) {
        let mut node = old[&from].clone();
        if let Body::Dir(dir) = &mut node.body {
            for ino in dir.now.values_mut() {
                let fresh = self.next;
                self.next += 1;
                self.adopt(old, *ino, fresh);
                *ino = fresh;
            }
            dir.durable = dir.now.clone();
        }
        self.nodes.insert(to, node);
    }

    fn is_named(&self, ino: u64, end: &str) -> bool {
        self.nodes.values().any(|node| match &node.body {
            Body::Dir(dir) => {
                dir.now.iter().any(|(name, i)| *i == ino && name.to_string_lossy().ends_with(end))
            }
            Body::File(_) => false,
        })
    }

    fn dir(&self, ino: u64) -> Answer<&Dir> {
        match &self.node(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(Fault::NotDir),
        }
    }

    fn dir_mut(&mut self, ino: u64) -> Answer<&mut Dir> {
        match &mut self.nodes.get_mut(&ino).ok_or(Fault::Input)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(Fault::NotDir),
        }
    }

    fn file(&self, ino: u64) -> Answer<&File> {
        match &self.node(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(Fault::Input),
        }
    }

    fn file_mut(&mut self, ino: u64) -> Answer<&mut File> {
        match &mut self.nodes.get_mut(&ino).ok_or(Fault::Input)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(Fault::Input),
        }
    }
}

impl File {
    fn forget(&mut self, policy: Policy, random: &mut Random) {
        let now = std::mem::take(&mut self.now);
        if policy == Policy::Random {
            let grew = random.below(2) == 0;
            for page in std::mem::take(&mut self.dirty) {
                let fresh = now.pages.get(&page).filter(|_| random.below(2) == 0);
                let Some(fresh) = fresh else { continue };
                let old = self.durable.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
                let torn = random.below(4) == 0;
                for sector in 0..PAGE / SECTOR {
                    if !torn || random.below(2) == 0 {
                        let at = sector * SECTOR..(sector + 1) * SECTOR;
                        Arc::make_mut(old)[at.clone()].copy_from_slice(&fresh[at]);
                    }
                }
            }
            if grew {
                self.durable.size = now.size;
            }
            let keep = self.durable.size.div_ceil(PAGE as u64);
            self.durable.pages.retain(|page, _| *page < keep);
        }
        self.dirty.clear();
        self.now = self.durable.clone();
    }
}

impl Dir {
    fn forget(&mut self, policy: Policy, random: &mut Random) {
        let changes = std::mem::take(&mut self.unsynced);
        let stay = match policy {
            Policy::LoseAll => 0,
            Policy::Random => random.below(changes.len() as u64 + 1) as usize,
        };
        for change in changes.into_iter().take(stay) {
            match change {
                NameChange::Add(name, ino) => {
                    self.durable.insert(name, ino);
                }
                NameChange::Remove(name) => {
                    self.durable.remove(&name);
                }
                NameChange::Rename(from, to, ino) => {
                    self.durable.remove(&from);
                    self.durable.insert(to, ino);
                }
            }
        }
        self.now = self.durable.clone();
    }
}
