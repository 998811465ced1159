//! The one error that leaves the crate, and what its kind asks of the caller.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::event::{DpRank, EventId};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Ask [`Error::kind`] what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be served as it is.
    #[error("{0}")]
    Invalid(String),
    /// Another process holds the folder.
    #[error("{} is in use by another process{}", dir.display(), holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Its process id, where it could be read.
        holder: Option<u32>,
    },
    /// There is no journal in the folder.
    #[error("{} holds no journal", dir.display())]
    NotFound {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder belongs to another worker.
    #[error("the journal belongs to worker {found}, not to worker {wanted}")]
    OtherWorker {
        /// Whose it is.
        found: u64,
        /// Who asked.
        wanted: u64,
    },
    /// The queue in front of the writer stayed full for as long as the caller was willing to wait.
    #[error("the queue is full: {queued_bytes} of {bytes_max} bytes wait for the disk")]
    Busy {
        /// Bytes that wait.
        queued_bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The store is as large as it may get.
    #[error("the store is at its limit: {used} of {max} bytes are used")]
    AtDiskLimit {
        /// Bytes that are used.
        used: u64,
        /// The limit.
        max: u64,
    },
    /// Something was waited for in vain.
    #[error("timed out waiting for {0}")]
    Timeout(String),
    /// The file system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// The file system's answer.
        source: io::Error,
    },
    /// An earlier write or sync failed: nothing more is written until the journal is reopened.
    #[error("the journal stopped after a failed write ({cause}); reopen it")]
    Poisoned {
        /// The failure.
        cause: String,
        /// Whether the disk or the quota was full.
        disk_full: bool,
    },
    /// What is on disk is not what was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A newer release wrote the journal.
    #[error("the journal has format {found}, this release reads up to {supported}")]
    NewerFormat {
        /// Format of the journal.
        found: u32,
        /// Newest format that is understood.
        supported: u32,
    },
    /// What was read is no longer kept event by event: take the stream from the start.
    #[error("rank {rank} is kept from event {} on, {wanted} was asked for", horizon + 1)]
    Trimmed {
        /// The rank.
        rank: DpRank,
        /// The id that was wanted.
        wanted: EventId,
        /// Ids at or below it are no longer kept.
        horizon: EventId,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// A fault of this program or of a library below it.
    #[error("internal fault: {0}")]
    Internal(String),
}

/// What is wrong with the bytes on disk, and which events it hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The stream, if the damage is in one.
    pub rank: Option<DpRank>,
    /// The ids that are hit, as far as they are known.
    pub ids: Option<RangeInclusive<EventId>>,
    /// What is wrong, as one lower-case sentence with the values.
    pub what: String,
}

impl std::error::Error for Damage {}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("damaged")?;
        if let Some(rank) = self.rank {
            write!(f, " rank {rank}")?;
        }
        if let Some(ids) = &self.ids {
            write!(f, " events {}..={}", ids.start(), ids.end())?;
        }
        write!(f, ": {}", self.what)
    }
}

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Fix the request.
    Invalid,
    /// Try again, later or elsewhere.
    Unavailable,
    /// Run `verify`, then `repair`.
    Damaged,
    /// Reopen the journal.
    Closed,
    /// Report it.
    Internal,
}

impl ErrorKind {
    /// Exit code of the command line for this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::Unavailable | Self::Closed => 3,
            Self::Damaged => 4,
            Self::Internal => 5,
        }
    }
}

impl Error {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_)
            | Self::NotFound { .. }
            | Self::OtherWorker { .. }
            | Self::NewerFormat { .. } => ErrorKind::Invalid,
            Self::InUse { .. }
            | Self::Trimmed { .. }
            | Self::Busy { .. }
            | Self::AtDiskLimit { .. }
            | Self::Timeout(_)
            | Self::Io { .. } => ErrorKind::Unavailable,
            Self::Poisoned { .. } | Self::Closed => ErrorKind::Closed,
            Self::Damaged(_) => ErrorKind::Damaged,
            Self::Internal(_) => ErrorKind::Internal,
        }
    }

    /// Whether the disk or a quota is full: free some space, then reopen.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_full(source),
            Self::Poisoned { disk_full, .. } => *disk_full,
            _ => false,
        }
    }

    /// One thing to try, for a person.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::InUse { .. } => "stop the other process, or ask it instead",
            Self::NotFound { .. } => "check --dir; `append` and `import` start a new journal",
            Self::OtherWorker { .. } => "give each worker a folder of its own",
            Self::Damaged(_) => {
                "run `kvjournal verify`, then `kvjournal repair`; leave the files as they are"
            }
            Self::NewerFormat { .. } => "use the release that wrote it, or a newer one",
            Self::AtDiskLimit { .. } => {
                "close the journal, then run `kvjournal compact --reclaim`, or allow it more"
            }
            error if error.is_disk_full() => "free some space, then reopen the journal",
            Self::Poisoned { .. } => "reopen the journal; what was acknowledged is safe",
            Self::Internal(_) => "please report this with the log",
            _ => return None,
        })
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(Damage { rank: None, ids: None, what: what.into() })
    }

    pub(crate) fn damaged_ids(rank: DpRank, ids: RangeInclusive<EventId>, what: impl Into<String>) -> Self {
        Self::Damaged(Damage { rank: Some(rank), ids: Some(ids), what: what.into() })
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
