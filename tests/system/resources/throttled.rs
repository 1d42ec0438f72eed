//! Processes with only a share of the processor, as in a control group with a quota: they run for a part
//! of each period and stand still for the rest. They report it, and nothing is lost silently.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_journal::{EntryBody, Journal, Note, replay_publisher};
use tickcast_subscriber::Event;
use tickcast_test_support::{
    Follower, Publisher, binary, channel, drive, end, endless, free_group, number, one_channel,
    signal,
};

/// Number of periods of a quota in a test.
const PERIODS: u64 = 20;

/// Throttles a process, period by period, until it is dropped.
trait Throttle {
    /// Returns in how many periods the process stood still so far.
    fn stood_still(&mut self) -> u64;
}

/// A control group with a tenth of a processor, and one process.
struct Group {
    path: PathBuf,
    pid: u32,
}

impl Group {
    /// Creates a group of version 2, or of version 1 if version 2 has no usable CPU controller.
    fn of(pid: u32) -> Option<Self> {
        let versions: [(&str, &[(&str, &str)]); 2] = [
            ("/sys/fs/cgroup", &[("cpu.max", "10000 100000")]),
            (
                "/sys/fs/cgroup/cpu",
                &[
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "10000"),
                ],
            ),
        ];
        versions.into_iter().find_map(|(root, quota)| {
            if !Path::new(root).join("cgroup.procs").exists() {
                return None;
            }
            let path = Path::new(root).join(format!("tickcast-test-{pid}"));
            std::fs::create_dir(&path).ok()?;
            let group = Self { path, pid };
            let mut writes = quota.iter().chain(&[("cgroup.procs", "")]);
            let write = |(file, text): &(&str, &str)| {
                let text = if text.is_empty() {
                    &pid.to_string()
                } else {
                    *text
                };
                std::fs::write(group.path.join(file), text).is_ok()
            };
            writes.all(write).then_some(group)
        })
    }
}

impl Throttle for Group {
    fn stood_still(&mut self) -> u64 {
        let stat = std::fs::read_to_string(self.path.join("cpu.stat")).expect("it is there");
        let mut lines = stat.lines();
        let throttled = lines.find_map(|line| line.strip_prefix("nr_throttled "));
        throttled.and_then(|it| it.parse().ok()).expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can only be removed while it is empty.
        let parent = self.path.parent().expect("a root");
        let _ = std::fs::write(parent.join("cgroup.procs"), self.pid.to_string());
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// A throttle by signals: every other call of `stood_still` stops the process, the next one continues it.
struct Signals {
    pid: u32,
    looks: u64,
}

impl Throttle for Signals {
    fn stood_still(&mut self) -> u64 {
        let name = if self.looks.is_multiple_of(2) {
            "STOP"
        } else {
            "CONT"
        };
        signal(self.pid, name);
        self.looks += 1;
        // Minimum time of each stop and of each run.
        std::thread::sleep(Duration::from_millis(5));
        self.looks / 2
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        signal(self.pid, "CONT");
    }
}

/// A listener in a process of its own, with a journal.
struct Listener {
    child: Child,
    folder: TempDir,
}

impl Listener {
    fn start(publisher: &Publisher) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
        let child = Command::new(binary("tickcast"))
            .args(["listen", "--channel", "all", "--from", "oldest", "--digest"])
            .args([
                "--format",
                "count",
                "--connect",
                &publisher.control.to_string(),
            ])
            .arg("--summary")
            .arg(folder.path().join("summary"))
            .arg("--journal")
            .arg(folder.path().join("record"))
            .stdout(Stdio::null())
            .spawn();
        let child = child.expect("it starts");
        Self { child, folder }
    }

    fn finish(mut self) -> (Value, Journal) {
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        let summary = std::fs::read(self.folder.path().join("summary")).expect("a summary");
        let summary = serde_json::from_slice(&summary).expect("JSON");
        (summary, recording(&self.folder.path().join("record")))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn recording(path: &Path) -> Journal {
    let bytes = std::fs::read(path).expect("a record");
    Journal::read(bytes).expect("it can be read")
}

/// Returns how many stalls a journal contains.
fn stalls(of: &Journal) -> usize {
    let entries = of.entries().map(|entry| entry.expect("it is whole"));
    entries
        .filter(|entry| matches!(entry.what, EntryBody::Note(Note::Stall(_))))
        .count()
}

/// Throttles both sides at once, for [`PERIODS`] periods each, and checks the results.
fn both_held_up<T: Throttle>(throttle: impl Fn(u32) -> Option<T>) -> Option<()> {
    let records = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
    let mut config = one_channel(&[free_group()], endless(2_000, 2));
    config["journal"] = json!({ "directory": records.path() });
    let publisher = Publisher::start(&config);
    let listener = Listener::start(&publisher);
    let mut followers = vec![Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| !all[0].records.is_empty());
    {
        let mut throttled = [throttle(publisher.id())?, throttle(listener.child.id())?];
        drive(&mut followers, |_| {
            let periods = throttled.each_mut().map(Throttle::stood_still);
            periods.iter().all(|periods| *periods >= PERIODS)
        });
    }
    let there: u64 = followers[0].records.values().sum();
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() >= there + 500
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    let (listened, record) = listener.finish();

    // Every published record was delivered or declared lost.
    let published = number(channel(&summary), "published_records");
    let heard = channel(&listened);
    let (delivered, lost) = (
        number(heard, "delivered_records"),
        number(heard, "lost_records"),
    );
    assert_eq!(delivered + lost, published, "{listened}");
    let [detected, recovered, given_up] =
        ["missing_datagrams", "missing_recovered", "missing_lost"]
            .map(|name| number(&listened, name));
    assert_eq!(detected, recovered + given_up, "{listened}");
    assert_eq!(lost, 0, "the ring holds all of it: {listened}");
    assert_eq!(heard["digest"], channel(&summary)["digest"]);
    let follower = &followers[0];
    follower.assert_balanced();
    assert!(follower.losses.is_empty());
    assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    let count = |wanted: &Event| follower.events.iter().filter(|it| *it == wanted).count();
    assert_eq!(count(&Event::Stale), count(&Event::Recovered));

    // Both journals contain stalls, and the replay of the publisher's gives the same result.
    let publishers = recording(&records.path().join("test.1.journal"));
    for record in [&record, &publishers] {
        assert!(stalls(record) > 0, "nobody stood still?");
    }
    let again = replay_publisher(&publishers);
    assert_eq!((again.difference, again.stopped), (None, None));
    let again = again.core.expect("a core").sealed();
    assert_eq!(again.0, number(channel(&summary), "sealed"));
    Some(())
}

#[test]
fn throttled_processes_lose_nothing_and_report() {
    let _turn = tickcast_test_support::machine::exclusive();
    both_held_up(|pid| Some(Signals { pid, looks: 0 })).expect("signals can be sent");
}

#[test]
fn quota_limited_processes_lose_nothing_and_report() {
    let _turn = tickcast_test_support::machine::exclusive();
    if both_held_up(Group::of).is_none() {
        eprintln!("SKIPPED: no control group with a quota of the processor can be made here");
    }
}
