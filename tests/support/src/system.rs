//! A publisher as a process, and subscribers in this process.
//!
//! Everything runs on loopback with TTL 0, in groups of its own. A process that outlives its test is killed
//! by its own process id.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_publisher::internal::http::{EndpointAddress, ask};
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::{
    Event, Item, Loss, Position, ReceiverCounters, Subscriber, SubscriberBuilder,
};
use xxhash_rust::xxh3::Xxh3;

use crate::{PATIENCE, signal};

/// The age of a page that the admin port serves.
const PAGE_AGE_MAX: Duration = Duration::from_millis(100);

/// Returns the path of a binary that the workspace build made.
pub fn binary(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let folder = here
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps/<test>");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins --examples` first",
        path.display()
    );
    path
}

/// Returns the installed verbs libraries, which a program that links the static library also links. A
/// library built without verbs does not need them, and linking them does no harm.
#[must_use]
pub fn verbs_libraries() -> &'static [&'static str] {
    let installed = Command::new("pkg-config")
        .args(["--exists", "librdmacm", "libibverbs"])
        .status();
    match installed.is_ok_and(|status| status.success()) {
        true => &["-lrdmacm", "-libverbs"],
        false => &[],
    }
}

/// Returns a multicast group and port that no other running test of this machine uses.
pub fn free_group() -> SocketAddrV4 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let group = Ipv4Addr::new(239, 255, (pid % 251) as u8, (1 + n % 250) as u8);
    SocketAddrV4::new(
        group,
        20_000 + ((pid.wrapping_mul(31) + n * 7) % 30_000) as u16,
    )
}

/// Returns a loopback address that only this process uses. The IP address is the process's own, and the
/// kernel chooses higher ports. A publisher may bind it again and again; until then, nobody listens there.
#[must_use]
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    // A process ID has at most 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    SocketAddr::from(([127, 128 | high, middle, low], port))
}

/// Returns a config with one channel 1, "all", on these lines, fed by `input`.
pub fn one_channel(lines: &[SocketAddrV4], input: Value) -> Value {
    let lines: Vec<_> = lines
        .iter()
        .map(|group| json!({ "group": group }))
        .collect();
    json!({
        "name": "test",
        "control": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "channels": [{
            "id": 1,
            "name": "all",
            "slots": 65_536,
            "fan_out": [{ "transport": "udp", "lines": lines }],
        }],
        "inputs": [input],
        "digest": true,
        "linger_ms": 60_000,
    })
}

/// Returns an input: a simulated market of `messages` messages at `messages_per_s`.
pub fn simulated(messages: u64, messages_per_s: u64, wait_for_subscribers: u32) -> Value {
    json!({
        "source": 1,
        "kind": "simulator",
        "seed": 7,
        "symbols": 20,
        "messages": messages,
        "pace": { "messages_per_s": messages_per_s },
        "wait_for_subscribers": wait_for_subscribers,
    })
}

/// Returns an input: a simulated market that runs until its publisher is asked to end. For tests that must
/// finish a step before the end, on a machine of any speed.
pub fn endless(messages_per_s: u64, wait_for_subscribers: u32) -> Value {
    simulated(u32::MAX.into(), messages_per_s, wait_for_subscribers)
}

/// A running `tickcast-publisher`.
#[derive(Debug)]
pub struct Publisher {
    child: Child,
    folder: TempDir,
    /// The publisher's control address.
    pub control: SocketAddr,
    /// The publisher's admin port, if it has one.
    pub admin: Option<SocketAddr>,
    /// The publisher's command socket, if it takes commands.
    pub command_socket: Option<PathBuf>,
    /// The publisher's command port, if it has one.
    pub command_port: Option<SocketAddr>,
}

impl Publisher {
    /// Starts a publisher and waits until it listens.
    pub fn start(config: &Value) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts a publisher with further arguments, and waits until it listens. If it takes commands and keeps
    /// no state, its command socket is in the folder of the test.
    pub fn start_with(config: &Value, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = |name: &str| folder.path().join(name);
        let mut config = config.clone();
        let takes_commands = !config["standby"].is_null() || !config["hand_over_to"].is_null();
        if takes_commands && config["state_dir"].is_null() && config["commands"]["socket"].is_null()
        {
            config["commands"]["socket"] = json!(path("commands"));
        }
        std::fs::write(path("config.json"), config.to_string()).expect("the config is written");
        let log = std::fs::File::create(path("log")).expect("the log is created");
        let mut child = Command::new(binary("tickcast-publisher"))
            .args(["--config".as_ref(), path("config.json").as_os_str()])
            .args(["--summary".as_ref(), path("summary.json").as_os_str()])
            .args(["--ready-file".as_ref(), path("ready.json").as_os_str()])
            .args(["--audit".as_ref(), path("audit").as_os_str()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the publisher starts");
        let began = Instant::now();
        let ready = loop {
            let ready = std::fs::read_to_string(path("ready.json")).ok();
            if let Some(ready) = ready.and_then(|text| serde_json::from_str::<Value>(&text).ok()) {
                break ready;
            }
            if let Some(status) = child.try_wait().expect("the child can be asked") {
                let log = std::fs::read_to_string(path("log")).unwrap_or_default();
                panic!("the publisher ended with {status} before it was ready:\n{log}");
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the publisher never became ready"
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let address = |key: &str| ready[key].as_str().and_then(|text| text.parse().ok());
        let control = address("control").expect("the control address");
        Self {
            child,
            folder,
            control,
            admin: address("admin"),
            command_socket: ready["command_socket"].as_str().map(PathBuf::from),
            command_port: address("command_port"),
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the audit entries of this kind, oldest first.
    pub fn audited(&self, what: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("audit"));
        let text = text.expect("the audit file is there");
        let lines = text.lines().map(serde_json::from_str::<Value>);
        let lines = lines.map(|line| line.expect("a JSON object a line"));
        lines.filter(|line| line["what"] == what).collect()
    }

    /// Returns a builder of a subscriber that joins this publisher.
    pub fn subscriber(&self) -> SubscriberBuilder {
        Subscriber::builder(self.control.to_string()).seed(1)
    }

    /// Asks the publisher to end (SIGTERM).
    pub fn terminate(&self) {
        signal(self.child.id(), "TERM");
    }

    /// Kills the publisher without a warning, and waits until its process is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the child can be asked")
            .is_none()
    }

    /// Waits for the end of the process and returns its exit status.
    pub fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                return status;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the publisher never ended:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of the process, and returns its exit status and its summary.
    pub fn finish(mut self) -> (ExitStatus, Value) {
        let status = self.ended();
        let summary = std::fs::read_to_string(self.folder.path().join("summary.json"));
        let summary = summary.unwrap_or_else(|e| panic!("no summary ({e}):\n{}", self.log()));
        (
            status,
            serde_json::from_str(&summary).expect("the summary is JSON"),
        )
    }

    /// Returns the text that the admin port serves as metrics, at most 100 ms old.
    pub fn metrics(&self) -> String {
        self.get("/metrics").1
    }

    /// Returns the metrics of now.
    pub fn metrics_now(&self) -> String {
        std::thread::sleep(PAGE_AGE_MAX);
        self.metrics()
    }

    /// Returns a metric by its name without the prefix, at most 100 ms old: to wait for a value.
    /// `name` may end with some of the labels; of several series, the first counts.
    pub fn metric(&self, name: &str) -> u64 {
        series(&self.metrics(), name)
    }

    /// Returns a metric of now: to compare it with a value.
    pub fn metric_now(&self, name: &str) -> u64 {
        series(&self.metrics_now(), name)
    }

    /// Returns status and body of the admin port's answer to a GET.
    pub fn get(&self, path: &str) -> (u16, String) {
        let admin = self.admin.expect("an admin port").into();
        let answer = ask(&admin, None, path, None, PATIENCE);
        answer.expect("the admin port answers")
    }

    /// Returns the address of the command socket.
    pub fn commands(&self) -> EndpointAddress {
        let socket = self.command_socket.clone();
        EndpointAddress::Socket(socket.expect("a command socket"))
    }

    /// Returns status and body of the command socket's answer to a POST.
    pub fn command(&self, path: &str, body: &str) -> (u16, String) {
        let answer = ask(&self.commands(), None, path, Some(body), PATIENCE);
        answer.expect("the command socket answers")
    }

    /// Returns how many subscribers have joined the publisher's one channel.
    pub fn joined(&self) -> usize {
        self.metrics().matches("subscriber_sequence{").count()
    }
}

/// Returns the value of the first series of this name, without the prefix of publishers.
fn series(metrics: &str, name: &str) -> u64 {
    let (family, labels) = name.split_once('{').unwrap_or((name, "}"));
    let labels = labels.trim_end_matches('}').split(',');
    let whole = format!("tickcast_publisher_{family}");
    let line = metrics.lines().find(|line| {
        let rest = line.strip_prefix(whole.as_str());
        let is_of = |rest: &str| labels.clone().all(|label| rest.contains(label));
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && is_of(rest))
    });
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A subscriber with everything that was delivered to it.
pub struct Follower {
    /// The subscriber.
    pub subscriber: Subscriber,
    /// All events, in order.
    pub events: Vec<Event>,
    /// The losses among the events.
    pub losses: Vec<Loss>,
    /// Delivered records, by channel.
    pub records: BTreeMap<ChannelId, u64>,
    /// Position of the first delivered record.
    pub first: Option<Position>,
    digests: BTreeMap<ChannelId, Box<Xxh3>>,
    last: BTreeMap<ChannelId, Position>,
}

impl Follower {
    /// Builds the subscriber.
    pub fn new(builder: SubscriberBuilder) -> Self {
        Self {
            subscriber: builder.build().expect("the subscriber is built"),
            events: Vec::new(),
            losses: Vec::new(),
            records: BTreeMap::new(),
            first: None,
            digests: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    /// Polls once. Returns whether there was anything to do.
    pub fn poll(&mut self) -> bool {
        self.poll_with(&mut |_| {})
    }

    /// Polls once, and calls `on` with each delivered item. Returns whether there was anything to do.
    pub fn poll_with(&mut self, on: &mut dyn FnMut(&Item<'_>)) -> bool {
        let Self {
            subscriber,
            events,
            losses,
            records,
            first,
            digests,
            last,
        } = self;
        let polled = subscriber.poll(|item| {
            on(&item);
            match item {
                Item::Record(position, record) => {
                    let before = last.insert(position.channel, *position);
                    if let Some(before) = before {
                        assert!(
                            (before.epoch, before.record) < (position.epoch, position.record),
                            "{before:?} was delivered before {position:?}"
                        );
                    }
                    first.get_or_insert(*position);
                    *records.entry(position.channel).or_default() += 1;
                    digests
                        .entry(position.channel)
                        .or_default()
                        .update(record.as_ref());
                }
                Item::Event(_, event) => {
                    match event {
                        Event::Lost(loss) => losses.push(*loss),
                        // The same numbers follow again.
                        Event::RolledBack { .. } => last.clear(),
                        _ => {}
                    }
                    events.push(event.clone());
                }
            }
        });
        polled.worked()
    }

    /// Returns whether an event that matches `wanted` was delivered.
    pub fn saw(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(wanted)
    }

    /// Returns the position of the channel's last delivered record.
    pub fn last(&self, channel: u16) -> Option<Position> {
        self.last.get(&ChannelId(channel)).copied()
    }

    /// Returns the digest of the channel's delivered records.
    pub fn digest(&self, channel: u16) -> String {
        let digest = self
            .digests
            .get(&ChannelId(channel))
            .map(|digest| digest.digest128());
        format!("{:032x}", digest.unwrap_or_else(|| Xxh3::new().digest128()))
    }

    /// Returns the counters of a channel, by its index in the subscriber's list.
    pub fn counters(&self, channel: usize) -> std::sync::Arc<ReceiverCounters> {
        self.subscriber.channels()[channel].counters.clone()
    }

    /// Asserts the relations between counters that must hold in every run.
    pub fn assert_balanced(&self) {
        for report in self.subscriber.channels() {
            let c = &report.counters;
            assert_eq!(
                c.missing_datagrams.get(),
                c.missing_recovered.get()
                    + c.missing_lost.get()
                    + c.missing_superseded.get()
                    + c.missing_open.get(),
                "channel {}: gaps = recovered + lost + forgotten + open",
                report.name
            );
            assert_eq!(
                c.replay_requested.get(),
                c.replay_received.get()
                    + c.replay_lost.get()
                    + c.replay_superseded.get()
                    + c.replay_open.get(),
                "channel {}: history = received + lost + forgotten + open",
                report.name
            );
        }
        let lost: u64 = self.losses.iter().filter_map(|loss| loss.records).sum();
        let counted: u64 = self
            .subscriber
            .channels()
            .iter()
            .map(|r| r.counters.lost_records.get())
            .sum();
        assert_eq!(lost, counted, "every loss reaches the application");
    }
}

/// Polls all followers until `done` returns `true`. Panics after [`PATIENCE`].
pub fn drive(followers: &mut [Follower], mut done: impl FnMut(&mut [Follower]) -> bool) {
    let began = Instant::now();
    loop {
        let mut worked = false;
        for follower in followers.iter_mut() {
            worked |= follower.poll();
        }
        if done(followers) {
            return;
        }
        if !worked {
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(
            began.elapsed() < PATIENCE,
            "never came to an end: {:#?}",
            followers
                .iter()
                .map(|f| (
                    &f.records,
                    f.subscriber.channels(),
                    f.events.iter().rev().take(5).collect::<Vec<_>>()
                ))
                .collect::<Vec<_>>()
        );
    }
}

/// Polls until every channel of every follower has ended, and 20 ms more, so that the publisher receives
/// the last reports.
pub fn drive_to_end(followers: &mut [Follower]) {
    drive(followers, |all| {
        all.iter().all(|follower| follower.subscriber.ended())
    });
    drive_for(followers, Duration::from_millis(20));
}

/// Asks the publisher to end, and polls until every channel of every follower has ended.
pub fn end(publisher: &Publisher, followers: &mut [Follower]) {
    publisher.terminate();
    drive_to_end(followers);
}

/// Polls for this long.
pub fn drive_for(followers: &mut [Follower], span: Duration) {
    let began = Instant::now();
    drive(followers, |_| began.elapsed() >= span);
}

/// Returns the counters of the publisher's only channel.
pub fn channel(summary: &Value) -> &Value {
    &summary["channels"][0]
}

/// Returns a number of a JSON object. Panics if it is absent.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {key} in {value}"))
}
