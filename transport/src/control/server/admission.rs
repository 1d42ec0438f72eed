//! Admits connections within the bounds of all and of one address, or refuses them with a message. A
//! flood of connections delays no connected peer and takes no more descriptors than allowed. One host
//! takes no more places than one address may have.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use mio::Token;
use tickcast_reliability::control::{Message, RejectCode, Rejected};
use tickcast_reliability::types::{ChannelId, PeerOrigin};

use super::shares::ListenerNumber;
use super::{ConnectionId, ControlServer, Peer, ServerEvent};
use crate::control::CloseReason;
use crate::control::carrier::CarrierStream;
#[cfg(feature = "rdma")]
use tickcast_verbs::{Listener, VerbsError};

/// Largest number of connections that one poll accepts or refuses over each carrier. The others wait for the
/// next poll.
const ACCEPTED_MAX: usize = 16;
/// The same while received messages wait, which are served first.
const ACCEPTED_BESIDE_MESSAGES_MAX: usize = 2;
/// Connections beyond `connections_max` while some are being closed.
const CLOSING_MAX: usize = 64;
/// Connections of one address that are being closed, from which its further ones are refused without a
/// message.
const TURNED_AWAY_MAX: usize = 16;
/// Delay after which a refused peer may retry, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// The connections of one address.
#[derive(Default)]
struct OfOrigin {
    open: usize,
    over_verbs: usize,
    /// Those that are being closed, oldest first.
    closing: BTreeSet<ConnectionId>,
}

/// The numbers of connections. Each is open, or being closed until its peer has read its last message.
#[derive(Default)]
pub(super) struct Crowd {
    open: usize,
    over_verbs: usize,
    by_origin: BTreeMap<PeerOrigin, OfOrigin>,
    /// Each address by its number of connections that are being closed.
    by_closing: BTreeSet<(usize, PeerOrigin)>,
}

impl Crowd {
    fn enter(&mut self, peer: &Peer) {
        let of = self.by_origin.entry(peer.origin()).or_default();
        let over_verbs = usize::from(!peer.carrier.is_tcp());
        of.open += 1;
        of.over_verbs += over_verbs;
        self.open += 1;
        self.over_verbs += over_verbs;
    }

    pub(super) fn begins_to_close(&mut self, id: ConnectionId, peer: &Peer) {
        self.open -= 1;
        self.change(peer.origin(), |of| {
            of.open -= 1;
            of.closing.insert(id);
        });
    }

    pub(super) fn leave(&mut self, id: ConnectionId, peer: &Peer) {
        let over_verbs = usize::from(!peer.carrier.is_tcp());
        let is_open = !peer.is_closing();
        self.open -= usize::from(is_open);
        self.over_verbs -= over_verbs;
        self.change(peer.origin(), |of| {
            of.open -= usize::from(is_open);
            of.over_verbs -= over_verbs;
            of.closing.remove(&id);
        });
    }

    /// Returns the oldest connection that is being closed, of the address with the most of those.
    fn longest_closing(&self) -> Option<ConnectionId> {
        let (_, origin) = self.by_closing.last()?;
        self.by_origin.get(origin)?.closing.first().copied()
    }

    fn change(&mut self, origin: PeerOrigin, change: impl FnOnce(&mut OfOrigin)) {
        let Entry::Occupied(mut entry) = self.by_origin.entry(origin) else {
            return;
        };
        let of = entry.get_mut();
        let before = of.closing.len();
        change(of);
        let after = of.closing.len();
        if of.open == 0 && after == 0 {
            entry.remove();
        }
        if before != after {
            self.by_closing.remove(&(before, origin));
            if after > 0 {
                self.by_closing.insert((after, origin));
            }
        }
    }
}

impl ControlServer {
    pub(super) fn accept(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>) -> usize) {
        let most = match self.turns.is_empty() {
            true => ACCEPTED_MAX,
            false => ACCEPTED_BESIDE_MESSAGES_MAX,
        };
        self.accept_pending = self.accept_over_tcp(most, now, on);
        #[cfg(feature = "rdma")]
        {
            self.accept_pending |= self.accept_over_verbs(most, now, on);
        }
    }

    /// Accepts connections over TCP. Returns whether more may wait.
    fn accept_over_tcp(
        &mut self,
        most: usize,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) -> bool {
        self.accept_failed = false;
        let over_tcp = ListenerNumber::default();
        for _ in 0..most {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    let admitted = (stream.set_nodelay(true)).and_then(|()| {
                        self.admit((CarrierStream::Tcp(stream), over_tcp), address, now, on)
                    });
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
    fn accept_over_verbs(
        &mut self,
        most: usize,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) -> bool {
        let mut listeners = std::mem::take(&mut self.verbs);
        let mut may_wait = false;
        let each = most.div_ceil(listeners.len().max(1));
        for (number, listener) in listeners.iter_mut().enumerate() {
            may_wait |= self.accept_from((ListenerNumber(number), listener), each, now, on);
        }
        self.verbs = listeners;
        may_wait
    }

    /// Accepts the connections of one listener, as [`accept_over_verbs`](Self::accept_over_verbs) does.
    #[cfg(feature = "rdma")]
    fn accept_from(
        &mut self,
        (number, listener): (ListenerNumber, &mut Listener),
        most: usize,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) -> bool {
        for _ in 0..most {
            let (open, over_verbs) = (self.crowd.open, self.crowd.over_verbs);
            if open >= self.config.connections_max
                || over_verbs >= self.config.verbs_connections_max
            {
                if !listener.turn_away() {
                    return false;
                }
                self.stats.turned_away += 1;
                continue;
            }
            match listener.accept() {
                None => return false,
                Some(Ok(stream)) => {
                    let address = SocketAddr::V4(stream.peer_address());
                    let carrier = CarrierStream::Verbs(Box::new(stream));
                    let admitted = self.admit((carrier, number), address, now, on);
                    match admitted {
                        Ok(()) => self.stats.accepted_over_verbs += 1,
                        Err(error) => self.stats.not_accepted(&error),
                    }
                }
                Some(Err(VerbsError::Crowded)) => self.stats.turned_away += 1,
                Some(Err(_)) => self.stats.accept_errors += 1,
            }
        }
        true
    }

    fn admit(
        &mut self,
        (mut carrier, listener): (CarrierStream, ListenerNumber),
        address: SocketAddr,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) -> io::Result<()> {
        let refusal = self.refusal(address.ip(), carrier.is_tcp());
        let of = self.crowd.by_origin.get(&PeerOrigin::of(address.ip()));
        if refusal.is_some() && of.is_some_and(|of| of.closing.len() >= TURNED_AWAY_MAX) {
            return Ok(());
        }
        if self.peers.len() >= self.config.connections_max.saturating_add(CLOSING_MAX)
            && let Some(longest) = self.crowd.longest_closing()
        {
            self.remove(longest, CloseReason::ByUs, on);
        }
        let id = ConnectionId(self.next_peer);
        let kind = carrier.kind();
        carrier.register(self.poll.registry(), Token(id.0))?;
        self.next_peer += 1;
        let peer = Peer::new(carrier, listener, address, now, refusal.is_some());
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
    fn refusal(&mut self, address: IpAddr, is_tcp: bool) -> Option<String> {
        let (config, crowd, stats) = (&self.config, &self.crowd, &mut self.stats);
        let origin = PeerOrigin::of(address);
        let of = crowd.by_origin.get(&origin);
        let (open, over_verbs) = of.map_or((0, 0), |of| (of.open, of.over_verbs));
        let text = if crowd.open >= config.connections_max {
            format!(
                "the publisher serves at most {} connections; try again later",
                config.connections_max
            )
        } else if open >= config.connections_per_address_max {
            stats.turned_away_of_address += 1;
            stats.crowded_address = Some(address);
            format!(
                "the publisher serves at most {} connections of one address, and {origin} has \
                 reached that limit; raise its peers_per_address_max, or try again later",
                config.connections_per_address_max
            )
        } else if !is_tcp && over_verbs >= config.verbs_connections_max.div_ceil(2) {
            stats.turned_away_of_address += 1;
            stats.crowded_address = Some(address);
            format!(
                "the publisher serves at most {} connections of one address over verbs, and {origin} \
                 has reached that limit; try again later",
                config.verbs_connections_max.div_ceil(2)
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
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::control::server::ServerConfig;

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let config = ServerConfig {
            connections_per_address_max: 1,
            verbs_connections_max: 6,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let of = |text: &str| -> IpAddr { text.parse().unwrap() };
        for (taken, open, over_verbs) in [
            ("2001:db8:0:1::1", 1, 0),
            ("10.0.0.1", 1, 0),
            ("10.0.0.3", 0, 3),
        ] {
            let held = OfOrigin {
                open,
                over_verbs,
                ..OfOrigin::default()
            };
            (server.crowd.by_origin).insert(PeerOrigin::of(of(taken)), held);
        }
        for (address, is_tcp, refused) in [
            ("2001:db8:0:1:ffff::2", true, true),
            ("2001:db8:0:2::1", true, false),
            ("::ffff:10.0.0.1", true, true),
            ("10.0.0.2", false, false),
            ("10.0.0.3", true, false),
            ("10.0.0.3", false, true),
        ] {
            let refusal = server.refusal(of(address), is_tcp);
            assert_eq!(refusal.is_some(), refused, "{address}: {refusal:?}");
        }
    }

    /// Connects from an address of loopback, and polls until the server has accepted or refused it.
    fn connect(server: &mut ControlServer, host: u8) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let from = SocketAddr::from(([127, 0, 0, host], 0));
        socket.bind(&from.into()).unwrap();
        let to = server.local_address().unwrap();
        socket.connect(&to.into()).unwrap();
        let seen = |server: &ControlServer| server.stats.accepted + server.stats.turned_away;
        let before = seen(server);
        while seen(server) == before {
            server.poll(None, |_| ()).unwrap();
        }
        socket.into()
    }

    #[test]
    fn closing_connections_keep_nobody_out() {
        let config = ServerConfig {
            connections_max: 4,
            connections_per_address_max: 4,
            linger: Duration::from_secs(3600),
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        // The service rejects each of these, and none of them reads or closes.
        let mut held = Vec::new();
        for n in 0..3 * CLOSING_MAX as u8 {
            held.push(connect(&mut server, 2 + n % 3));
            let last = server.peers().last().map(|(id, _)| id);
            server.close(last.unwrap(), None);
        }
        assert_eq!(server.crowd.open, 0);
        assert_eq!(server.peers.len(), 4 + CLOSING_MAX);
        // The largest address makes room for one that is being closed.
        let sizes: Vec<usize> = (server.crowd.by_closing.iter()).map(|it| it.0).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 4 + CLOSING_MAX);
        assert!(sizes[2] - sizes[0] <= 1, "{sizes:?}");
        for _ in 0..4 {
            held.push(connect(&mut server, 9));
        }
        assert_eq!((server.stats.turned_away, server.crowd.open), (0, 4));
        assert_eq!(server.peers.len(), 4 + CLOSING_MAX);
        held.push(connect(&mut server, 10));
        assert_eq!((server.stats.turned_away, server.crowd.open), (1, 4));
    }

    #[test]
    fn few_connections_are_accepted_beside_messages() {
        let config = ServerConfig {
            turn_bytes_max: 1,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let mut busy = connect(&mut server, 2);
        let mut said = Vec::new();
        Message::Leave.write(ChannelId(1), &mut said);
        busy.write_all(&said.repeat(100)).unwrap();
        while server.stats.messages == 0 {
            server.poll(None, |_| ()).unwrap();
        }
        let to = server.local_address().unwrap();
        let _flood: Vec<_> = (0..40).map(|_| TcpStream::connect(to).unwrap()).collect();
        let hint = server.backlog_hint().unwrap();
        while !hint.has_backlog() {}
        while !server.turns.is_empty() && server.stats.accepted < 41 {
            let before = server.stats.accepted;
            server.poll(None, |_| ()).unwrap();
            let accepted = server.stats.accepted - before;
            assert!(
                accepted <= ACCEPTED_BESIDE_MESSAGES_MAX as u64,
                "{accepted}"
            );
        }
    }
}
