//! One host of a run: it carries out orders, its own or those of the other host.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tickcast_tools::support::processes::Process;
use tickcast_transport::verbs::{AccessDefect, Device, inline_default};

use super::datagrams::{self, Receiving};
use super::order::{Answer, HostFacts, Line, LineFacts, NotDone, Order};
use super::programs::{self, RunningPublisher, RunningSubscribers, Setting, tied_to_us};
use super::{command, facts, links};
use crate::commands::tree::Tree;

/// TCP port of `ib_send_lat`, behind the first port of a run.
const LATENCY_PORT: u16 = 2;
/// Messages of one measurement.
const LATENCY_COUNT: &str = "2000";
/// Time limit of one measurement.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Time for the other host's side of that program to listen.
const LISTENS_MAX: Duration = Duration::from_secs(20);
const LATENCY_TEST: &str = "ib_send_lat";

/// A host that carries out orders. Dropping it ends its programs.
pub(super) struct Worker {
    facts: HostFacts,
    setting: Setting,
    ports: u16,
    receiving: Option<Receiving>,
    publisher: Option<RunningPublisher>,
    subscribers: Option<RunningSubscribers>,
    latency: Option<Process>,
    /// Publishers so far, and the accesses beyond a grant that they noted.
    publishers: u64,
    violations: Result<u64, NotDone>,
}

impl Worker {
    pub(super) fn new(facts: HostFacts, setting: Setting, ports: u16) -> Self {
        Self {
            facts,
            setting,
            ports,
            receiving: None,
            publisher: None,
            subscribers: None,
            latency: None,
            publishers: 0,
            violations: Ok(0),
        }
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// Returns the reason why it was not done.
    pub(super) fn perform(&mut self, order: &Order) -> Result<Answer, NotDone> {
        order.check()?;
        match order {
            Order::Facts => return Ok(Answer::Facts(self.facts.clone())),
            Order::Counters => {
                let all = facts::counters(&Tree::of_this_host(), &self.facts.lines);
                return Ok(Answer::Counters(all));
            }
            Order::Prove(line) => return self.prove(*line),
            Order::Receive(volley, address, gid) => {
                let (at, group) = self.raw(volley.line)?;
                let opened = Receiving::open(group, at, *volley, (*address, *gid));
                self.receiving = Some(opened?);
            }
            Order::Send(volley) => {
                let (at, group) = self.raw(volley.line)?;
                let sent = datagrams::send(group, at, *volley, inline_default());
                return Ok(Answer::Sent(sent?));
            }
            Order::Count => {
                let receiving = self.receiving.take().ok_or_else(|| not_begun("receiver"))?;
                return Ok(Answer::Arrived(receiving.count()?));
            }
            Order::Publish(publication) => {
                self.kill_publisher();
                self.publisher = Some(RunningPublisher::start(&self.setting, publication)?);
            }
            Order::EndPublisher(s) => return self.end_publisher(Duration::from_secs(*s)),
            Order::KillPublisher => self.kill_publisher(),
            Order::Promote => match &self.publisher {
                Some(standby) => standby.promote()?,
                None => return Err(not_begun("standby")),
            },
            Order::Listen(listening) => {
                self.subscribers = None;
                self.subscribers = Some(RunningSubscribers::start(&self.setting, listening)?);
            }
            Order::Await(records, s) => {
                self.listeners()?
                    .wait_for(*records, Duration::from_secs(*s))?;
            }
            Order::AwaitRepair(repair, s) => {
                let limit = Duration::from_secs(*s);
                self.listeners()?.wait_for_repair(*repair, limit)?;
            }
            Order::Pause(ms) => self.listeners()?.pause(Duration::from_millis(*ms)),
            Order::Heard(s) => {
                let all = self
                    .subscribers
                    .take()
                    .ok_or_else(|| not_begun("subscriber"))?;
                return Ok(Answer::Heard(all.end(Duration::from_secs(*s))?));
            }
            Order::LinesDown => return Ok(Answer::LinesDown(self.listeners()?.lines_down())),
            Order::Stop => {
                self.kill_publisher();
                self.subscribers = None;
                self.receiving = None;
                self.latency = None;
            }
            Order::BreakLink(line, ms) => self.break_link(*line, Duration::from_millis(*ms))?,
            Order::ServeLatency => self.serve_latency()?,
            Order::MeasureLatency(server) => return self.measure_latency(*server),
            Order::Violations => {
                let violations = self.violations.clone()?;
                return Ok(Answer::Violations(self.publishers, violations));
            }
        }
        Ok(Answer::Done)
    }

    fn end_publisher(&mut self, limit: Duration) -> Result<Answer, NotDone> {
        let publisher = self
            .publisher
            .take()
            .ok_or_else(|| not_begun("publisher"))?;
        let audit = publisher.audit().to_owned();
        let ended = publisher.end(limit);
        self.note(&audit);
        Ok(Answer::Published(ended?))
    }

    fn kill_publisher(&mut self) {
        if let Some(publisher) = self.publisher.take() {
            let audit = publisher.audit().to_owned();
            drop(publisher);
            self.note(&audit);
        }
    }

    /// Counts the accesses that a publisher noted.
    fn note(&mut self, audit: &Path) {
        self.publishers += 1;
        let before = std::mem::replace(&mut self.violations, Ok(0));
        self.violations = before.and_then(|sum| Ok(sum + programs::violations(audit)?));
    }

    fn break_link(&self, line: Line, time: Duration) -> Result<(), NotDone> {
        if !rustix::process::geteuid().is_root() {
            return Err(NotDone::Unavailable(format!(
                "{} needs root for it",
                self.facts.name
            )));
        }
        if !self.facts.may_break_links {
            return Err(NotDone::Unavailable(format!(
                "{} breaks no links: it needs --may-break-links, and a connection to the other host that uses \
                 neither line",
                self.facts.name
            )));
        }
        links::break_for(self.line(line)?, time)
    }

    fn line(&self, line: Line) -> Result<&LineFacts, NotDone> {
        let missing = || NotDone::Failed(format!("no line {} on this host", line.letter()));
        self.facts.line(line).ok_or_else(missing)
    }

    /// Returns the address of a line, and the group of its lone datagrams.
    fn raw(&self, line: Line) -> Result<(Ipv4Addr, Ipv4Addr), NotDone> {
        let at = self.line(line)?.address;
        let (_, group) = &self.setting.lines[line as usize];
        Ok((at, Ipv4Addr::from_bits(group.to_bits().wrapping_add(2))))
    }

    fn listeners(&mut self) -> Result<&mut RunningSubscribers, NotDone> {
        self.subscribers
            .as_mut()
            .ok_or_else(|| not_begun("subscriber"))
    }

    fn prove(&self, line: Line) -> Result<Answer, NotDone> {
        let device = Device::open_active(self.line(line)?.address);
        let device = device.map_err(|error| NotDone::Failed(error.to_string()))?;
        let proof = device.prove_access();
        let of = |proven: Result<(), &AccessDefect>| proven.err().map(ToString::to_string);
        Ok(Answer::Proof(of(proof.read()), of(proof.cursors())))
    }

    /// Returns the arguments of `ib_send_lat` on line A, the same for both sides. Its messages are reliable,
    /// because it waits for ever for one that is lost.
    fn latency_test(&self) -> Result<Vec<String>, NotDone> {
        // It ends with 1 after its version, so only its absence is an error.
        command::run(LATENCY_TEST, &["--version"], LATENCY_MAX)?;
        let line = self.line(Line::A)?;
        let (device_port, tcp_port) = (line.port.to_string(), self.ports + LATENCY_PORT);
        let tcp_port = tcp_port.to_string();
        let index = line
            .gid_index
            .filter(|_| line.is_ethernet)
            .map(|it| it.to_string());
        let mut args = vec!["-c", "RC", "-s", "64", "-F", "-n", LATENCY_COUNT];
        args.extend(["-d", &line.device, "-i", &device_port, "-p", &tcp_port]);
        if let Some(index) = &index {
            args.extend(["-x", index]);
        }
        Ok(args.into_iter().map(str::to_owned).collect())
    }

    fn serve_latency(&mut self) -> Result<(), NotDone> {
        self.latency = None;
        let mut command = Command::new(LATENCY_TEST);
        command.args(self.latency_test()?);
        let mut process = Process::start(LATENCY_TEST, tied_to_us(&command), &self.setting.folder)?;
        // Its output ends with the process, and nobody else reads it.
        if let Some(mut stdout) = process.take_stdout() {
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        }
        // It listens before it connects, which takes it a moment.
        sleep(Duration::from_secs(2));
        if let Some(code) = process.ended()? {
            return Err(process.failed(format_args!("ended with {code}")).into());
        }
        self.latency = Some(process);
        Ok(())
    }

    fn measure_latency(&self, server: Ipv4Addr) -> Result<Answer, NotDone> {
        let (mut args, server) = (self.latency_test()?, server.to_string());
        args.push(server);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        // The other host's side may take longer until it listens.
        let until = Instant::now() + LISTENS_MAX;
        loop {
            let ended = command::run(LATENCY_TEST, &args, LATENCY_MAX)?;
            if let Some(typical) = typical_ns(&ended.stdout) {
                return Ok(Answer::Latency(typical));
            }
            if Instant::now() >= until {
                return Err(NotDone::Failed(format!("{LATENCY_TEST}: {}", ended.said())));
            }
            sleep(Duration::from_secs(1));
        }
    }
}

fn not_begun(what: &str) -> NotDone {
    NotDone::Failed(format!("no {what} runs on this host"))
}

/// Returns the typical latency of the output of `ib_send_lat`, in nanoseconds. The last line that begins with
/// two integers has it in its fifth column, in microseconds.
fn typical_ns(text: &str) -> Option<u64> {
    let mut results = text
        .lines()
        .rev()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let result = results.find(|words| {
        words.len() > 5 && words[..2].iter().all(|word| word.parse::<u64>().is_ok())
    })?;
    let us: f64 = result[4].parse().ok()?;
    (us.is_finite() && us >= 0.0).then_some((us * 1_000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_latency_is_read_from_the_output() {
        let text = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      10000          1.03           14.61        1.07   \t       1.08        \t0.10
---------------------------------------------------------------------------------------
";
        assert_eq!(typical_ns(text), Some(1_070));
        assert_eq!(typical_ns("Couldn't connect to 10.0.0.1:7422\n"), None);
        assert_eq!(typical_ns(" 64 10000 1 2 inf 3\n"), None);
    }
}
