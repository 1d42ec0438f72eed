//! The independent subscriber in Python (tests/protocol/stranger), as a command.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns a command that runs the independent subscriber. Without Python, prints a notice and returns
/// `None`.
pub(crate) fn stranger<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Option<Command> {
    let mut python = Command::new("python3");
    let found = python.arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        // Write to stderr directly, because the test harness captures the output of a passing test.
        let said = "SKIPPED: python3 is not here, so docs/PROTOCOL.md is not checked by a stranger; \
                    `make setup` installs it";
        writeln!(std::io::stderr(), "\n{said}").expect("stderr takes it");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol/stranger/subscriber.py");
    let mut command = Command::new("python3");
    // -B: no cache beside the sources.
    command.arg("-B").arg(script).args(arguments);
    Some(command)
}
