//! Processes that this program starts: with a log each, watched, and ended with us whatever happens.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::exit::CommandError;

/// A child process. Dropping it ends it.
pub struct Process {
    /// Its name, for messages.
    pub name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts what `command` says, without input; its log goes to a file of `folder`.
    ///
    /// # Errors
    /// [`CommandError`] when the log can't be written or the program can't be started.
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Result<Self, CommandError> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|source| CommandError::Write {
            path: log.clone(),
            source,
        })?;
        // Logs are read as files, not on a terminal.
        command.env("NO_COLOR", "1");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let child = command.spawn().map_err(|source| CommandError::Start {
            path: command.get_program().into(),
            source,
        })?;
        let name = name.to_owned();
        Ok(Self { name, child, log })
    }

    /// Its number, by which the system knows it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it prints, for the first who asks.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Ends it without a word, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit code, once it has ended; 128 and more when a signal ended it.
    ///
    /// # Errors
    /// [`CommandError::Host`] when the system can't say.
    pub fn ended(&mut self) -> Result<Option<i32>, CommandError> {
        use std::os::unix::process::ExitStatusExt;

        let status = self.child.try_wait().map_err(|source| CommandError::Host {
            what: "watch a process",
            source,
        })?;
        Ok(status.map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0))))
    }

    /// The error that it failed, with the end of its log.
    pub fn failed(&mut self, how: impl Display) -> CommandError {
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
        self.kill();
    }
}

/// Ends where the process that was to be its parent, `$0`, is gone already; becomes the program else. What
/// it is tied by was asked for before, so that no moment is between.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// The program and arguments of `command`, killed as soon as the thread that starts it is gone: also where
/// that was killed itself, and could end nobody.
pub fn killed_with_us(command: &Command) -> Command {
    // It becomes the program, and is no process beside it.
    let mut tied = Command::new("setpriv");
    tied.args(["--pdeathsig", "KILL", "sh", "-c", UNLESS_ORPHANED]);
    tied.arg(std::process::id().to_string());
    tied.arg(command.get_program()).args(command.get_args());
    tied
}

/// This program, to be started again with another verb.
pub fn this_program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(|source| CommandError::Host {
        what: "find this program's own file",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_orphaned_before_it_was_tied_never_runs() {
        let said = |parent: u32| {
            let tied = killed_with_us(Command::new("echo").arg("it ran"));
            let own = std::process::id().to_string();
            let args = tied.get_args().map(|arg| match arg == own.as_str() {
                true => parent.to_string().into(),
                false => arg.to_owned(),
            });
            let output = Command::new(tied.get_program()).args(args).output();
            output.expect("setpriv and sh are there").stdout
        };
        assert_eq!(said(std::process::id()), b"it ran\n");
        assert_eq!(said(1), b"", "its parent is another by now");
    }
}
