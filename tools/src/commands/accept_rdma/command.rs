//! Programs that run to their end within a limit.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::order::NotDone;

/// Longest output that is read, in bytes.
const OUTPUT_MAX: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(10);

/// The end of a program.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) is_success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ended {
    /// Returns all that the program said, in one line.
    pub(super) fn said(&self) -> String {
        let words = self
            .stderr
            .split_whitespace()
            .chain(self.stdout.split_whitespace());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Runs a program without input. Kills it and its children after `limit`.
///
/// # Errors
/// Returns [`NotDone::Unavailable`] if it is not installed, and [`NotDone::Failed`] if it is late.
pub(super) fn run(program: &str, args: &[&str], limit: Duration) -> Result<Ended, NotDone> {
    let host = |error: std::io::Error| NotDone::Failed(format!("{program}: {error}"));
    let mut outputs = [
        tempfile::tempfile().map_err(host)?,
        tempfile::tempfile().map_err(host)?,
    ];
    let mut command = Command::new(program);
    // A group of its own, so that its children end with it, and a signal to this program reaches neither.
    command.args(args).process_group(0).stdin(Stdio::null());
    command.stdout(outputs[0].try_clone().map_err(host)?);
    command.stderr(outputs[1].try_clone().map_err(host)?);
    let child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            NotDone::Unavailable(format!("the program {program} is not installed"))
        }
        _ => NotDone::Failed(format!("{program} can't be started: {error}")),
    })?;
    let Some(status) = ended(child, limit).map_err(host)? else {
        let args = args.join(" ");
        let s = limit.as_secs();
        return Err(NotDone::Failed(format!(
            "`{program} {args}` did not end within {s} s"
        )));
    };
    let [stdout, stderr] = outputs.each_mut().map(text);
    Ok(Ended {
        is_success: status.success(),
        stdout: stdout.map_err(host)?,
        stderr: stderr.map_err(host)?,
    })
}

/// Waits for the end of a child. Kills its group after `limit`.
fn ended(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>, std::io::Error> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            break;
        }
        sleep(POLL);
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        kill_process_group(group, Signal::KILL)?;
    }
    child.wait().map(|_| None)
}

fn text(file: &mut File) -> Result<String, std::io::Error> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a program whose failure is an error. Returns its output.
///
/// # Errors
/// Returns the errors of [`run`], and [`NotDone::Failed`] with the words of a program that fails.
pub(super) fn output(program: &str, args: &[&str], limit: Duration) -> Result<String, NotDone> {
    let ended = run(program, args, limit)?;
    if ended.is_success {
        return Ok(ended.stdout);
    }
    let said = ended.said();
    Err(NotDone::Failed(format!(
        "`{program} {}`: {said}",
        args.join(" ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn program_that_fails_is_reported_with_its_words() {
        assert_eq!(
            output("sh", &["-c", "echo a; echo b >&2"], LONG).unwrap(),
            "a\n"
        );
        let failed = output("sh", &["-c", "echo a; echo b >&2; exit 3"], LONG);
        assert!(failed.unwrap_err().to_string().ends_with("b a"));
        let absent = output("/nowhere/program", &[], LONG).unwrap_err();
        assert!(matches!(absent, NotDone::Unavailable(_)), "{absent}");
    }

    #[test]
    fn late_program_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("id");
        let script = format!("sleep 600 & echo $! >{}; wait", file.display());
        // A slow host may need longer than the first limits to start the child.
        let limits = [1, 2, 4, 8, 16, 32, 64]
            .map(Duration::from_secs)
            .into_iter();
        let child = limits
            .map(|limit| {
                let late = run("sh", &["-c", &script], limit).unwrap_err();
                assert!(late.to_string().contains("did not end"), "{late}");
                std::fs::read_to_string(&file).unwrap_or_default()
            })
            .find(|child| child.ends_with('\n'));
        let child = child.expect("the script ran");
        let place = format!("/proc/{}", child.trim());
        // A killed child is a zombie until its new parent waits for it.
        let state = || std::fs::read_to_string(format!("{place}/stat")).unwrap_or_default();
        let until = Instant::now() + LONG;
        while !matches!(state().split(' ').nth(2), None | Some("Z" | "X")) {
            assert!(Instant::now() < until, "{}", state());
            sleep(POLL);
        }
    }
}
