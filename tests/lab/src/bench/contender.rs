//! A contender's process. The bench starts it with its task, sends it orders and reads its words. The
//! process never outlives the bench.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::protocol::{Order, Part, Task, Word};
use crate::network::End;
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::signals::Stop;

/// How long each step may take beyond its expected time. It only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(600);

/// One process. Dropping it ends the process.
pub(crate) struct Process {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    words: Receiver<Word>,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its task.
    ///
    /// # Errors
    /// [`ToolError`] if the process can't be started.
    pub(crate) fn start(
        name: &str,
        program: &Program,
        at: &End,
        task: &Task,
    ) -> Result<Self, ToolError> {
        let log = task.folder.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).map_err(|source| ToolError::Write {
            path: log.clone(),
            source,
        })?;
        let text = serde_json::to_string(task).map_err(|source| ToolError::Json {
            path: log.clone(),
            what: "a task",
            source,
        })?;
        let mut command = at.command(&program.path);
        command
            .args(program.verb)
            .arg(text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file);
        let mut child = command.spawn().map_err(|source| ToolError::Start {
            path: program.path.clone(),
            source,
        })?;
        let orders = child.stdin.take();
        let (said, words) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    // Libraries of peers may print lines of their own: those are skipped.
                    if let Ok(word) = serde_json::from_str(&line)
                        && said.send(word).is_err()
                    {
                        break;
                    }
                }
            });
        }
        Ok(Self {
            name: name.to_owned(),
            child,
            orders,
            words,
            log,
        })
    }

    /// Sends an order.
    pub(crate) fn tell(&mut self, order: &Order) {
        if let Some(orders) = &mut self.orders {
            let text = serde_json::to_string(order).unwrap_or_default();
            // A write to an ended process fails. The next `listen` reports that.
            let _ = writeln!(orders, "{text}").and_then(|()| orders.flush());
        }
    }

    /// Waits for the next word, `extra` longer than the usual patience.
    ///
    /// # Errors
    /// [`ToolError::Interrupted`] after a signal, or the process's own error: its word or its log.
    pub(crate) fn listen(&mut self, stop: &Stop, extra: Duration) -> Result<Word, ToolError> {
        let until = Instant::now() + PATIENCE + extra;
        loop {
            if stop.asked() {
                return Err(ToolError::Interrupted);
            }
            match self.words.recv_timeout(Duration::from_millis(20)) {
                Ok(Word::Failed(why)) => return Err(self.failed(format_args!("said: {why}"))),
                Ok(word) => return Ok(word),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.failed("said nothing for long")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed("ended")),
            }
        }
    }

    /// Waits for the result of the process.
    ///
    /// # Errors
    /// [`ToolError::Interrupted`] after a signal, or the process's own error: its word or its log.
    pub(crate) fn part(&mut self, stop: &Stop, extra: Duration) -> Result<Part, ToolError> {
        loop {
            if let Word::Done(part) = self.listen(stop, extra)? {
                return Ok(*part);
            }
        }
    }

    /// Returns the process id, by which the system reports on the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn failed(&mut self, how: impl Display) -> ToolError {
        const LINES: usize = 8;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        ToolError::Process {
            name: self.name.clone(),
            how: how.to_string(),
            code: None,
            log: tail.join("\n  "),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends by itself once its orders are closed. A process that measured gets time to
        // clean up.
        self.orders = None;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that contains contenders.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) verb: &'static [&'static str],
}

impl Program {
    /// Returns this program.
    ///
    /// # Errors
    /// [`ToolError::Host`] if the system does not report the path of this program.
    pub(crate) fn own() -> Result<Self, ToolError> {
        let path = std::env::current_exe().map_err(|source| ToolError::Host {
            what: "find this program",
            source,
        })?;
        Ok(Self {
            path,
            verb: &["bench-side"],
        })
    }

    /// Returns the peers' program, which need not exist.
    pub(crate) fn peers(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            verb: &[],
        }
    }
}
