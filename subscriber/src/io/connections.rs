//! The connections to the publisher, driven by what the core wants: two over TCP, and over verbs,
//! where both sides can, one for READs and one for NACKs.

use std::io::ErrorKind;
use std::net::SocketAddr;

use rustix::io::Errno;
use tickcast_journal::Journaled;
use tickcast_reliability::control::{Message, RepairOffer};
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::receive::InboxWanted;
use tickcast_reliability::session::{Path, ReadLimits, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::control::{ClientConfig, ClientEvent, CloseReason, ControlClient};
use tickcast_transport::host::interface::Interface;

use super::inboxes::Inboxes;
use crate::dispatch::Sink;
use crate::sync::wake::Waker;

/// All connections.
pub(crate) struct Connections {
    repair: ControlClient,
    replay: ControlClient,
    nack: ControlClient,
    read: ControlClient,
    /// All publishers; the one that we are connected to comes first.
    addresses: Vec<SocketAddr>,
    /// Where the connection for repair leads, or the last one led.
    connected_to: Option<SocketAddr>,
    frames: Vec<u8>,
    /// How many descriptors of each are watched, and whether for writing.
    watched: [Option<(usize, bool)>; 4],
    /// The READ limits that the core has.
    read_limits: ReadLimits,
    /// Memory that the publisher is to write, where this is a standby.
    inboxes: Inboxes,
    /// Why this host made no connection when one for repair was last begun: it had no descriptor.
    denied: Option<Errno>,
}

const PATHS: [Path; 4] = [Path::Repair, Path::Read, Path::Nack, Path::Replay];

impl Connections {
    /// Whether this build can make connections over verbs at all.
    pub(crate) const HAS_VERBS: bool = tickcast_transport::control::HAS_VERBS;

    /// Connections to a publisher at one of these addresses; those over verbs are made from the first of
    /// these interfaces that belongs to a device.
    pub(crate) fn new(addresses: Vec<SocketAddr>, interfaces: &[Interface]) -> Self {
        let config = ClientConfig::default();
        let found = interfaces.iter().filter_map(|it| it.resolve().ok());
        let interfaces: Vec<_> = found.map(|it| it.address).collect();
        let from_there = |mut client: ControlClient| {
            client.set_interfaces(interfaces.clone());
            client
        };
        Self {
            repair: ControlClient::new(addresses.clone(), config),
            replay: ControlClient::new(addresses.clone(), config),
            nack: from_there(ControlClient::over_verbs(Vec::new(), config)),
            read: from_there(ControlClient::for_reads(Vec::new(), config)),
            addresses,
            connected_to: None,
            frames: Vec::new(),
            watched: [None; 4],
            read_limits: ReadLimits::default(),
            inboxes: Inboxes::default(),
            denied: None,
        }
    }

    /// Feeds everything that came over the connections to the core. How many messages there were.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) -> usize {
        let mut count = 0;
        let (mut connected_to, mut welcomed_by) = (self.connected_to, None);
        count += (self.read).take_remote(|tag, bytes| {
            core.handle(now, SubscriberInput::Read { tag, bytes }, sink);
        });
        for path in PATHS {
            count += self.client(path).poll(now, |event| match event {
                ClientEvent::Connected(address) => {
                    if path == Path::Repair {
                        connected_to = Some(address);
                    }
                    core.handle(now, SubscriberInput::Connected(path), sink);
                }
                ClientEvent::Frame(channel, message) => {
                    if let (Message::Welcome(_), Some(name)) = (&message, over_verbs(path)) {
                        tracing::info!("the {name} is up");
                    }
                    let welcome = match &message {
                        Message::Welcome(welcome) if path == Path::Repair => Some(welcome),
                        _ => None,
                    };
                    if let Some(welcome) = welcome {
                        sink.welcome(welcome);
                        welcomed_by = connected_to;
                    }
                    core.handle(now, SubscriberInput::message(path, channel, &message), sink);
                    if let Some(welcome) = welcome {
                        sink.welcomed(welcome);
                    }
                }
                ClientEvent::Disconnected(reason) => {
                    if let Some(name) = over_verbs(path) {
                        tracing::info!("the {name} is down, others are asked: {reason}");
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
        self.connected_to = connected_to;
        if let Some(address) = welcomed_by {
            self.prefer(address);
        }
        count
    }

    /// History comes from the publisher that welcomed us, and it is tried first when the
    /// connection breaks; one that only let us connect, as the system of a process that hangs does, is
    /// no better than the others.
    #[cold]
    fn prefer(&mut self, address: SocketAddr) {
        if let Some(at) = self.addresses.iter().position(|it| *it == address) {
            self.addresses.rotate_left(at);
            self.repair.set_addresses(self.addresses.clone());
        }
        self.replay.set_addresses(vec![address]);
    }

    /// Watches the sockets that there are: for writing where something waits to be written.
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

    /// Whether something has come that no descriptor tells of any more.
    pub(crate) fn holds_input(&self) -> bool {
        self.nack.holds_input() || self.read.holds_input()
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        now: Nanos,
        path: Path,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) {
        self.watched[path as usize] = None;
        let offer = match path {
            Path::Nack => core.nack_offer(),
            Path::Read => core.read_offer(),
            Path::Repair | Path::Replay => None,
        };
        let name = over_verbs(path);
        if name.is_some() {
            let to = match offer {
                Some(RepairOffer::Verbs { address, .. }) => vec![SocketAddr::V4(address)],
                _ => Vec::new(),
            };
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
                tracing::info!("no {name} over verbs from here, others are asked: {error}");
                return match path {
                    Path::Read => core.handle(now, SubscriberInput::ReadUnusable, sink),
                    _ => core.handle(now, SubscriberInput::NackUnusable, sink),
                };
            }
            let reason = LinkDownReason::Unreachable;
            core.handle(now, SubscriberInput::Disconnected(path, reason), sink);
        }
    }

    /// Why there is no connection, where it is this host that lacks a descriptor for it.
    pub(crate) const fn denied(&self) -> Option<Errno> {
        self.denied
    }

    /// Has an inbox made for the connection for READ that there is.
    pub(crate) fn make_inbox(&mut self, channel: ChannelId, wanted: InboxWanted) {
        self.inboxes.make(&mut self.read, channel, wanted);
    }

    pub(crate) fn disconnect(&mut self, path: Path) {
        self.client(path).disconnect();
    }

    /// Sends what the core has to say.
    pub(crate) fn transmit(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) {
        loop {
            let mut frames = std::mem::take(&mut self.frames);
            core.handle(now, SubscriberInput::Poll, sink);
            let path = core.poll_transmit(&mut frames);
            if let Some(path) = path {
                let client = self.client(path);
                if client.send_frames(&frames).is_err() && client.is_connected() {
                    // It takes nothing any more: as good as down.
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

    /// Begins what the core wants in the publisher's memory.
    fn begin_remote(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) {
        while let Some(request) = core.poll_remote() {
            if let Err(error) = self.read.begin_remote(&request) {
                tracing::info!("READ can't go on, others are asked: {error}");
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

/// Whether that was for want of a descriptor.
fn denied(reason: &CloseReason) -> Option<Errno> {
    let CloseReason::Unreachable(error) = reason else {
        return None;
    };
    let errno = Errno::from_io_error(error)?;
    matches!(errno, Errno::MFILE | Errno::NFILE).then_some(errno)
}

/// How a connection over verbs is called.
const fn over_verbs(path: Path) -> Option<&'static str> {
    match path {
        Path::Nack => Some("NACK connection"),
        Path::Read => Some("connection for READ"),
        Path::Repair | Path::Replay => None,
    }
}
