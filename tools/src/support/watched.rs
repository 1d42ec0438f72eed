//! A subscriber process that reports its progress.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::processes::Process;
use crate::exit::ToolError;

/// The counts that a subscriber prints at intervals.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Records delivered so far.
    pub delivered_records: u64,
    /// Missing datagrams that arrived by repair.
    pub missing_recovered: u64,
    /// Records declared lost.
    pub lost_records: u64,
    /// Times that a NACK connection by verbs came up.
    pub nack_links_up: u64,
    /// Times that READ access came up.
    pub read_links_up: u64,
    /// Times that one line fell silent while another was heard.
    pub line_down: u64,
}

/// A subscriber process that prints its counts.
pub struct Watched {
    /// The process.
    pub process: Process,
    counts: Arc<Mutex<Counts>>,
}

impl Watched {
    /// Starts a process that prints its counts as JSON, one object a line.
    ///
    /// # Errors
    /// Returns the errors of [`Process::start`].
    pub fn start(name: &str, command: Command, folder: &Path) -> Result<Self, ToolError> {
        let mut process = Process::start(name, command, folder)?;
        let counts = Arc::<Mutex<Counts>>::default();
        if let Some(stdout) = process.take_stdout() {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || read_counts(stdout, &counts));
        }
        Ok(Self { process, counts })
    }

    /// Returns the counts printed last.
    pub fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the process's own file of this kind.
    pub fn file(&self, kind: &str) -> String {
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
