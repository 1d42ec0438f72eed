//! `tickcast accept-rdma`: runs the whole system over RDMA between two hosts, and reports on one page what
//! passes, what fails, and what was not tried.

mod command;
mod datagrams;
mod facts;
mod links;
mod order;
mod programs;
mod report;
mod row;
mod run;
mod site;
mod steps;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tickcast_subscriber::Interface;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::conversation::{Conversation, TalkError, connect};
use tickcast_tools::support::files::{Folder, read_json, write_json, write_text};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::processes::this_program;
use tickcast_tools::support::signals::Stop;
use tickcast_transport::host::host_addresses::HostAddresses;

use order::{Hello, HostFacts, Message, NotDone, Order, VERSION};
use programs::Setting;
use report::Report;
use row::{Judgement, Row};
use run::Hosts;
use site::Site;
use steps::{Acceptance, Hooks, count};
use worker::Worker;

use super::tree::Tree;

/// First port by default. The run uses four in a row.
const PORTS: u16 = 7420;
/// First group by default. The run uses four in a row.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 20);
/// Time limit for an answer to be sent.
const SEND_MAX: Duration = Duration::from_secs(5);
/// Time limit for an introduction. Both hosts gather their facts first, by programs that may be slow.
const HELLO_MAX: Duration = Duration::from_secs(90);
/// Time for which a host waits for the next order. A step with its own commands may take that long.
const ORDER_MAX: Duration = Duration::from_secs(3_600);
/// Time for which `--answer` waits for a host.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
const POLL: Duration = Duration::from_millis(20);

/// The other host, the interfaces of both lines, and what may be broken.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("part").required(true).args(["peer", "answer", "table"]))]
pub(crate) struct Args {
    /// The other host, where `tickcast accept-rdma --answer` runs. Give its address on a network that is
    /// neither line, so that links can be broken.
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Option<String>,
    /// Serve one run of the host --from, then end. Its orders start publishers and subscribers here.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "0.0.0.0")]
    #[arg(requires = "from")]
    answer: Option<IpAddr>,
    /// The only address that --answer serves.
    #[arg(long, value_name = "ADDRESS", requires = "answer")]
    from: Option<IpAddr>,
    /// Print the rows of a finished report as a table in Markdown.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Interface of line A on this host.
    #[arg(long, value_name = "NAME|ADDRESS", required_unless_present = "table")]
    a: Option<Interface>,
    /// Interface of line B on this host, on another network.
    #[arg(long, value_name = "NAME|ADDRESS")]
    b: Option<Interface>,
    #[command(flatten)]
    asking: Asking,
    /// Take links down and run the commands below. Needs root, on both hosts.
    #[arg(long)]
    may_break_links: bool,
    /// First of four groups in a row for the run, the same on both hosts.
    #[arg(long, value_name = "GROUP", default_value_t = GROUP, value_parser = group)]
    group: Ipv4Addr,
    /// First of four ports in a row for the run, the same on both hosts.
    #[arg(long, value_name = "PORT", default_value_t = PORTS)]
    #[arg(value_parser = clap::value_parser!(u16).range(1_024..=65_000))]
    ports: u16,
    /// Path of the publisher program. By default it is beside this one.
    #[arg(long, value_name = "FILE")]
    publisher_bin: Option<PathBuf>,
}

/// Options of the host that asks. They mean nothing to --answer and --table.
#[derive(Debug, clap::Args)]
#[group(multiple = true, conflicts_with_all = ["answer", "table"])]
struct Asking {
    /// Length of the run: a step under load takes a twentieth, 3 s to 2 minutes. From 30 on, a step waits for
    /// queriers to forget memberships.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Run only these steps; a report names all.
    #[arg(long, value_name = "STEP", value_delimiter = ',', value_parser = steps::known)]
    only: Vec<&'static str>,
    /// Write the page and the JSON into this directory.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["answer", "table"])]
    report: Option<PathBuf>,
    /// Command that stops the traffic of line A, such as a pause storm or a switch port; --resume-a ends it.
    #[arg(long, value_name = "COMMAND", requires_all = ["resume_a", "may_break_links"])]
    pause_a: Option<String>,
    /// Command that lets the traffic of line A flow again.
    #[arg(long, value_name = "COMMAND", requires = "pause_a")]
    resume_a: Option<String>,
    /// Command that restarts the subnet manager of InfiniBand.
    #[arg(long, value_name = "COMMAND", requires = "may_break_links")]
    restart_subnet_manager: Option<String>,
    /// Command that reloads the driver of this host's devices, and sets their interfaces up again.
    #[arg(long, value_name = "COMMAND", requires = "may_break_links")]
    reload_driver: Option<String>,
}

/// Parses a group within 239.0.0.0/8, which stays within an organisation.
fn group(text: &str) -> Result<Ipv4Addr, String> {
    match text.parse::<Ipv4Addr>() {
        Ok(group) if group.octets()[0] == 239 && group.octets()[3] <= 252 => Ok(group),
        _ => {
            Err("give a group within 239.0.0.0/8 that three others follow, as 239.255.74.20".into())
        }
    }
}

/// Runs all steps, serves a run, or prints a table. Returns [`Exit::Finding`] if a row failed.
///
/// # Errors
/// Returns [`ToolError`] if the options are invalid, the other host does not answer, or the report can't be
/// written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    if let Some(file) = &args.table {
        let report: Report = read_json(file, "a report of accept-rdma")?;
        let mut output = Output::stdout();
        output.line(report.table().trim_end())?;
        output.flush()?;
        return Ok(Exit::Whole);
    }
    match (&args.peer, args.answer) {
        (Some(peer), _) => ask(args, peer),
        (None, Some(address)) => answer(args, address),
        (None, None) => Err(ToolError::Usage("give --peer or --answer".into())),
    }
}

impl Args {
    fn interfaces(&self) -> Vec<Interface> {
        self.a.iter().chain(&self.b).cloned().collect()
    }

    fn hello(&self) -> Hello {
        Hello {
            version: VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            ports: self.ports,
            group: self.group,
            lines: 1 + u8::from(self.b.is_some()),
        }
    }

    /// Returns this host for a run with the host at the other end of a connection.
    fn worker(&self, stream: &TcpStream, folder: &Path) -> Result<Worker, ToolError> {
        if self.a == self.b {
            return Err(ToolError::Usage(
                "--a and --b name one interface".to_owned(),
            ));
        }
        let is_apart = !carries(stream, &self.interfaces());
        if self.may_break_links && !is_apart {
            tracing::warn!(
                "the connection to the other host uses a line, so this host breaks no links"
            );
        }
        let facts = facts::of_host(&self.interfaces(), self.may_break_links && is_apart);
        let facts = facts.map_err(|error| ToolError::Problem(error.to_string()))?;
        let host = |source| ToolError::Host {
            what: "find the addresses of the connection",
            source,
        };
        let own = stream.local_addr().map_err(host)?.ip();
        let other = stream.peer_addr().map_err(host)?.ip();
        let publisher_bin = match &self.publisher_bin {
            Some(program) => program.clone(),
            None => this_program()?.with_file_name("tickcast-publisher"),
        };
        if !publisher_bin.exists() {
            return Err(ToolError::Usage(format!(
                "no publisher program at {}; install it there, or give its path with --publisher-bin",
                publisher_bin.display()
            )));
        }
        let groups = [0, 1].map(|at| Ipv4Addr::from_bits(self.group.to_bits().wrapping_add(at)));
        let lines = facts.lines.iter().zip(groups);
        let setting = Setting {
            control: SocketAddr::new(own, self.ports + 1),
            other: SocketAddr::new(other, self.ports + 1),
            repair_port: self.ports + 3,
            lines: lines
                .map(|(line, group)| (line.interface.clone(), group))
                .collect(),
            mtu: facts.lines.iter().map(|it| it.mtu).min().unwrap_or(1_024),
            publisher_bin,
            folder: folder.into(),
        };
        Ok(Worker::new(facts, setting, self.ports))
    }
}

/// Returns why two hosts can't work together.
fn difference(own: &Hello, other: &Hello) -> Option<String> {
    if (own.version, &own.release) != (other.version, &other.release) {
        let release = Plain(&other.release).to_string();
        return Some(format!(
            "releases {} and {release}: use the same on both hosts",
            own.release
        ));
    }
    (own != other).then(|| {
        format!(
            "one has {} lines, group {} and port {}, and the other {} lines, group {} and port {}: give both \
             the same --group and --ports, and --b on both or on none",
            own.lines, own.group, own.ports, other.lines, other.group, other.ports
        )
    })
}

/// Runs all steps with the host at `peer`.
fn ask(args: &Args, peer: &str) -> Result<Exit, ToolError> {
    let directory = args.asking.report.as_deref().unwrap_or(Path::new("."));
    let directory = Folder::new("accept", Some(directory))?;
    let folder = Folder::new("accept", None)?;
    let stop = Stop::on_signals()?;
    let (stream, target) = connect(peer, args.ports, "tickcast accept-rdma --answer")?;
    let worker = args.worker(&stream, folder.path())?;
    let mut there = introduced(stream, args, &target, &stop)?;
    let mut here = Site::Here(Box::new(worker));
    let problem = |error: NotDone| ToolError::Problem(error.to_string());
    let hosts = [
        here.facts().map_err(problem)?,
        there.facts().map_err(problem)?,
    ];
    let started = Timestamp::now();
    let [facts_here, facts_there] = hosts.clone();
    let hosts_of_run = Hosts {
        here,
        there,
        facts_here,
        facts_there,
    };
    let hooks = Hooks {
        pause_a: args.asking.pause_a.clone(),
        resume_a: args.asking.resume_a.clone(),
        restart_subnet_manager: args.asking.restart_subnet_manager.clone(),
        reload_driver: args.asking.reload_driver.clone(),
    };
    let mut acceptance =
        Acceptance::new(hosts_of_run, hooks, args.asking.minutes, &args.asking.only);
    let before = counters(acceptance.hosts(), &hosts);
    let mut output = Output::stdout();
    let mut written = Ok(());
    let rows = acceptance.run(
        || stop.asked(),
        |row| {
            let line = output.line(line_of(row)).and_then(|()| output.flush());
            written = std::mem::replace(&mut written, Ok(())).and(line);
        },
    );
    let after = counters(acceptance.hosts(), &hosts);
    acceptance.hosts().there.leave();
    let failed = count(&rows, Judgement::Fail);
    let report = Report::new(
        started.to_string(),
        args.asking.minutes,
        hosts,
        rows,
        paired(before, after),
    );
    let page = directory.path().join("accept-rdma.html");
    let json = directory.path().join("accept-rdma.json");
    write_text(&page, &report.page())?;
    write_json(&json, &report)?;
    if stop.asked() {
        return Err(ToolError::Interrupted);
    }
    // The report is complete even if nobody reads the rows.
    let said = written.and_then(|()| {
        output.line(format_args!("{}: {}", page.display(), report.counts()))?;
        output.flush()
    });
    match failed {
        0 => said.map(|()| Exit::Whole),
        _ => Ok(Exit::Finding),
    }
}

/// Returns a row as a line of text.
fn line_of(row: &Row) -> String {
    let Row {
        step,
        number,
        bound,
        reason,
        ..
    } = row;
    let word = row.judgement.word();
    let parts = [number, reason];
    let parts: Vec<_> = parts
        .into_iter()
        .filter(|it| !it.is_empty())
        .cloned()
        .collect();
    format!("{word:<10} {step:<22} {} [{bound}]", parts.join("; "))
}

/// Introduces both hosts. Returns the other one.
fn introduced(stream: TcpStream, args: &Args, peer: &str, stop: &Stop) -> Result<Site, ToolError> {
    let failed = |error: TalkError| match error {
        TalkError::Refused(_) => ToolError::Problem(format!("{peer}: {error}")),
        error => ToolError::Unreachable(format!(
            "{peer}: {error}; does `tickcast accept-rdma --answer` run there?"
        )),
    };
    let mut conversation = Conversation::new(stream, HELLO_MAX).map_err(failed)?;
    conversation
        .send(&Message::Hello(args.hello()))
        .map_err(failed)?;
    let Message::Hello(other) = conversation.receive().map_err(failed)? else {
        return Err(failed(TalkError::Unexpected("its introduction")));
    };
    match difference(&args.hello(), &other) {
        Some(reason) => Err(ToolError::Problem(format!("{peer}: {reason}"))),
        None => Ok(Site::There(conversation, stop.clone())),
    }
}

/// Returns whether a connection goes over the port of a line, also by a VLAN or a bond of it.
fn carries(stream: &TcpStream, interfaces: &[Interface]) -> bool {
    let Ok(own) = stream.local_addr() else {
        return true;
    };
    let addresses = HostAddresses::list();
    let Some(name) = addresses
        .ok()
        .and_then(|it| it.interface_with(own).map(str::to_owned))
    else {
        return true;
    };
    let tree = Tree::of_this_host();
    let under = ports_under(&tree, &name);
    let lines = interfaces.iter().map(Interface::resolve);
    let mut lines = lines.map(|line| line.map(|it| ports_under(&tree, &it.name)));
    lines.any(|line| line.map_or(true, |line| !line.is_disjoint(&under)))
}

/// Returns an interface, and those that it is made of.
fn ports_under(tree: &Tree, interface: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::from([interface.to_owned()]);
    let names = tree
        .names(&format!("/sys/class/net/{interface}"))
        .into_iter();
    for lower in names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)) {
        all.extend(ports_under(tree, &lower));
    }
    all
}

/// Returns the counters of both hosts, by host and name.
fn counters(hosts: &mut Hosts, facts: &[HostFacts; 2]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let sites = [(&mut hosts.here, "here"), (&mut hosts.there, "there")];
    for ((site, place), facts) in sites.into_iter().zip(facts) {
        match site.counters() {
            Ok(counters) => {
                let named = counters.into_iter();
                let name = &facts.name;
                all.extend(
                    named.map(|(counter, value)| (format!("{place} ({name}) {counter}"), value)),
                );
            }
            Err(error) => tracing::warn!("the counters {place} are missing in the report: {error}"),
        }
    }
    all
}

/// Returns the values of each counter before and after.
fn paired(
    before: BTreeMap<String, u64>,
    mut after: BTreeMap<String, u64>,
) -> BTreeMap<String, [Option<u64>; 2]> {
    let mut all = BTreeMap::new();
    for (name, value) in before {
        let after = after.remove(&name);
        all.insert(name, [Some(value), after]);
    }
    all.extend(
        after
            .into_iter()
            .map(|(name, value)| (name, [None, Some(value)])),
    );
    all
}

/// Waits for a host that asks, and carries out its orders to the end of its run. Returns after the first
/// whole run, after an hour, or on a signal. Strangers on the port are reported in the log.
fn answer(args: &Args, address: IpAddr) -> Result<Exit, ToolError> {
    let address = SocketAddr::new(address, args.ports);
    let stop = Stop::on_signals()?;
    let refused = |source| ToolError::Address {
        target: address.to_string(),
        source,
    };
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let mut output = Output::stdout();
    output.line(format_args!(
        "answering at {address}; ends after one run, or in {} s",
        WAIT_MAX.as_secs()
    ))?;
    output.flush()?;
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until && !stop.asked() {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                if error.kind() != ErrorKind::WouldBlock {
                    tracing::warn!("a connection failed before it was accepted: {error}");
                }
                std::thread::sleep(POLL);
                continue;
            }
        };
        // Dropping the stream closes the connection.
        if args.from != Some(from.ip().to_canonical()) {
            tracing::warn!("{from} is not the host of --from, so it is not served");
            continue;
        }
        match serve(args, stream, &stop) {
            Ok(()) => {
                output.line(format_args!("{}: the run is complete", from.ip()))?;
                output.flush()?;
                return Ok(Exit::Whole);
            }
            Err(error) => tracing::warn!("{from}: {error}"),
        }
    }
    output.line("no run was completed")?;
    output.flush()?;
    Ok(Exit::Finding)
}

/// Carries out the orders of one host. Orders are bounded; interfaces, ports and groups are this host's own.
fn serve(args: &Args, stream: TcpStream, stop: &Stop) -> Result<(), ToolError> {
    let failed = |error: TalkError| ToolError::Unreachable(error.to_string());
    let of_host = stream.try_clone().map_err(|error| failed(error.into()))?;
    let mut conversation = Conversation::new(stream, HELLO_MAX).map_err(failed)?;
    let Message::Hello(other) = conversation.receive().map_err(failed)? else {
        return Err(failed(TalkError::Unexpected("its introduction")));
    };
    conversation.extend(HELLO_MAX);
    let folder = Folder::new("accept", None)?;
    let worker = match difference(&args.hello(), &other) {
        Some(reason) => Err(ToolError::Problem(reason)),
        None => args.worker(&of_host, folder.path()),
    };
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(error) => {
            conversation
                .send(&Message::Refused(error.to_string()))
                .map_err(failed)?;
            return Err(error);
        }
    };
    conversation
        .send(&Message::Hello(args.hello()))
        .map_err(failed)?;
    loop {
        let received = conversation.receive_unless(ORDER_MAX, || stop.asked());
        let message = received.map_err(failed)?.ok_or(ToolError::Interrupted)?;
        match message {
            Message::Order(order) => {
                let answer = match order {
                    // It connects to an address that the other host names.
                    Order::MeasureLatency(_) => {
                        Err(NotDone::Failed("only the asking host measures".to_owned()))
                    }
                    order => worker.perform(&order),
                };
                conversation.extend(SEND_MAX);
                conversation
                    .send(&Message::Answer(answer))
                    .map_err(failed)?;
            }
            Message::Bye => return Ok(()),
            _ => return Err(failed(TalkError::Unexpected("an order"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::tree::FakedTree;
    use super::*;

    #[test]
    fn connection_over_a_vlan_or_bond_uses_its_ports() {
        let faked = FakedTree::of(&[
            ("/sys/class/net/bond0.7/lower_bond0/ifindex", "1"),
            ("/sys/class/net/bond0/lower_eth1/ifindex", "1"),
            ("/sys/class/net/bond0/lower_eth2/ifindex", "1"),
            ("/sys/class/net/eth0/ifindex", "1"),
        ]);
        let under = |name| ports_under(&faked.tree(), name);
        let vlan: Vec<_> = under("bond0.7").into_iter().collect();
        assert_eq!(vlan, ["bond0", "bond0.7", "eth1", "eth2"]);
        assert_eq!(under("eth0").len(), 1);
    }

    #[test]
    fn hosts_of_different_releases_refuse_each_other() {
        let hello = |release: &str, lines| Hello {
            version: VERSION,
            release: release.into(),
            ports: 7_420,
            group: GROUP,
            lines,
        };
        let differ = |other: &Hello| difference(&hello("1.0", 1), other);
        assert_eq!(differ(&hello("1.0", 1)), None);
        assert!(differ(&hello("1.1\u{1b}", 1)).is_some_and(|it| !it.contains('\u{1b}')));
        assert!(differ(&hello("1.0", 2)).is_some_and(|it| it.contains("--b")));
    }

    #[test]
    fn options_of_the_asking_host_are_refused_elsewhere() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parsed =
            |text: &str| Line::try_parse_from(["accept-rdma"].into_iter().chain(text.split(' ')));
        let asking = "--peer h --a eth1 --report d --minutes 20 --only latency --may-break-links";
        assert_eq!(parsed(asking).expect("valid").args.asking.minutes, 20);
        let answering = "--answer --from 10.0.0.1 --a eth1";
        assert_eq!(parsed(answering).expect("valid").args.asking.minutes, 10);
        parsed("--table report.json").expect("valid");
        for option in [
            "--minutes 20",
            "--only latency",
            "--report d",
            "--restart-subnet-manager x",
        ] {
            let more = if option.starts_with("--restart") {
                " --may-break-links"
            } else {
                ""
            };
            for part in [answering, "--table report.json"] {
                let refused = parsed(&format!("{part} {option}{more}"));
                let kind = refused.expect_err(option).kind();
                assert_eq!(
                    kind,
                    clap::error::ErrorKind::ArgumentConflict,
                    "{part} {option}"
                );
            }
        }
    }

    #[test]
    fn group_of_a_run_has_three_successors() {
        assert!(group("239.255.255.252").is_ok());
        for wrong in ["239.255.255.253", "224.0.0.1", "10.0.0.1", "a"] {
            assert!(group(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counters_are_paired_by_name() {
        let of = |all: &[(&str, u64)]| {
            let all = all.iter().map(|(name, value)| ((*name).to_owned(), *value));
            all.collect::<BTreeMap<_, _>>()
        };
        let all = paired(of(&[("a", 1), ("b", 2)]), of(&[("b", 3), ("c", 4)]));
        let all: Vec<_> = all.values().copied().collect();
        assert_eq!(all, [[Some(1), None], [Some(2), Some(3)], [None, Some(4)]]);
    }
}
