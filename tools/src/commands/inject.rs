//! `tickcast inject`: relays one multicast group to another. It keeps the bytes, injects the
//! requested faults, and reports exactly which datagrams they affected.

mod report;

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tickcast_reliability::wire::Datagram;
use tickcast_transport::Receive;
use tickcast_transport::faults::FaultInjector;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::idle::Idle;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{UDP_LEN_MAX, UdpReceiveLine, UdpReceiver, UdpReceiverConfig};

use report::{EndedBy, Report, Seen};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::{idle, seconds};
use tickcast_tools::support::faults::FaultArgs;
use tickcast_tools::support::files::{check_writable, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::send::Sender;
use tickcast_tools::support::signals::Stop;
use tickcast_tools::support::table::thousands;

/// Source and destination groups, faults to inject, and when to stop.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The group that the publisher sends to.
    #[arg(long, value_name = "GROUP:PORT")]
    from: SocketAddrV4,
    /// The group to send to; subscribers listen there with --line-override.
    #[arg(long, value_name = "GROUP:PORT")]
    to: SocketAddrV4,
    /// The interface to receive on, and to send from.
    #[arg(long, value_name = "NAME|ADDRESS", default_value_t)]
    interface: Interface,
    /// Number of routers that a relayed datagram may pass; 0 keeps it on this host.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ttl: u8,
    #[command(flatten)]
    faults: FaultArgs,
    /// Stop after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Stop when the session has ended on every channel and no datagram has arrived for this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3")]
    linger: Duration,
    /// Continue after the end of a session, because another may follow.
    #[arg(long)]
    stay: bool,
    /// Idle strategy: spin, yield or sleep:US.
    #[arg(long, value_name = "HOW", value_parser = idle, default_value = "sleep:50")]
    idle: Idle,
    /// Write the report to this file; otherwise it goes to stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write this file as soon as datagrams are relayed.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Socket buffer to request, in bytes. A large one matters, because the report can't name datagrams
/// lost before the relay.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Relays until a stop condition is met.
///
/// # Errors
/// Returns [`ToolError`] if a group can't be used, the faults are invalid, or the report can't be
/// written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    if args.from == args.to {
        let text = format!(
            "--from and --to are both {}: a relay to itself loops forever; use another group or \
             port",
            args.from
        );
        return Err(ToolError::Usage(text));
    }
    let config = args.faults.config()?;
    let stop = Stop::on_signals()?;
    for path in args.ready_file.iter().chain(&args.report) {
        check_writable(path)?;
    }
    let mut relay = Relay::open(args, FaultInjector::new(config.clone())?)?;
    if let Some(path) = &args.ready_file {
        let ready = serde_json::json!({
            "from": args.from,
            "to": args.to,
            "sender": relay.sender.sender(),
            "seed": config.seed,
        });
        write_json(path, &ready)?;
    }
    if !args.quiet {
        let (from, to, seed) = (args.from, args.to, config.seed);
        eprintln!("relaying {from} to {to}, seed {seed}");
    }
    let mut progress = ProgressReport::new("inject", None, args.quiet);
    let (mut idle, mut ended_by) = (args.idle, None);
    let ended_by = loop {
        let worked = relay.turn()?;
        // Relay the datagrams that still wait in the socket when the end is reached.
        if let Some(ended_by) = ended_by.filter(|_| !worked) {
            break ended_by;
        }
        ended_by = ended_by.or_else(|| relay.is_over(args, &stop));
        let counts = relay.plan.counts();
        progress.show(counts.passed_in, || {
            format!(
                "{} in, {} out, {} dropped, {} damaged, {} twice, {} late",
                thousands(counts.passed_in),
                thousands(counts.passed_out),
                thousands(counts.dropped_all()),
                thousands(counts.corrupted + counts.truncated),
                thousands(counts.duplicated),
                thousands(counts.reordered + counts.delayed),
            )
        });
        idle.idle(worked);
    };
    relay.flush()?;
    progress.finish();
    let report = Report::new(&relay, args, config, ended_by);
    match &args.report {
        Some(path) => write_json(path, &report)?,
        None => {
            let mut output = Output::stdout();
            output.json(format_args!("{:#}", serde_json::json!(report)))?;
            output.flush()?;
        }
    }
    Ok(Exit::whole_if(report.exact))
}

/// The relay of one group.
struct Relay {
    receiver: UdpReceiver,
    plan: FaultInjector<()>,
    sender: Sender,
    seen: Seen,
    started_at: Instant,
    heard_at: Instant,
    /// The first send error, until it can be returned.
    failed: Option<ToolError>,
}

impl Relay {
    fn open(args: &Args, plan: FaultInjector<()>) -> Result<Self, ToolError> {
        let sender = Sender::to_group(args.to, &args.interface, args.ttl)?;
        let line = UdpReceiveLine {
            group: args.from,
            interface: args.interface.clone(),
            senders: Vec::new(),
        };
        let receiver = UdpReceiver::open(&UdpReceiverConfig {
            lines: vec![line],
            datagram_len_max: UDP_LEN_MAX,
            receive_buffer_bytes: Some(RECEIVE_BUFFER),
            source_specific: false,
            batch: tickcast_transport::udp::BATCH_MAX,
            busy_poll_us: None,
            // Receive datagrams one by one, to relay them as they were sent.
            gro: false,
        })?;
        for warning in receiver.warnings() {
            tracing::warn!("{warning}");
        }
        let now = Instant::now();
        Ok(Self {
            receiver,
            plan,
            sender,
            seen: Seen::default(),
            started_at: now,
            heard_at: now,
            failed: None,
        })
    }

    /// Relays the datagrams that have arrived and those that are due. Returns whether any arrived.
    fn turn(&mut self) -> Result<bool, ToolError> {
        let Self {
            receiver,
            plan,
            sender,
            seen,
            failed,
            ..
        } = self;
        let now = SystemClock.now();
        let mut send = |(), bytes: &[u8]| keep_first(failed, sender.send(bytes));
        plan.due(now, &mut send);
        let mut news = false;
        let received = receiver.poll(now, &mut |received| {
            if let Ok(datagram) = Datagram::parse(received.bytes) {
                news |= datagram.header().kind.is_sequenced();
                seen.note(datagram.header());
            }
            plan.apply(now, (), received.bytes, &mut send);
        })?;
        if news {
            self.heard_at = Instant::now();
        }
        self.failed.take().map_or(Ok(received > 0), Err)
    }

    /// Sends all datagrams that are still held back.
    fn flush(&mut self) -> Result<(), ToolError> {
        let Self {
            plan,
            sender,
            failed,
            ..
        } = self;
        plan.flush(|(), bytes| keep_first(failed, sender.send(bytes)));
        self.failed.take().map_or(Ok(()), Err)
    }

    fn is_over(&self, args: &Args, stop: &Stop) -> Option<EndedBy> {
        let ended = !args.stay && self.seen.all_ended() && self.heard_at.elapsed() >= args.linger;
        if stop.asked() {
            Some(EndedBy::Signal)
        } else if args
            .duration
            .is_some_and(|d| self.started_at.elapsed() >= d)
        {
            Some(EndedBy::Duration)
        } else {
            ended.then_some(EndedBy::EndOfSession)
        }
    }
}

fn keep_first(failed: &mut Option<ToolError>, result: Result<(), ToolError>) {
    if let Err(error) = result {
        failed.get_or_insert(error);
    }
}
