//! What the writer tells the witness: of each rank, what is on stable storage for certain.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::event::DpRank;
use crate::store::{WitnessRank, WitnessState};

use super::writer::Writer;

impl Writer {
    /// Whether a durable head or a row rose since the witness was written.
    pub(super) fn witness_stale(&self) -> bool {
        self.ranks.values().any(|(rank, writer)| {
            rank.durable.get() > writer.witnessed || writer.revisions.synced > writer.revisions.witnessed
        })
    }

    /// Notes that a sync of everything written so far begins.
    pub(super) fn rows_syncing(&mut self) {
        for (_, writer) in self.ranks.values_mut() {
            writer.revisions.syncing = writer.row.revision;
        }
    }

    /// Notes that the sync that began last is done.
    pub(super) fn rows_synced(&mut self) {
        for (_, writer) in self.ranks.values_mut() {
            writer.revisions.synced = writer.revisions.syncing;
        }
    }

    pub(super) fn write_witness(&mut self, clean: bool) -> Result<()> {
        let state = WitnessState { clean, ..self.witness_state() };
        if let Some(witness) = &mut self.witness {
            witness.write(&state).map_err(Error::io("write the witness"))?;
        }
        for seen in &state.ranks {
            if let Some((_, writer)) = self.ranks.get_mut(&DpRank(seen.rank)) {
                writer.witnessed = seen.durable_head;
                writer.revisions.witnessed = seen.revision;
            }
        }
        self.last_witness = Instant::now();
        Ok(())
    }

    /// Marks the store as not to be trusted after a failed sync.
    pub(super) fn distrust(&mut self, error: Error) -> Error {
        // A write that was refused for want of space never reached the kernel's cache: nothing there is false.
        if !error.is_disk_full() {
            let state = WitnessState { suspect: true, ..self.witness_state() };
            if let Some(Err(e)) = self.witness.as_mut().map(|witness| witness.write(&state)) {
                tracing::error!(error = %e, "the failed sync cannot be recorded");
            }
        }
        error
    }

    fn witness_state(&self) -> WitnessState {
        let ranks = self.ranks.values().map(|(rank, writer)| WitnessRank {
            rank: rank.id().0,
            durable_head: rank.durable.get(),
            epoch_first: writer.row.epochs.last().map_or(0, |epoch| epoch.first),
            revision: writer.revisions.synced,
        });
        WitnessState {
            journal: self.journal,
            epoch: self.epoch,
            clean: false,
            suspect: false,
            ranks: ranks.collect(),
        }
    }
}
