//! The layers hold: arrows between modules only run downward, sled is named in one place, and only the command line
//! writes to stdout.
//!
//! The sources are read as text; what stands in comments does not count.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the crate, a layer a line, the highest first. A module may use those of the lines below its own.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["worker", "router"],
    &["nats", "zmq", "http"],
    &["journal"],
    &["index", "engine"],
    &["store", "codec"],
    &["config"],
    &["error"],
    &["event"],
];

/// Modules that may use less than what is below them.
const STRICTER: &[(&str, &[&str])] = &[
    ("engine", &["event", "error"]),
    ("index", &["event", "error"]),
    ("codec", &["event", "error"]),
    ("store", &["event", "error"]),
];

/// What the root re-exports from `error`.
const ROOT_NAMES: &[&str] = &["Damage", "Error", "ErrorKind", "Result"];

/// Everything in one file that breaks a rule, one sentence each. `path` is relative to `src`.
fn offences(path: &str, source: &str) -> Vec<String> {
    let code = without_comments(source);
    let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    let mut offences = Vec::new();
    if !matches!(path, "lib.rs" | "main.rs") {
        if layer(module).is_none() {
            offences.push(format!("{path}: module `{module}` has no layer"));
        }
        for used in used_modules(path, &code) {
            if !may_use(module, &used) {
                offences.push(format!("{path}: `{module}` uses `{used}`"));
            }
        }
    }
    if !path.starts_with("store/sled/") && names_sled(path, &code) {
        offences.push(format!("{path}: names sled"));
    }
    if module != "cli" {
        for call in ["println!", "print!", "stdout("] {
            if places(&code, call).next().is_some() {
                offences.push(format!("{path}: {call} outside the command line"));
            }
        }
    }
    offences
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

fn may_use(user: &str, used: &str) -> bool {
    if user == used {
        return true;
    }
    match STRICTER.iter().find(|(module, _)| *module == user) {
        Some((_, allowed)) => allowed.contains(&used),
        None => layer(used).is_some() && layer(user) < layer(used),
    }
}

/// The modules of the crate that a file names, by `crate::` or by enough `super::`.
fn used_modules(path: &str, code: &str) -> Vec<String> {
    let depth = path.split('/').filter(|part| *part != "mod.rs").count();
    let to_root = "super::".repeat(depth);
    let mut names = Vec::new();
    for at in places(code, "crate::") {
        names.extend(heads(&code[at + "crate::".len()..]));
    }
    for at in places(code, &to_root) {
        // Within an inline module these lead elsewhere; only a layer's name is taken for one.
        let found = heads(&code[at + to_root.len()..]);
        names.extend(found.into_iter().filter(|name| layer(name).is_some()));
    }
    names.into_iter().map(|name| if ROOT_NAMES.contains(&&*name) { "error".into() } else { name }).collect()
}

/// The first names of a path or of a group of paths.
fn heads(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![ident(rest)] };
    let mut heads = Vec::new();
    let (mut depth, mut fresh) = (0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            letter if fresh && !letter.is_whitespace() => {
                heads.push(ident(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

fn ident(text: &str) -> String {
    text.chars().take_while(|letter| is_word(*letter)).collect()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Where `what` stands as a whole word.
fn places<'a>(code: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(what).map(|(at, _)| at).filter(|at| !code[..*at].ends_with(is_word))
}

/// Whether the crate sled is named in a path. `store/mod.rs` has a module of that name.
fn names_sled(path: &str, code: &str) -> bool {
    places(code, "sled").any(|at| {
        let rest = &code[at + "sled".len()..];
        let is_path = rest.starts_with("::") || (code[..at].ends_with("::") && !rest.starts_with(is_word));
        let is_import = code[..at].ends_with("use ") || code[..at].ends_with("extern crate ");
        let is_ours = path == "store/mod.rs"
            && code[..at].ends_with("use ")
            && (rest.starts_with("::SledStore") || rest.starts_with("::{SledStore,"));
        (is_path || is_import && !rest.starts_with(is_word)) && !is_ours
    })
}

/// Without `//` comments. A `//` in a string is taken for one too, which hides at most the end of its line.
fn without_comments(source: &str) -> String {
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn arrows_run_downward() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 30, "{} files were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
        if path.contains("/tests/") {
            continue;
        }
        found.extend(offences(path, &fs::read_to_string(&file).unwrap()));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_arrow_that_runs_upward_is_seen() {
    let uses = |path: &str, line: &str| offences(path, line).len();
    assert_eq!(uses("codec/frame.rs", "use crate::journal::Config;"), 1);
    assert_eq!(uses("codec/frame.rs", "use crate::store::Tree;"), 1);
    assert_eq!(uses("codec/frame.rs", "let x = crate::cli::run();"), 1);
    assert_eq!(uses("codec/frame.rs", "use crate::{event::EventId, cli::{A, B}, journal};"), 2);
    assert_eq!(uses("codec/frame.rs", "use super::super::journal::Config;"), 1);
    assert_eq!(uses("store/mod.rs", "use super::codec::Frame;"), 1);
    assert_eq!(uses("engine/sim/mod.rs", "use crate::codec::Frame;"), 1);
    assert_eq!(uses("index/find.rs", "use crate::engine::Namespace;"), 1);
    assert_eq!(uses("error.rs", "use crate::store::StoreError;"), 1);
    assert_eq!(uses("event/json.rs", "use crate::Error;"), 1);
    assert_eq!(uses("worker/mod.rs", "use crate::router::Follower;"), 1);
    assert_eq!(uses("journal/mod.rs", "use crate::something_new::X;"), 1);
    assert_eq!(uses("something_new.rs", ""), 1);
}

#[test]
fn an_arrow_that_runs_downward_is_none_to_see() {
    let fine = |path: &str, line: &str| assert_eq!(offences(path, line), Vec::<String>::new(), "{line}");
    fine("journal/writer.rs", "use crate::{codec::{Frame, Stamp}, store::Store, Error, error::Result};");
    fine("codec/frame.rs", "use crate::codec::tests::spec; use crate::event::EventId; use crate::Result;");
    fine("codec/frame.rs", "// use crate::journal::Config;\n/// [`crate::journal::Journal`]");
    fine("codec/tests/rows.rs", "use super::super::payload::digest;");
    fine("cli/mod.rs", "use crate::journal::Journal;");
    fine("main.rs", "kvjournal::cli::main()");
}

#[test]
fn sled_outside_its_folder_is_seen() {
    let line = "let db = ::sled::open(path)?;";
    assert_eq!(offences("journal/open.rs", line), ["journal/open.rs: names sled"]);
    assert_eq!(offences("store/folder.rs", "use sled::Db;").len(), 1);
    assert_eq!(offences("store/folder.rs", "use sled;").len(), 1);
    assert_eq!(offences("store/mod.rs", "fn f(db: sled::Db) {}").len(), 1);
    assert!(offences("store/mod.rs", "mod sled;\npub(crate) use sled::SledStore;").is_empty());
    assert!(offences("store/sled/mod.rs", line).is_empty());
    assert!(offences("journal/open.rs", "let sled = SledStore::open(path)?; // sled::open").is_empty());
}

#[test]
fn a_print_outside_the_command_line_is_seen() {
    for line in ["println!(\"x\");", "print!(\"x\");", "std::io::stdout().lock();"] {
        assert_eq!(offences("journal/mod.rs", line).len(), 1, "{line}");
        assert!(offences("cli/output.rs", line).is_empty(), "{line}");
    }
    assert!(offences("journal/mod.rs", "eprintln!(\"x\"); eprint!(\"y\");").is_empty());
}
