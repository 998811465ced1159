//! A nats-server as a child process: its own folder, a free port that it picks itself, killed on drop.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Longest time from start to accepting connections.
const READY_WAIT_MAX: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(5);
/// Room for the streams of one run, far above what is ever written.
const STORE_BYTES_MAX: &str = "64GB";

/// When the server syncs its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncInterval {
    /// Before each ack: the ack is a promise that holds through a power cut.
    Always,
    /// As it comes, each 2 minutes: the ack comes before the sync.
    Default,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: String,
}

/// The file in which the server names its ports.
#[derive(Deserialize)]
struct Ports {
    nats: Vec<String>,
}

impl Server {
    /// Starts a server that keeps everything under `dir`, and waits until it takes connections.
    pub(crate) fn start(binary: &Path, dir: &Path, sync: SyncInterval) -> Result<Self> {
        let config = dir.join("nats.conf");
        fs::write(&config, configuration(dir, sync))
            .with_context(|| format!("write {}", config.display()))?;
        let log = dir.join("nats.log");
        let child = Command::new(binary)
            .arg("--config")
            .arg(&config)
            .arg("--log")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        // From here on the child is killed whatever happens.
        let mut server = Self { child, address: String::new() };
        server.address = server.wait_ready(dir).with_context(|| {
            format!("nats-server said: {}", fs::read_to_string(&log).unwrap_or_default().trim())
        })?;
        Ok(server)
    }

    fn wait_ready(&mut self, dir: &Path) -> Result<String> {
        let deadline = Instant::now() + READY_WAIT_MAX;
        loop {
            if let Some(status) = self.child.try_wait().context("look after nats-server")? {
                bail!("nats-server ended at once: {status}");
            }
            if let Some(address) = named_address(dir, self.pid())
                && TcpStream::connect(&address).is_ok()
            {
                return Ok(address);
            }
            ensure!(Instant::now() < deadline, "nats-server was not ready in {READY_WAIT_MAX:?}");
            thread::sleep(READY_POLL);
        }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `nats-server --version` says.
pub(crate) fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("run {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The server that `get-nats-server.sh` finds or fetches.
pub(crate) fn find() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("get-nats-server.sh");
    let output = Command::new(&script)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", script.display()))?;
    ensure!(output.status.success(), "{} found no nats-server", script.display());
    Ok(PathBuf::from(String::from_utf8(output.stdout).context("the path of nats-server")?.trim()))
}

fn configuration(dir: &Path, sync: SyncInterval) -> String {
    let sync = match sync {
        SyncInterval::Always => "sync_interval: always",
        SyncInterval::Default => "",
    };
    let dir = dir.display();
    format!(
        "listen: \"127.0.0.1:-1\"\n\
         ports_file_dir: \"{dir}\"\n\
         jetstream {{\n  store_dir: \"{dir}/store\"\n  max_file_store: {STORE_BYTES_MAX}\n  {sync}\n}}\n"
    )
}

/// The address in the server's file of ports, which is named after its executable and pid; `None` while the file is
/// not there or not fully written.
fn named_address(dir: &Path, pid: u32) -> Option<String> {
    let suffix = format!("_{pid}.ports");
    let mut paths = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let file = paths.find(|path| path.to_string_lossy().ends_with(&suffix))?;
    let ports: Ports = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    Some(ports.nats.first()?.trim_start_matches("nats://").to_owned())
}
