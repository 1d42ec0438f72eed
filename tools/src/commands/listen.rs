//! `tickcast listen`: follows channels of a live publisher, and prints or counts their records. It
//! names each missing record and the cause of its loss.

mod account;
mod event_lines;
mod instruments;
mod print;
pub(crate) mod summary;

use std::io::{Write as _, stderr};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tickcast_reliability::types::{Epoch, Nanos, Sequence};
use tickcast_subscriber::{
    ChannelBuilder, Delivery, Idle, Interface, LineOverride, ReceiverConfig, RepairOrder, Start,
    SubscribeError, Subscriber, Transport,
};
use tickcast_transport::faults::FaultConfig;
use tickcast_transport::host::pin::{Core, pin_to};

use account::Account;
use summary::{EndedBy, Summary};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::{idle, seconds};
use tickcast_tools::support::faults::FaultArgs;
use tickcast_tools::support::files::{check_writable, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::signals::Stop;

/// The publisher, the way to follow it, and the output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The publisher's control address.
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// A channel, by name or number; repeat it for several.
    #[arg(long = "channel", value_name = "NAME|ID", required = true)]
    channels: Vec<String>,
    /// Start position: live, oldest, or EPOCH:SEQUENCE.
    #[arg(long, value_name = "WHERE", value_parser = start, default_value = "live")]
    from: Start,
    /// Order of delivery: ordered, within:MICROSECONDS, or arrival.
    #[arg(long, value_name = "ORDER", value_parser = delivery, default_value = "ordered")]
    delivery: Delivery,
    /// Disable repair: missing records are declared lost and reported.
    #[arg(long)]
    no_repair: bool,
    /// Repair paths to try before TCP, if the publisher offers them over verbs.
    #[arg(long, value_enum, default_value_t = Rungs::ReadThenNack)]
    ladder: Rungs,
    /// Minimum time before a NACK is repeated, in microseconds; longer if four measured round trips
    /// take longer.
    #[arg(long, value_name = "MICROSECONDS")]
    nack_retry_us: Option<u32>,
    /// Output on stdout.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Interval between two outputs of the counts, with --format count and count-json.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    every: Duration,
    /// Stop after this many records.
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Stop after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Give up if the publisher has not admitted this subscriber within this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    join_timeout: Duration,
    /// Stop when the publisher counts as dead, instead of waiting for its return.
    #[arg(long)]
    until_dead: bool,
    /// Name of this subscriber in the publisher's logs and metrics.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Interface of line A; repeat it for line B. By default the one whose network contains the sender,
    /// else the one that carries the connection to the publisher.
    #[arg(long = "interface", value_name = "NAME|ADDRESS")]
    interfaces: Vec<Interface>,
    /// Receive from another group than the publisher announces, for example from `inject`. With several
    /// channels, name the channel. Repeat it for line B.
    #[arg(long = "line-override", value_name = "[CHANNEL=]GROUP:PORT@SENDER", value_parser = line)]
    line_overrides: Vec<Override>,
    /// Transport of the datagrams: the best that both sides have, or a fixed one.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = TransportArg::Auto)]
    transport: TransportArg,
    /// Receive buffers per line over verbs: the datagrams that may arrive between two polls.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    #[arg(value_parser = clap::value_parser!(u32).range(32..=32_768))]
    receive_depth: u32,
    /// Traffic class of repair over verbs, in both directions; the upper six bits are the DSCP.
    #[arg(long, value_name = "N", default_value_t = 0)]
    repair_traffic_class: u8,
    /// Receive datagrams of any sender to the group, so that foreign ones are counted.
    #[arg(long)]
    any_sender: bool,
    /// Receive datagrams from the kernel one by one, even if it offers several in one buffer (GRO).
    #[arg(long)]
    no_gro: bool,
    /// Time for which a poll asks the device for packets in place of waiting for its interrupt, in
    /// microseconds; 0: never. By default, net.core.busy_read applies. Needs CAP_NET_ADMIN.
    #[arg(long, value_name = "MICROSECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    busy_poll_us: Option<u32>,
    /// Run on this core.
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Idle strategy: spin, yield or sleep:US.
    #[arg(long, value_name = "HOW", value_parser = idle, default_value = "sleep:50")]
    idle: Idle,
    /// Take a digest (XXH3-128) of every channel's records, in the order of delivery.
    #[arg(long)]
    digest: bool,
    /// Write a summary to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Keep a journal in this file on tmpfs, of this many MiB; `tickcast explain` reads it.
    #[arg(long, value_name = "FILE[:MIB]", value_parser = journal_file)]
    journal: Option<(PathBuf, usize)>,
    /// Append the latency of every channel and stage to this interval log (HdrHistogram log 1.3).
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Length of an interval in --hlog: 0.1 to 86400.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    #[arg(requires = "hlog")]
    hlog_interval_s: Duration,
    /// Serve the metrics of this subscriber for Prometheus at http://ADDRESS:PORT/metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Further name of this host under which --metrics is asked, such as a DNS alias; repeat it for several.
    #[arg(long = "metrics-host", value_name = "NAME", requires = "metrics")]
    metrics_hosts: Vec<String>,
    /// Do not report recovered gaps one by one.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    faults: FaultArgs,
}

/// The repair paths above TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rungs {
    /// READ of the publisher's ring.
    Read,
    /// NACKs over a connection of their own.
    Nack,
    /// READ first, then NACKs.
    ReadThenNack,
}

impl From<Rungs> for RepairOrder {
    fn from(rungs: Rungs) -> Self {
        match rungs {
            Rungs::Read => Self::Read,
            Rungs::Nack => Self::Nack,
            Rungs::ReadThenNack => Self::ReadThenNack,
        }
    }
}

/// The transport of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransportArg {
    /// Shared memory on the publisher's host, else verbs if both sides have it, else UDP.
    Auto,
    /// UDP multicast.
    Udp,
    /// RDMA multicast.
    Verbs,
    /// The publisher's ring, in this host's memory.
    Shm,
    /// UDP multicast, by AF_XDP.
    Xdp,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Auto => Self::Auto,
            TransportArg::Udp => Self::Udp,
            TransportArg::Verbs => Self::Verbs,
            TransportArg::Shm => Self::Shm,
            TransportArg::Xdp => Self::Xdp,
        }
    }
}

/// The output on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Every record, as a line of text.
    Text,
    /// Every record, as one JSON object per line.
    Json,
    /// Counts, at intervals.
    Count,
    /// Counts, at intervals, as JSON objects.
    CountJson,
}

/// A `--line-override`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Override {
    channel: Option<String>,
    line: LineOverride,
}

/// Default size of a journal, in MiB.
const JOURNAL_MIB: usize = 64;

/// Reads `FILE` or `FILE:MIB`.
fn journal_file(text: &str) -> Result<(PathBuf, usize), String> {
    let sized = text.rsplit_once(':').filter(|(file, _)| !file.is_empty());
    let (file, mib) = match sized.map(|(file, mib)| (file, mib.parse::<usize>())) {
        Some((file, Ok(mib))) => (file, mib),
        _ => (text, JOURNAL_MIB),
    };
    match mib {
        2..=65_536 => Ok((file.into(), mib << 20)),
        _ => Err(format!("a journal can't have {mib} MiB; give 2 to 65536")),
    }
}

/// Time to continue after the end of the session, so that the publisher receives the report of it.
const AFTER_END: Duration = Duration::from_millis(250);
/// Maximum number of polls between two checks of clock and signals, while data arrives.
const ROUNDS: u32 = 256;

/// Follows until the end of the session, or until a stop condition is met.
///
/// # Errors
/// Returns [`ToolError`] if the options are invalid, or if the publisher can't be reached or
/// rejects this subscriber.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let faults = args.faults.config()?;
    args.summary.as_deref().map_or(Ok(()), check_writable)?;
    let mut subscriber = describe(args, &faults)?.build().map_err(wrong)?;
    let stop = Stop::on_signals()?;
    if let Some(address) = subscriber.monitor().metrics_address() {
        // Without a reader of standard error, the port is useful all the same.
        let _ = writeln!(stderr(), "metrics at http://{address}/metrics");
    }
    if let Some(core) = args.core {
        pin_to(Core(core)).map_err(|error| ToolError::Usage(error.to_string()))?;
    }
    let mut account = Account::new(args);
    let ended_by = follow(args, &mut subscriber, &mut account, &stop)?;
    let problem = lasting_problem(&subscriber);
    let summary = Summary::begin(args, &subscriber, &faults, ended_by);
    let left = subscriber.leave_with(|item| account.take(&item));
    account.finish()?;
    // Only after leaving, because that declares the open gaps lost.
    let found = account.found_anything();
    let summary = summary.finish(&left.channels, account);
    print_end(args, &summary)?;
    if let Some(path) = &args.summary {
        write_json(path, &summary)?;
    }
    match (ended_by, problem) {
        (EndedBy::PublisherDead, _) => Ok(Exit::Unreachable),
        (_, Some(problem)) => Err(ToolError::Problem(problem)),
        (_, None) => Ok(Exit::whole_if(!found)),
    }
}

/// Polls until the session ends or a stop condition is met.
fn follow(
    args: &Args,
    subscriber: &mut Subscriber,
    account: &mut Account,
    stop: &Stop,
) -> Result<EndedBy, ToolError> {
    let (started_at, mut idle) = (Instant::now(), args.idle);
    let (mut joined, mut ended_at, mut rounds) = (false, None, 0);
    loop {
        let worked = subscriber.poll(|item| account.take(&item)).worked();
        idle.idle(worked);
        rounds += 1;
        if worked && rounds < ROUNDS && !account.is_full() {
            continue;
        }
        rounds = 0;
        account.show(subscriber.is_joined(), subscriber)?;
        joined |= subscriber.is_joined() || account.has_joined();
        let elapsed = started_at.elapsed();
        let over = args.duration.is_some_and(|duration| elapsed >= duration);
        if !joined && (over || stop.asked() || elapsed >= args.join_timeout) {
            return Err(unreachable(args, subscriber, elapsed));
        }
        if subscriber.ended() {
            let ended_at = *ended_at.get_or_insert_with(Instant::now);
            if ended_at.elapsed() >= AFTER_END {
                return Ok(EndedBy::EndOfSession);
            }
        }
        if account.is_full() {
            return Ok(EndedBy::Records);
        }
        if stop.asked() {
            return Ok(EndedBy::Signal);
        }
        if over {
            return Ok(EndedBy::Duration);
        }
        if args.until_dead && account.publisher_dead() {
            return Ok(EndedBy::PublisherDead);
        }
    }
}

/// Returns the problem that prevents following at the end; a rejection followed by a join is none.
fn lasting_problem(subscriber: &Subscriber) -> Option<String> {
    let is_overcome = |problem: &SubscribeError| {
        matches!(problem, SubscribeError::Rejected { .. })
            && (subscriber.is_joined() || subscriber.ended())
    };
    let problem = subscriber.problem().filter(|it| !is_overcome(it));
    problem.map(ToString::to_string)
}

/// Returns the error for a subscriber that never joined.
fn unreachable(args: &Args, subscriber: &Subscriber, waited: Duration) -> ToolError {
    match subscriber.problem() {
        Some(SubscribeError::Rejected { code, text }) => ToolError::Rejected(*code, text.clone()),
        // The publisher did admit the subscriber.
        Some(problem) => ToolError::Problem(problem.to_string()),
        None => ToolError::Unreachable(format!(
            "{} did not admit this subscriber within {:.1} s; is a publisher running there?",
            args.connect,
            waited.as_secs_f64()
        )),
    }
}

fn wrong(error: SubscribeError) -> ToolError {
    ToolError::Usage(error.to_string())
}

fn describe(
    args: &Args,
    faults: &FaultConfig,
) -> Result<tickcast_subscriber::SubscriberBuilder, ToolError> {
    let mut builder = Subscriber::builder(&args.connect)
        .source_specific(!args.any_sender)
        .gro(!args.no_gro)
        .latency_reports(true)
        .transport(args.transport.into())
        .receive_depth(args.receive_depth)
        .repair_traffic_class(args.repair_traffic_class)
        .seed(faults.seed);
    if let Some(us) = args.busy_poll_us {
        builder = builder.busy_poll(Duration::from_micros(us.into()));
    }
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(address) = args.metrics {
        builder = builder.metrics_listen(address);
    }
    for name in &args.metrics_hosts {
        builder = builder.metrics_host(name);
    }
    if let Some((path, bytes)) = &args.journal {
        builder = builder.journal(path, *bytes);
    }
    if let Some(path) = &args.hlog {
        builder = builder.interval_log(path, args.hlog_interval_s);
    }
    for interface in &args.interfaces {
        builder = builder.interface(interface.clone());
    }
    if FaultArgs::asked(faults) {
        builder = builder.faults(faults.clone());
    }
    for name in &args.channels {
        let defaults = ReceiverConfig::default();
        let config = ReceiverConfig {
            repair: !args.no_repair,
            delivery: args.delivery,
            ladder: args.ladder.into(),
            nack_retry_us: args.nack_retry_us.unwrap_or(defaults.nack_retry_us),
            ..defaults
        };
        let mut channel = ChannelBuilder::new(name).start(args.from).config(config);
        for line in args.overrides_of(name)? {
            channel = channel.line_override(line);
        }
        builder = builder.channel(channel);
    }
    Ok(builder)
}

impl Args {
    fn overrides_of(&self, channel: &str) -> Result<Vec<LineOverride>, ToolError> {
        let mut lines = Vec::new();
        for it in &self.line_overrides {
            match &it.channel {
                None if self.channels.len() > 1 => {
                    let text = "--line-override does not name its channel, and several are given; \
                                write CHANNEL=GROUP:PORT@SENDER";
                    return Err(ToolError::Usage(text.into()));
                }
                Some(name) if !self.channels.contains(name) => {
                    return Err(ToolError::Usage(format!(
                        "--line-override names channel {name:?}, which no --channel names"
                    )));
                }
                Some(name) if name != channel => {}
                _ => lines.push(it.line),
            }
        }
        Ok(lines)
    }
}

fn print_end(args: &Args, summary: &Summary) -> Result<(), ToolError> {
    if args.format != Format::Count {
        return Ok(());
    }
    let mut output = Output::stdout();
    output.line(summary)?;
    output.flush()
}

fn start(text: &str) -> Result<Start, String> {
    match text {
        "live" => return Ok(Start::Live),
        "oldest" => return Ok(Start::Oldest),
        _ => {}
    }
    let parts = text.split_once(':').and_then(|(epoch, sequence)| {
        Some((Epoch(epoch.parse().ok()?), Sequence(sequence.parse().ok()?)))
    });
    let at = parts.filter(|(epoch, sequence)| epoch.0 > 0 && sequence.0 > 0);
    let (epoch, sequence) = at.ok_or("write live, oldest, or EPOCH:SEQUENCE, both above 0")?;
    Ok(Start::At(epoch, sequence))
}

fn delivery(text: &str) -> Result<Delivery, String> {
    match (text, text.strip_prefix("within:").map(str::parse)) {
        ("ordered", _) => Ok(Delivery::Ordered),
        ("arrival", _) => Ok(Delivery::Arrival),
        (_, Some(Ok(us))) => Ok(Delivery::OrderedWithin(Nanos::from_us(us))),
        _ => Err("write ordered, within:MICROSECONDS, or arrival".into()),
    }
}

fn line(text: &str) -> Result<Override, String> {
    let (channel, rest) = match text.split_once('=') {
        Some((channel, rest)) => (Some(channel.to_owned()), rest),
        None => (None, text),
    };
    let wrong = "write GROUP:PORT@SENDER, for example 239.255.1.2:7000@127.0.0.1";
    let (group, sender) = rest.split_once('@').ok_or(wrong)?;
    let group: SocketAddrV4 = group.parse().map_err(|_| wrong)?;
    let sender: Ipv4Addr = sender.parse().map_err(|_| wrong)?;
    let line = LineOverride { group, sender };
    Ok(Override { channel, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_option_accepts_live_oldest_or_position() {
        assert_eq!(start("live"), Ok(Start::Live));
        assert_eq!(start("oldest"), Ok(Start::Oldest));
        assert_eq!(start("7:12"), Ok(Start::At(Epoch(7), Sequence(12))));
        for wrong in ["", "newest", "7", "7:", "0:1", "1:0", "1:-1"] {
            assert!(start(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn delivery_option_accepts_a_deadline() {
        let within = Delivery::OrderedWithin(Nanos::from_us(500));
        assert_eq!(delivery("within:500"), Ok(within));
        for wrong in ["within", "within:", "within:1s", "latest"] {
            assert!(delivery(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn line_override_parses_group_port_and_sender() {
        let it = line("a-l=239.255.1.2:7000@127.0.0.1").unwrap();
        assert_eq!(it.channel.as_deref(), Some("a-l"));
        assert_eq!(it.line.group.to_string(), "239.255.1.2:7000");
        assert_eq!(line("239.255.1.2:7000@127.0.0.1").unwrap().channel, None);
        for wrong in ["239.255.1.2:7000", "239.255.1.2@127.0.0.1", "a=b@c"] {
            assert!(line(wrong).is_err(), "{wrong}");
        }
    }
}
