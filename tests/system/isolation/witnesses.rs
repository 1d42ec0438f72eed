//! Two witnesses of a real publisher. Another subscriber is stopped for two seconds and catches up, and
//! many join at once from the oldest datagram on. The witnesses lose nothing and get nothing twice or out
//! of order. Their delays are printed by phase and never judged, because they depend on the machine:
//! `undisturbed.rs` judges them in virtual time. `make witnesses` runs longer than a test run.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tickcast_subscriber::{ChannelBuilder, Start};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, binary, channel, endless, free_group, number, one_channel,
    signal,
};

/// Phases of the run, during which the witnesses' delays are measured.
const PHASES: [&str; 6] = [
    "before",
    "one stands still",
    "it catches up",
    "between",
    "many join",
    "after",
];
/// Number of threads that run the joiners.
const THREADS: usize = 4;
const WITNESSES: usize = 2;
const STANDS_STILL: Duration = Duration::from_secs(2);
/// How long the joiners stay.
const STAY: Duration = Duration::from_secs(5);
/// The stopped subscriber's name at the publisher.
const STOPPED: &str = "stopped";

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |n| n.parse().expect("a number"))
}

/// A subscriber that measures how late it gets its records, by phase.
struct Witness {
    follower: Follower,
    late: [Vec<u64>; PHASES.len()],
}

impl Witness {
    /// Follows the channel until the session ends.
    fn watch(publisher: &Publisher, phase: &AtomicUsize) -> Self {
        let mut witness = Self {
            follower: Follower::new(publisher.subscriber().channel("all")),
            late: Default::default(),
        };
        let began = Instant::now();
        while !witness.follower.subscriber.ended() {
            let before = witness.follower.last(1);
            if !witness.follower.poll() {
                thread::sleep(Duration::from_micros(50));
            }
            let last = witness
                .follower
                .last(1)
                .filter(|last| Some(*last) != before);
            if let Some(last) = last {
                // Only the last record of a poll counts: the oldest one's delay includes the machine's
                // sleep.
                let utc = SystemTime::UNIX_EPOCH
                    .elapsed()
                    .unwrap_or_default()
                    .as_nanos() as u64;
                let late = utc.saturating_sub(last.sent_at.0);
                witness.late[phase.load(Ordering::Relaxed)].push(late);
            }
            assert!(began.elapsed() < PATIENCE * 3, "the session never ended");
        }
        let end = Instant::now();
        while end.elapsed() < Duration::from_millis(50) {
            witness.follower.poll();
        }
        witness
    }
}

/// Another subscriber process. It ends with the session, or is killed with its test.
struct Listener(Child);

impl Listener {
    fn start(publisher: &Publisher) -> Self {
        let child = Command::new(binary("tickcast"))
            .args(["listen", "--connect", &publisher.control.to_string()])
            .args(["--channel", "all", "--format", "count", "--name", STOPPED])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("it starts"))
    }

    /// Waits for its end. Returns whether it had all records.
    fn was_whole(mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().expect("it can be asked") {
                return status.success();
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the stopped subscriber's lag, by its reports to the publisher.
fn lag(publisher: &Publisher) -> Option<u64> {
    let metrics = publisher.metrics();
    let name = format!("\"{STOPPED}\"");
    let is_it = |line: &&str| line.contains("subscriber_lag_sequences{") && line.contains(&name);
    let line = metrics.lines().find(is_it)?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until `done` returns `true`. Panics after [`PATIENCE`].
fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "it never came to it");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Joins `joiners` subscribers at once from the oldest datagram on, for [`STAY`]. Returns their records.
fn join(publisher: &Publisher, joiners: usize) -> u64 {
    let together = std::sync::Barrier::new(THREADS);
    let follow = |n: usize| {
        let one = |_| {
            let oldest = ChannelBuilder::new("all").start(Start::Oldest);
            publisher.subscriber().channel(oldest)
        };
        let builders: Vec<_> = (n..joiners).step_by(THREADS).map(one).collect();
        together.wait();
        let mut all: Vec<_> = builders.into_iter().map(Follower::new).collect();
        // A joiner that can't keep up on this machine may lose records, because only the witnesses are
        // judged.
        tickcast_test_support::drive_for(&mut all, STAY);
        for follower in &all {
            let (Some(first), Some(last)) = (follower.first, follower.last(1)) else {
                continue;
            };
            let given: u64 = follower.records.values().sum();
            // A loss before the first record or after the last one is outside of the span.
            let lost: u64 = follower.losses.iter().filter_map(|loss| loss.records).sum();
            let span = last.record.0 - first.record.0 + 1;
            assert!(
                given <= span && span <= given + lost,
                "{given} and {lost} of {span}"
            );
            follower.assert_balanced();
        }
        all.iter().flat_map(|it| it.records.values()).sum::<u64>()
    };
    thread::scope(|scope| {
        let follow = &follow;
        let threads: Vec<_> = (0..THREADS)
            .map(|n| scope.spawn(move || follow(n)))
            .collect();
        threads
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .sum()
    })
}

/// Returns the median, the 99th and 99.9th percentile, and the maximum.
fn percentiles(mut late: Vec<u64>) -> [u64; 4] {
    late.sort_unstable();
    let at = |part: f64| {
        let place = (late.len() as f64 * part) as usize;
        late.get(place.min(late.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    [at(0.5), at(0.99), at(0.999), at(1.0)]
}

#[test]
fn witnesses_miss_nothing_beside_stall_and_joins() {
    let _turn = tickcast_test_support::machine::exclusive();
    let joiners = setting("TICKCAST_JOINERS", 24) as usize;
    let rate = setting("TICKCAST_RATE", 4_000);
    let others = WITNESSES as u32 + 1;
    let mut config = one_channel(&[free_group()], endless(rate, others));
    config["channels"][0]["slots"] = json!(65_536);
    let publisher = Publisher::start(&config);
    let phase = AtomicUsize::new(0);
    let next = |for_ms| {
        thread::sleep(Duration::from_millis(for_ms));
        phase.fetch_add(1, Ordering::Relaxed);
    };
    let (witnesses, given) = thread::scope(|scope| {
        let watch = || Witness::watch(&publisher, &phase);
        let threads: Vec<_> = (0..WITNESSES).map(|_| scope.spawn(watch)).collect();
        let stopped = Listener::start(&publisher);
        until(|| lag(&publisher).is_some());
        next(3_000);
        signal(stopped.0.id(), "STOP");
        thread::sleep(STANDS_STILL);
        signal(stopped.0.id(), "CONT");
        next(0);
        until(|| lag(&publisher).is_some_and(|lag| lag < 1_000));
        next(0);
        next(2_000);
        let given = join(&publisher, joiners);
        next(0);
        thread::sleep(Duration::from_secs(3));
        publisher.terminate();
        let witnesses: Vec<_> = threads
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect();
        assert!(stopped.was_whole(), "it caught up with everything");
        (witnesses, given)
    });
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    let published = channel(&summary);
    for witness in &witnesses {
        let follower = &witness.follower;
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert_eq!(published["digest"], json!(follower.digest(1)));
        follower.assert_balanced();
    }
    println!(
        "{} records at {rate} messages a second; {joiners} joined at once and were given {given}; {} datagrams replayed or repaired",
        number(published, "published_records"),
        number(published, "answered"),
    );
    let mut usual = [0; 4];
    for (n, name) in PHASES.into_iter().enumerate() {
        let late = witnesses
            .iter()
            .flat_map(|it| &it.late[n])
            .copied()
            .collect::<Vec<_>>();
        let polls = late.len();
        let of = percentiles(late);
        if n == 0 {
            usual = of;
        }
        let reported = of.iter().zip(usual).map(|(ns, usual)| {
            format!(
                "{:8.1} us ({:5.2})",
                *ns as f64 / 1e3,
                *ns as f64 / usual.max(1) as f64
            )
        });
        println!(
            "{name:>16}: {polls:>7} polls; p50, p99, p99.9, most, and as parts of before: {}",
            reported.collect::<Vec<_>>().join(" ")
        );
    }
}
