//! What the command line says of a journal's state, and what compacting it by hand leaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn command(verb: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvjournal"));
    command.arg(verb).arg("--dir").arg(dir).args(["--format", "json"]).args(args);
    command
}

fn run(verb: &str, dir: &Path, args: &[&str], input: &str) -> Output {
    let mut command = command(verb, dir, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that reads no input may be gone by then.
        scope.spawn(move || drop(stdin.write_all(input.as_bytes())));
        child.wait_with_output().unwrap()
    })
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Code and standard error.
fn failed(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn simulated(events: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvjournal"));
    let output = command.args(["simulate", "--events", events, "--cache-blocks", "2000"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn inspect(dir: &Path) -> Value {
    lines(&run("inspect", dir, &[], "")).remove(0)
}

/// Blocks and their digest.
fn state(dir: &Path) -> (u64, String) {
    let rank = &inspect(dir)["ranks"][0];
    (rank["blocks"].as_u64().unwrap(), rank["digest"].as_str().unwrap().to_owned())
}

#[test]
fn a_journal_compacted_by_hand_holds_what_it_held_and_takes_less() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    assert!(run("append", &dir, &[], &simulated("4000")).status.success());
    let before = state(&dir);
    assert!(before.0 > 100, "{before:?}");

    let dry = lines(&run("compact", &dir, &["--keep-events", "500", "--dry-run"], ""));
    assert_eq!((inspect(&dir)["ranks"][0]["horizon"].as_u64(), state(&dir)), (Some(0), before.clone()));

    let done = lines(&run("compact", &dir, &["--keep-events", "500", "--reclaim"], ""));
    let horizon = done[0]["horizon"].as_u64().unwrap();
    assert!((3_000..=3_500).contains(&horizon), "{done:?}");
    for figure in ["horizon", "events_before", "events", "frame_bytes", "copies"] {
        assert_eq!(dry[0][figure], done[0][figure], "{figure}");
    }
    assert!(done[0]["events"].as_u64() < done[0]["events_before"].as_u64());
    assert!(done[1]["disk_bytes"].as_u64() < done[1]["disk_bytes_before"].as_u64(), "{done:?}");
    assert_eq!(state(&dir), before);
    assert!(run("verify", &dir, &[], "").status.success());

    // Once more, to the newest frame, then nothing is left to do.
    lines(&run("compact", &dir, &["--keep-age", "1us"], ""));
    let again = lines(&run("compact", &dir, &["--keep-bytes", "0"], ""));
    assert_eq!(again[0]["horizon"], again[0]["horizon_before"], "{again:?}");
    assert_eq!(state(&dir), before);
    let appended = run("append", &dir, &["--ack"], r#"{"removed":{"block_hashes":[1]}}"#);
    assert_eq!(lines(&appended).last().unwrap()["durable"], 4_001, "ids go on");
}

#[test]
fn what_is_dumped_is_what_is_held_now_or_was_held_then() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, copy, part) = (temp.path().join("j"), temp.path().join("copy"), temp.path().join("part"));
    let events = simulated("3000");
    assert!(run("append", &dir, &[], &events).status.success());
    let dump = |at: &[&str]| String::from_utf8(run("dump", &dir, at, "").stdout).unwrap();
    assert!(run("append", &copy, &[], &dump(&[])).status.success());
    assert_eq!(state(&copy), state(&dir));
    // As of an earlier event: the same as a journal that ends there.
    let first: Vec<&str> = events.lines().take(1_234).collect();
    assert!(run("append", &part, &[], &first.join("\n")).status.success());
    let then = temp.path().join("then");
    assert!(run("append", &then, &[], &dump(&["--at", "1234"])).status.success());
    assert_eq!(state(&then), state(&part));
    assert_ne!(state(&then), state(&dir));
    // Below the horizon it is not known any more.
    lines(&run("compact", &dir, &["--keep-events", "100"], ""));
    let (code, error) = failed(&run("dump", &dir, &["--at", "1234"], ""));
    assert!(code == 2 && error.contains("compacted"), "{code} {error}");
}

#[test]
fn a_match_says_why_it_ends_where_it_ends() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    let block = |hash: u64| json!({ "block_hash": hash, "tokens_hash": hash + 1_000 });
    let stored = |parent: Option<u64>, hashes: &[u64]| {
        let blocks: Vec<Value> = hashes.iter().copied().map(block).collect();
        json!({ "stored": { "parent_hash": parent, "blocks": blocks } }).to_string()
    };
    let removed = |hashes: &[u64]| json!({ "removed": { "block_hashes": hashes } }).to_string();
    let events = [
        stored(None, &[1, 2, 3, 4]),
        stored(Some(3), &[5]),
        removed(&[2]),
        "\"cleared\"".into(),
        stored(None, &[1]),
        stored(Some(2), &[3, 4]),
        removed(&[4]),
    ];
    assert!(run("append", &dir, &[], &events.join("\n")).status.success());
    let explain = |at: &[&str]| {
        let args = [&["--hashes", "[1001, 0x3ea 1003,1004,1005,1006]", "--explain"], at].concat();
        let answer = lines(&run("match", &dir, &args, "")).remove(0);
        let states: Vec<String> = answer["blocks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| {
                let at = [&block["removed_at"], &block["cleared_by"]].into_iter().find_map(Value::as_u64);
                format!("{} {}", block["state"].as_str().unwrap(), at.unwrap_or(0))
            })
            .collect();
        (answer["total"].as_u64().unwrap(), states)
    };
    let (total, states) = explain(&[]);
    assert_eq!(total, 1);
    assert_eq!(states, ["held 0", "removed 3", "hidden 0", "removed 7", "cleared 4", "unknown 0"]);
    let (total, states) = explain(&["--at", "2"]);
    assert_eq!((total, &states[..4]), (4, &["held 0", "held 0", "held 0", "held 0"].map(String::from)[..]));
    assert_eq!(explain(&["--at", "3"]).0, 1);
    for wrong in [
        &["--hashes", "1,x"][..],
        &["--hashes", ""],
        &["--tokens", "1", "--block-size", "2"],
        &["--tokens", "1"],
        &[],
    ] {
        assert_eq!(failed(&run("match", &dir, wrong, "")).0, 2, "{wrong:?}");
    }
    let none = lines(&run("match", &dir, &["--tokens", "-", "--block-size", "2"], "1 2\n3 4 5"));
    assert_eq!((&none[0]["total"], &none[0]["prompt_blocks"]), (&json!(0), &json!(2)));
}

#[test]
fn a_journal_in_use_is_left_alone_and_one_that_a_crash_left_is_compacted() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    let mut worker = command("append", &dir, &["--ack"]);
    let mut worker = worker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let events = simulated("2000");
    worker.stdin.as_mut().unwrap().write_all(events.as_bytes()).unwrap();
    let acks = BufReader::new(worker.stdout.take().unwrap()).lines();
    let is_last = |line: &String| line.contains("2000");
    assert!(acks.map(Result::unwrap).any(|line| is_last(&line)));
    for args in [&["--keep-events", "10"][..], &["--reclaim"], &["--keep-events", "10", "--dry-run"]] {
        let (code, error) = failed(&run("compact", &dir, args, ""));
        assert!(code == 3 && error.contains("retention"), "{code} {error}");
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    let before = state(&dir);
    let done = lines(&run("compact", &dir, &["--keep-events", "10"], ""));
    assert!(done[0]["horizon"].as_u64().unwrap() > 1_000, "{done:?}");
    assert_eq!(state(&dir), before);
}
