//! The progress that the demo's processes report while they run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use tickcast_tools::exit::ToolError;
use tickcast_tools::support::processes::Process;

/// The counts that a subscriber prints at intervals.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    pub(super) delivered_records: u64,
    pub(super) missing_recovered: u64,
    pub(super) lost_records: u64,
}

/// A subscriber process that prints its counts.
pub(super) struct Watched {
    pub(super) process: Process,
    counts: Arc<Mutex<Counts>>,
}

impl Watched {
    /// Starts the process, as [`Process::start`] does.
    pub(super) fn start(name: &str, command: Command, folder: &Path) -> Result<Self, ToolError> {
        let mut process = Process::start(name, command, folder)?;
        let counts = Arc::<Mutex<Counts>>::default();
        if let Some(stdout) = process.take_stdout() {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || read_counts(stdout, &counts));
        }
        Ok(Self { process, counts })
    }

    /// Returns the counts printed last.
    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the process's own file of this kind.
    pub(super) fn file(&self, kind: &str) -> String {
        format!("{}.{kind}", self.process.name)
    }
}

/// Reads until the process ends, so that its output never blocks it.
fn read_counts(stdout: ChildStdout, counts: &Mutex<Counts>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Ok(news) = serde_json::from_str(&line) {
            *counts.lock().unwrap_or_else(PoisonError::into_inner) = news;
        }
    }
}

/// Returns the number of records published, from the publisher's metrics; `None` if they are not
/// available.
pub(super) fn published_at(admin: SocketAddr) -> Option<u64> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    // A timeout may have cut off the text; the part that arrived may suffice.
    let _ = stream.read_to_string(&mut text);
    let of_line = |line: &str| {
        let value = line.strip_prefix("tickcast_publisher_published_records_total{")?;
        value.rsplit_once(' ')?.1.parse::<u64>().ok()
    };
    text.lines().filter_map(of_line).reduce(|all, n| all + n)
}
