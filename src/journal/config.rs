//! What a journal can be told: where, whose, how durable, and every limit by name.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::{EventId, WorkerId};

use super::retention::Retention;

/// When an event counts as kept, and may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Shown once it is on stable storage: survives SIGKILL, a machine crash, a power cut.
    #[default]
    Sync,
    /// Shown at once, synced at least this often: what was shown since the last sync may be lost, and the next
    /// opening then gives up its ids and resets its readers.
    Interval(Duration),
    /// Shown once the kernel has it, synced each second: survives SIGKILL, not the end of the machine.
    Os,
}

/// Limits of a group commit: what is written and synced in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Most bytes of events and payloads in a group. Default 1 MiB.
    pub bytes_max: usize,
    /// Most events in a group. Default 65,536.
    pub events_max: usize,
    /// Longest time the first event of a group waits for others. Default 0: a group is what came in while the
    /// disk was busy with the one before it.
    pub wait_max: Duration,
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self { bytes_max: 1024 * 1024, events_max: 65_536, wait_max: Duration::ZERO }
    }
}

/// Largest first id: what a double holds exactly, as many JSON readers keep numbers.
const FIRST_ID_MAX: EventId = 1 << 53;

/// How to open a journal. [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of this worker's journal alone. Made, with mode 0700, if it is not there.
    pub dir: PathBuf,
    /// The worker. An existing journal of another worker is refused; `None` takes whichever it is, and makes a new
    /// journal for worker 1.
    pub worker: Option<WorkerId>,
    /// When an event counts as kept. Default [`Durability::Sync`].
    pub durability: Durability,
    /// Limits of a group commit.
    pub group: GroupLimits,
    /// Most bytes of events and payloads that wait for the writer. Default 16 MiB.
    pub queue_bytes_max: usize,
    /// How long an append waits for room in a full queue before it fails with `Busy`. Default 5 s.
    pub queue_wait_max: Duration,
    /// Most bytes of recent frames each rank keeps in memory for readers. Default 4 MiB.
    pub tail_bytes_max: usize,
    /// Whether payloads are kept. Default true; an append's payload is dropped otherwise.
    pub keep_payloads: bool,
    /// Id of the first event of a new journal, from 1 to 2^53, so that JSON readers keep it exact. Default 1. An
    /// existing journal ignores it.
    pub first_id: EventId,
    /// How much is kept event by event, and how large the store may get. Default: all, and any size.
    pub retention: Retention,
    /// How long opening waits for another process to let go of the folder. Default 2 s.
    pub lock_wait_max: Duration,
}

impl Config {
    /// The defaults, for the worker's journal in `dir`.
    pub fn new(dir: impl Into<PathBuf>, worker: impl Into<Option<WorkerId>>) -> Self {
        Self {
            dir: dir.into(),
            worker: worker.into(),
            durability: Durability::default(),
            group: GroupLimits::default(),
            queue_bytes_max: 16 * 1024 * 1024,
            queue_wait_max: Duration::from_secs(5),
            tail_bytes_max: 4 * 1024 * 1024,
            keep_payloads: true,
            first_id: 1,
            retention: Retention::default(),
            lock_wait_max: Duration::from_secs(2),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let zero = |name: &str| Err(Error::Invalid(format!("{name} must be above 0")));
        match self {
            Self { first_id: 0, .. } => zero("first_id"),
            Self { first_id, .. } if *first_id > FIRST_ID_MAX => {
                Err(Error::Invalid(format!("first_id {first_id} is above 2^53")))
            }
            Self { queue_bytes_max: 0, .. } => zero("queue_bytes_max"),
            Self { group: GroupLimits { bytes_max: 0, .. }, .. } => zero("group.bytes_max"),
            Self { group: GroupLimits { events_max: 0, .. }, .. } => zero("group.events_max"),
            Self { durability: Durability::Interval(Duration::ZERO), .. } => zero("the sync interval"),
            _ => self.retention.check(),
        }
    }
}
