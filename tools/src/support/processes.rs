//! Child processes: each has its own log, and all of them end together with this process.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use tickcast_transport::host::files::{DirectoryEntry, Readers};

use crate::exit::ToolError;
use crate::support::files::not_written;

/// A child process. Dropping it kills it.
pub struct Process {
    /// Name of the process in messages.
    pub name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` without input. Its log goes to a file in `folder`.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the log can't be written or the program can't be started.
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Result<Self, ToolError> {
        let log = folder.join(format!("{name}.log"));
        let file = DirectoryEntry::new(&log)
            .and_then(|entry| entry.create(Readers::Group)?.replace())
            .map_err(|error| not_written(&log, error))?;
        // Logs are read as files, not on a terminal.
        command.env("NO_COLOR", "1");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let child = command.spawn().map_err(|source| ToolError::Start {
            path: command.get_program().into(),
            source,
        })?;
        let name = name.to_owned();
        Ok(Self { name, child, log })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its stdout, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the exit code once the process has ended; 128 or more if a signal ended it.
    ///
    /// # Errors
    /// Returns [`ToolError::Host`] if the system can't report its state.
    pub fn ended(&mut self) -> Result<Option<i32>, ToolError> {
        use std::os::unix::process::ExitStatusExt;

        let status = self.child.try_wait().map_err(|source| ToolError::Host {
            what: "watch a process",
            source,
        })?;
        Ok(status.map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0))))
    }

    /// Returns the error for a failed process, with the end of its log.
    pub fn failed(&mut self, how: impl Display) -> ToolError {
        const LINES: usize = 20;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        ToolError::Process {
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

/// Exits if the intended parent process, `$0`, is gone already; otherwise becomes the program.
/// `setpriv` has requested the kill signal before this check, so no moment in between is uncovered.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// Returns `command` wrapped so that the kernel kills it once the thread that started it ends. This
/// works even if this process itself is killed and can't clean up.
pub fn killed_with_us(command: &Command) -> Command {
    // Each wrapper replaces itself by the next program, so no extra process remains.
    let mut tied = Command::new("setpriv");
    tied.args(["--pdeathsig", "KILL", "sh", "-c", UNLESS_ORPHANED]);
    tied.arg(std::process::id().to_string());
    tied.arg(command.get_program()).args(command.get_args());
    tied
}

/// Returns the path of this program, to start it with another verb.
pub fn this_program() -> Result<PathBuf, ToolError> {
    std::env::current_exe().map_err(|source| ToolError::Host {
        what: "find this program's own file",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_orphaned_before_pdeathsig_never_runs() {
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
