//! The two TCP connections to the publisher, driven by what the core wants.

use std::net::SocketAddr;

use tickcast_reliability::delivery::{Item, LinkDownReason};
use tickcast_reliability::subscriber_core::{Path, SubscriberCore};
use tickcast_reliability::units::Nanos;
use tickcast_transport::control::{ClientConfig, ClientEvent, CloseReason, ControlClient};

/// Both connections.
pub(crate) struct Session {
    repair: ControlClient,
    replay: ControlClient,
    frames: Vec<u8>,
}

impl Session {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        let config = ClientConfig::default();
        Self {
            repair: ControlClient::new(addresses.clone(), config),
            replay: ControlClient::new(addresses, config),
            frames: Vec::new(),
        }
    }

    /// Feeds everything that came over the connections to the core. How many messages there were.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        core: &mut SubscriberCore,
        on: &mut impl FnMut(Item<'_>),
    ) -> usize {
        let mut count = 0;
        for path in [Path::Repair, Path::Replay] {
            count += self.client(path).poll(now, |event| match event {
                ClientEvent::Connected(_) => core.handle_connected(now, path),
                ClientEvent::Frame(channel, message) => {
                    core.handle_message(now, path, channel, &message, on);
                }
                ClientEvent::Disconnected(reason) => {
                    let reason = match reason {
                        CloseReason::Unreachable(_) | CloseReason::Timeout => {
                            LinkDownReason::Unreachable
                        }
                        CloseReason::Protocol(_) => LinkDownReason::Protocol,
                        _ => LinkDownReason::Closed,
                    };
                    core.handle_disconnected(now, path, reason, on);
                }
            });
        }
        count
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        now: Nanos,
        path: Path,
        core: &mut SubscriberCore,
        on: &mut impl FnMut(Item<'_>),
    ) {
        if self.client(path).connect(now).is_err() {
            core.handle_disconnected(now, path, LinkDownReason::Unreachable, on);
        }
    }

    pub(crate) fn disconnect(&mut self, path: Path) {
        self.client(path).disconnect();
    }

    /// Sends what the core has to say.
    pub(crate) fn transmit(
        &mut self,
        now: Nanos,
        core: &mut SubscriberCore,
        on: &mut impl FnMut(Item<'_>),
    ) {
        loop {
            let mut frames = std::mem::take(&mut self.frames);
            let path = core.poll_transmit(now, &mut frames, on);
            if let Some(path) = path {
                let client = self.client(path);
                if client.send_frames(&frames).is_err() && client.is_connected() {
                    // It takes nothing any more: as good as down.
                    client.disconnect();
                    core.handle_disconnected(now, path, LinkDownReason::Closed, on);
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
