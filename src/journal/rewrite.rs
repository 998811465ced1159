//! Writing a store anew, as the next generation: after a failed sync, and for a migration.
//!
//! The copy is written, synced and checked before CURRENT names it. A crash before that leaves the old generation as
//! it was, and the next opening sweeps the unfinished copy away.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::EventId;
use crate::store::{Current, Folder, Found, LOG, SledStore, Store, Tree, WitnessState};

use super::open::check_before_open;
use super::phase::{Phase, enter};
use super::recover::{find_identity, find_ranks};
use super::rows::{FORMAT, Identity, frame_key, read_identity, read_ranks};

/// Bytes written between two syncs.
const SYNC_EVERY_BYTES: usize = 16 * 1024 * 1024;

/// One step of a migration: writes what `source` holds in one format to `target` in the next.
pub(crate) struct Step {
    /// The format it reads. It writes the next one.
    pub(crate) from: u32,
    pub(crate) apply: fn(source: &dyn Store, target: &dyn Store) -> Result<()>,
}

/// The steps from older formats. There is none yet: format 1 is the first.
pub(crate) const STEPS: &[Step] = &[];

/// What a migration did, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Format of the journal before.
    pub from: u32,
    /// Format of the journal after.
    pub to: u32,
    /// Whether anything was written.
    pub written: bool,
}

/// Brings a journal to the newest format. With `always` it is written anew even if it has that format, which also
/// gives unused space back. Safe to interrupt: the old store stays until the new one is whole.
///
/// # Errors
/// `InUse`, `NotFound`, `NewerFormat`, `Damaged`, `Invalid` if no step leads on, or what the file system says.
pub fn migrate(dir: &Path, lock_wait_max: Duration, always: bool, dry_run: bool) -> Result<Migrated> {
    migrate_with(dir, lock_wait_max, always, dry_run, STEPS)
}

fn migrate_with(dir: &Path, wait: Duration, always: bool, dry_run: bool, steps: &[Step]) -> Result<Migrated> {
    let _phase = enter(Phase::Migrate);
    let folder = Folder::hold(dir, false, wait)?;
    let (current, witness) = match folder.find()? {
        Found::Fresh => return Err(Error::NotFound { dir: dir.to_owned() }),
        Found::Journal { current, witness } => (current, witness),
    };
    if current.format > FORMAT {
        return Err(Error::NewerFormat { found: current.format, supported: FORMAT });
    }
    let written = !dry_run && (always || current.format < FORMAT);
    let migrated = Migrated { from: current.format, to: FORMAT, written };
    if !written {
        return Ok(migrated);
    }
    folder.sweep(Some(&current))?;
    let mut at = current;
    while at.format < FORMAT {
        let step = steps.iter().find(|step| step.from == at.format);
        let step =
            step.ok_or_else(|| Error::Invalid(format!("no step leads on from format {}", at.format)))?;
        at = next_generation(&folder, &at, &witness, step.from + 1, step.apply)?;
    }
    if migrated.from == FORMAT {
        reclaim(&folder, &at, &witness)?;
    }
    Ok(migrated)
}

/// Copies a store that a failed sync left suspect: what the kernel shows of it may never have reached the disk, and
/// later syncs would not write it. All of the copy is written and synced before the copy becomes current.
pub(crate) fn rewrite(folder: &Folder, current: &Current, witness: &WitnessState) -> Result<Current> {
    tracing::warn!(generation = current.generation, "a sync had failed: writing the store anew");
    let next = next_generation(folder, current, witness, current.format, copy_rows)?;
    let (mut file, _) = folder.open_witness()?.ok_or_else(|| Error::damaged("the witness is missing"))?;
    let trusted = WitnessState { suspect: false, ..witness.clone() };
    file.write(&trusted).map_err(Error::io("write the witness"))?;
    Ok(next)
}

/// Copies a store to give back the space that it does not use.
pub(crate) fn reclaim(folder: &Folder, current: &Current, witness: &WitnessState) -> Result<Current> {
    next_generation(folder, current, witness, current.format, copy_rows)
}

/// Writes the next generation and makes it current.
fn next_generation(
    folder: &Folder,
    current: &Current,
    witness: &WitnessState,
    format: u32,
    apply: fn(&dyn Store, &dyn Store) -> Result<()>,
) -> Result<Current> {
    let old = folder.generation(current.generation);
    check_before_open(&old, witness)?;
    let source = SledStore::open(&old.path)?;
    let generation = folder.new_generation()?;
    let target = SledStore::open(&generation.path)?;
    apply(&source, &target)?;
    if format == FORMAT {
        let identity = Identity { format, ..read_identity(&target)? };
        identity.save(&target)?;
        find_identity(&target, witness, None)?;
        find_ranks(&target, &identity, witness)?;
    }
    target.sync()?;
    drop((source, target));
    folder.sync_names(&generation)?;
    let next = Current { format, generation: generation.number, ..current.clone() };
    folder.set_current(&next)?;
    folder.sweep(Some(&next))?;
    Ok(next)
}

/// Copies all rows of all trees, synced, and counts them again in the copy.
pub(crate) fn copy_rows(source: &dyn Store, target: &dyn Store) -> Result<()> {
    let mut unsynced = 0;
    let rows = read_ranks(source)?;
    let histories: HashMap<u32, u32> = rows.iter().map(|row| (row.rank, row.generation)).collect();
    let trimmed: HashMap<u32, EventId> = rows.iter().map(|row| (row.rank, row.trimmed)).collect();
    // Histories that are being deleted, or came to nothing, stay behind.
    let is_needed = |tree: &Tree| match tree {
        Tree::Meta => true,
        Tree::Events { rank, generation } | Tree::Payloads { rank, generation } => {
            *generation == LOG || histories.get(rank) == Some(generation)
        }
    };
    for tree in source.trees()?.into_iter().filter(is_needed) {
        let (mut rows, mut crc) = (0_u64, 0);
        // So do frames of the log that were replaced and are not deleted yet.
        let start = match tree {
            Tree::Events { rank, generation: LOG } | Tree::Payloads { rank, generation: LOG } => {
                trimmed.get(&rank).map_or(Vec::new(), |trimmed| frame_key(trimmed + 1).to_vec())
            }
            _ => Vec::new(),
        };
        for row in source.scan(tree, &start) {
            let (key, value) = row?;
            rows += 1;
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &key), &value);
            unsynced += value.len();
            match tree {
                Tree::Meta => target.put(tree, &key, &value)?,
                Tree::Events { .. } | Tree::Payloads { .. } => target.append(tree, &key, &value)?,
            }
            if unsynced > SYNC_EVERY_BYTES {
                target.sync()?;
                unsynced = 0;
            }
        }
        let (mut copied, mut copied_crc) = (0, 0);
        for row in target.scan(tree, &[]) {
            let (key, value) = row?;
            copied += 1;
            copied_crc = crc32c::crc32c_append(crc32c::crc32c_append(copied_crc, &key), &value);
        }
        if (copied, copied_crc) != (rows, crc) {
            return Err(Error::Internal(format!(
                "the copy of {tree} has {copied} rows of {rows}, or others"
            )));
        }
    }
    Ok(target.sync()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{DpRank, EventData, Removed};
    use crate::journal::{Config, Journal, JournalView};

    /// A step as a later release might have one: all it copies came from format 0.
    const FROM_ZERO: &[Step] = &[Step { from: 0, apply: copy_rows }];

    fn journal_of_format(format: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(Config::new(dir.path(), None)).unwrap();
        for _ in 0..100 {
            journal.append(DpRank(0), &[EventData::Removed(Removed::default()).into()]).unwrap();
        }
        journal.close().unwrap();
        let folder = Folder::hold(dir.path(), false, Duration::ZERO).unwrap();
        let current = folder.read_current().unwrap().unwrap();
        folder.set_current(&Current { format, ..current }).unwrap();
        dir
    }

    #[test]
    fn an_older_format_is_refused_until_it_is_migrated_and_keeps_its_events() {
        let dir = journal_of_format(0);
        let error = Journal::open(Config::new(dir.path(), None)).unwrap_err();
        assert!(error.to_string().contains("run `kvjournal migrate`"), "{error}");
        let plan = migrate_with(dir.path(), Duration::ZERO, false, true, FROM_ZERO).unwrap();
        assert_eq!(plan, Migrated { from: 0, to: 1, written: false });
        assert!(migrate_with(dir.path(), Duration::ZERO, false, false, &[]).is_err(), "no step leads on");
        let done = migrate_with(dir.path(), Duration::ZERO, false, false, FROM_ZERO).unwrap();
        assert!(done.written);
        let view = JournalView::open(dir.path(), Duration::ZERO).unwrap();
        assert_eq!((view.format(), view.rank(DpRank(0)).unwrap().head), (1, 100));
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let dir = journal_of_format(FORMAT + 1);
        let newer = |error: Error| matches!(error, Error::NewerFormat { found: 2, supported: 1 });
        assert!(newer(Journal::open(Config::new(dir.path(), None)).unwrap_err()));
        assert!(newer(migrate(dir.path(), Duration::ZERO, true, false).unwrap_err()));
    }

    #[test]
    fn a_migration_that_was_cut_off_is_done_again() {
        let dir = journal_of_format(1);
        let folder = Folder::hold(dir.path(), false, Duration::ZERO).unwrap();
        std::fs::write(folder.new_generation().unwrap().path.join("db"), b"half").unwrap();
        drop(folder);
        assert!(migrate(dir.path(), Duration::ZERO, true, false).unwrap().written);
        let journal = Journal::open(Config::new(dir.path(), None)).unwrap();
        assert_eq!(journal.head(DpRank(0)), 100);
    }
}
