//! A page: what travels between a worker and those who follow it. A head, then frames as they stand on disk.
//!
//! Live traffic, replays and heartbeats have this one form. A page comes from the network and is not trusted: each
//! length is checked before it is used, and frames must be of the stream that the head names, in order. What the events
//! say is decoded later, and may still turn out wrong.

use bytes::{Bytes, BytesMut};

use crate::event::EventId;

use super::frame::{Frame, FrameError};
use super::header::{FRAME_BYTES_MAX, FrameHeader};
use super::page_header::{PAGE_BYTES_MAX, PAGE_EPOCHS_MAX, PageHeader, PageHeaderError};

/// A head and the frames after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// What it says of itself and its worker.
    pub header: PageHeader,
    /// Frames of the stream, in the order of their ids. The payloads that they name stay with the worker.
    pub frames: Vec<Frame>,
}

/// Why bytes are no page, or a page cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The head makes no sense.
    #[error(transparent)]
    Header(#[from] PageHeaderError),
    /// More bytes than a page may have.
    #[error("a page of {len} bytes, the longest has {PAGE_BYTES_MAX}")]
    Long {
        /// The length.
        len: usize,
    },
    /// Fewer or more bytes than the head says.
    #[error("a page with {expected} bytes of frames in {found}")]
    Length {
        /// Bytes of frames by the head.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// A frame is none.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A heartbeat with frames.
    #[error("a heartbeat with {frames} frames")]
    Heartbeat {
        /// How many.
        frames: usize,
    },
    /// A frame of another journal, worker or rank, or of an epoch that the page does not know yet.
    #[error("the frame of event {first} is not of the page's stream")]
    Stranger {
        /// First event of the frame.
        first: EventId,
    },
    /// A frame that does not follow the one before it, or reaches past the id that is to be asked for next.
    #[error("the frame of event {first} does not follow event {after}")]
    Order {
        /// First event of the frame.
        first: EventId,
        /// Last event before it.
        after: EventId,
    },
}

impl Page {
    /// Checks that `bytes` are one whole page.
    ///
    /// # Errors
    /// The first thing that is wrong. What events say is decoded later, by [`Frame::events`].
    pub fn parse(bytes: Bytes) -> Result<Self, PageError> {
        if bytes.len() > PAGE_BYTES_MAX {
            return Err(PageError::Long { len: bytes.len() });
        }
        let (header, frames_len) = PageHeader::read(&bytes)?;
        let mut rest = bytes.slice(header.len()..);
        if rest.len() != frames_len {
            return Err(PageError::Length { expected: frames_len, found: rest.len() });
        }
        let mut frames = Vec::with_capacity(rest.len().div_ceil(FRAME_BYTES_MAX));
        while !rest.is_empty() {
            let len = FrameHeader::read(&rest).map_err(FrameError::from)?.frame_len();
            if len > rest.len() {
                return Err(FrameError::Length { expected: len, found: rest.len() }.into());
            }
            frames.push(Frame::parse(rest.split_to(len))?);
        }
        let page = Self { header, frames };
        page.check()?;
        Ok(page)
    }

    /// The page as it travels.
    ///
    /// # Errors
    /// If it would not be read again.
    pub fn encode(&self) -> Result<Bytes, PageError> {
        if self.header.epochs.len() > PAGE_EPOCHS_MAX {
            return Err(PageHeaderError::Epochs { count: self.header.epochs.len() }.into());
        }
        if self.header.next == 0 {
            return Err(PageHeaderError::Next.into());
        }
        self.check()?;
        let len = self.len();
        if len > PAGE_BYTES_MAX {
            return Err(PageError::Long { len });
        }
        let mut page = BytesMut::with_capacity(len);
        page.resize(self.header.len(), 0);
        // The longest page is far below 4 GiB.
        self.header.write(&mut page, (len - self.header.len()) as u32);
        for frame in &self.frames {
            page.extend_from_slice(frame.as_bytes());
        }
        Ok(page.freeze())
    }

    /// Bytes that it travels as.
    pub fn len(&self) -> usize {
        self.header.len() + self.frames.iter().map(|frame| frame.as_bytes().len()).sum::<usize>()
    }

    /// Whether it has no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What holds between a head and its frames.
    fn check(&self) -> Result<(), PageError> {
        let page = &self.header;
        if page.flags.heartbeat && !self.frames.is_empty() {
            return Err(PageError::Heartbeat { frames: self.frames.len() });
        }
        let mut before: Option<&FrameHeader> = None;
        for frame in &self.frames {
            let frame = frame.header();
            let first = frame.first;
            if (frame.journal, frame.worker, frame.rank) != (page.journal, page.worker, page.rank)
                || frame.epoch > page.epoch
            {
                return Err(PageError::Stranger { first });
            }
            if let Some(before) = before {
                let follows = match (before.generation, frame.generation) {
                    (old, new) if old == new => frame.previous == before.last,
                    // From a compacted history to the log, whose first frame names the end of what was compacted.
                    (1.., 0) => frame.previous >= before.last,
                    _ => false,
                };
                if !follows {
                    return Err(PageError::Order { first, after: before.last });
                }
            }
            before = Some(frame);
        }
        match before {
            Some(last) if last.last >= page.next => {
                Err(PageError::Order { first: page.next, after: last.last })
            }
            _ => Ok(()),
        }
    }
}
