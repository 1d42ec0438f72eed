//! Helpers for tests that run programs of this workspace.
//!
//! | part | contents |
//! |---|---|
//! | [`Running`], [`program`] | processes that end with their test |
//! | [`Publisher`], [`Follower`] | a publisher as a process, subscribers in this process |
//! | [`network`] | networks of a test's own, and another host |
//! | [`machine`] | a lock for tests that need the machine for themselves |
//! | [`recorded`] | recorded files, built byte by byte |
//! | [`system_calls`] | checks on the counts of a system call trace |

pub mod machine;
pub mod network;
pub mod recorded;
mod system;
pub mod system_calls;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use system::{
    Follower, Publisher, binary, channel, drive, drive_for, drive_to_end, end, endless,
    free_address, free_group, number, one_channel, simulated, verbs_libraries,
};

/// Upper bound of every wait in a test. It only turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the name of a test as its test program knows it. `module_path` is `module_path!()` of the test.
/// A test that runs another test as a process needs this name.
#[must_use]
pub fn test_name(module_path: &str, function: &str) -> String {
    match module_path.split_once("::") {
        Some((_, module)) => format!("{module}::{function}"),
        None => function.to_owned(),
    }
}

/// Returns a command for this program with these arguments and with pipes for its output.
#[must_use]
pub fn program(path: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(path.as_ref());
    command.args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    /// Starts the command.
    ///
    /// # Panics
    /// If the process can't be started.
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Returns the process.
    ///
    /// # Panics
    /// If [`Self::output`] already waited for its end.
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for the end of the process and returns its exit code and output.
    ///
    /// # Panics
    /// If the process does not end within [`PATIENCE`].
    pub fn output(mut self) -> Output {
        let child = self.0.take().unwrap();
        let id = child.id();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        match is_done.recv_timeout(PATIENCE) {
            Ok(output) => output.unwrap(),
            Err(_) => {
                signal(id, "KILL");
                panic!("the command did not end within {PATIENCE:?}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal to one process.
///
/// # Panics
/// If the process no longer exists.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{name} {id}"))
        .status();
    assert!(sent.unwrap().success());
}

/// Waits until `ready` returns a value, and returns that value.
///
/// # Panics
/// After [`PATIENCE`].
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a program's output as text.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the path of the publisher's program, and builds it first unless `TICKCAST_BUILT` is set.
///
/// Cargo builds only the programs of the tested package. `TICKCAST_BUILT` says that a run of the whole
/// workspace has built all programs.
///
/// # Panics
/// If the build fails.
pub fn publisher_bin() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().unwrap();
        // target/PROFILE/deps/TEST
        let folder = test.parent().and_then(Path::parent).unwrap();
        if std::env::var_os("TICKCAST_BUILT").is_some() {
            return folder.join("tickcast-publisher");
        }
        let profile = folder.file_name().unwrap().to_str().unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "tickcast-publisher"]);
        cargo.args(["--profile", profile]);
        cargo.arg("--target-dir").arg(folder.parent().unwrap());
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(
            cargo.status().unwrap().success(),
            "the publisher can't be built"
        );
        folder.join("tickcast-publisher")
    };
    BUILT.get_or_init(build).clone()
}

/// Checks a page of metrics with promtool, and reports on standard error that it skips where that is missing.
///
/// # Panics
/// If promtool finds something.
pub fn check_by_promtool(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let piped = promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut checker) = piped.spawn() else {
        // To stderr itself: the test harness captures the output of a passing test.
        let said =
            "SKIPPED: promtool is not here, so the page is not checked; `make setup` installs it";
        let mut stderr = std::io::stderr();
        writeln!(stderr, "\n{said}").unwrap();
        return;
    };
    let mut input = checker.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let said = checker.wait_with_output().unwrap();
    let text = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(said.status.success() && text.is_empty(), "{text}\n{page}");
}

/// Asserts that a command line is consistent, and that each verb and each option has a help text.
///
/// # Panics
/// If a help text is missing.
pub fn assert_has_help(mut root: clap::Command) {
    root.build();
    root.clone().debug_assert();
    for verb in root.get_subcommands() {
        let name = verb.get_name();
        assert!(verb.get_about().is_some(), "{name} has no help");
        for option in verb.get_arguments() {
            let help = option.get_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| !help.is_empty()),
                "{name} {} has no help",
                option.get_id()
            );
        }
    }
}
