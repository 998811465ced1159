//! A journal's folder as text and back: the rows of its store, and the files beside it, as lines of JSON. It knows
//! nothing of what the bytes mean.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// As every release opened its store.
const SEGMENT_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of a file on one line; zeros at the end of a line are left out.
const PIECE: usize = 8 * 1024;

const FILES: [&str; 2] = ["CURRENT", "WITNESS"];

/// Writes `rows.jsonl` and `files.jsonl` about the journal in `dir`, which has one generation, to the folder `fixture`.
pub fn dump(dir: &Path, fixture: &Path) {
    let mut rows = String::new();
    let db = open(&store(dir));
    let mut names: Vec<_> = db.tree_names();
    names.sort();
    for name in names {
        for row in db.open_tree(&name).unwrap().iter() {
            let (key, value) = row.unwrap();
            let tree = std::str::from_utf8(&name).unwrap();
            rows += &format!("{}\n", json!({"tree": tree, "key": hex(&key), "value": hex(&value)}));
        }
    }
    fs::write(fixture.join("rows.jsonl"), rows).unwrap();
    let mut files = String::new();
    for name in FILES {
        let bytes = fs::read(dir.join(name)).unwrap();
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            let used = piece.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let (at, length) = (number * PIECE, bytes.len());
            files += &format!(
                "{}\n",
                json!({"file": name, "length": length, "at": at, "bytes": hex(&piece[..used])})
            );
        }
    }
    fs::write(fixture.join("files.jsonl"), files).unwrap();
}

/// Makes a journal in `dir`, which is empty, of what [`dump`] wrote.
pub fn build(fixture: &Path, dir: &Path) {
    fs::write(dir.join("LOCK"), b"").unwrap();
    let store = dir.join("gen-1");
    fs::create_dir(&store).unwrap();
    let db = open(&store);
    for row in lines(&fixture.join("rows.jsonl")) {
        let tree = db.open_tree(text(&row, "tree")).unwrap();
        tree.insert(unhex(text(&row, "key")), unhex(text(&row, "value"))).unwrap();
    }
    db.flush().unwrap();
    for piece in lines(&fixture.join("files.jsonl")) {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(dir.join(text(&piece, "file"))).unwrap();
        file.set_len(piece["length"].as_u64().unwrap()).unwrap();
        file.write_all_at(&unhex(text(&piece, "bytes")), piece["at"].as_u64().unwrap()).unwrap();
    }
}

fn open(store: &Path) -> sled::Db {
    let config = sled::Config::new().path(store).flush_every_ms(None).segment_size(SEGMENT_BYTES);
    config.mode(sled::Mode::HighThroughput).open().unwrap()
}

fn store(dir: &Path) -> PathBuf {
    let store = dir.join("gen-1");
    assert!(store.join("db").is_file());
    store
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
