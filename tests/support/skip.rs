//! Tests that cannot run here are skipped loudly: each is told on stderr and counted in the file that `KVJ_SKIPS`
//! names, which `make test` prints and `.ci/run` does not forgive.

use std::io::Write;

/// Counts a test as skipped.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KVJ_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        writeln!(file.expect("the skip list can be opened"), "{line}").expect("the skip list can be written");
    }
}
