//! Marks of what the journal is doing, as tracing events: crash tests kill the process at a chosen one.

/// What the journal is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Write,
    Sync,
    /// Writes frames of a compacted history.
    Compact,
    /// Puts a compacted history in the place of what it was made of.
    Replace,
    Trim,
    Close,
    Repair,
    Migrate,
}

/// Marks the start of a phase, and its end when dropped.
pub(crate) fn enter(phase: Phase) -> Entered {
    tracing::trace!(target: "kvjournal::phase", phase = phase.name(), "enter");
    Entered(phase)
}

/// A phase that goes on until this is dropped.
pub(crate) struct Entered(Phase);

impl Drop for Entered {
    fn drop(&mut self) {
        tracing::trace!(target: "kvjournal::phase", phase = self.0.name(), "leave");
    }
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Compact => "compact",
            Self::Replace => "replace",
            Self::Trim => "trim",
            Self::Close => "close",
            Self::Repair => "repair",
            Self::Migrate => "migrate",
        }
    }
}
