//! The `kvjournal` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvjournal::cli::run(std::env::args_os())
}
