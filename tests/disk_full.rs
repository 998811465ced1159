//! A full disk and a folder that cannot be written to: typed, nothing lost that was acknowledged, and all well again
//! after room was made and the journal reopened.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use kvjournal::event::{DpRank, WorkerId};
use kvjournal::journal::{Config, Journal, JournalView, NewEvent};
use kvjournal::{Error, ErrorKind};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use support::events::numbered;
use support::skip::skip;

const RANK: DpRank = DpRank(0);
const WAIT: Duration = Duration::from_secs(30);

/// A small file system in memory.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mounted(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), c"size=48m") {
            Ok(()) => Some(Self(dir)),
            Err(e) => {
                skip(test, &format!("a tmpfs cannot be mounted: {e}"));
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _already_gone = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

fn append_until_it_fails(journal: &Journal) -> Error {
    loop {
        let head = journal.head(RANK);
        let events: Vec<NewEvent> = (head + 1..=head + 200).map(|id| numbered(id).into()).collect();
        let ids = match journal.append(RANK, &events) {
            Ok(ids) => ids.unwrap(),
            Err(e) => return e,
        };
        if let Err(e) = journal.wait_durable(RANK, *ids.end(), WAIT) {
            return e;
        }
    }
}

#[test]
fn a_full_disk_is_told_loses_nothing_acknowledged_and_heals_after_reopening() {
    let test = "a_full_disk_is_told_loses_nothing_acknowledged_and_heals_after_reopening";
    let Some(tmpfs) = Tmpfs::mounted(test) else { return };
    let ballast = tmpfs.path().join("ballast");
    fs::write(&ballast, vec![1; 16 * 1024 * 1024]).unwrap();
    let config = Config::new(tmpfs.path().join("journal"), WorkerId(1));
    let journal = Journal::open(config.clone()).unwrap();
    let error = append_until_it_fails(&journal);
    assert!(matches!(error, Error::Poisoned { .. }) && error.is_disk_full(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.hint().unwrap().contains("free some space"));
    let durable = journal.durable_head(RANK);
    assert!(durable > 1000, "it filled the disk: {durable}");
    assert!(
        journal.read(RANK, 1).unwrap().next_frame().unwrap().is_some(),
        "what is durable can still be read"
    );
    assert!(journal.close().is_err());
    fs::remove_file(&ballast).unwrap();
    let journal = Journal::open(config).unwrap();
    assert!(journal.head(RANK) >= durable);
    let head = journal.head(RANK);
    let ids = journal.append(RANK, &[numbered(head + 1).into()]).unwrap().unwrap();
    journal.wait_durable(RANK, *ids.end(), WAIT).unwrap();
    let (mut reader, mut next) = (journal.read(RANK, 1).unwrap(), 1);
    while let Some(frame) = reader.next_frame().unwrap() {
        for event in frame.events() {
            assert_eq!(event.unwrap().data, numbered(next));
            next += 1;
        }
    }
    assert_eq!(next, head + 2);
}

#[test]
fn a_read_only_folder_is_told_and_can_still_be_looked_into() {
    let Some(tmpfs) = Tmpfs::mounted("a_read_only_folder_is_told_and_can_still_be_looked_into") else {
        return;
    };
    let dir = tmpfs.path().join("journal");
    let journal = Journal::open(Config::new(&dir, WorkerId(1))).unwrap();
    journal.append(RANK, &[numbered(1).into()]).unwrap();
    journal.close().unwrap();
    // The store's threads may hold its files for a moment after it was closed.
    let remounted = (0..500).any(|_| {
        let done = mount_remount(tmpfs.path(), MountFlags::RDONLY, c"");
        std::thread::sleep(std::time::Duration::from_millis(if done.is_ok() { 0 } else { 20 }));
        done.is_ok()
    });
    assert!(remounted, "it stays busy");
    let error = Journal::open(Config::new(&dir, WorkerId(1))).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = Journal::open(Config::new(tmpfs.path().join("new"), WorkerId(1))).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let view = JournalView::open_copy(&dir, WAIT).unwrap();
    assert_eq!(view.rank(RANK).unwrap().head, 1);
}
