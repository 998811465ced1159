//! Folders of files: listed, copied, and made to last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a file that are copied or left out in one go.
const PIECE: usize = 64 * 1024;

/// All files below `dir` in order, but for the lock.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().is_some_and(|name| name != "LOCK") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The files below `dir` by their names in it, with what is in them.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let name = |path: &Path| path.strip_prefix(dir).unwrap().to_owned();
    files(dir).iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Copies a folder so that it outlasts a power cut. Zeros become holes.
pub fn copy_durably(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        let to = to.join(name);
        if path.is_dir() {
            copy_durably(&path, &to);
        } else {
            write_durably(&to, &fs::read(&path).unwrap());
        }
    }
    sync_dir(to);
    sync_dir(to.parent().unwrap());
}

/// Makes `bytes` the whole of a file, on stable storage. A new name in the folder is the caller's to sync.
pub fn write_durably(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, (number * PIECE) as u64).unwrap();
        }
    }
    file.sync_all().unwrap();
}

/// Removes a folder for good.
pub fn remove_durably(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
    sync_dir(dir.parent().unwrap());
}

fn sync_dir(dir: &Path) {
    File::open(dir).unwrap().sync_all().unwrap();
}
