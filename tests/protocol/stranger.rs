//! Our subscriber and an independent one (Python, tests/protocol/stranger) on a real publisher. The
//! latter was written from docs/PROTOCOL.md alone. Both must end with the same records.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tickcast_subscriber::{Event, Item, Subscriber};
use tickcast_test_support::{
    PATIENCE, Publisher, channel, endless, free_address, free_group, number, one_channel, simulated,
};
use xxhash_rust::xxh3::Xxh3;

/// Our subscriber, which digests its records in the same way as the independent one and the publisher.
struct Ours {
    subscriber: Subscriber,
    records: u64,
    sha256: Sha256,
    xxh3: Xxh3,
    losses: usize,
}

impl Ours {
    fn join(publisher: &Publisher) -> Self {
        let builder = publisher.subscriber().name("ours").channel("all");
        Self {
            subscriber: builder.build().expect("the subscriber is built"),
            records: 0,
            sha256: Sha256::new(),
            xxh3: Xxh3::new(),
            losses: 0,
        }
    }

    /// Polls until `done` returns `true`.
    fn drive(&mut self, done: &mut dyn FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            let Self {
                subscriber,
                records,
                sha256,
                xxh3,
                losses,
            } = self;
            let polled = subscriber.poll(|item| match item {
                Item::Record(_, record) => {
                    *records += 1;
                    sha256.update(record.as_ref());
                    xxh3.update(record.as_ref());
                }
                Item::Event(_, Event::Lost(_)) => *losses += 1,
                Item::Event(..) => {}
            });
            if !polled.worked() {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(
                began.elapsed() < PATIENCE,
                "never came to an end: {:#?}",
                self.subscriber.channels()
            );
        }
    }

    /// Polls until END, and 20 ms more, so that the publisher receives the last report.
    fn drive_to_end(&mut self) {
        self.drive(&mut |ours| ours.subscriber.ended());
        let began = Instant::now();
        self.drive(&mut |_| began.elapsed() >= Duration::from_millis(20));
    }

    fn sha256(&self) -> String {
        let digest = self.sha256.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The running independent subscriber.
struct Running(Child);

impl Running {
    /// Starts it. `drop` is the share of multicast datagrams that it loses.
    fn start(publisher: &Publisher, drop: &str, more: &[&str]) -> Option<Self> {
        let control = publisher.control.to_string();
        let arguments = [&control, "all", "--interface", "127.0.0.1", "--drop", drop];
        let arguments = arguments.iter().chain(more).map(AsRef::as_ref);
        let mut command: Command = crate::python::stranger(arguments)?;
        let child = command.stdout(Stdio::piped()).spawn();
        Some(Self(child.expect("python3 starts")))
    }

    /// Waits for a successful end, and returns its output.
    fn report(self) -> Value {
        let (code, report) = self.finish();
        assert_eq!(code, Some(0), "{report}");
        report
    }

    /// Waits for its end, and returns exit code and output.
    fn finish(mut self) -> (Option<i32>, Value) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("the child can be asked") {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "the stranger never ended");
            std::thread::sleep(Duration::from_millis(1));
        };
        let stdout = self.0.stdout.take().expect("its output is piped");
        let report = serde_json::from_reader(stdout).expect("it prints JSON");
        (status.code(), report)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asserts that the independent subscriber's results equal ours and the publisher's.
fn assert_the_same(ours: &Ours, report: &Value, summary: &Value) {
    let n = |key| number(report, key);
    assert_eq!(ours.losses, 0);
    assert_eq!(
        format!("{:032x}", ours.xxh3.digest128()),
        channel(summary)["digest"],
        "we have what was published"
    );
    assert_eq!(ours.records, number(summary, "published_records"));
    assert_eq!(n("records"), ours.records, "{report}");
    assert_eq!(report["sha256"], ours.sha256(), "{report}");
    assert_eq!(report["ended"], true);
    assert_eq!(report["losses"], Value::Array(vec![]));
    assert_eq!(n("gaps"), n("recovered") + n("lost") + n("missing_open"));
    assert_eq!((n("missing_open"), n("lost"), n("jumps")), (0, 0, 0));
    assert_eq!(n("fencing_violations"), 0, "{report}");
    assert_eq!(
        n("first") + n("delivered"),
        n("last") + 1,
        "each sequence once"
    );
}

#[test]
fn independent_subscriber_matches_records_under_loss() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(20_000, 10_000, 3)));
    let Some(clean) = Running::start(&publisher, "0", &[]) else {
        return;
    };
    let lossy = Running::start(&publisher, "0.05", &["--seed", "3"]).expect("python3 is there");
    let mut ours = Ours::join(&publisher);
    ours.drive_to_end();
    let clean = clean.report();
    let lossy = lossy.report();
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_the_same(&ours, &clean, &summary);
    assert_the_same(&ours, &lossy, &summary);
    assert!(number(&lossy, "dropped_in_front") > 0);
    assert!(number(&lossy, "recovered") > 0, "5% loss makes gaps");
    assert!(number(&lossy, "nacks") > 0);
    let c = channel(&summary);
    assert!(number(c, "answered") + number(c, "answered_by_multicast") > 0);
}

#[test]
fn independent_late_joiner_splices_history_to_live() {
    let mut config = one_channel(&[free_group()], endless(5_000, 1));
    config["channels"][0]["slots"] = 131_072.into();
    let publisher = Publisher::start(&config);
    let mut ours = Ours::join(&publisher);
    ours.drive(&mut |ours| ours.records > 4_000);
    let more = ["--from", "oldest", "--seed", "5"];
    let Some(late) = Running::start(&publisher, "0.05", &more) else {
        return;
    };
    ours.drive(&mut |_| publisher.joined() == 2);
    let live = ours.records + 4_000;
    ours.drive(&mut |ours| ours.records > live);
    publisher.terminate();
    ours.drive_to_end();
    let late = late.report();
    let (_, summary) = publisher.finish();
    // The ring holds all of this run.
    assert_the_same(&ours, &late, &summary);
    assert_eq!(number(&late, "first_record"), 1);
    assert!(
        number(&late, "replay_received") > 0,
        "history came by replay"
    );
    assert_eq!(
        number(&late, "history"),
        number(&late, "replay_received") + number(&late, "replay_lost")
    );
}

#[test]
fn independent_subscriber_merges_lines_and_repairs() {
    let lines = [free_group(), free_group()];
    let publisher = Publisher::start(&one_channel(&lines, simulated(10_000, 10_000, 2)));
    let Some(lossy) = Running::start(&publisher, "0.1", &["--seed", "7"]) else {
        return;
    };
    let mut ours = Ours::join(&publisher);
    ours.drive_to_end();
    let lossy = lossy.report();
    let (_, summary) = publisher.finish();
    assert_the_same(&ours, &lossy, &summary);
    assert!(number(&lossy, "recovered") > 0);
    assert!(
        number(&lossy, "duplicates") > number(&lossy, "delivered") / 2,
        "most came twice"
    );
}

#[test]
fn independent_subscribers_scout_or_hold_off() {
    let mut config = one_channel(&[free_group()], simulated(10_000, 5_000, 3));
    config["repair"] = serde_json::json!({ "large_group": 3, "rtt_us": 2_000 });
    let publisher = Publisher::start(&config);
    let Some(first) = Running::start(&publisher, "0.05", &["--seed", "11"]) else {
        return;
    };
    let second = Running::start(&publisher, "0.05", &["--seed", "13"]).expect("python3 is there");
    let mut ours = Ours::join(&publisher);
    ours.drive_to_end();
    let reports = [first.report(), second.report()];
    let (_, summary) = publisher.finish();
    for report in reports {
        assert_the_same(&ours, &report, &summary);
        let n = |key| number(&report, key);
        assert!(n("recovered") > 0, "{report}");
        // Two of three are scouts: (1 + log2 3, rounded down) / 3.
        assert!(n("held_off") > 0, "{report}");
        assert!(n("scouted") > n("held_off"), "{report}");
        assert!(n("scouted") + n("held_off") <= n("gaps"), "{report}");
    }
}

#[test]
fn independent_subscriber_follows_restarted_publisher() {
    let mut config = one_channel(&[free_group()], endless(10_000, 2));
    config["control"] = free_address().to_string().into();
    let mut publisher = Publisher::start(&config);
    let Some(stranger) = Running::start(&publisher, "0.05", &["--seed", "9"]) else {
        return;
    };
    let mut ours = Ours::join(&publisher);
    ours.drive(&mut |ours| ours.records > 3_000);
    publisher.kill();
    drop(ours);
    config["inputs"] = serde_json::json!([simulated(5_000, 10_000, 1)]);
    let publisher = Publisher::start(&config);
    let (code, report) = stranger.finish();
    let (_, summary) = publisher.finish();
    assert_eq!(code, Some(1), "there was loss: {report}");
    assert_eq!(report["ended"], true);
    assert_eq!(number(&report, "epoch"), number(channel(&summary), "epoch"));
    assert_eq!(number(&report, "last"), number(channel(&summary), "sealed"));
    let losses = report["losses"].as_array().expect("a list");
    assert!(losses.iter().all(|loss| loss["cause"] == "epoch"));
    let tail = losses.last().expect("the tail of the first epoch");
    assert_eq!(number(tail, "last"), u64::MAX);
    assert_eq!(tail["records"], Value::Null, "nobody knows");
    let n = |key| number(&report, key);
    assert_eq!(n("gaps"), n("recovered") + n("lost"));
    assert_eq!(n("history"), n("replay_received") + n("replay_lost"));
    assert_eq!(n("jumps"), 0);
}
