//! Opening: from a folder to a store that may be written to.
//!
//! The order is: hold the folder; look what is there; make it, or check what sled's own recovery would throw away
//! before it does; open the store; hold it against the witness; begin an epoch and sync it. Only then does
//! anything leave.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::WorkerId;
use crate::store::{
    Current, Folder, Found, GenerationDir, SledStore, Store, Witness, WitnessState, drop_evidence,
    keep_evidence,
};

use super::clock::{boot_id, now_us, since_1970};
use super::config::Config;
use super::epochs::{EPOCHS_MAX, Epoch, LeftBehind, jump_past, may_have_shown_lost_ids};
use super::phase::{Phase, enter};
use super::recover::{FoundRank, drop_orphan_payloads, find_identity, find_ranks};
use super::rows::{FORMAT, Identity};

/// Whose a journal is that is made without saying so.
const FIRST_WORKER: WorkerId = WorkerId(1);

/// A store that is held, with what the witness said of it.
pub(crate) struct Held {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) witness: Option<Witness>,
    pub(crate) prior: WitnessState,
    /// Where the store's files are.
    pub(crate) store_dir: Option<PathBuf>,
}

/// An opening that may write.
pub(crate) struct Begun {
    pub(crate) identity: Identity,
    /// Without a rank's own ids.
    pub(crate) epoch: Epoch,
    pub(crate) ranks: Vec<FoundRank>,
}

/// Takes the folder and opens or makes its store.
pub(crate) fn hold(config: &Config) -> Result<Held> {
    let _phase = enter(Phase::Open);
    let folder = Folder::hold(&config.dir, true, config.lock_wait_max)?;
    let (current, prior) = match folder.find()? {
        Found::Fresh => (create(&folder, config.worker.unwrap_or(FIRST_WORKER))?, None),
        Found::Journal { current, witness } => (current, Some(witness)),
    };
    check_format(&current)?;
    folder.sweep(Some(&current))?;
    let current = match &prior {
        Some(witness) if witness.suspect => super::rewrite::rewrite(&folder, &current, witness)?,
        Some(witness) if is_tight(&folder.generation(current.generation), config) => {
            tracing::info!("the store is near its limit: writing it anew");
            super::rewrite::reclaim(&folder, &current, witness)?
        }
        _ => current,
    };
    let generation = folder.generation(current.generation);
    if let Some(witness) = &prior {
        check_before_open(&generation, witness)?;
    }
    let store = SledStore::open(&generation.path)?;
    let store_dir = generation.path;
    let (witness, prior) = folder.open_witness()?.ok_or_else(|| Error::damaged("the witness is missing"))?;
    Ok(Held {
        store: Arc::new(store.holding(folder)),
        witness: Some(witness),
        prior,
        store_dir: Some(store_dir),
    })
}

/// Whether a store is so large that its limit is near. It never shrinks by itself.
fn is_tight(generation: &GenerationDir, config: &Config) -> bool {
    let bytes = std::fs::metadata(generation.path.join("db")).map_or(0, |found| found.len());
    config.retention.tight_at().is_some_and(|limit| bytes >= limit)
}

/// Refuses a newer format, and an older one that has to be migrated first.
pub(crate) fn check_format(current: &Current) -> Result<()> {
    match current.format {
        FORMAT => Ok(()),
        newer if newer > FORMAT => Err(Error::NewerFormat { found: newer, supported: FORMAT }),
        older => Err(Error::Invalid(format!("the journal has format {older}: run `kvjournal migrate`"))),
    }
}

/// What has to hold before sled sees the files, since its recovery overwrites what it cannot read.
pub(crate) fn check_before_open(generation: &GenerationDir, witness: &WitnessState) -> Result<()> {
    let path = generation.path.join("db");
    let file = match File::options().read(true).write(true).open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::damaged(format!("{} is missing", path.display())));
        }
        opened => opened.map_err(Error::io(format!("open {}", path.display())))?,
    };
    if !witness.clean {
        // What a dead process left in the kernel's cache may differ from the disk after a failed write-back, of
        // which nobody was left to be told. Written out and dropped, what is read next is the disk's.
        file.sync_all().map_err(Error::io(format!("sync {}", path.display())))?;
        if let Err(e) = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed) {
            tracing::debug!(error = %e, "the kernel keeps its cached pages");
        }
    }
    keep_evidence(&generation.path).map_err(Error::io(format!("read {}", path.display())))
}

/// Makes a journal. CURRENT comes last, so that a cut-off creation is found and begun anew.
fn create(folder: &Folder, worker: WorkerId) -> Result<Current> {
    folder.sweep(None)?;
    let identity = Identity { format: FORMAT, journal: rand::random(), worker, created_us: now_us() };
    folder.create_witness(&WitnessState { journal: identity.journal, clean: true, ..Default::default() })?;
    let generation = folder.new_generation()?;
    let store = SledStore::open(&generation.path)?;
    identity.save(&store)?;
    store.sync()?;
    folder.sync_names(&generation)?;
    drop(store);
    folder.sync_names(&generation)?;
    let current = Current { format: FORMAT, generation: generation.number, keep: Vec::new() };
    folder.set_current(&current)?;
    tracing::info!(dir = %folder.path().display(), worker_id = worker.0, "journal made");
    Ok(current)
}

/// Checks what the store holds and begins an epoch, on stable storage.
pub(crate) fn begin(held: &mut Held, config: &Config) -> Result<Begun> {
    let _phase = enter(Phase::Open);
    let store = &*held.store;
    let identity = find_identity(store, &held.prior, config.worker)?;
    let mut ranks = find_ranks(store, &identity, &held.prior)?;
    if let Some(dir) = &held.store_dir {
        drop_evidence(dir).map_err(Error::io("remove what the store's recovery overwrote"))?;
    }
    let boot = boot_id();
    let newest = ranks.iter().filter_map(|found| found.row.epochs.last()).map(|epoch| epoch.number).max();
    let epoch = Epoch {
        number: newest.unwrap_or(0).max(held.prior.epoch) + 1,
        nonce: rand::random(),
        first: 0,
        kept: 0,
        shows_early: config.durability.into(),
        boot,
        opened_us: now_us(),
    };
    for found in &mut ranks {
        drop_orphan_payloads(store, found)?;
        let last = found.row.epochs.last();
        let rebooted = last.is_none_or(|last| last.boot != boot || boot == [0; 16]);
        let left = LeftBehind { clean: held.prior.clean, rebooted };
        begin_rank(found, epoch, may_have_shown_lost_ids(last, left), since_1970());
        found.row.save(store)?;
    }
    if !ranks.is_empty() {
        store.sync()?;
    }
    let witnessed = WitnessState {
        journal: identity.journal,
        epoch: epoch.number,
        clean: false,
        suspect: false,
        ranks: ranks.iter().map(FoundRank::witness).collect(),
    };
    if let Some(witness) = &mut held.witness {
        witness.write(&witnessed).map_err(Error::io("write the witness"))?;
    }
    for FoundRank { row, previous, head, .. } in &ranks {
        // In the order in which a reader that starts anew gets them.
        tracing::info!(
            dp_rank = row.rank,
            history_events = row.history.map_or(0, |history| history.events),
            log_after = row.base,
            log_ends = previous,
            head,
            epoch_first = row.epochs.last().map_or(0, |epoch| epoch.first),
            "rank recovered"
        );
    }
    tracing::info!(
        worker_id = identity.worker.0,
        clean = held.prior.clean,
        epoch = epoch.number,
        ranks = ranks.len(),
        "journal opened"
    );
    Ok(Begun { identity, epoch, ranks })
}

/// Gives a rank its entry in the epoch, past ids that may have been seen and lost.
fn begin_rank(found: &mut FoundRank, epoch: Epoch, gives_up_ids: bool, since_1970: Duration) {
    let kept = found.head;
    if gives_up_ids {
        let first = jump_past(found.head, since_1970);
        found.head = first - 1;
        found.row.floor = found.head;
        // What is kept at or below the old head is the history of the state there.
        found.row.horizon = found.head;
    }
    found.row.epochs.push(Epoch { first: found.head + 1, kept, ..epoch });
    let forgotten = found.row.epochs.len().saturating_sub(EPOCHS_MAX);
    found.row.epochs.drain(..forgotten);
}
