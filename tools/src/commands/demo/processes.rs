//! The demo's processes: started with a log each, watched, and ended with us whatever happens.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use crate::exit::CommandError;

/// A child process. Dropping it ends it.
pub(super) struct Process {
    pub(super) name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; its log goes to a file of `folder`.
    ///
    /// # Errors
    /// [`CommandError`] when the log can't be written or the program can't be started.
    pub(super) fn start(
        name: &str,
        program: &Path,
        folder: &Path,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, CommandError> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|source| CommandError::Write {
            path: log.clone(),
            source,
        })?;
        let mut command = Command::new(program);
        arguments(&mut command);
        // Logs are read as files, not on a terminal.
        command.env("NO_COLOR", "1");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let child = command.spawn().map_err(|source| CommandError::Start {
            path: program.into(),
            source,
        })?;
        let name = name.to_owned();
        Ok(Self { name, child, log })
    }

    /// Its exit code, once it has ended; 128 and more when a signal ended it.
    ///
    /// # Errors
    /// [`CommandError::Host`] when the system can't say.
    pub(super) fn ended(&mut self) -> Result<Option<i32>, CommandError> {
        use std::os::unix::process::ExitStatusExt;

        let status = self.child.try_wait().map_err(|source| CommandError::Host {
            what: "watch a process",
            source,
        })?;
        Ok(status.map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0))))
    }

    /// The error that it failed, with the end of its log.
    pub(super) fn failed(&mut self, how: impl Display) -> CommandError {
        const LINES: usize = 20;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        CommandError::Process {
            name: self.name.clone(),
            how: how.to_string(),
            code: self.ended().ok().flatten(),
            log: tail.join("\n  "),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a subscriber says of itself now and then.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    pub(super) delivered_records: u64,
    pub(super) gaps_recovered: u64,
    pub(super) lost_records: u64,
}

/// A subscriber that prints its counts.
pub(super) struct Watched {
    pub(super) process: Process,
    counts: Arc<Mutex<Counts>>,
}

impl Watched {
    /// Starts one, as [`Process::start`].
    pub(super) fn start(
        name: &str,
        program: &Path,
        folder: &Path,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, CommandError> {
        let mut process = Process::start(name, program, folder, arguments)?;
        let counts = Arc::<Mutex<Counts>>::default();
        if let Some(stdout) = process.child.stdout.take() {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || read_counts(stdout, &counts));
        }
        Ok(Self { process, counts })
    }

    /// What it said last.
    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a file of its own.
    pub(super) fn file(&self, kind: &str) -> String {
        format!("{}.{kind}", self.process.name)
    }
}

/// Reads until the process ends, so that it never waits for us.
fn read_counts(stdout: ChildStdout, counts: &Mutex<Counts>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Ok(news) = serde_json::from_str(&line) {
            *counts.lock().unwrap_or_else(PoisonError::into_inner) = news;
        }
    }
}

/// This program, to be started again with another verb.
pub(super) fn this_program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(|source| CommandError::Host {
        what: "find this program's own file",
        source,
    })
}

/// How many records a publisher has published, from its metrics; `None` when it does not say.
pub(super) fn published_at(admin: SocketAddr) -> Option<u64> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    // What came before a time-out may do.
    let _ = stream.read_to_string(&mut text);
    let of_line = |line: &str| {
        let value = line.strip_prefix("tickcast_publisher_published_records{")?;
        value.rsplit_once(' ')?.1.parse::<u64>().ok()
    };
    text.lines().filter_map(of_line).reduce(|all, n| all + n)
}
