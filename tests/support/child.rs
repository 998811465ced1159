//! A child process on a disk whose power may go.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::powerfs::PowerFs;

/// Longest life of a child.
const LIFE_MAX: Duration = Duration::from_secs(60);

/// How long a child may go on once its disk is dead, which may make it hang in sled.
const LIFE_AFTER_CUT: Duration = Duration::from_millis(300);

/// Runs the test `name` of this executable alone, in a process of its own, and gives the lines it printed.
pub fn run(power: &PowerFs, name: &str, env: &[(&str, &OsStr)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).envs(env.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let reader =
        std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).collect::<Vec<_>>());
    let deadline = Instant::now() + LIFE_MAX;
    let mut cut_since = None;
    while child.try_wait().unwrap().is_none() {
        if power.is_cut() {
            cut_since.get_or_insert_with(Instant::now);
        }
        let given_up = cut_since.is_some_and(|since: Instant| since.elapsed() > LIFE_AFTER_CUT);
        if given_up || Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    reader.join().unwrap()
}
