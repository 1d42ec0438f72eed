//! The open connections of an endpoint, and which of them ends for a new one.

use std::net::IpAddr;

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub total: usize,
    /// Connections of one peer.
    pub per_peer: usize,
}

/// Streams of an endpoint. They are so few that no new connection evicts one.
const STREAMS: Limits = Limits {
    total: 16,
    per_peer: 4,
};

/// A peer whose connections count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An IPv4 address, or a network of 64 bits of IPv6 addresses, in which one host may have any number.
    Address(IpAddr),
    /// A user of this host.
    User(u32),
}

impl Peer {
    /// Returns the peer of this address.
    #[must_use]
    pub(crate) const fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !(u64::MAX as u128);
                IpAddr::V6(std::net::Ipv6Addr::from_bits(network))
            }
            address => address,
        })
    }
}

/// State of a connection, in the order in which connections are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// It was answered, and the rest that the peer sends is discarded.
    Draining,
    /// The head of its request is not complete.
    Reading,
    /// Its answer is being written.
    Writing,
    /// It reads a stream, whose end only the peer decides.
    Streaming,
    /// Its request is being executed. It is never evicted.
    Working,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    peer: Peer,
    state: State,
}

/// A connection that was admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Number of the connection.
    pub(crate) id: u64,
    /// The connection that must end for it, and its state.
    pub(crate) evicted: Option<(u64, State)>,
}

/// The open connections of an endpoint.
#[derive(Debug)]
pub(crate) struct Table {
    limits: Limits,
    /// Oldest first.
    entries: Vec<Entry>,
    last: u64,
}

impl Table {
    /// Creates an empty table.
    pub(crate) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: Vec::new(),
            last: 0,
        }
    }

    /// Admits a connection. At a limit, the oldest idle connection is evicted: of the peer at the peer's
    /// limit, otherwise of all. Returns `None` if none is idle.
    pub(crate) fn admit(&mut self, peer: Peer) -> Option<Admitted> {
        let of_peer = self.entries.iter().filter(|it| it.peer == peer).count();
        let evicted = if of_peer >= self.limits.per_peer {
            Some(self.evict(|it| it.peer == peer)?)
        } else if self.entries.len() >= self.limits.total {
            Some(self.evict(|_| true)?)
        } else {
            None
        };
        self.last += 1;
        let (id, state) = (self.last, State::Reading);
        self.entries.push(Entry { id, peer, state });
        Some(Admitted { id, evicted })
    }

    fn evict(&mut self, may_end: impl Fn(&Entry) -> bool) -> Option<(u64, State)> {
        let entries = self.entries.iter().enumerate();
        let idle = entries.filter(|(_, it)| it.state != State::Working && may_end(it));
        let (at, _) = idle.min_by_key(|(_, it)| (it.state, it.id))?;
        let entry = self.entries.remove(at);
        Some((entry.id, entry.state))
    }

    /// Sets the state of a connection.
    pub(crate) fn set(&mut self, id: u64, state: State) {
        if let Some(entry) = self.entries.iter_mut().find(|it| it.id == id) {
            entry.state = state;
        }
    }

    /// Lets a connection read a stream. Returns `false` at a limit of streams.
    pub(crate) fn begin_stream(&mut self, id: u64) -> bool {
        let streams = || {
            self.entries
                .iter()
                .filter(|it| it.state == State::Streaming)
        };
        let Some(peer) = self.entries.iter().find(|it| it.id == id).map(|it| it.peer) else {
            return false;
        };
        let of_peer = streams().filter(|it| it.peer == peer).count();
        let is_free = streams().count() < STREAMS.total && of_peer < STREAMS.per_peer;
        if is_free {
            self.set(id, State::Streaming);
        }
        is_free
    }

    /// Removes a connection, if it is there.
    pub(crate) fn remove(&mut self, id: u64) {
        self.entries.retain(|it| it.id != id);
    }

    /// Returns the number of connections that were not answered.
    #[must_use]
    pub(crate) fn open(&self) -> usize {
        self.count(|state| state != State::Draining)
    }

    /// Returns the number of connections whose request is being executed or answered.
    #[must_use]
    pub(crate) fn busy(&self) -> usize {
        self.count(|state| state > State::Reading)
    }

    fn count(&self, counts: impl Fn(State) -> bool) -> usize {
        self.entries.iter().filter(|it| counts(it.state)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        total: 4,
        per_peer: 2,
    };

    fn peer(last: u8) -> Peer {
        Peer::at([10, 0, 0, last].into())
    }

    fn evicted(table: &mut Table, from: Peer) -> Option<u64> {
        let admitted = table.admit(from).expect("a place");
        admitted.evicted.map(|(id, _)| id)
    }

    #[test]
    fn peer_at_its_limit_evicts_its_own_oldest_connection() {
        let mut table = Table::new(LIMITS);
        assert_eq!(evicted(&mut table, peer(1)), None);
        for last in 1..200 {
            let other = (last == 1).then(|| evicted(&mut table, peer(2)));
            assert_eq!(other.flatten(), None);
            evicted(&mut table, peer(1));
        }
        // Connection 2 is that of the other peer.
        table.set(2, State::Working);
        assert_eq!((table.open(), table.busy()), (3, 1));
    }

    #[test]
    fn full_table_evicts_oldest_idle_connection_of_all() {
        let mut table = Table::new(LIMITS);
        for last in 1..=4 {
            assert_eq!(evicted(&mut table, peer(last)), None);
        }
        table.set(1, State::Writing);
        table.set(4, State::Draining);
        let order: Vec<_> = (5..10)
            .map(|last| evicted(&mut table, peer(last)))
            .collect();
        assert_eq!(order, [4, 2, 3, 5, 6].map(Some));
        table.remove(1);
        assert_eq!(evicted(&mut table, peer(10)), None);
    }

    #[test]
    fn working_connection_is_never_evicted() {
        let mut table = Table::new(LIMITS);
        for last in 1..=4 {
            evicted(&mut table, peer(last));
            table.set(last.into(), State::Working);
        }
        assert_eq!(table.admit(peer(5)), None);
        assert_eq!(table.admit(peer(1)), None);
        table.set(3, State::Writing);
        let admitted = table.admit(peer(5)).unwrap();
        assert_eq!(admitted.evicted, Some((3, State::Writing)));
    }

    #[test]
    fn streams_are_limited_and_never_evicted() {
        let mut table = Table::new(Limits {
            total: 24,
            per_peer: 6,
        });
        let mut streams = Vec::new();
        for last in 1..=5 {
            for _ in 0..5 {
                let id = table.admit(peer(last)).unwrap().id;
                if table.begin_stream(id) {
                    streams.push(id);
                } else {
                    table.remove(id);
                }
            }
        }
        assert_eq!(streams.len(), STREAMS.total);
        for last in 1..200 {
            let admitted = table.admit(peer(last % 10)).unwrap();
            let evicted = admitted.evicted.map(|(id, _)| id);
            assert!(!evicted.is_some_and(|id| streams.contains(&id)));
            table.set(admitted.id, State::Writing);
        }
        table.remove(streams[0]);
        let id = table.admit(peer(1)).unwrap().id;
        assert!(table.begin_stream(id), "a place is free again");
        assert!(!table.begin_stream(u64::MAX), "it was evicted");
    }

    #[test]
    fn ipv6_peers_are_networks_of_64_bits() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:0:0:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
    }
}
