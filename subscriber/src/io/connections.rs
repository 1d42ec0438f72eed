//! The connections to the publisher, driven by the core. Two run over TCP. When both sides have verbs,
//! two more run over verbs: one for READs and one for NACKs.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use tickcast_journal::Journaled;
use tickcast_reliability::control::{Message, RepairOffer};
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::receive::InboxWanted;
use tickcast_reliability::session::{Path, ReadLimits, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::control::{ClientConfig, ClientEvent, CloseReason, ControlClient};
use tickcast_transport::host::clock::SystemClock;

use super::inboxes::Inboxes;
use crate::config::SubscriberBuilder;
use crate::dispatch::Sink;
use crate::observe::clock::PublisherClock;
use crate::observe::reports::{Reports, Sent};
use crate::sync::wake::Waker;

/// All connections.
pub(crate) struct Connections {
    repair: ControlClient,
    replay: ControlClient,
    nack: ControlClient,
    read: ControlClient,
    /// All publishers. The connected one is first.
    addresses: Vec<SocketAddr>,
    /// The address of the current or last repair connection.
    connected_to: Option<SocketAddr>,
    /// This host's address of the current or last repair connection.
    local_address: Option<SocketAddr>,
    clock: Arc<PublisherClock>,
    frames: Vec<u8>,
    /// The reports of latency, and which of them were sent.
    reported: Sent,
    /// Whether the publisher takes reports of latency.
    takes_latency: bool,
    /// The number of watched descriptors per connection, and whether writability is watched.
    watched: [Option<(usize, bool)>; 4],
    /// The READ limits that the core has.
    read_limits: ReadLimits,
    /// Memory that the publisher writes, if this is a standby.
    inboxes: Inboxes,
    /// The error of this host when the last repair connection was started: it had no descriptor.
    denied: Option<Errno>,
}

const PATHS: [Path; 4] = [Path::Repair, Path::Read, Path::Nack, Path::Replay];

impl Connections {
    /// Whether this build supports connections over verbs.
    pub(crate) const HAS_VERBS: bool = tickcast_transport::control::HAS_VERBS;

    /// Creates the connections to a publisher at one of these addresses. Connections over verbs use the
    /// device that routes to the publisher, else the first of the builder's interfaces that belongs to one.
    /// The builder's interfaces come first for a publisher on this host.
    pub(crate) fn new(addresses: Vec<SocketAddr>, builder: &SubscriberBuilder) -> Self {
        let config = ClientConfig::default();
        let found = builder.interfaces.iter().filter_map(|it| it.resolve().ok());
        let interfaces: Vec<_> = found.map(|it| it.address).collect();
        let from_there = |mut client: ControlClient| {
            client.set_interfaces(interfaces.clone());
            client.set_traffic_class(builder.repair_traffic_class);
            client
        };
        Self {
            repair: ControlClient::new(addresses.clone(), config),
            replay: ControlClient::new(addresses.clone(), config),
            nack: from_there(ControlClient::over_verbs(Vec::new(), config)),
            read: from_there(ControlClient::for_reads(Vec::new(), config)),
            addresses,
            connected_to: None,
            local_address: None,
            clock: Arc::default(),
            frames: Vec::new(),
            reported: Sent::new(Arc::new(Reports::of(match builder.reports_latency() {
                true => builder.channels.len(),
                false => 0,
            }))),
            takes_latency: false,
            watched: [None; 4],
            read_limits: ReadLimits::default(),
            inboxes: Inboxes::default(),
            denied: None,
        }
    }

    /// Passes the messages of all connections to the core. Returns their number.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut count = 0;
        let (mut connected_to, mut welcomed_by) = (self.connected_to, None);
        let mut is_reconnected = false;
        let mut answered = None;
        let mut takes_latency = self.takes_latency;
        count += (self.read).take_remote(|tag, bytes| {
            core.handle(now, SubscriberInput::Read { tag, bytes }, sink);
        });
        for path in PATHS {
            count += self.client(path).poll(now, |event| match event {
                ClientEvent::Connected(address) => {
                    if path == Path::Repair {
                        connected_to = Some(address);
                        is_reconnected = true;
                        takes_latency = false;
                    }
                    core.handle(now, SubscriberInput::Connected(path), sink);
                }
                ClientEvent::Frame(channel, message) => {
                    if let (Message::Welcome(_), Some(name)) = (&message, over_verbs(path)) {
                        tracing::info!("the {name} is up");
                    }
                    if let (Message::Status(status), Path::Repair) = (&message, path) {
                        // The poll's time is before the read, and would shorten the round trip.
                        answered = Some((*status, SystemClock.both()));
                    }
                    let welcome = match &message {
                        Message::Welcome(welcome) if path == Path::Repair => Some(welcome),
                        _ => None,
                    };
                    if let Some(welcome) = welcome {
                        sink.welcome(welcome);
                        welcomed_by = connected_to;
                        takes_latency = welcome.latency;
                    }
                    core.handle(now, SubscriberInput::message(path, channel, &message), sink);
                    if let Some(welcome) = welcome {
                        sink.welcomed(welcome);
                    }
                }
                ClientEvent::Disconnected(reason) => {
                    if let Some(name) = over_verbs(path) {
                        tracing::info!("the {name} is down, and repair uses other paths: {reason}");
                    }
                    let reason = match reason {
                        CloseReason::Unreachable(_) | CloseReason::Timeout => {
                            LinkDownReason::Unreachable
                        }
                        CloseReason::Protocol(_) => LinkDownReason::Protocol,
                        _ => LinkDownReason::Closed,
                    };
                    core.handle(now, SubscriberInput::Disconnected(path, reason), sink);
                }
            });
        }
        let limits = self.read.read_limits();
        if limits != self.read_limits {
            self.read_limits = limits;
            core.handle(now, SubscriberInput::Limits(limits), sink);
        }
        self.inboxes.poll(now, &self.read, core, sink);
        self.takes_latency = takes_latency;
        self.connected_to = connected_to;
        // A connection that closed meanwhile has no address any more: the last one stays.
        if is_reconnected {
            self.clock.forget();
            self.local_address = self.repair.local_address().or(self.local_address);
        }
        if let Some((status, now)) = answered {
            let [here, there] = [self.local_address, connected_to].map(|it| it.map(|it| it.ip()));
            self.clock
                .take(&status, now, here.is_some() && here == there);
        }
        if let Some(address) = welcomed_by {
            self.prefer(address);
        }
        count
    }

    /// Moves a publisher to the front. History comes from the publisher that welcomed us, so it is tried
    /// first when the connection breaks. A publisher that only accepted the connection gets no preference,
    /// because the system of a hung process accepts connections too.
    #[cold]
    fn prefer(&mut self, address: SocketAddr) {
        if let Some(at) = self.addresses.iter().position(|it| *it == address) {
            self.addresses.rotate_left(at);
            self.repair.set_addresses(self.addresses.clone());
        }
        self.replay.set_addresses(vec![address]);
    }

    /// Adds the sockets to the waker. Writability is watched while bytes wait to be written.
    pub(crate) fn watch(&mut self, waker: &Waker) -> std::io::Result<()> {
        for path in PATHS {
            let client = match path {
                Path::Repair => &self.repair,
                Path::Replay => &self.replay,
                Path::Nack => &self.nack,
                Path::Read => &self.read,
            };
            let write = !client.is_connected() || client.backlog() > 0;
            let descriptors = client.descriptors();
            let count = descriptors.iter().flatten().count();
            let watched = &mut self.watched[path as usize];
            if count == 0 {
                *watched = None;
            } else if *watched != Some((count, write)) {
                for descriptor in descriptors.into_iter().flatten() {
                    waker.watch(descriptor, true, write)?;
                }
                *watched = Some((count, write));
            }
        }
        Ok(())
    }

    /// Returns whether input is buffered that no descriptor signals any more.
    pub(crate) fn holds_input(&self) -> bool {
        self.nack.holds_input() || self.read.holds_input()
    }

    /// Starts a connection.
    pub(crate) fn connect(
        &mut self,
        now: Nanos,
        path: Path,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut dyn Sink,
    ) {
        self.watched[path as usize] = None;
        let offer = match path {
            Path::Nack => core.nack_offer(),
            Path::Read => core.read_offer(),
            Path::Repair | Path::Replay => None,
        };
        let name = over_verbs(path);
        let offered = match offer {
            Some(RepairOffer::Verbs { address, .. }) => Some(address),
            _ => None,
        };
        if name.is_some() {
            let to = offered.map(SocketAddr::V4).into_iter().collect();
            self.client(path).set_addresses(to);
        }
        let begun = self.client(path).connect(now);
        if path == Path::Repair {
            self.denied = begun.as_ref().err().and_then(denied);
        }
        if let Err(reason) = begun {
            if let (Some(name), CloseReason::Unreachable(error)) = (name, &reason)
                && error.kind() == ErrorKind::Unsupported
            {
                let address = offered.map(tracing::field::display);
                tracing::info!(
                    address,
                    "can't make the {name} over verbs to this address, and repair uses others, or TCP: {error}"
                );
                return match path {
                    Path::Read => core.handle(now, SubscriberInput::ReadUnusable, sink),
                    _ => core.handle(now, SubscriberInput::NackUnusable, sink),
                };
            }
            let reason = LinkDownReason::Unreachable;
            core.handle(now, SubscriberInput::Disconnected(path, reason), sink);
        }
    }

    /// Returns the offset of the publisher's clock, as far as STATUS tells.
    pub(crate) const fn clock(&self) -> &Arc<PublisherClock> {
        &self.clock
    }

    /// Returns the reports of latency, which another thread makes.
    pub(crate) const fn reports(&self) -> &Arc<Reports> {
        self.reported.reports()
    }

    /// Returns this host's address of the current or last connection to the publisher.
    pub(crate) const fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Returns the error when no connection exists because this host lacks a descriptor.
    pub(crate) const fn denied(&self) -> Option<Errno> {
        self.denied
    }

    /// Creates an inbox for the current READ connection.
    pub(crate) fn make_inbox(&mut self, channel: ChannelId, wanted: InboxWanted) {
        self.inboxes.make(&mut self.read, channel, wanted);
    }

    pub(crate) fn disconnect(&mut self, path: Path) {
        self.client(path).disconnect();
    }

    /// Sends the messages of the core.
    pub(crate) fn transmit(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut dyn Sink,
    ) {
        loop {
            let mut frames = std::mem::take(&mut self.frames);
            core.handle(now, SubscriberInput::Poll, sink);
            let path = core.poll_transmit(&mut frames);
            if let Some(path) = path {
                if path == Path::Repair && self.takes_latency {
                    self.reported.each_new(|index, report| {
                        let receiver = core.entries().nth(index).flatten();
                        if let Some(receiver) = receiver {
                            report.write_frame(receiver.channel(), &mut frames);
                        }
                    });
                }
                let client = self.client(path);
                if client.send_frames(&frames).is_err() && client.is_connected() {
                    // The connection accepts no more bytes, so treat it as down.
                    client.disconnect();
                    let reason = LinkDownReason::Closed;
                    core.handle(now, SubscriberInput::Disconnected(path, reason), sink);
                } else {
                    client.flush();
                }
            }
            frames.clear();
            self.frames = frames;
            if path.is_none() {
                break;
            }
        }
        self.begin_remote(now, core, sink);
    }

    /// Starts the remote READs that the core wants.
    fn begin_remote(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut dyn Sink,
    ) {
        while let Some(request) = core.poll_remote() {
            if let Err(error) = self.read.begin_remote(&request) {
                tracing::info!("READ failed, and repair uses other paths: {error}");
                self.read.disconnect();
                let reason = LinkDownReason::Closed;
                core.handle(now, SubscriberInput::Disconnected(Path::Read, reason), sink);
            }
        }
    }

    const fn client(&mut self, path: Path) -> &mut ControlClient {
        match path {
            Path::Repair => &mut self.repair,
            Path::Replay => &mut self.replay,
            Path::Nack => &mut self.nack,
            Path::Read => &mut self.read,
        }
    }
}

/// Returns the system's error if the connection closed for lack of a descriptor.
fn denied(reason: &CloseReason) -> Option<Errno> {
    let CloseReason::Unreachable(error) = reason else {
        return None;
    };
    let errno = Errno::from_io_error(error)?;
    matches!(errno, Errno::MFILE | Errno::NFILE).then_some(errno)
}

/// Returns the name of a connection over verbs, or `None` for one over TCP.
const fn over_verbs(path: Path) -> Option<&'static str> {
    match path {
        Path::Nack => Some("NACK connection"),
        Path::Read => Some("connection for READ"),
        Path::Repair | Path::Replay => None,
    }
}
