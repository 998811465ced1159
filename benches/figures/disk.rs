//! The disk itself: the yardstick, and what a folder takes of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// A file that grows by synced writes, as a log does.
pub(crate) struct Yardstick {
    file: File,
    block: Vec<u8>,
}

impl Yardstick {
    pub(crate) fn new(dir: &Path, bytes: usize) -> io::Result<Self> {
        // Not zeroes: a device may treat those otherwise.
        let block = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
        Ok(Self { file: File::create(dir.join("yardstick"))?, block })
    }

    /// Seconds of one write and fdatasync.
    pub(crate) fn write(&mut self) -> io::Result<f64> {
        let start = Instant::now();
        self.file.write_all(&self.block)?;
        self.file.sync_data()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Bytes that all files of a folder take on the disk; holes take none.
pub(crate) fn bytes_taken(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_taken(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(bytes)
}
