//! Who is connected to the repair service: each connection under the name of either side, and what is
//! known of who is behind it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tickcast_reliability::peers::PeerId;
use tickcast_transport::control::PeerId as Connection;

/// A connection.
pub(crate) struct Known {
    pub(crate) connection: Connection,
    pub(crate) address: SocketAddr,
    /// What its JOIN said; empty before.
    pub(crate) name: String,
}

/// All connections.
#[derive(Default)]
pub(crate) struct Peers {
    by_connection: BTreeMap<Connection, PeerId>,
    known: BTreeMap<PeerId, Known>,
    last: u64,
}

impl Peers {
    pub(crate) fn add(&mut self, connection: Connection, address: SocketAddr) -> PeerId {
        self.last += 1;
        let peer = PeerId(self.last);
        self.by_connection.insert(connection, peer);
        let name = String::new();
        let known = Known {
            connection,
            address,
            name,
        };
        self.known.insert(peer, known);
        peer
    }

    /// Its JOIN came.
    pub(crate) fn joins(&mut self, peer: PeerId, name: &str) {
        if let Some(known) = self.known.get_mut(&peer) {
            name.clone_into(&mut known.name);
        }
    }

    pub(crate) fn of(&self, connection: Connection) -> Option<PeerId> {
        self.by_connection.get(&connection).copied()
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Known> {
        self.known.get(&peer)
    }

    pub(crate) fn connection(&self, peer: PeerId) -> Option<Connection> {
        self.get(peer).map(|known| known.connection)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Known)> {
        self.known.iter().map(|(peer, known)| (*peer, known))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn remove(&mut self, connection: Connection) -> Option<PeerId> {
        let peer = self.by_connection.remove(&connection)?;
        self.known.remove(&peer);
        Some(peer)
    }
}
