//! Memory of a process that appended ten million events, measured in a process that does nothing else.

use std::path::Path;
use std::process::Command;

use kvjournal::journal::{Config, Journal};

use crate::table::{Bar, Table};
use crate::{Bench, CHUNK, Result, fill, load};

/// The argument that makes a process the one that is measured.
pub(crate) const CHILD: &str = "--append-and-tell-memory";

/// Different events of the child; it appends them over and over, as fast as the journal takes them, and they count as
/// its memory.
const CHILD_EVENTS: u64 = CHUNK as u64;

pub(crate) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let dir = tempfile::tempdir_in(&bench.dir)?;
    let millions: usize = if bench.quick { 1 } else { 10 };
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(CHILD).arg(dir.path().join("journal")).env("KVJ_BENCH_MILLIONS", millions.to_string());
    let output = child.output()?;
    if !output.status.success() {
        return Err(format!("the child failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let told = String::from_utf8(output.stdout)?;
    let mut megabytes = told.split_whitespace().map(str::parse::<f64>);
    let mut next = || megabytes.next().ok_or("the child told too little");
    let (resident, peak) = (next()??, next()??);
    table.row(&format!("resident after {millions} M events, MB"), Bar::AtMost(150.0), vec![resident]);
    table.row("the most that was resident, MB", Bar::None, vec![peak]);
    Ok(())
}

/// The measured process: prints megabytes resident now and at most.
pub(crate) fn child(dir: &Path) -> Result<()> {
    let millions: usize = std::env::var("KVJ_BENCH_MILLIONS")?.parse()?;
    let events = load(None, CHILD_EVENTS)?;
    let journal = Journal::open(Config::new(dir, None))?;
    let chunks = millions * 1_000_000 / CHUNK;
    fill(&journal, events.chunks(CHUNK).cycle().take(chunks))?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let megabytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kilobytes.map(|kilobytes| kilobytes * 1024.0 / 1e6).ok_or("no such line in /proc/self/status")
    };
    println!("{} {}", megabytes("VmRSS:")?, megabytes("VmHWM:")?);
    Ok(journal.close()?)
}
