//! Writing a store anew, as the next generation: after a failed sync, for a repair, for a migration.

use crate::error::Result;
use crate::store::{Current, Folder, SledStore, Store, WitnessState};

use super::open::check_before_open;
use super::recover::{find_identity, find_ranks};

/// Rows written between two syncs.
const SYNC_EVERY_BYTES: usize = 16 * 1024 * 1024;

/// Copies a store that a failed sync left suspect: what the kernel shows of it may never have reached the disk, and
/// later syncs would not write it. The copy's every page is written and synced before the copy becomes current.
pub(crate) fn rewrite(folder: &Folder, current: &Current, witness: &WitnessState) -> Result<Current> {
    let old = folder.generation(current.generation);
    check_before_open(&old, witness)?;
    tracing::warn!(generation = current.generation, "a sync had failed: writing the store anew");
    let source = SledStore::open(&old.path)?;
    let identity = find_identity(&source, witness, None)?;
    find_ranks(&source, &identity, witness)?;
    let generation = folder.new_generation()?;
    let target = SledStore::open(&generation.path)?;
    copy_rows(&source, &target)?;
    folder.sync_names(&generation)?;
    drop((source, target));
    folder.sync_names(&generation)?;
    let next = Current { generation: generation.number, ..current.clone() };
    folder.set_current(&next)?;
    let mut witness_file = folder.open_witness()?.expect("the journal has a witness").0;
    let trusted = WitnessState { suspect: false, ..witness.clone() };
    witness_file.write(&trusted).map_err(crate::error::Error::io("write the witness"))?;
    folder.sweep(Some(&next))?;
    Ok(next)
}

/// Copies all rows of all trees, synced.
pub(crate) fn copy_rows(source: &dyn Store, target: &dyn Store) -> Result<()> {
    let mut unsynced = 0;
    for tree in source.trees()? {
        for row in source.scan(tree, &[]) {
            let (key, value) = row?;
            unsynced += value.len();
            target.append(tree, &key, &value)?;
            if unsynced > SYNC_EVERY_BYTES {
                target.sync()?;
                unsynced = 0;
            }
        }
    }
    Ok(target.sync()?)
}
