//! The publisher and the subscribers of a step: the shipped programs, as child processes.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::files::{read_json, write_json};
use tickcast_tools::support::processes::{Process, killed_with_us, this_program};
use tickcast_tools::support::watched::Watched;
use tickcast_transport::host::memory_limit::available_bytes;

use super::command;
use super::order::{Heard, Listening, NotDone, Publication, Published, Repair};

/// Time limit for a publisher to listen.
const START_MAX: Duration = Duration::from_secs(120);
/// Time limit for a process to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(20);
pub(super) const CHANNEL: &str = "accept";
/// Slots of a ring: enough for the longest pause of a step.
const SLOTS: u32 = 32_768;

impl From<ToolError> for NotDone {
    fn from(error: ToolError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The networks and places of the programs on one host.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// The control address of the publisher on this host.
    pub(super) control: SocketAddr,
    /// The control address of the publisher on the other host.
    pub(super) other: SocketAddr,
    /// The rdma_cm port of repair.
    pub(super) repair_port: u16,
    /// Interfaces and groups of the lines.
    pub(super) lines: Vec<(String, std::net::Ipv4Addr)>,
    /// Slots carry at most this many bytes.
    pub(super) mtu: u32,
    pub(super) publisher_bin: PathBuf,
    pub(super) folder: PathBuf,
}

impl Setting {
    fn config(&self, of: &Publication, name: &str) -> Value {
        let lines = self.lines.iter().take(of.lines.into());
        let (interfaces, lines): (Vec<_>, Vec<_>) = lines
            .map(|(interface, group)| (interface, json!({"group": group, "interface": interface})))
            .unzip();
        let repair = json!({
            "interfaces": interfaces,
            "port": self.repair_port,
            "read": of.repair == Repair::Read,
            "connections_max": 2 * u32::from(of.wait_for) + 64,
            "cursors": of.wait_for + 32,
        });
        let standby = json!({"of": self.other.to_string()});
        let pace = of
            .rate
            .map_or(json!("max"), |rate| json!({"messages_per_s": rate}));
        json!({
            "name": name,
            "control": self.control.to_string(),
            "interface": interfaces.first(),
            "ttl": 1,
            "digest": true,
            "end_when_inputs_end": true,
            "linger_ms": 120_000,
            "commands": {"socket": self.socket()},
            "standby": of.is_standby.then_some(standby),
            "repair_verbs": (of.repair != Repair::Tcp).then_some(repair),
            "channels": [{
                "id": 1,
                "name": CHANNEL,
                "slot_len": if of.is_long { self.mtu } else { self.mtu.min(1_024) },
                "slots": SLOTS,
                "peak_datagrams_per_s": of.rate.unwrap_or(100_000).clamp(1_000, 100_000),
                "fan_out": [{"transport": "verbs", "lines": lines}],
            }],
            "inputs": [{
                "source": 1,
                "kind": "simulator",
                "seed": 7,
                "symbols": 50,
                // More than enough: most messages carry a record, and `records_max` ends the input.
                "messages": of.records.saturating_mul(4),
                "duration_ms": 0,
                "records_max": of.records,
                "wait_for_subscribers": of.wait_for,
                "pace": pace,
            }],
        })
    }

    /// Returns the path of the publisher's command socket.
    fn socket(&self) -> PathBuf {
        self.folder.join("commands")
    }
}

/// A running publisher.
pub(super) struct RunningPublisher {
    process: Process,
    summary: PathBuf,
    socket: PathBuf,
    audit: PathBuf,
}

impl RunningPublisher {
    /// Starts a publisher, and waits until it listens.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] with the end of its log if it does not start.
    pub(super) fn start(setting: &Setting, of: &Publication) -> Result<Self, NotDone> {
        let name = if of.is_standby {
            "standby"
        } else {
            "publisher"
        };
        let place = |kind: &str| setting.folder.join(format!("{name}.{kind}"));
        let (config, ready) = (place("config.json"), place("ready.json"));
        let (summary, audit) = (place("json"), place("audit"));
        for left in [&ready, &summary, &audit, &setting.socket()] {
            forget(left)?;
        }
        write_json(&config, &setting.config(of, name))?;
        let mut command = Command::new(&setting.publisher_bin);
        command.arg("--config").arg(&config);
        command.arg("--summary").arg(&summary);
        command.arg("--ready-file").arg(&ready);
        command.arg("--audit").arg(&audit);
        let mut process = Process::start(name, tied_to_us(&command), &setting.folder)?;
        let started_at = Instant::now();
        while !ready.exists() {
            if process.ended()?.is_some() || started_at.elapsed() >= START_MAX {
                return Err(process.failed("did not start").into());
            }
            sleep(POLL);
        }
        Ok(Self {
            process,
            summary,
            socket: setting.socket(),
            audit,
        })
    }

    /// Waits for the end of the session, for `limit` at most; then ends it.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] with the end of its log if it fails.
    pub(super) fn end(mut self, limit: Duration) -> Result<Published, NotDone> {
        if !ends_within(&mut self.process, limit)? {
            terminate(&self.process);
            if !ends_within(&mut self.process, END_MAX)? {
                return Err(self.process.failed("did not end after SIGTERM").into());
            }
        }
        match self.process.ended()? {
            // 1 reports losses, which the step judges by itself.
            Some(0 | 1) => {}
            _ => return Err(self.process.failed("failed").into()),
        }
        let mut summary: PublisherSummary = read_json(&self.summary, "a publisher's summary")?;
        let none = || NotDone::Failed("a publisher's summary has no channel".to_owned());
        let channel = summary.channels.pop().ok_or_else(none)?;
        Ok(Published {
            records: channel.published_records,
            digest: channel.digest.unwrap_or_default(),
        })
    }

    /// Returns the path of its audit file.
    pub(super) fn audit(&self) -> &Path {
        &self.audit
    }

    /// Promotes this standby. Repeats the request while its publisher still counts as alive.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] with the last answer if it is not promoted within three minutes.
    pub(super) fn promote(&self) -> Result<(), NotDone> {
        let until = Instant::now() + END_MAX;
        loop {
            let program = this_program()?;
            let [program, socket] = [&program, &self.socket].map(|it| it.to_string_lossy());
            let promote = ["promote", "--standby", &socket];
            let promoted = command::run(&program, &promote, 2 * END_MAX)?;
            if promoted.is_success {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(NotDone::Failed(promoted.said()));
            }
            sleep(POLL * 10);
        }
    }
}

/// The parts of a publisher's summary that a step judges.
#[derive(Debug, Deserialize)]
struct PublisherSummary {
    channels: Vec<PublishedChannel>,
}

#[derive(Debug, Deserialize)]
struct PublishedChannel {
    published_records: u64,
    digest: Option<String>,
}

/// Running subscribers.
pub(super) struct RunningSubscribers {
    all: Vec<(Watched, PathBuf)>,
}

impl RunningSubscribers {
    /// Starts subscribers of the publishers of both hosts.
    ///
    /// # Errors
    /// Returns [`NotDone`] if this host has not enough memory, or a process does not start.
    pub(super) fn start(setting: &Setting, of: &Listening) -> Result<Self, NotDone> {
        let needed_mib = memory_mib(of);
        let available_mib = available_bytes().map(|bytes| bytes >> 20);
        if available_mib.is_some_and(|available| needed_mib > available / 2) {
            return Err(NotDone::Unavailable(format!(
                "{} subscribers need {needed_mib} MiB, and half of the available memory has {} MiB",
                of.subscribers,
                available_mib.unwrap_or(0) / 2
            )));
        }
        let mut all = Vec::new();
        for number in 1..=of.subscribers {
            let name = format!("s{number}");
            let summary = setting.folder.join(format!("{name}.json"));
            forget(&summary)?;
            let mut command = Command::new(this_program()?);
            command.args(["--log", "info", "listen"]);
            command.args(["--format", "count-json", "--every", "0.1"]);
            command.args(["--digest", "--quiet", "--transport", "verbs"]);
            command.args(["--from", "oldest", "--join-timeout", "120"]);
            command.args(["--channel", CHANNEL, "--name", &name]);
            command.args(["--receive-depth", &of.depth.to_string()]);
            let ladder = match of.repair {
                Repair::Read => "read-then-nack",
                Repair::Nack | Repair::Tcp => "nack",
            };
            command.args(["--ladder", ladder]);
            let idle = if of.is_eager { "yield" } else { "sleep:50" };
            command.args(["--idle", idle]);
            let connect = format!("{},{}", setting.other, setting.control);
            command.args(["--connect", &connect]);
            for (interface, _) in setting.lines.iter().take(of.lines.into()) {
                command.args(["--interface", interface]);
            }
            command.arg("--summary").arg(&summary);
            let watched = Watched::start(&name, tied_to_us(&command), &setting.folder)?;
            all.push((watched, summary));
        }
        Ok(Self { all })
    }

    /// Waits until each has delivered `records` more.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] with the counts if that takes longer than `limit`, or one ends early.
    pub(super) fn wait_for(&mut self, records: u64, limit: Duration) -> Result<(), NotDone> {
        let delivered = |it: &Watched| it.counts().delivered_records;
        let before: Vec<_> = self.all.iter().map(|(it, _)| delivered(it)).collect();
        self.wait_until(limit, &format!("{records} more records"), |at, it| {
            delivered(it) >= before[at].saturating_add(records)
        })
    }

    /// Waits until each has what this way of repair needs.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] if that takes longer than `limit`, or one ends early.
    pub(super) fn wait_for_repair(
        &mut self,
        repair: Repair,
        limit: Duration,
    ) -> Result<(), NotDone> {
        self.wait_until(limit, "its connection for repair", |_, it| match repair {
            Repair::Read => it.counts().read_links_up > 0,
            Repair::Nack => it.counts().nack_links_up > 0,
            Repair::Tcp => true,
        })
    }

    /// Waits until `is_so` holds for each, with its place.
    fn wait_until(
        &mut self,
        limit: Duration,
        what: &str,
        is_so: impl Fn(usize, &Watched) -> bool,
    ) -> Result<(), NotDone> {
        let until = Instant::now() + limit;
        loop {
            let all = self.all.iter().enumerate();
            let late = all.filter(|(at, (it, _))| !is_so(*at, it)).count();
            if late == 0 {
                return Ok(());
            }
            for (watched, _) in &mut self.all {
                if watched.process.ended()?.is_some() {
                    return Err(watched.process.failed("ended early").into());
                }
            }
            if Instant::now() >= until {
                return Err(NotDone::Failed(format!(
                    "{late} of {} subscribers did not have {what} within {} s",
                    self.all.len(),
                    limit.as_secs()
                )));
            }
            sleep(POLL);
        }
    }

    /// Returns how often a line fell silent, for each.
    pub(super) fn lines_down(&self) -> Vec<u64> {
        self.all
            .iter()
            .map(|(it, _)| it.counts().line_down)
            .collect()
    }

    /// Stops all of them for a time. They receive nothing meanwhile.
    pub(super) fn pause(&self, time: Duration) {
        let signal_all = |signal| {
            for (watched, _) in &self.all {
                signal_process(&watched.process, signal);
            }
        };
        signal_all(rustix::process::Signal::STOP);
        sleep(time);
        signal_all(rustix::process::Signal::CONT);
    }

    /// Waits for the end of all, for `limit` at most; then ends them. Returns their results.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] with the end of the log of one that failed.
    pub(super) fn end(mut self, limit: Duration) -> Result<Vec<Heard>, NotDone> {
        let until = Instant::now() + limit;
        let mut results = Vec::new();
        for (watched, _) in &mut self.all {
            let left = until.saturating_duration_since(Instant::now());
            if !ends_within(&mut watched.process, left)? {
                terminate(&watched.process);
            }
        }
        let until = Instant::now() + END_MAX;
        for (watched, summary) in &mut self.all {
            let left = until.saturating_duration_since(Instant::now());
            if !ends_within(&mut watched.process, left)? {
                return Err(watched.process.failed("did not end after SIGTERM").into());
            }
            match watched.process.ended()? {
                Some(0 | 1) => {
                    let summary: SubscriberSummary = read_json(summary, "a subscriber's summary")?;
                    results.push(summary.heard()?);
                }
                _ => return Err(watched.process.failed("failed").into()),
            }
        }
        Ok(results)
    }
}

/// The parts of a subscriber's summary that a step judges.
#[derive(Debug, Deserialize)]
struct SubscriberSummary {
    clock_offset_ns: Option<i64>,
    clock_error_ns: Option<u64>,
    channels: Vec<ChannelSummary>,
}

/// One channel of it.
#[derive(Debug, Deserialize)]
struct ChannelSummary {
    delivered_records: u64,
    digest: Option<String>,
    lost_records: u64,
    latency_ns: Latency,
    counters: ChannelCounters,
}

#[derive(Debug, Deserialize)]
struct Latency {
    p50: u64,
    p99: u64,
}

#[derive(Debug, Default, Deserialize)]
struct ChannelCounters {
    missing_datagrams: u64,
    missing_recovered: u64,
    read_repairs_received: u64,
    nack_link_repairs_received: u64,
    repairs_received: u64,
    multicast_lost: u64,
    line_down: u64,
}

impl SubscriberSummary {
    fn heard(self) -> Result<Heard, NotDone> {
        let none = || NotDone::Failed("a subscriber's summary has no channel".to_owned());
        let channel = self.channels.into_iter().next().ok_or_else(none)?;
        let offset = self.clock_offset_ns.map(i64::unsigned_abs);
        let clocks = self.clock_error_ns.zip(offset);
        Ok(Heard {
            records: channel.delivered_records,
            digest: channel.digest.unwrap_or_default(),
            lost: channel.lost_records,
            missing: channel.counters.missing_datagrams,
            recovered: channel.counters.missing_recovered,
            by_read: channel.counters.read_repairs_received,
            by_nack: channel.counters.nack_link_repairs_received,
            p50_ns: channel.latency_ns.p50,
            p99_ns: channel.latency_ns.p99,
            clock_error_ns: clocks.map(|(error, offset)| offset.saturating_add(error)),
            repaired: channel.counters.repairs_received,
            line_down: channel.counters.line_down,
            multicast_lost: channel.counters.multicast_lost,
        })
    }
}

/// Returns the memory that subscribers take, in MiB.
fn memory_mib(of: &Listening) -> u64 {
    // A process with its histograms, and two connections of which one READs.
    const EACH: u64 = 14 << 20;
    const BUFFER: u64 = 40 + 4_096;
    let buffers = u64::from(of.depth) * u64::from(of.lines) * BUFFER;
    (u64::from(of.subscribers) * (EACH + buffers)) >> 20
}

/// Returns the number of accesses beyond a grant in an audit file.
///
/// # Errors
/// Returns [`NotDone::Failed`] if it can't be read, because nothing shows then that there was none.
pub(super) fn violations(audit: &Path) -> Result<u64, NotDone> {
    let text = std::fs::read_to_string(audit)
        .map_err(|error| NotDone::Failed(format!("{} can't be read: {error}", audit.display())))?;
    Ok(text.matches("\"access_violation\"").count() as u64)
}

/// Returns a command that ends with this program and is in a process group of its own. A signal from the
/// terminal would end it early, and a shorter run looks whole.
pub(super) fn tied_to_us(command: &Command) -> Command {
    let mut tied = killed_with_us(command);
    tied.process_group(0);
    tied
}

/// Waits for the end of a process. Returns whether it has ended.
fn ends_within(process: &mut Process, limit: Duration) -> Result<bool, NotDone> {
    let until = Instant::now() + limit;
    while process.ended()?.is_none() {
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(POLL);
    }
    Ok(true)
}

fn terminate(process: &Process) {
    signal_process(process, rustix::process::Signal::TERM);
}

/// Sends a signal to a child. A child that has ended keeps its number until this process waits for it.
fn signal_process(process: &Process, signal: rustix::process::Signal) {
    let id = i32::try_from(process.id()).ok();
    if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(id, signal);
    }
}

/// Removes what an earlier step left.
fn forget(path: &Path) -> Result<(), NotDone> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let path = path.display();
            Err(NotDone::Failed(format!("{path} can't be removed: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tickcast_publisher::Config;

    use super::*;

    fn setting() -> Setting {
        let group = |last| std::net::Ipv4Addr::new(239, 255, 74, last);
        Setting {
            control: "10.0.0.1:7421".parse().unwrap(),
            other: "10.0.0.2:7421".parse().unwrap(),
            repair_port: 7_423,
            lines: vec![("eth1".into(), group(20)), ("eth2".into(), group(21))],
            mtu: 4_096,
            publisher_bin: "/bin/false".into(),
            folder: "/tmp".into(),
        }
    }

    #[test]
    fn configs_of_all_steps_are_those_of_a_publisher() {
        for repair in [Repair::Read, Repair::Nack, Repair::Tcp] {
            for (lines, is_standby, is_long) in [(1, false, true), (2, true, false)] {
                for (rate, wait_for) in [(None, 0), (Some(1), 513)] {
                    let publication = Publication {
                        lines,
                        repair,
                        rate,
                        records: u64::MAX,
                        is_long,
                        wait_for,
                        is_standby,
                    };
                    let json = setting().config(&publication, "publisher");
                    let config = Config::parse(&json.to_string()).unwrap();
                    let slot_len = if is_long { 4_096 } else { 1_024 };
                    assert_eq!(config.channels[0].slot_len, slot_len);
                    assert_eq!(config.standby.is_some(), is_standby);
                    let verbs = config.repair_verbs;
                    assert_eq!(
                        verbs.as_ref().map(|it| it.read),
                        match repair {
                            Repair::Read => Some(true),
                            Repair::Nack => Some(false),
                            Repair::Tcp => None,
                        }
                    );
                    assert!(verbs.is_none_or(|it| it.connections_max >= 2 * u32::from(wait_for)));
                }
            }
        }
    }

    #[test]
    fn summary_without_one_of_its_counters_is_refused() {
        let counters = json!({
            "missing_datagrams": 1, "missing_recovered": 2, "read_repairs_received": 3,
            "nack_link_repairs_received": 4, "repairs_received": 5, "multicast_lost": 6, "line_down": 7,
        });
        let summary = |counters: &Value| {
            let channel = json!({
                "delivered_records": 8, "digest": "ab", "lost_records": 9,
                "latency_ns": { "p50": 10, "p99": 11 }, "counters": counters,
            });
            let all = json!({ "clock_offset_ns": -12, "clock_error_ns": 1, "channels": [channel] });
            serde_json::from_value::<SubscriberSummary>(all)
        };
        let heard = summary(&counters).unwrap().heard().unwrap();
        let expected = Heard {
            records: 8,
            digest: "ab".into(),
            lost: 9,
            missing: 1,
            recovered: 2,
            by_read: 3,
            by_nack: 4,
            p50_ns: 10,
            p99_ns: 11,
            clock_error_ns: Some(13),
            repaired: 5,
            line_down: 7,
            multicast_lost: 6,
        };
        assert_eq!(heard, expected);
        for name in counters.as_object().unwrap().keys() {
            let mut fewer = counters.clone();
            fewer.as_object_mut().unwrap().remove(name);
            assert!(summary(&fewer).is_err(), "{name}");
        }
    }

    #[test]
    fn audit_file_that_is_missing_is_no_proof() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit");
        assert!(violations(&file).is_err());
        std::fs::write(
            &file,
            "{\"what\":\"access_violation\"}\n{\"what\":\"joined\"}\n",
        )
        .unwrap();
        assert_eq!(violations(&file), Ok(1));
    }
}
