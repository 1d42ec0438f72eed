//! The publisher's files: closed to other users at any umask, and within the limit of file sizes.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{config, group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with the config of a session that ends at once.
struct Session(TempDir);

impl Session {
    fn new(change: impl FnOnce(&Self, &mut Value)) -> Self {
        let session = Self(tempfile::tempdir().unwrap());
        let input = json!({ "source": 1, "kind": "simulator", "messages": 10, "pace": "max" });
        let mut config = config(group(), input);
        config["linger_ms"] = json!(0);
        change(&session, &mut config);
        std::fs::write(session.path("config"), config.to_string()).unwrap();
        session
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs the publisher in a shell that sets a limit or mask first.
    fn run_after(&self, setting: &str, options: &[&str]) -> Output {
        let script = format!("{setting}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_tickcast-publisher")])
            .args(["--config", &self.path("config")])
            .args(options)
            .output();
        output.unwrap()
    }
}

#[test]
fn files_are_closed_to_others_at_umask_000() {
    let session =
        Session::new(|session, config| config["state_dir"] = json!(session.path("state")));
    let [summary, ready, audit] = ["summary", "ready", "audit"].map(|name| session.path(name));
    let options = [
        "--summary",
        &summary,
        "--ready-file",
        &ready,
        "--audit",
        &audit,
    ];
    let done = session.run_after("umask 000", &options);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let state = std::fs::read_dir(session.path("state")).unwrap();
    let state: Vec<_> = state.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(state.len(), 2, "a lock and an epoch: {state:?}");
    let others = [&session.path("state"), &summary, &ready, &audit];
    for path in state.into_iter().chain(others.map(PathBuf::from)) {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o027, 0, "{} {mode:o}", path.display());
    }
}

#[test]
fn limit_of_file_sizes_is_refused_with_reason() {
    let done = Session::new(|_, _| ()).run_after("ulimit -f 0", &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("ulimit -f"), "{said}");
}

#[test]
fn log_at_limit_of_file_sizes_ends_and_session_goes_on() {
    let session = Session::new(|_, _| ());
    // The log has reached the limit. The ring is far below it.
    let (log, len) = (std::fs::File::create(session.path("log")).unwrap(), 1 << 30);
    log.set_len(len).unwrap();
    let setting = format!("ulimit -f 1000000; exec 2>>{}", session.path("log"));
    let summary = session.path("summary");
    let done = session.run_after(&setting, &["--summary", &summary]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(log.metadata().unwrap().len(), len);
    assert!(PathBuf::from(summary).exists());
}
