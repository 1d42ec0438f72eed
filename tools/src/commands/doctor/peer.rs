//! Multicast between two hosts: `--peer` asks, `--answer` answers. Datagrams go both ways through a group,
//! and the counters of both hosts show the stage where they stop.

mod counters;
mod message;
mod passage;
mod probe;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tickcast_subscriber::Interface;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::conversation::{Conversation, TalkError, connect};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::signals::Stop;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::host_addresses::HostAddresses;

use super::check::Check;
use message::{Hello, Message, VERSION};
pub(super) use passage::Passage;
use passage::Site;
use probe::{COUNT, End, LENGTHS, Side};

/// TCP port of `--answer`.
pub(super) const PORT: u16 = 7410;
/// The group of test datagrams.
pub(super) const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 74, 10), PORT);
/// Time limit for the first line of a peer.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Time limit of a run at the answering side; one takes some seconds at most.
const RUN_MAX: Duration = Duration::from_secs(30);
/// Time limit of a run at the asking side. It is longer, because a run of another may come first.
const ASK_MAX: Duration = Duration::from_secs(90);
/// Time for which `--answer` waits for a peer.
const WAIT_MAX: Duration = Duration::from_secs(600);
const ACCEPT_EVERY: Duration = Duration::from_millis(20);
/// Time for switches to learn a new membership.
const JOIN_SETTLE: Duration = Duration::from_millis(200);

/// The multicast of a run.
#[derive(Clone, Debug)]
pub(super) struct Multicast {
    /// The group, the same on both hosts.
    pub(super) group: SocketAddrV4,
    /// Number of routers that a datagram may pass.
    pub(super) ttl: u8,
    /// The interface; by default that of the TCP connection.
    pub(super) interface: Option<Interface>,
}

impl Multicast {
    /// Opens the end of a run on the interface of a connection.
    fn open(&self, stream: &TcpStream, run: u64, side: Side) -> Result<End, ToolError> {
        let interface = match &self.interface {
            Some(interface) => interface.clone(),
            None => {
                let local = stream.local_addr().map_err(|source| ToolError::Host {
                    what: "find the address of the connection",
                    source,
                })?;
                let addresses = HostAddresses::list();
                let addresses = addresses.map_err(|error| ToolError::Usage(error.to_string()))?;
                let name = addresses.interface_with(local).ok_or_else(|| {
                    ToolError::Usage(format!(
                        "{} has no interface with an IPv4 address; give --interface",
                        local.ip()
                    ))
                })?;
                Interface::Name(name.to_owned())
            }
        };
        End::open(self.group, &interface, self.ttl, run, side)
    }

    fn hello(&self, end: &End, run: u64) -> Hello {
        Hello {
            version: VERSION,
            group: self.group,
            run,
            interface: end.interface().name.clone(),
            mtu: end.interface().mtu.unwrap_or(0) as u64,
        }
    }

    /// Returns the reason why two doctors can't work together.
    fn differs(&self, hello: &Hello) -> Option<String> {
        if hello.version != VERSION {
            return Some(format!(
                "it speaks version {}, and this host {VERSION}; use the same release",
                hello.version
            ));
        }
        (hello.group != self.group).then(|| {
            format!(
                "it uses the group {}, and this host {}; give both the same --group",
                hello.group, self.group
            )
        })
    }
}

/// Sends multicast to and from the host of a doctor that answers. Returns the results, and the passages.
///
/// # Errors
/// Returns [`ToolError::Address`] or [`ToolError::Unreachable`] if nobody answers there, and other errors
/// if this host can't use the group.
pub(super) fn ask(
    peer: &str,
    multicast: &Multicast,
) -> Result<(Vec<Check>, Vec<Passage>), ToolError> {
    let (stream, target) = connect(peer, PORT, "tickcast doctor --answer")?;
    let host = target.rsplit_once(':').map_or(&*target, |(host, _)| host);
    // The start makes it unlike the numbers of other runs.
    let run = SystemClock.utc().0 ^ u64::from(std::process::id()).rotate_left(32);
    let mut end = multicast.open(&stream, run, Side::Asking)?;
    let failed = |error: TalkError| match error {
        TalkError::Refused(_) => ToolError::Problem(format!("{target}: {error}")),
        error => ToolError::Unreachable(format!(
            "{target}: {error}; does `tickcast doctor --answer` run there?"
        )),
    };
    let mut stream = Conversation::new(stream, ASK_MAX).map_err(failed)?;
    let hello = multicast.hello(&end, run);
    stream.send(&Message::Hello(hello)).map_err(failed)?;
    let Message::Hello(theirs) = stream.receive().map_err(failed)? else {
        return Err(failed(TalkError::Unexpected("its introduction")));
    };
    if let Some(reason) = multicast.differs(&theirs) {
        return Err(ToolError::Problem(format!("{target}: {reason}")));
    }
    std::thread::sleep(JOIN_SETTLE);
    let here = Site {
        host: "this host".into(),
        interface: end.interface().name.clone(),
        mtu: end.interface().mtu.unwrap_or(0) as u64,
    };
    let there = Site {
        host: host.to_owned(),
        interface: theirs.interface,
        mtu: theirs.mtu,
    };
    let (mut checks, mut passages) = (Vec::new(), Vec::new());
    for side in [Side::Asking, Side::Answering] {
        let mut shorter_pass = false;
        for len in LENGTHS {
            let mut step = Step {
                stream: &mut stream,
                end: &mut end,
                len,
            };
            let (from, to, counts) = match side {
                Side::Asking => (&here, &there, step.there()),
                Side::Answering => (&there, &here, step.back()),
            };
            let counts = counts.map_err(|error| match error {
                StepError::Talk(error) => failed(error),
                StepError::Tool(error) => error,
            })?;
            let passage = Passage {
                from: from.clone(),
                to: to.clone(),
                group: multicast.group.ip().to_string(),
                len,
                asked: COUNT,
                sent: counts.sent,
                arrived: counts.arrived,
                sender: counts.sender,
                receiver: counts.receiver,
            };
            checks.push(passage.check(shorter_pass));
            shorter_pass = passage.stops_at().is_none();
            passages.push(passage);
        }
    }
    // The results are there already.
    let _ = stream.send(&Message::Bye);
    Ok((checks, passages))
}

/// Counts of datagrams of one length in one direction.
struct Counts {
    sent: u64,
    arrived: u64,
    sender: counters::Counters,
    receiver: counters::Counters,
}

/// Reason why a step fails.
enum StepError {
    Talk(TalkError),
    Tool(ToolError),
}

impl From<TalkError> for StepError {
    fn from(error: TalkError) -> Self {
        Self::Talk(error)
    }
}

impl From<ToolError> for StepError {
    fn from(error: ToolError) -> Self {
        Self::Tool(error)
    }
}

/// Datagrams of one length in one direction, from the asking side.
struct Step<'a> {
    stream: &'a mut Conversation<Message>,
    end: &'a mut End,
    len: usize,
}

impl Step<'_> {
    /// Sends datagrams to the answering side.
    fn there(&mut self) -> Result<Counts, StepError> {
        self.stream.send(&Message::Receive(self.len))?;
        if self.stream.receive()? != Message::Receiving {
            return Err(TalkError::Unexpected("that it counts").into());
        }
        let (sent, sender) = self.end.send(self.len)?;
        self.stream.send(&Message::Sent)?;
        let Message::Arrived(arrived, receiver) = self.stream.receive()? else {
            return Err(TalkError::Unexpected("its counts").into());
        };
        Ok(Counts {
            sent,
            arrived: arrived.min(COUNT),
            sender,
            receiver,
        })
    }

    /// Lets the answering side send datagrams here.
    fn back(&mut self) -> Result<Counts, StepError> {
        self.end.forget()?;
        let before = self.end.counters();
        self.stream.send(&Message::Send(self.len))?;
        let Message::HaveSent(sent, sender) = self.stream.receive()? else {
            return Err(TalkError::Unexpected("its counts").into());
        };
        let arrived = self.end.count(self.len)?;
        Ok(Counts {
            sent: sent.min(COUNT),
            arrived,
            sender,
            receiver: self.end.counters().since(&before),
        })
    }
}

/// Waits for a doctor that asks, and works with it, one at a time. Returns after the first whole run, after
/// ten minutes, or on a signal. Strangers on the port are reported in the log, and change nothing else.
///
/// # Errors
/// Returns [`ToolError`] if the port can't be used.
pub(super) fn answer(address: SocketAddr, multicast: &Multicast) -> Result<Exit, ToolError> {
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
        "answering at {address} for {}; ends after one run, or in {} s",
        multicast.group,
        WAIT_MAX.as_secs()
    ))?;
    output.flush()?;
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until && !stop.asked() {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(ACCEPT_EVERY);
                continue;
            }
            Err(error) => {
                tracing::warn!("a connection failed before it was accepted: {error}");
                std::thread::sleep(ACCEPT_EVERY);
                continue;
            }
        };
        match serve(stream, multicast) {
            Ok(()) => {
                output.line(format_args!("{}: the run is complete", from.ip()))?;
                output.flush()?;
                return Ok(Exit::Whole);
            }
            Err(StepError::Talk(error)) => tracing::warn!("{from}: {error}"),
            Err(StepError::Tool(error)) => tracing::warn!("{from}: {error}"),
        }
    }
    output.line("no run was completed")?;
    output.flush()?;
    Ok(Exit::Finding)
}

/// Works with one peer to the end of its run. A peer chooses nothing: group, TTL and number of datagrams
/// are this host's, and lengths are those of [`LENGTHS`].
fn serve(stream: TcpStream, multicast: &Multicast) -> Result<(), StepError> {
    let for_end = stream.try_clone().map_err(TalkError::Io)?;
    let mut stream = Conversation::new(stream, HELLO_MAX)?;
    let Message::Hello(theirs) = stream.receive()? else {
        return Err(TalkError::Unexpected("its introduction").into());
    };
    stream.extend(RUN_MAX);
    if let Some(reason) = multicast.differs(&theirs) {
        stream.send(&Message::Refused(reason))?;
        return Err(TalkError::Unexpected("one of the same version and group").into());
    }
    let mut end = match multicast.open(&for_end, theirs.run, Side::Answering) {
        Ok(end) => end,
        Err(error) => {
            stream.send(&Message::Refused(error.to_string()))?;
            return Err(error.into());
        }
    };
    let hello = multicast.hello(&end, theirs.run);
    stream.send(&Message::Hello(hello))?;
    // A run has a step for each length and direction.
    for _ in 0..2 * LENGTHS.len() {
        match stream.receive()? {
            Message::Receive(len) if LENGTHS.contains(&len) => {
                end.forget()?;
                let before = end.counters();
                stream.send(&Message::Receiving)?;
                if stream.receive()? != Message::Sent {
                    return Err(TalkError::Unexpected("that it has sent").into());
                }
                let arrived = end.count(len)?;
                let changes = end.counters().since(&before);
                stream.send(&Message::Arrived(arrived, changes))?;
            }
            Message::Send(len) if LENGTHS.contains(&len) => {
                let (sent, changes) = end.send(len)?;
                stream.send(&Message::HaveSent(sent, changes))?;
            }
            _ => return Err(TalkError::Unexpected("a step").into()),
        }
    }
    match stream.receive()? {
        Message::Bye => Ok(()),
        _ => Err(TalkError::Unexpected("the end").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_on_loopback_passes_every_length_both_ways() {
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        let multicast = Multicast {
            group: SocketAddrV4::new(Ipv4Addr::new(239, 254, 74, 10), port),
            ttl: 0,
            interface: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answering = multicast.clone();
        let answer = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, &answering).is_ok()
        });
        let (checks, passages) = ask(&address, &multicast).unwrap();
        assert!(answer.join().unwrap());
        assert_eq!(checks.len(), 2 * LENGTHS.len());
        let stops: Vec<_> = passages.iter().map(Passage::stops_at).collect();
        assert_eq!(stops, [None; 6], "{passages:?}");
    }

    #[test]
    fn doctors_of_different_groups_refuse_each_other() {
        let of = |group: &str| Multicast {
            group: group.parse().unwrap(),
            ttl: 0,
            interface: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, &of("239.254.74.11:7410")).is_ok()
        });
        let refused = ask(&address, &of("239.254.74.12:7410")).unwrap_err();
        assert_eq!(refused.exit(), Exit::Finding);
        assert!(refused.to_string().contains("--group"), "{refused}");
        assert!(!answer.join().unwrap());
    }
}
