//! The file system that the power-cut tests stand on: it forgets what was not synced, and nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

mod support;

use std::fs::{self, File};
use std::io::Write;

use support::powerfs::{Policy, PowerFs};
use support::skip::skip;

fn mounted(test: &str) -> Option<PowerFs> {
    PowerFs::mount().map_err(|e| skip(test, &format!("FUSE cannot be mounted: {e}"))).ok()
}

fn sync_dir(path: &std::path::Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn a_cut_takes_what_was_not_synced_and_nothing_else() {
    let Some(power) = mounted("a_cut_takes_what_was_not_synced_and_nothing_else") else { return };
    let path = power.path();
    fs::write(path.join("named"), "lost").unwrap();
    let mut file = File::create(path.join("kept")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    sync_dir(&path);
    file.write_all(b" and not").unwrap();
    fs::write(path.join("unnamed"), "lost with its name").unwrap();
    File::open(path.join("unnamed")).unwrap().sync_all().unwrap();
    power.reboot(Policy::LoseAll, 1);
    assert_eq!(fs::read_to_string(path.join("kept")).unwrap(), "synced");
    assert_eq!(
        fs::read_to_string(path.join("named")).unwrap(),
        "",
        "its name was synced, its bytes were not"
    );
    assert!(!path.join("unnamed").exists(), "its bytes were synced, its name was not");
    assert!(file.write_all(b"x").is_err(), "a handle of the old boot is dead");
}

#[test]
fn a_rename_and_an_unlink_that_were_not_synced_are_undone() {
    let Some(power) = mounted("a_rename_and_an_unlink_that_were_not_synced_are_undone") else { return };
    let path = power.path();
    for name in ["a", "b"] {
        fs::write(path.join(name), name).unwrap();
        File::open(path.join(name)).unwrap().sync_all().unwrap();
    }
    sync_dir(&path);
    fs::rename(path.join("a"), path.join("c")).unwrap();
    fs::remove_file(path.join("b")).unwrap();
    power.reboot(Policy::LoseAll, 1);
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "a");
    assert_eq!(fs::read_to_string(path.join("b")).unwrap(), "b");
    assert!(!path.join("c").exists());
}

#[test]
fn a_random_cut_keeps_some_pages_and_tears_some() {
    let Some(power) = mounted("a_random_cut_keeps_some_pages_and_tears_some") else { return };
    let path = power.path().join("f");
    fs::write(&path, vec![1; 256 * 4096]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    sync_dir(&power.path());
    fs::write(&path, vec![1; 256 * 4096]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let mut file = File::options().write(true).open(&path).unwrap();
    file.write_all(&vec![2; 256 * 4096]).unwrap();
    power.reboot(Policy::Random, 7);
    let bytes = fs::read(&path).unwrap();
    let of = |page: &[u8], value| page.iter().filter(|byte| **byte == value).count();
    let pages: Vec<usize> = bytes.chunks(4096).map(|page| of(page, 2)).collect();
    assert!(pages.contains(&0) && pages.contains(&4096));
    assert!(pages.iter().any(|new| *new > 0 && *new < 4096 && new % 512 == 0), "torn at sector size");
}

#[test]
fn a_failed_fsync_leaves_pages_clean_that_never_reached_the_disk() {
    let Some(power) = mounted("a_failed_fsync_leaves_pages_clean_that_never_reached_the_disk") else {
        return;
    };
    let path = power.path().join("db");
    let mut file = File::create(&path).unwrap();
    sync_dir(&power.path());
    file.write_all(b"first").unwrap();
    power.fail_next_fsync("db");
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "first", "it still shows");
    power.reboot(Policy::LoseAll, 1);
    assert_eq!(fs::read(&path).unwrap(), [0; 5], "the size came with the second sync, the bytes never");
}

#[test]
fn a_cut_comes_at_the_operation_it_was_set_for() {
    let Some(power) = mounted("a_cut_comes_at_the_operation_it_was_set_for") else { return };
    let mut file = File::create(power.path().join("f")).unwrap();
    power.cut_at(3);
    file.write_all(b"1").unwrap();
    file.write_all(b"2").unwrap();
    assert!(!power.is_cut());
    assert!(file.write_all(b"3").is_err() && power.is_cut());
    assert!(fs::read_dir(power.path()).is_err());
    power.reboot(Policy::LoseAll, 1);
    assert_eq!(fs::read_dir(power.path()).unwrap().count(), 0);
}

/// Why the journal syncs by itself: sled's flush is no barrier.
#[test]
fn sled_s_flush_alone_does_not_survive_a_cut_and_a_sync_of_its_file_does() {
    let name = "sled_s_flush_alone_does_not_survive_a_cut_and_a_sync_of_its_file_does";
    let Some(power) = mounted(name) else { return };
    let mut survived = [0, 0];
    for round in 0..10_u64 {
        for (syncs, survived) in [false, true].into_iter().zip(&mut survived) {
            let dir = power.path().join(format!("{round}-{syncs}"));
            fs::create_dir(&dir).unwrap();
            let handle = File::options().create(true).append(true).open(dir.join("db")).unwrap();
            let config = sled::Config::new().path(&dir).flush_every_ms(None).segment_size(1 << 20);
            let db = config.open().unwrap();
            sync_dir(&dir);
            sync_dir(&power.path());
            handle.sync_data().unwrap();
            for row in 0..20_u64 {
                db.insert(row.to_be_bytes(), vec![7; 1000]).unwrap();
            }
            db.flush().unwrap();
            if syncs {
                handle.sync_data().unwrap();
            }
            power.cut_at(0);
            power.reboot(Policy::LoseAll, round + 1);
            // Dropped, it would panic over the dead handle.
            std::mem::forget(db);
            let again = sled::Config::new().path(&dir).flush_every_ms(None).segment_size(1 << 20).open();
            *survived += usize::from(again.is_ok_and(|db| db.len() == 20));
        }
    }
    assert_eq!(survived, [0, 10]);
}
