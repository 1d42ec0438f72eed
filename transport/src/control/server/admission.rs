//! Admits connections within the bounds of all and of one address, or refuses them with a message. A
//! flood of connections delays no connected peer and takes no more descriptors than allowed. One host
//! takes no more places than one address may have.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use mio::Token;
use tickcast_reliability::control::{Message, RejectCode, Rejected};
use tickcast_reliability::types::ChannelId;

use super::{ConnectionId, ControlServer, Peer, ServerEvent};
use crate::control::carrier::CarrierStream;
#[cfg(feature = "rdma")]
use tickcast_verbs::VerbsError;

/// Largest number of connections that one poll accepts over TCP. The others wait for the next poll.
const ACCEPTED_MAX: usize = 16;
/// Refused connections that are kept open while their REJECTED is delivered.
const TURNED_AWAY_MAX: usize = 16;
/// Delay after which a refused peer may retry, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// Numbers of connections when a new one arrives.
#[derive(Default)]
struct Crowd {
    /// Admitted connections.
    served: usize,
    /// Admitted connections from the new one's address.
    of_address: usize,
    /// Refused connections whose REJECTED is being delivered.
    turned_away: usize,
}

impl ControlServer {
    pub(super) fn accept(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) {
        #[cfg(feature = "rdma")]
        self.accept_over_verbs(now, on);
        self.accept_failed = false;
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    let admitted = (stream.set_nodelay(true))
                        .and_then(|()| self.admit(CarrierStream::Tcp(stream), address, now, on));
                    // The failure is counted and the connection dropped.
                    if let Err(error) = admitted {
                        self.stats.not_accepted(&error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accept_pending = false;
                    return;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.stats.not_accepted(&error);
                    self.accept_failed = true;
                    return;
                }
            }
        }
    }

    /// Accepts connections over verbs, or refuses them before anything is allocated.
    #[cfg(feature = "rdma")]
    fn accept_over_verbs(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) {
        let Some(mut listener) = self.verbs_listener.take() else {
            return;
        };
        loop {
            let is_one = |peer: &&Peer| matches!(peer.carrier, CarrierStream::Verbs(_));
            let (all, ones) = (self.peers.len(), self.peers.values().filter(is_one).count());
            if all >= self.config.connections_max || ones >= self.config.verbs_connections_max {
                if !listener.turn_away() {
                    break;
                }
                self.stats.turned_away += 1;
                continue;
            }
            match listener.accept() {
                None => break,
                Some(Ok(stream)) => {
                    let address = SocketAddr::V4(stream.peer_address());
                    let carrier = CarrierStream::Verbs(Box::new(stream));
                    let admitted = self.admit(carrier, address, now, on);
                    match admitted {
                        Ok(()) => self.stats.accepted_over_verbs += 1,
                        Err(error) => self.stats.not_accepted(&error),
                    }
                }
                Some(Err(VerbsError::Crowded)) => self.stats.turned_away += 1,
                Some(Err(_)) => self.stats.accept_errors += 1,
            }
        }
        self.verbs_listener = Some(listener);
    }

    fn admit(
        &mut self,
        mut carrier: CarrierStream,
        address: SocketAddr,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>),
    ) -> io::Result<()> {
        let crowd = self.crowd(address.ip());
        let refusal = self.refusal(&crowd, address.ip());
        if refusal.is_some() && crowd.turned_away >= TURNED_AWAY_MAX {
            return Ok(());
        }
        let id = ConnectionId(self.next_peer);
        let kind = carrier.kind();
        carrier.register(self.poll.registry(), Token(id.0))?;
        self.next_peer += 1;
        let peer = Peer::new(carrier, address, now, refusal.is_some());
        self.peers.insert(id, peer);
        if let Some(text) = refusal {
            let rejected = Message::Rejected(Rejected {
                code: RejectCode::TooMany,
                text,
                retry_after_ms: RETRY_AFTER_MS,
            });
            self.close(id, Some((ChannelId(0), &rejected)));
        } else {
            self.stats.accepted += 1;
            on(ServerEvent::Connected(id, address, kind));
        }
        Ok(())
    }

    /// Returns why one more connection from this address is refused, if it is, and counts the refusal.
    fn refusal(&mut self, crowd: &Crowd, address: IpAddr) -> Option<String> {
        let (config, stats) = (&self.config, &mut self.stats);
        let text = if crowd.served >= config.connections_max {
            format!(
                "the publisher serves at most {} connections; try again later",
                config.connections_max
            )
        } else if crowd.of_address >= config.connections_per_address_max {
            stats.turned_away_of_address += 1;
            stats.crowded_address = Some(address);
            format!(
                "the publisher serves at most {} connections of one address, and {address} has \
                 reached that limit; raise its peers_per_address_max, or try again later",
                config.connections_per_address_max
            )
        } else {
            return None;
        };
        stats.turned_away += 1;
        Some(text)
    }

    fn crowd(&self, address: IpAddr) -> Crowd {
        // An address counts as one whether it arrives as IPv4 or as IPv4 mapped to IPv6.
        let address = address.to_canonical();
        let mut crowd = Crowd::default();
        for peer in self.peers.values() {
            let is_served = !peer.turned_away;
            crowd.turned_away += usize::from(peer.turned_away);
            crowd.served += usize::from(is_served);
            let is_its = peer.address.ip().to_canonical() == address;
            crowd.of_address += usize::from(is_served && is_its);
        }
        crowd
    }
}
