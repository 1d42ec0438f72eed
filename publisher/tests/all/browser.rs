//! The page in headless Chromium: its values equal `/status`, it is live, and it survives a restart.
//!
//! Playwright drives Debian's Chromium, and axe-core checks what a screen reader needs. Both come from npm.

use std::fs::create_dir_all;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

use crate::common::{Control, Publisher, config, group, wait_for};
use serde_json::{Value, json};
use tickcast_reliability::types::{Epoch, Sequence};

/// Packages of npm that the script needs.
const PACKAGES: [&str; 2] = ["playwright-core@1.65.1", "axe-core@4.14.1"];
/// Messages of the simulated market.
const MESSAGES: u64 = 2_000;
/// A name that a page must show as text.
const NAME: &str = "<b>risk</b>";

/// Returns the path of Chromium, if it is installed.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|folder| folder.join("chromium"));
    files.find(|file| file.is_file())
}

/// Returns the folder of the script's packages; `None` where they are not installed and can't be had.
fn packages() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    let modules = folder.join("node_modules");
    let loads = || {
        let load = "require('playwright-core'); require.resolve('axe-core/axe.min.js')";
        let loaded = Command::new("node")
            .args(["-e", load])
            .env("NODE_PATH", &modules)
            .stderr(Stdio::null())
            .status();
        loaded.is_ok_and(|status| status.success())
    };
    if !loads() {
        let npm = "300 npm install --silent --no-audit --no-fund --prefix";
        let installed = Command::new("timeout")
            .args(npm.split(' '))
            .arg(&folder)
            .args(PACKAGES)
            .status();
        installed.ok()?;
    }
    loads().then_some(modules)
}

fn status(publisher: &Publisher) -> Value {
    let answer = publisher.get("/status");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// A subscriber that misses some datagrams and repairs others.
struct Subscriber {
    control: Control,
    epoch: Epoch,
    sequence: Sequence,
    lost: u64,
}

impl Subscriber {
    /// Joins, waits until the input has ended, and requests a range that is there and one that is not.
    fn join(publisher: &Publisher) -> Self {
        let mut control = publisher.connect();
        let epoch = control.join(NAME).channels[0].epoch;
        let mut joined = Self {
            control,
            epoch,
            sequence: Sequence(0),
            lost: 0,
        };
        let (mut sealed, mut shown) = (0, 0);
        wait_for("the end of the input", || {
            joined.report();
            let now = status(publisher);
            let before = std::mem::replace(&mut sealed, now["channels"][0]["sealed"].as_u64()?);
            shown = now["published_records"].as_u64()?;
            let is_over = now["sources"][0]["ended"] == 1 && shown >= MESSAGES;
            (is_over && before == sealed).then_some(())
        });
        joined.sequence = Sequence(sealed - 5);
        joined.control.nack(epoch, &[(2, 4), (1 << 40, 1 << 40)]);
        wait_for("the answers", || {
            joined.report();
            let now = status(publisher);
            let channel = &now["channels"][0];
            let is_answered = channel["answered"] == 3 && channel["refused_ahead"] == 1;
            (is_answered && now["subscribers"][0]["lag"] == 5).then_some(())
        });
        joined
    }

    fn report(&mut self) {
        self.control.progress(self.epoch, self.sequence, self.lost);
        while self.control.poll().is_some() {}
    }
}

#[test]
fn page_in_chromium_equals_status_and_survives_a_restart() {
    let (Some(chromium), Some(packages)) = (chromium(), packages()) else {
        println!("SKIPPED: chromium, node or {PACKAGES:?} is not installed and can't be had");
        eprintln!("SKIPPED: chromium, node or {PACKAGES:?} is not installed and can't be had");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    create_dir_all(&folder).unwrap();
    let logs = tempfile::tempdir().unwrap();
    let input = json!({
        "source": 7, "kind": "simulator", "messages": MESSAGES, "wait_for_subscribers": 1,
        "pace": { "messages_per_s": 2000 },
    });
    let mut config = config(group(), input);
    config["end_when_inputs_end"] = json!(false);
    config["latency_log"] = json!({ "path": logs.path().join("page.hlog"), "interval_ms": 100 });
    let mut publisher = Some(Publisher::start(&config));
    let admin = publisher.as_ref().unwrap().ready["admin"].clone();
    config["admin"] = admin.clone();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/browser/page.js");
    let mut browser = Command::new("node")
        .arg(script)
        .arg(format!("http://{}", admin.as_str().unwrap()))
        .arg(&folder)
        .env("NODE_PATH", packages)
        .env("CHROMIUM", chromium)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut answers, steps) = (
        browser.stdin.take().unwrap(),
        browser.stdout.take().unwrap(),
    );
    let (sender, receiver) = channel();
    spawn(move || {
        for step in BufReader::new(steps).lines() {
            let _ = sender.send(step.unwrap());
        }
    });
    let (mut subscriber, mut has_passed) = (None::<Subscriber>, false);
    loop {
        let step = match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(step) => step,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            // A subscriber without reports would be taken for dead.
            Err(_) => {
                subscriber.iter_mut().for_each(Subscriber::report);
                continue;
            }
        };
        match &*step {
            "join" => subscriber = publisher.as_ref().map(Subscriber::join),
            "lose" => subscriber.iter_mut().for_each(|it| it.lost += 1),
            "end" => {
                subscriber = None;
                let ending = publisher.take().unwrap();
                ending.terminate();
                assert_eq!(ending.finish().0, Some(0));
            }
            "start" => publisher = Some(Publisher::start(&config)),
            "passed" => has_passed = true,
            other => panic!("the script does not say {other:?}"),
        }
        let _ = writeln!(answers, "done");
    }
    assert!(browser.wait().unwrap().success() && has_passed);
    for name in ["light", "dark", "phone", "away", "restarted"] {
        let picture = std::fs::read(folder.join(format!("{name}.png"))).unwrap();
        assert!(picture.starts_with(b"\x89PNG"), "{name}");
    }
    println!("screenshots are in {}", folder.display());
}
