//! Admits connections within the bounds of all and of one address, or refuses them with a message. A
//! flood of connections delays no connected peer and takes no more descriptors than allowed. One host
//! takes no more places than one address may have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use mio::Token;
use tickcast_reliability::control::{Message, RejectCode, Rejected};
use tickcast_reliability::types::{ChannelId, PeerOrigin};

use super::{ConnectionId, ControlServer, Peer, ServerEvent};
use crate::control::carrier::CarrierStream;
#[cfg(feature = "rdma")]
use tickcast_verbs::VerbsError;

/// Largest number of connections that one poll accepts or refuses over each carrier. The others wait for the
/// next poll.
const ACCEPTED_MAX: usize = 16;
/// Refused connections that are kept open while their REJECTED is delivered.
const TURNED_AWAY_MAX: usize = 16;
/// Delay after which a refused peer may retry, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// Numbers of connections.
#[derive(Default)]
pub(super) struct Crowd {
    /// Admitted connections.
    served: usize,
    /// Admitted connections of each address that has some.
    by_origin: BTreeMap<PeerOrigin, usize>,
    /// Refused connections whose REJECTED is being delivered.
    turned_away: usize,
    /// Connections over verbs.
    over_verbs: usize,
}

impl Crowd {
    fn of(&self, origin: PeerOrigin) -> usize {
        self.by_origin.get(&origin).copied().unwrap_or(0)
    }

    fn enter(&mut self, peer: &Peer) {
        self.over_verbs += usize::from(!peer.carrier.is_tcp());
        if peer.is_turned_away() {
            self.turned_away += 1;
        } else {
            self.served += 1;
            *self.by_origin.entry(peer.origin()).or_default() += 1;
        }
    }

    pub(super) fn leave(&mut self, peer: &Peer) {
        self.over_verbs -= usize::from(!peer.carrier.is_tcp());
        if peer.is_turned_away() {
            self.turned_away -= 1;
            return;
        }
        self.served -= 1;
        if let Entry::Occupied(mut of) = self.by_origin.entry(peer.origin()) {
            *of.get_mut() -= 1;
            if *of.get() == 0 {
                of.remove();
            }
        }
    }
}

impl ControlServer {
    pub(super) fn accept(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) {
        self.accept_pending = self.accept_over_tcp(now, on);
        #[cfg(feature = "rdma")]
        {
            self.accept_pending |= self.accept_over_verbs(now, on);
        }
    }

    /// Accepts connections over TCP. Returns whether more may wait.
    fn accept_over_tcp(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) -> bool {
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.stats.not_accepted(&error);
                    self.accept_failed = true;
                    return true;
                }
            }
        }
        true
    }

    /// Accepts connections over verbs, or refuses them before anything is allocated. Returns whether more
    /// may wait.
    #[cfg(feature = "rdma")]
    fn accept_over_verbs(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) -> bool {
        let Some(mut listener) = self.verbs_listener.take() else {
            return false;
        };
        let mut may_wait = true;
        for _ in 0..ACCEPTED_MAX {
            let (all, over_verbs) = (self.peers.len(), self.crowd.over_verbs);
            if all >= self.config.connections_max || over_verbs >= self.config.verbs_connections_max
            {
                if !listener.turn_away() {
                    may_wait = false;
                    break;
                }
                self.stats.turned_away += 1;
                continue;
            }
            match listener.accept() {
                None => {
                    may_wait = false;
                    break;
                }
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
        may_wait
    }

    fn admit(
        &mut self,
        mut carrier: CarrierStream,
        address: SocketAddr,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>),
    ) -> io::Result<()> {
        let refusal = self.refusal(address.ip());
        if refusal.is_some() && self.crowd.turned_away >= TURNED_AWAY_MAX {
            return Ok(());
        }
        let id = ConnectionId(self.next_peer);
        let kind = carrier.kind();
        carrier.register(self.poll.registry(), Token(id.0))?;
        self.next_peer += 1;
        let peer = Peer::new(carrier, address, now, refusal.is_some());
        self.crowd.enter(&peer);
        self.turns.add(peer.origin(), id);
        self.timers.set(id, now + self.config.join_timeout);
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
    fn refusal(&mut self, address: IpAddr) -> Option<String> {
        let (config, crowd, stats) = (&self.config, &self.crowd, &mut self.stats);
        let origin = PeerOrigin::of(address);
        let text = if crowd.served >= config.connections_max {
            format!(
                "the publisher serves at most {} connections; try again later",
                config.connections_max
            )
        } else if crowd.of(origin) >= config.connections_per_address_max {
            stats.turned_away_of_address += 1;
            stats.crowded_address = Some(address);
            format!(
                "the publisher serves at most {} connections of one address, and {origin} has \
                 reached that limit; raise its peers_per_address_max, or try again later",
                config.connections_per_address_max
            )
        } else {
            return None;
        };
        stats.turned_away += 1;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::control::server::ServerConfig;

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let config = ServerConfig {
            connections_per_address_max: 1,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let of = |text: &str| -> IpAddr { text.parse().unwrap() };
        for taken in ["2001:db8:0:1::1", "10.0.0.1"] {
            server.crowd.by_origin.insert(PeerOrigin::of(of(taken)), 1);
        }
        for (address, refused) in [
            ("2001:db8:0:1:ffff::2", true),
            ("2001:db8:0:2::1", false),
            ("::ffff:10.0.0.1", true),
            ("10.0.0.2", false),
        ] {
            let refusal = server.refusal(of(address));
            assert_eq!(refusal.is_some(), refused, "{address}: {refusal:?}");
        }
    }
}
