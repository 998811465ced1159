//! What leaves the process: errors, notes, and strings from outside made harmless.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use serde_json::json;
use tracing_subscriber::EnvFilter;

use crate::error::{Error, ErrorKind};

use super::Failure;
use super::args::Format;

/// Talk goes to stderr, as much as was asked for.
pub(super) fn init_tracing(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    // sled's own talk repeats ours in other words.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{level},sled=off")));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    // A second call, in tests, keeps the first subscriber.
    let _already_set = subscriber.with_ansi(stderr().is_terminal()).with_target(false).try_init();
}

/// Tells of a failure: what, why, and one hint.
pub(super) fn report(failure: &Failure, format: Format) -> ExitCode {
    let (message, hint, kind) = match failure {
        Failure::Journal(error) => (error.to_string(), error.hint(), error.kind()),
        Failure::Input(what) => (what.clone(), None, ErrorKind::Invalid),
        Failure::Output(e) => (format!("cannot write the output: {e}"), None, ErrorKind::Unavailable),
    };
    if format == Format::Json {
        let mut line = json!({ "error": message, "kind": format!("{kind:?}").to_lowercase(), "hint": hint });
        if let Failure::Journal(Error::Damaged(damage)) = failure {
            line["dp_rank"] = json!(damage.rank);
            line["ids"] = json!(damage.ids.as_ref().map(|ids| [ids.start(), ids.end()]));
        }
        note(&line.to_string());
    } else {
        note(&format!("kvjournal: {}", escape(&message)));
        if let Some(hint) = hint {
            note(&format!("hint: {hint}"));
        }
    }
    ExitCode::from(kind.exit_code())
}

/// A line on stderr.
pub(super) fn note(line: &str) {
    use std::io::Write as _;
    // With stderr gone there is nobody to tell.
    let _nobody_listens = writeln!(stderr(), "{line}");
}

/// Control characters of stored strings, made visible: a terminal must not obey them.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            let _infallible = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// A progress bar of bytes on stderr; nothing unless that is a terminal.
pub(super) fn progress_bytes() -> impl FnMut(u64, u64) {
    let bar = indicatif::ProgressBar::new(0);
    bar.set_style(
        indicatif::ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()),
    );
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done.min(total));
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// A progress bar of event ids on stderr; nothing unless that is a terminal.
pub(super) fn progress_ids() -> impl Fn(u64, u64) {
    let bar = indicatif::ProgressBar::new(0);
    bar.set_style(
        indicatif::ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} events {eta}")
            .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()),
    );
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done.min(total));
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// A table for people.
pub(super) fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    table
}

/// Bytes in the unit that reads best.
pub(super) fn human_bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
