//! What the disk itself can do, in the same round: the yardsticks for latency and bandwidth.
//!
//! Both probes append to a new file, as every log here does, so each sync carries the file system's own work for a
//! file that grows.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::stats::median;

/// Limits of the probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeLimits {
    /// Most writes of either probe.
    pub(crate) writes: usize,
    /// Longest time of either probe.
    pub(crate) time: Duration,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Median of a write of 4 KiB and its fdatasync, in seconds.
    pub(crate) sync_seconds: f64,
    /// Bandwidth of writes of 256 KiB with an fdatasync after each, in bytes a second.
    pub(crate) raw_bytes_per_second: f64,
}

/// Probes the disk that holds `dir`.
pub(crate) fn probe(dir: &Path, limits: ProbeLimits) -> Result<Disk> {
    let small = synced_writes(&dir.join("probe-4k"), 4 * 1024, limits)?;
    let large = synced_writes(&dir.join("probe-256k"), 256 * 1024, limits)?;
    let bytes = (256 * 1024 * large.len()) as f64;
    Ok(Disk { sync_seconds: median(&small), raw_bytes_per_second: bytes / large.iter().sum::<f64>() })
}

/// Seconds of each write and sync. At least one is made.
fn synced_writes(path: &Path, bytes: usize, limits: ProbeLimits) -> Result<Vec<f64>> {
    let what = || format!("probe the disk with {}", path.display());
    // Not zeroes: a device may treat those otherwise.
    let block: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let mut file = File::create(path).with_context(what)?;
    let started = Instant::now();
    let mut seconds = Vec::with_capacity(limits.writes);
    while seconds.is_empty() || (seconds.len() < limits.writes && started.elapsed() < limits.time) {
        let start = Instant::now();
        file.write_all(&block).with_context(what)?;
        file.sync_data().with_context(what)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    drop(file);
    std::fs::remove_file(path).with_context(what)?;
    Ok(seconds)
}
