//! The two TCP connections to the publisher, driven by what the core wants.

use std::net::SocketAddr;

use tickcast_reliability::control::Message;
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::subscriber_core::{Path, SubscriberCore};
use tickcast_reliability::units::Nanos;
use tickcast_transport::control::{ClientConfig, ClientEvent, CloseReason, ControlClient};

use crate::sift::Sink;
use crate::wake::Waker;

/// Both connections.
pub(crate) struct Session {
    repair: ControlClient,
    replay: ControlClient,
    /// All publishers; the one that we are connected to comes first.
    addresses: Vec<SocketAddr>,
    frames: Vec<u8>,
    /// Which of the sockets are watched, and whether for writing.
    watched: [Option<bool>; 2],
}

impl Session {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        let config = ClientConfig::default();
        Self {
            repair: ControlClient::new(addresses.clone(), config),
            replay: ControlClient::new(addresses.clone(), config),
            addresses,
            frames: Vec::new(),
            watched: [None; 2],
        }
    }

    /// Feeds everything that came over the connections to the core. How many messages there were.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        core: &mut SubscriberCore,
        sink: &mut impl Sink,
    ) -> usize {
        let mut count = 0;
        let mut connected_to = None;
        for path in [Path::Repair, Path::Replay] {
            count += self.client(path).poll(now, |event| match event {
                ClientEvent::Connected(address) => {
                    if path == Path::Repair {
                        connected_to = Some(address);
                    }
                    core.handle_connected(now, path);
                }
                ClientEvent::Frame(channel, message) => {
                    if let (Message::Welcome(welcome), Path::Repair) = (&message, path) {
                        sink.welcome(welcome);
                    }
                    core.handle_message(now, path, channel, &message, &mut |it| sink.item(it));
                }
                ClientEvent::Disconnected(reason) => {
                    let reason = match reason {
                        CloseReason::Unreachable(_) | CloseReason::Timeout => {
                            LinkDownReason::Unreachable
                        }
                        CloseReason::Protocol(_) => LinkDownReason::Protocol,
                        _ => LinkDownReason::Closed,
                    };
                    core.handle_disconnected(now, path, reason, &mut |it| sink.item(it));
                }
            });
        }
        if let Some(address) = connected_to {
            self.prefer(address);
        }
        count
    }

    /// History comes from the publisher that welcomed us, and it is tried first when the
    /// connection breaks.
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
        for path in [Path::Repair, Path::Replay] {
            let client = self.client(path);
            let write = !client.is_connected() || client.backlog() > 0;
            let (socket, watched) = match path {
                Path::Repair => (self.repair.socket(), &mut self.watched[0]),
                Path::Replay => (self.replay.socket(), &mut self.watched[1]),
            };
            let Some(socket) = socket else {
                *watched = None;
                continue;
            };
            if *watched != Some(write) {
                waker.watch(socket, true, write)?;
                *watched = Some(write);
            }
        }
        Ok(())
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        now: Nanos,
        path: Path,
        core: &mut SubscriberCore,
        sink: &mut impl Sink,
    ) {
        self.watched[usize::from(path == Path::Replay)] = None;
        if self.client(path).connect(now).is_err() {
            let reason = LinkDownReason::Unreachable;
            core.handle_disconnected(now, path, reason, &mut |it| sink.item(it));
        }
    }

    pub(crate) fn disconnect(&mut self, path: Path) {
        self.client(path).disconnect();
    }

    /// Sends what the core has to say.
    pub(crate) fn transmit(&mut self, now: Nanos, core: &mut SubscriberCore, sink: &mut impl Sink) {
        loop {
            let mut frames = std::mem::take(&mut self.frames);
            let path = core.poll_transmit(now, &mut frames, &mut |it| sink.item(it));
            if let Some(path) = path {
                let client = self.client(path);
                if client.send_frames(&frames).is_err() && client.is_connected() {
                    // It takes nothing any more: as good as down.
                    client.disconnect();
                    let reason = LinkDownReason::Closed;
                    core.handle_disconnected(now, path, reason, &mut |it| sink.item(it));
                } else {
                    client.flush();
                }
            }
            frames.clear();
            self.frames = frames;
            if path.is_none() {
                return;
            }
        }
    }

    const fn client(&mut self, path: Path) -> &mut ControlClient {
        match path {
            Path::Repair => &mut self.repair,
            Path::Replay => &mut self.replay,
        }
    }
}
