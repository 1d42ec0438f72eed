//! The connections of the repair service, by peer and by connection, and the subscriber of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tickcast_reliability::control::NAME_LEN_MAX;
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::control::ConnectionId;

use crate::repair::audit;
use crate::repair::deny_list::DenyList;
use crate::repair::peer_log::PeerLog;

/// A connection.
pub(crate) struct Known {
    pub(crate) connection: ConnectionId,
    pub(crate) address: SocketAddr,
    /// Name of its session's subscriber, or the name in its own JOIN while that is unanswered;
    /// empty before.
    pub(crate) name: String,
    /// Address of its session's repair connection, if that is another one: over verbs a host may
    /// have another address.
    session: Option<SocketAddr>,
}

impl Known {
    /// Returns the reason why a file denies its subscriber, by name or by either address.
    pub(crate) fn reason<'a>(&self, named: &'a DenyList) -> Option<&'a str> {
        let reason = |address| named.reason(&self.name, address);
        reason(self.address).or_else(|| reason(self.session?))
    }
}

/// All connections.
#[derive(Default)]
pub(crate) struct Peers {
    by_connection: BTreeMap<ConnectionId, PeerId>,
    known: BTreeMap<PeerId, Known>,
    /// Closed connections, kept until their closing was reported.
    gone: Vec<PeerId>,
    last: u64,
    /// Limits the log lines about them.
    pub(crate) log: PeerLog,
}

impl Peers {
    pub(crate) fn add(&mut self, connection: ConnectionId, address: SocketAddr) -> PeerId {
        self.last += 1;
        let peer = PeerId(self.last);
        self.by_connection.insert(connection, peer);
        let name = String::new();
        let known = Known {
            connection,
            address,
            name,
            session: None,
        };
        self.known.insert(peer, known);
        peer
    }

    /// Records its JOIN. A second JOIN does not change the name. A name above the protocol's limit is cut and
    /// marked, because the core rejects such a JOIN only after this, and entries repeat the name.
    pub(crate) fn joins(&mut self, peer: PeerId, name: &str) {
        let known = self.known.get_mut(&peer);
        if let Some(known) = known.filter(|known| known.name.is_empty()) {
            let len = name.floor_char_boundary(NAME_LEN_MAX);
            name[..len].clone_into(&mut known.name);
            if len < name.len() {
                known.name.push('…');
            }
        }
    }

    /// Assigns it to the session of another connection, and that subscriber; its own name is
    /// ignored.
    pub(crate) fn belongs(&mut self, peer: PeerId, owner: PeerId) {
        let Some(owner) = self.known.get(&owner).filter(|_| peer != owner) else {
            return;
        };
        let (name, address) = (owner.name.clone(), owner.address);
        if let Some(known) = self.known.get_mut(&peer) {
            (known.name, known.session) = (name, Some(address));
        }
    }

    pub(crate) fn of(&self, connection: ConnectionId) -> Option<PeerId> {
        self.by_connection.get(&connection).copied()
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Known> {
        self.known.get(&peer)
    }

    /// Returns the peer's connection, while there is one.
    pub(crate) fn connection(&self, peer: PeerId) -> Option<ConnectionId> {
        let connection = self.get(peer)?.connection;
        self.of(connection).map(|_| connection)
    }

    /// Returns whether a line about a connection may be logged.
    pub(crate) fn may_log(&self, peer: PeerId) -> bool {
        let known = self.get(peer);
        known.is_some_and(|known| self.log.allow(known.address.ip()))
    }

    /// Audits what happened to a connection.
    pub(crate) fn audit(
        &self,
        what: &'static str,
        peer: PeerId,
        channel: Option<ChannelId>,
        why: Option<&str>,
    ) {
        let known = self.get(peer);
        let name = known.map(|known| &*known.name);
        audit::write_entry_to(
            self.may_log(peer),
            what,
            audit::Of {
                subscriber: name.filter(|name| !name.is_empty()),
                peer: known.map(|known| known.address),
                channel,
                why,
                ..audit::Of::default()
            },
        );
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Known)> {
        self.known.iter().map(|(peer, known)| (*peer, known))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_connection.is_empty()
    }

    /// Removes a connection; its subscriber stays known until [`Peers::forget_gone`].
    pub(crate) fn remove(&mut self, connection: ConnectionId) -> Option<PeerId> {
        let peer = self.by_connection.remove(&connection)?;
        self.gone.push(peer);
        Some(peer)
    }

    /// Forgets the closed connections, once their closing was reported.
    pub(crate) fn forget_gone(&mut self) {
        for peer in self.gone.drain(..) {
            self.known.remove(&peer);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tickcast_transport::control::{ControlServer, ServerConfig, ServerEvent};

    use super::*;

    pub(crate) fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 7400)
    }

    /// Returns `count` connections of a server, because only a server can create them.
    pub(crate) fn connections(count: usize) -> Vec<ConnectionId> {
        let loopback = ([127, 0, 0, 1], 0).into();
        let mut server = ControlServer::bind(loopback, ServerConfig::default()).unwrap();
        let address = server.local_address().unwrap();
        let streams = (0..count).map(|_| std::net::TcpStream::connect(address).unwrap());
        let _held: Vec<_> = streams.collect();
        let mut all = Vec::new();
        while all.len() < count {
            let polled = server.poll(None, |event| {
                if let ServerEvent::Connected(connection, _, _) = event {
                    all.push(connection);
                }
            });
            polled.unwrap();
        }
        all
    }

    #[test]
    fn further_connection_belongs_to_its_subscriber() {
        let [first, further] = connections(2)[..] else {
            unreachable!()
        };
        let mut peers = Peers::default();
        let owner = peers.add(first, at("10.0.0.1"));
        peers.joins(owner, "risk-1");
        peers.joins(owner, "somebody else");
        let reads = peers.add(further, at("192.168.0.1"));
        peers.joins(reads, "nobody");
        peers.belongs(reads, owner);
        peers.belongs(owner, owner);
        let mut named = DenyList::new(DenyList::DENIED, None);
        for (who, owner_is, reads_is) in [
            ("risk-1", true, true),
            ("nobody", false, false),
            ("somebody", false, false),
            ("10.0.0.1", true, true),
            ("192.168.0.1", false, true),
        ] {
            named.take(&format!("{who} why"));
            for (peer, is_named) in [(owner, owner_is), (reads, reads_is)] {
                let reason = peers.get(peer).unwrap().reason(&named);
                assert_eq!(reason, is_named.then_some("why"), "{who} {peer:?}");
            }
        }
    }

    #[test]
    fn name_above_protocol_limit_is_cut_when_stored() {
        let connection = connections(1)[0];
        let mut peers = Peers::default();
        let peer = peers.add(connection, at("10.0.0.1"));
        let allowed = "x".repeat(NAME_LEN_MAX);
        peers.joins(peer, &"xé".repeat(20_000));
        let cut = format!("{}x…", "xé".repeat(21));
        assert_eq!(peers.get(peer).unwrap().name, cut);
        let mut peers = Peers::default();
        let peer = peers.add(connection, at("10.0.0.1"));
        peers.joins(peer, &allowed);
        assert_eq!(peers.get(peer).unwrap().name, allowed);
    }

    #[test]
    fn gone_peer_is_known_until_reported_and_unwritable() {
        let connection = connections(1)[0];
        let mut peers = Peers::default();
        let peer = peers.add(connection, at("10.0.0.1"));
        assert_eq!(peers.connection(peer), Some(connection));
        assert_eq!(peers.remove(connection), Some(peer));
        assert!(peers.is_empty() && peers.connection(peer).is_none());
        assert_eq!(peers.get(peer).unwrap().address, at("10.0.0.1"));
        peers.forget_gone();
        assert!(peers.get(peer).is_none());
    }
}
