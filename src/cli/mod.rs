//! The command line: arguments, output, exit codes. It is part of the library so that it can be tested in
//! process; nothing else in the library knows of it.
//!
//! Data goes to stdout, talk to stderr. Exit codes: 0 fine, 1 worked and found problems, 2 wrong use, 3 unavailable,
//! 4 damaged, 5 a bug.

mod append;
mod args;
mod bench;
mod compact;
mod demo;
mod dump;
mod explain;
mod export;
mod fold;
mod import;
mod inspect;
mod load;
mod log;
mod matching;
mod output;
mod repair;
mod simulate;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::error::{Error, ErrorKind};
use args::{Cli, Verb};

/// How a verb ended that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well.
    Fine,
    /// It found problems, and has told them.
    Problems,
    /// It found damage, and has told it.
    Damaged,
}

/// Why a verb did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the journal said.
    Journal(Error),
    /// A line of input cannot be used.
    Input(String),
    /// Output could not be written.
    Output(std::io::Error),
}

/// Runs the command line and says how the process should end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors; whatever cannot be printed has nobody left to read it.
            let _closed_pipe = e.print();
            return ExitCode::from(if e.use_stderr() { ErrorKind::Invalid.exit_code() } else { 0 });
        }
    };
    output::init_tracing(cli.verbose);
    let ended = match cli.verb {
        Verb::Append(args) => append::run(args, cli.format),
        Verb::Log(args) => log::run(args, cli.format),
        Verb::Inspect(args) => inspect::run(args, cli.format),
        Verb::Dump(args) => dump::run(args, cli.format),
        Verb::Match(args) => matching::run(args, cli.format),
        Verb::Compact(args) => compact::run(args, cli.format),
        Verb::Verify(args) => verify::run(args, cli.format),
        Verb::Repair(args) => repair::run(args, cli.format),
        Verb::Export(args) => export::run(args),
        Verb::Import(args) => import::run(args, cli.format),
        Verb::Migrate(args) => repair::migrate(args, cli.format),
        Verb::Simulate(args) => simulate::run(args, cli.format),
        Verb::Demo(args) => demo::run(args),
        Verb::Bench(args) => bench::run(args, cli.format),
    };
    match ended {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Problems) => ExitCode::from(1),
        Ok(Outcome::Damaged) => ExitCode::from(ErrorKind::Damaged.exit_code()),
        // Whoever closed the pipe has seen enough.
        Err(Failure::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => output::report(&failure, cli.format),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Journal(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}
