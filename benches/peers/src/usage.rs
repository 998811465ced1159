//! What a process used so far: CPU time and bytes sent to storage, from `/proc`, for this process and for a server
//! alike.

use std::fs;
use std::ops::{Add, Sub};

use anyhow::{Context, Result};

/// CPU time and bytes written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, in seconds; counted in ticks of 10 ms.
    pub(crate) cpu_seconds: f64,
    /// Bytes of pages that were made dirty, or written directly: what goes to storage sooner or later. A page made
    /// dirty twice between two syncs counts once.
    pub(crate) written_bytes: u64,
}

impl Usage {
    /// Of this process, together with another one.
    pub(crate) fn now(other: Option<u32>) -> Result<Self> {
        let own = Self::of("self")?;
        let other = other.map_or(Ok(Self::default()), |pid| Self::of(&pid.to_string()))?;
        Ok(own + other)
    }

    fn of(process: &str) -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{process}/{file}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let ticks = parse_ticks(&read("stat")?).context("times in /proc/*/stat")?;
        let written_bytes = parse_written(&read("io")?).context("write_bytes in /proc/*/io")?;
        Ok(Self { cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64, written_bytes })
    }
}

impl Add for Usage {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            written_bytes: self.written_bytes + other.written_bytes,
        }
    }
}

impl Sub for Usage {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// Fields 14 and 15. The second is the name in parentheses and may hold anything, so fields are counted from the
/// last `)`.
fn parse_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parse_written(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20 0 1";
        assert_eq!(parse_ticks(stat), Some(42));
    }

    #[test]
    fn bytes_written_are_not_those_cancelled() {
        let io = "wchar: 1\nread_bytes: 2\nwrite_bytes: 4096\ncancelled_write_bytes: 5\n";
        assert_eq!(parse_written(io), Some(4096));
    }
}
