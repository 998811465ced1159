//! Pages for readers that ask: read from the journal, with no state kept for a reader.

use std::sync::Arc;

use crate::codec::{
    PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGE_EPOCHS_MAX, Page, PageHeader, PastEpoch, Refusal, ReplayRequest,
    SourceState,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::DpRank;
use crate::journal::{Cursor, Journal, Position, Reader, Resumed};

use super::local_index::LocalIndex;

/// Makes the pages of a worker's journal. Cheap to call from many threads; a call reads at most one page's bytes.
#[derive(Debug)]
pub struct Replayer {
    journal: Arc<Journal>,
    /// Gives the digests, if there is one.
    index: Option<Arc<LocalIndex>>,
    page_bytes_max: usize,
}

impl Replayer {
    /// For a journal, and the index that follows it, whose digests go with the pages. Pages have at most
    /// `page_bytes_max` bytes: between [`PAGE_BYTES_MIN`] and [`PAGE_BYTES_MAX`], and below what the transport takes.
    pub fn new(journal: Arc<Journal>, index: Option<Arc<LocalIndex>>, page_bytes_max: usize) -> Self {
        let page_bytes_max = page_bytes_max.clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        Self { journal, index, page_bytes_max }
    }

    /// The page that answers a request for a rank.
    ///
    /// # Errors
    /// Why there is none.
    pub fn page(&self, rank: DpRank, request: &ReplayRequest) -> Result<Page, Refusal> {
        let position = request.cursor()?.map(|(epoch, nonce, id)| Position {
            cursor: Cursor { epoch, nonce, id },
            rebuilding: request.generation,
        });
        let bytes_max = request.page_bytes(self.page_bytes_max);
        match self.journal.resume(rank, position)? {
            Resumed::Ahead { head } => Err(Refusal::Ahead { head }),
            Resumed::Reset { generation, reader, .. } => {
                let mut page = self.read(rank, reader, bytes_max, Some(generation))?;
                page.header.flags.reset = true;
                Ok(page)
            }
            Resumed::Continue(reader) => {
                let rebuilding = position.and_then(|position| position.rebuilding);
                match self.read(rank, reader, bytes_max, rebuilding) {
                    // Its time of grace ended meanwhile, or it is no longer kept event by event.
                    Err(Error::Trimmed { .. }) => self.anew(rank, request),
                    // A place in a history that is none. Should the history be damaged, its start tells.
                    Err(Error::Damaged(_)) if rebuilding.is_some() => self.anew(rank, request),
                    page => Ok(page?),
                }
            }
        }
    }

    fn anew(&self, rank: DpRank, request: &ReplayRequest) -> Result<Page, Refusal> {
        self.page(rank, &ReplayRequest { epoch: None, nonce: None, generation: None, ..*request })
    }

    /// A page that says how the stream stands, and has no frames. `None` if the rank has no events yet.
    pub fn heartbeat(&self, rank: DpRank) -> Option<Page> {
        let mut header = self.header(rank)?;
        header.flags.heartbeat = true;
        header.next = self.journal.visible_head(rank) + 1;
        Some(Page { header, frames: Vec::new() })
    }

    fn read(
        &self,
        rank: DpRank,
        mut reader: Reader,
        bytes_max: usize,
        rebuilding: Option<u32>,
    ) -> Result<Page> {
        let mut header = self.header(rank).ok_or(Error::Closed)?;
        header.generation = rebuilding.unwrap_or(0);
        header.next = reader.position();
        let mut page = Page { header, frames: Vec::new() };
        let mut left = bytes_max.saturating_sub(page.len());
        loop {
            let Some(read) = reader.next_frame()? else {
                page.header.flags.done = true;
                break;
            };
            let len = read.frame().as_bytes().len();
            if len > left {
                break;
            }
            left -= len;
            page.frames.push(read.frame().clone());
            page.header.next = reader.position();
        }
        // What was durable before the frames were read may be less than what was shown.
        let last = page.frames.last().map_or(0, |frame| frame.header().last);
        page.header.durable = self.journal.durable_head(rank);
        page.header.flags.not_durable = last > page.header.durable;
        Ok(page)
    }

    fn header(&self, rank: DpRank) -> Option<PageHeader> {
        let journal = &self.journal;
        let (epoch, past) = journal.recent_epochs(rank, PAGE_EPOCHS_MAX)?;
        let past = past.into_iter().map(|(epoch, kept)| PastEpoch {
            number: epoch.number,
            nonce: epoch.nonce,
            kept,
        });
        let digest = self.index.as_ref().map(|index| index.progress(rank)).filter(|known| known.applied > 0);
        Some(PageHeader {
            source: SourceState::Unknown,
            journal: journal.id(),
            worker: journal.worker(),
            rank,
            epoch: epoch.number,
            nonce: epoch.nonce,
            horizon: journal.horizon(rank),
            durable: journal.durable_head(rank),
            digest: digest.map(|known| (known.applied, known.digest.0)),
            epochs: past.collect(),
            ..PageHeader::default()
        })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error.kind() {
            ErrorKind::Invalid => Self::NoStream { message },
            kind => {
                Self::Failed { message, retry: matches!(kind, ErrorKind::Unavailable | ErrorKind::Closed) }
            }
        }
    }
}
