//! A store in memory for tests: it can forget what was not synced and fail at the n-th operation.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{Row, Store, StoreError, Tree};

type Rows = BTreeMap<(Tree, Vec<u8>), Bytes>;

/// One write: where, and what; `None` removes.
type Write = ((Tree, Vec<u8>), Option<Bytes>);

#[derive(Debug, Default)]
struct State {
    current: Rows,
    durable: Rows,
    trees: BTreeSet<Tree>,
    /// Writes since the last sync, oldest first: `None` removes.
    unsynced: Vec<Write>,
    /// How many of those were flushed.
    flushed: usize,
    operations: u64,
    fail_at: Option<(u64, io::ErrorKind)>,
}

/// A store in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    /// Fails the `operation`-th write or sync from now (0 is the next) and all after it.
    pub(crate) fn fail_at(&self, operation: u64, kind: io::ErrorKind) {
        let mut state = self.lock();
        state.fail_at = Some((state.operations + operation, kind));
    }

    /// Cuts the power: of what was not synced, the first `writes` stay. Failures end.
    pub(crate) fn crash(&self, writes: usize) {
        let mut state = self.lock();
        let State { durable, unsynced, .. } = &mut *state;
        keep(durable, unsynced.drain(..).take(writes));
        state.current = state.durable.clone();
        state.trees = state.current.keys().map(|(tree, _)| *tree).collect();
        state.flushed = 0;
        state.fail_at = None;
    }

    /// Writes that were not synced yet.
    pub(crate) fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Writes and syncs so far.
    pub(crate) fn operations(&self) -> u64 {
        self.lock().operations
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, tree: Tree, key: &[u8], value: Option<Bytes>) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.step()?;
        state.trees.insert(tree);
        match &value {
            Some(value) => state.current.insert((tree, key.to_vec()), value.clone()),
            None => state.current.remove(&(tree, key.to_vec())),
        };
        state.unsynced.push(((tree, key.to_vec()), value));
        Ok(())
    }
}

/// Makes writes part of what is durable.
fn keep(durable: &mut Rows, writes: impl Iterator<Item = Write>) {
    for (key, value) in writes {
        match value {
            Some(value) => durable.insert(key, value),
            None => durable.remove(&key),
        };
    }
}

impl State {
    fn step(&mut self) -> Result<(), StoreError> {
        self.operations += 1;
        match self.fail_at {
            Some((at, kind)) if self.operations > at => Err(io::Error::from(kind).into()),
            _ => Ok(()),
        }
    }
}

impl Store for MemoryStore {
    fn append(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.write(tree, key, Some(Bytes::copy_from_slice(value)))
    }

    fn put(&self, tree: Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.write(tree, key, Some(Bytes::copy_from_slice(value)))
    }

    fn remove(&self, tree: Tree, key: &[u8]) -> Result<(), StoreError> {
        self.write(tree, key, None)
    }

    fn remove_below(&self, tree: Tree, key: &[u8], rows_max: usize) -> Result<usize, StoreError> {
        let keys: Vec<Vec<u8>> = {
            let state = self.lock();
            let range = state.current.range((tree, Vec::new())..(tree, key.to_vec()));
            range.take(rows_max).map(|((_, key), _)| key.clone()).collect()
        };
        for key in &keys {
            self.remove(tree, key)?;
        }
        Ok(keys.len())
    }

    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.lock().current.get(&(tree, key.to_vec())).cloned())
    }

    fn at_or_below(&self, tree: Tree, key: &[u8]) -> Result<Option<Row>, StoreError> {
        let state = self.lock();
        let row = state.current.range((tree, Vec::new())..=(tree, key.to_vec())).next_back();
        Ok(row.map(|((_, key), value)| (key.clone(), value.clone())))
    }

    fn last(&self, tree: Tree) -> Result<Option<Row>, StoreError> {
        self.at_or_below(tree, &[0xff; 32])
    }

    fn scan(&self, tree: Tree, key: &[u8]) -> Box<dyn Iterator<Item = Result<Row, StoreError>> + Send + '_> {
        let mut from = key.to_vec();
        Box::new(std::iter::from_fn(move || {
            let state = self.lock();
            let ((found, key), value) = state.current.range((tree, from.clone())..).next()?;
            if *found != tree {
                return None;
            }
            from.clone_from(key);
            from.push(0);
            Some(Ok((key.clone(), value.clone())))
        }))
    }

    fn drop_tree(&self, tree: Tree) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.step()?;
        state.trees.remove(&tree);
        Ok(())
    }

    fn trees(&self) -> Result<Vec<Tree>, StoreError> {
        Ok(self.lock().trees.iter().copied().collect())
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.flushed = state.unsynced.len();
        Ok(())
    }

    fn sync_flushed(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.step()?;
        let flushed = std::mem::take(&mut state.flushed);
        let State { durable, unsynced, .. } = &mut *state;
        keep(durable, unsynced.drain(..flushed));
        Ok(())
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.lock().durable.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum())
    }
}
