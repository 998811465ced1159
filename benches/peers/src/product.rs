//! The product's side of the seam: kvjournal as a worker embeds it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use kvjournal::event::DpRank;
use kvjournal::journal::{Config, Journal};

use crate::log::{DurableLog, Feed};

const RANK: DpRank = DpRank(0);
/// Longest wait for one ack. A disk that needs longer is broken, not slow.
const ACK_WAIT_MAX: Duration = Duration::from_secs(30);
/// The durable head is looked at once in so many appends: often enough to stamp acks while appending, seldom
/// enough not to be what is measured.
const APPENDS_A_LOOK: u64 = 32;

/// A new journal in the default durability, `Sync`: acked once it is on stable storage.
pub(crate) struct Product(Journal);

impl Product {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        Ok(Self(Journal::open(Config::new(dir.join("journal"), None)).context("open the journal")?))
    }
}

impl DurableLog for Product {
    fn publish_all(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        let before = self.0.head(RANK);
        loop {
            while feed.has_room()
                && let Some(message) = feed.next()
            {
                let event = message.event.as_ref().context("the journal takes events, not frames")?;
                self.0.append(RANK, std::slice::from_ref(event))?;
                if (feed.acked() + feed.in_flight()).is_multiple_of(APPENDS_A_LOOK) {
                    feed.acked_through(self.0.durable_head(RANK).saturating_sub(before));
                }
            }
            if feed.in_flight() == 0 {
                return Ok(());
            }
            self.0.wait_durable(RANK, before + feed.acked() + 1, ACK_WAIT_MAX)?;
            feed.acked_through(self.0.durable_head(RANK).saturating_sub(before));
        }
    }
}
