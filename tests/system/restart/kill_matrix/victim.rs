//! A subscriber process that can be killed, run from this test binary. It writes its items into a file,
//! in whole lines, before it polls again.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_subscriber::faults::{FaultConfig, Scripted};
use tickcast_subscriber::{ChannelBuilder, Event, Item, Start, Subscriber};
use tickcast_subscriber::{Epoch, Sequence};
use xxhash_rust::xxh3::xxh3_64;

use tickcast_test_support::PATIENCE;

const SETTINGS: &str = "TICKCAST_VICTIM";

/// An item that the subscriber received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// Epoch, sequence, number and hash of a record.
    Record(u64, u64, u64, u64),
    /// First and last sequence, and the number of records if it is known.
    Lost(u64, u64, Option<u64>),
    /// Another epoch.
    Epoch(u64),
    /// The end of the session.
    End,
    /// The subscriber left in order, and its counters balance.
    Whole,
}

pub(crate) struct Victim {
    child: Child,
    ledger: PathBuf,
    _folder: TempDir,
}

impl Victim {
    /// Starts a subscriber of the channel "all" at the oldest datagram, or after the record `behind`.
    /// `dropped` is the first datagram to drop and their number, in the order of arrival.
    pub(crate) fn start(
        control: std::net::SocketAddr,
        behind: Option<&Given>,
        dropped: Option<(u64, u64)>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = folder.path().join("ledger");
        let behind = match behind {
            Some(&Given::Record(epoch, sequence, record, _)) => json!([epoch, sequence, record]),
            _ => Value::Null,
        };
        let settings = json!({
            "control": control, "ledger": ledger, "behind": behind, "dropped": dropped,
        });
        let log = std::fs::File::create(folder.path().join("log")).expect("the log is created");
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture"])
            .arg(tickcast_test_support::test_name(module_path!(), "follow"))
            .env(SETTINGS, settings.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the subscriber starts");
        Self {
            child,
            ledger,
            _folder: folder,
        }
    }

    /// Returns the items so far. A cut-off last line does not count, because the kill came while it was
    /// written.
    pub(crate) fn given(&self) -> Vec<Given> {
        let text = std::fs::read_to_string(&self.ledger).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(read).collect()
    }

    /// Kills the process without a warning, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns whether the process still runs. Panics if it has failed.
    pub(crate) fn is_there(&mut self) -> bool {
        match self.child.try_wait().expect("the child can be asked") {
            None => true,
            Some(status) => {
                let log = self.ledger.with_file_name("log");
                let log = std::fs::read_to_string(log).unwrap_or_default();
                assert!(status.success(), "the subscriber failed:\n{log}");
                false
            }
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read(line: &str) -> Given {
    let mut words = line.split(' ');
    let what = words.next().unwrap_or("");
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let mut due = || number().unwrap_or_else(|| panic!("a ledger says {line:?}"));
    match what {
        "record" => Given::Record(due(), due(), due(), due()),
        "lost" => Given::Lost(due(), due(), number()),
        "epoch" => Given::Epoch(due()),
        "end" => Given::End,
        "whole" => Given::Whole,
        _ => panic!("a ledger says {line:?}"),
    }
}

/// The program: follows until the end.
#[test]
#[ignore = "the other tests here run it, with a publisher"]
fn follow() {
    let settings = std::env::var(SETTINGS).expect("settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    let number = |value: &Value| value.as_u64();
    let behind = &settings["behind"];
    let start = match (number(&behind[0]), number(&behind[1])) {
        (Some(epoch), Some(sequence)) => Start::At(Epoch(epoch), Sequence(sequence)),
        _ => Start::Oldest,
    };
    // The whole datagram comes again. The application skips its records up to the last known one.
    let known = number(&behind[0]).zip(number(&behind[2]));
    let drops = number(&settings["dropped"][0]).zip(number(&settings["dropped"][1]));
    let script = drops.map(|(from, count)| Scripted::DropBurst { from, count });
    let faults = FaultConfig {
        script: script.into_iter().collect(),
        ..FaultConfig::default()
    };
    let control = settings["control"].as_str().expect("an address");
    let builder = Subscriber::builder(control.to_owned())
        .channel(ChannelBuilder::new("all").start(start))
        .faults(faults);
    let mut follower = tickcast_test_support::Follower::new(builder);
    let ledger = Path::new(settings["ledger"].as_str().expect("a path"));
    let mut ledger = std::fs::File::create(ledger).expect("the ledger is created");
    let (mut lines, began) = (String::new(), Instant::now());
    let mut over = None;
    loop {
        let worked = follower.poll_with(&mut |item| match item {
            Item::Record(at, record) => {
                if known.is_some_and(|known| (at.epoch.0, at.record.0) <= known) {
                    return;
                }
                let hash = xxh3_64(record.as_ref());
                let (epoch, sequence, number) = (at.epoch.0, at.sequence.0, at.record.0);
                writeln!(lines, "record {epoch} {sequence} {number} {hash}").expect("text");
            }
            Item::Event(_, Event::Lost(loss)) => {
                let (first, last) = (loss.sequences.first.0, loss.sequences.last.0);
                let records = loss.records.map_or("?".into(), |n| n.to_string());
                writeln!(lines, "lost {first} {last} {records}").expect("text");
            }
            Item::Event(_, Event::EpochChanged { to, .. }) => {
                writeln!(lines, "epoch {}", to.0).expect("text");
            }
            Item::Event(_, Event::EndOfSession) => lines.push_str("end\n"),
            Item::Event(..) => {}
        });
        if !lines.is_empty() {
            ledger
                .write_all(lines.as_bytes())
                .expect("the ledger is written");
            lines.clear();
        }
        if follower.subscriber.ended() {
            // Go on for a while, so that the publisher receives the last report.
            let over = *over.get_or_insert_with(Instant::now);
            if over.elapsed() > Duration::from_millis(20) {
                break;
            }
        }
        if !worked {
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(began.elapsed() < PATIENCE, "it never came to an end");
    }
    follower.assert_balanced();
    ledger.write_all(b"whole\n").expect("the ledger is written");
}
