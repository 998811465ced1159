//! Who is measured, with which window, and in which order: the rounds.
//!
//! All sides run in each round, one after another on the same disk, and what is compared is the ratio within a
//! round, so that a machine that slows down slows both sides of it. The order turns by one each round.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::jetstream::{JetStream, Publishing};
use crate::log::{DurableLog, Feed, Limits, Message};
use crate::probe::{Disk, ProbeLimits, probe};
use crate::product::Product;
use crate::server::SyncInterval;
use crate::stats::percentile;
use crate::usage::Usage;

/// The p99 of the latency of an ack may be at most this many times the disk's median fdatasync.
pub(crate) const LATENCY_SYNCS_MAX: f64 = 8.0;
/// A window is chosen with this share of that limit, since rounds differ.
const TUNING_MARGIN: f64 = 0.8;
/// Runs with each window, of which the one with the middle p99 counts: one slow sync of a shared disk must not rule a
/// window out.
const TUNING_TRIES: usize = 5;
/// JetStream takes at most 10,000 messages, and 128 MiB, into a stream's queue; nobody is given more.
const EVENT_WINDOW_MAX: u64 = 8192;
const FRAME_WINDOW_MAX: u64 = 64;
/// Share of a run's time that is spent before it, unmeasured, on the same log: a new process and new files are slow
/// at first.
const WARMING: u32 = 8;

/// A log in one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// kvjournal in `Sync`, one event an append.
    Product,
    /// JetStream, one event a message.
    Events(SyncInterval, Publishing),
    /// JetStream given the product's frames as its messages.
    Frames(SyncInterval),
}

impl Subject {
    /// All of them; fast ingest where the server has it.
    pub(crate) fn all(fast_ingest: bool) -> Vec<Self> {
        use SyncInterval::{Always, Default};
        let mut all = vec![Self::Product];
        for sync in [Always, Default] {
            all.push(Self::Events(sync, Publishing::Pipelined));
            if fast_ingest {
                all.push(Self::Events(sync, Publishing::FastIngest));
            }
            all.push(Self::Frames(sync));
        }
        all
    }

    pub(crate) fn name(self) -> &'static str {
        use Publishing::{FastIngest, Pipelined};
        use SyncInterval::{Always, Default};
        match self {
            Self::Product => "kvjournal, Sync",
            Self::Events(Always, Pipelined) => "JetStream, sync always",
            Self::Events(Default, Pipelined) => "JetStream, default sync",
            Self::Events(Always, FastIngest) => "JetStream, sync always, fast ingest",
            Self::Events(Default, FastIngest) => "JetStream, default sync, fast ingest",
            Self::Frames(Always) => "JetStream, sync always, our frames",
            Self::Frames(Default) => "JetStream, default sync, our frames",
        }
    }

    fn window_max(self) -> u64 {
        match self {
            Self::Frames(_) => FRAME_WINDOW_MAX,
            Self::Product | Self::Events(..) => EVENT_WINDOW_MAX,
        }
    }
}

/// What does not change between rounds.
pub(crate) struct Bench {
    pub(crate) server: PathBuf,
    /// Folder on the disk that is measured.
    pub(crate) dir: PathBuf,
    pub(crate) events: Vec<Message>,
    pub(crate) frames: Vec<Message>,
    pub(crate) run_time: Duration,
    pub(crate) run_messages: u64,
    pub(crate) tuning_time: Duration,
    /// Windows tried are a power of this apart.
    pub(crate) tuning_step: u64,
    pub(crate) probe: ProbeLimits,
}

/// One log in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Trial {
    pub(crate) events_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) ack_p50_seconds: f64,
    pub(crate) ack_p99_seconds: f64,
    /// Of the client and the server together.
    pub(crate) cpu_seconds_per_million: f64,
    pub(crate) written_bytes_per_million: f64,
}

/// The trial whose p99 is the median. Of at least one.
fn middle(mut trials: Vec<Trial>) -> Trial {
    trials.sort_by(|a, b| a.ack_p99_seconds.total_cmp(&b.ack_p99_seconds));
    trials[trials.len() / 2]
}

/// A log with the window it was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entrant {
    pub(crate) subject: Subject,
    pub(crate) window: u64,
    /// Most events a second in tuning, with any window, whatever the latency.
    pub(crate) untuned_events_per_second: f64,
}

/// One round: the disk, and a trial for each entrant, in the entrants' order.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) disk: Disk,
    pub(crate) trials: Vec<Trial>,
}

impl Bench {
    /// Probes the disk that is measured.
    pub(crate) fn probe(&self) -> Result<Disk> {
        probe(&self.dir, self.probe)
    }

    /// Gives a log the window with which it is fastest within the latency limit; without a limit if no window keeps
    /// it.
    pub(crate) fn tune(&self, subject: Subject, disk: Disk) -> Result<Entrant> {
        let limit = LATENCY_SYNCS_MAX * TUNING_MARGIN * disk.sync_seconds;
        let mut found = Vec::new();
        self.with_log(subject, |log| {
            let mut window = 1;
            while window <= subject.window_max() {
                let tries = (0..TUNING_TRIES).map(|_| self.run(subject, log, window, self.tuning_time));
                found.push((window, middle(tries.collect::<Result<_>>()?)));
                window *= self.tuning_step;
            }
            Ok(())
        })?;
        let fastest = |keeps: &dyn Fn(&Trial) -> bool| {
            let kept = found.iter().filter(|(_, trial)| keeps(trial));
            kept.max_by(|a, b| a.1.events_per_second.total_cmp(&b.1.events_per_second)).copied()
        };
        let (any, untuned) = fastest(&|_| true).context("a window of 1 is always tried")?;
        let window = fastest(&|trial| trial.ack_p99_seconds <= limit).map_or(any, |(window, _)| window);
        Ok(Entrant { subject, window, untuned_events_per_second: untuned.events_per_second })
    }

    /// Runs all entrants once, beginning with another one each round.
    pub(crate) fn round(&self, number: usize, entrants: &[Entrant]) -> Result<Round> {
        let disk = self.probe()?;
        let mut trials = vec![None; entrants.len()];
        for place in 0..entrants.len() {
            let index = (place + number) % entrants.len();
            let Entrant { subject, window, .. } = entrants[index];
            let trial = self.with_log(subject, |log| {
                self.run(subject, log, window, self.run_time / WARMING)?;
                self.run(subject, log, window, self.run_time)
            });
            trials[index] = Some(trial.with_context(|| format!("measure {}", subject.name()))?);
        }
        Ok(Round { disk, trials: trials.into_iter().flatten().collect() })
    }

    /// Makes a log on an empty folder, and leaves the disk idle afterwards.
    fn with_log<T>(
        &self,
        subject: Subject,
        work: impl FnOnce(&mut dyn DurableLog) -> Result<T>,
    ) -> Result<T> {
        let dir = tempfile::tempdir_in(&self.dir).context("make a folder for a log")?;
        let mut log = self.open(subject, dir.path())?;
        let outcome = work(log.as_mut())?;
        drop(log);
        dir.close().context("remove the folder of a log")?;
        // What one log left in memory must not be written while the next one is measured.
        let disk = File::open(&self.dir).context("open the folder of logs")?;
        rustix::fs::syncfs(&disk).context("sync the disk")?;
        Ok(outcome)
    }

    fn open(&self, subject: Subject, dir: &Path) -> Result<Box<dyn DurableLog>> {
        let jetstream = |sync, publishing| JetStream::start(&self.server, dir, sync, publishing);
        Ok(match subject {
            Subject::Product => Box::new(Product::open(dir)?),
            Subject::Events(sync, publishing) => Box::new(jetstream(sync, publishing)?),
            Subject::Frames(sync) => Box::new(jetstream(sync, Publishing::Pipelined)?),
        })
    }

    fn run(&self, subject: Subject, log: &mut dyn DurableLog, window: u64, time: Duration) -> Result<Trial> {
        let messages = match subject {
            Subject::Frames(_) => &self.frames,
            Subject::Product | Subject::Events(..) => &self.events,
        };
        let before = Usage::now(log.server_pid())?;
        let mut feed = Feed::start(messages, Limits { messages: self.run_messages, time, window });
        log.publish_all(&mut feed)?;
        let timing = feed.finish();
        let used = Usage::now(log.server_pid())? - before;
        ensure!(timing.unacked == 0, "{} messages were never acked", timing.unacked);
        ensure!(timing.events > 0, "nothing was published");
        let mut latencies = timing.latencies_ns;
        latencies.sort_unstable();
        let seconds = timing.elapsed.as_secs_f64();
        let millions = timing.events as f64 / 1e6;
        Ok(Trial {
            events_per_second: timing.events as f64 / seconds,
            bytes_per_second: timing.bytes as f64 / seconds,
            ack_p50_seconds: percentile(&latencies, 0.5) as f64 / 1e9,
            ack_p99_seconds: percentile(&latencies, 0.99) as f64 / 1e9,
            cpu_seconds_per_million: used.cpu_seconds / millions,
            written_bytes_per_million: used.written_bytes as f64 / millions,
        })
    }
}
