//! The connections and replays of each origin: the shares that one origin has of what all origins divide
//! (docs/PROTOCOL.md §6.4).

use std::collections::{BTreeMap, BTreeSet};

use crate::serve::peer::PeerId;
use crate::types::PeerOrigin;

#[derive(Debug, Default)]
struct Held {
    /// Number of connections of any kind.
    connections: usize,
    /// Connections that take a place: those without a session, and the owners of sessions.
    places: BTreeSet<PeerId>,
    /// Connections that replay now.
    replaying: BTreeSet<PeerId>,
    /// Unsent bytes of all its connections.
    backlog: usize,
}

/// All origins with a connection.
#[derive(Debug, Default)]
pub(super) struct Origins {
    all: BTreeMap<PeerOrigin, Held>,
    /// Each origin by its number of places.
    by_size: BTreeSet<(usize, PeerOrigin)>,
    /// Number of origins that replay now.
    replaying: u64,
}

impl Origins {
    /// Adds a connection, which takes a place.
    pub(super) fn connect(&mut self, origin: PeerOrigin, peer: PeerId) {
        let held = self.all.entry(origin).or_default();
        held.connections += 1;
        self.by_size.remove(&(held.places.len(), origin));
        held.places.insert(peer);
        self.by_size.insert((held.places.len(), origin));
    }

    /// Moves a connection to the origin of the session that it has joined. It takes no place there, so that a
    /// subscriber with several connections does not count as several. Returns whether it was the last one of
    /// the origin before.
    pub(super) fn join(&mut self, from: PeerOrigin, to: PeerOrigin, peer: PeerId) -> bool {
        self.all.entry(to).or_default().connections += 1;
        self.disconnect(from, peer)
    }

    /// Removes a connection, and returns whether it was the origin's last.
    pub(super) fn disconnect(&mut self, origin: PeerOrigin, peer: PeerId) -> bool {
        self.end_replay(origin, peer);
        let Some(held) = self.all.get_mut(&origin) else {
            return false;
        };
        held.connections -= 1;
        self.by_size.remove(&(held.places.len(), origin));
        held.places.remove(&peer);
        if held.connections == 0 {
            self.all.remove(&origin);
            return true;
        }
        if !held.places.is_empty() {
            self.by_size.insert((held.places.len(), origin));
        }
        false
    }

    /// Records that the unsent bytes of a connection changed.
    pub(super) fn set_backlog(&mut self, origin: PeerOrigin, before: usize, after: usize) {
        if let Some(held) = self.all.get_mut(&origin) {
            held.backlog = held.backlog.saturating_sub(before).saturating_add(after);
        }
    }

    /// Returns the unsent bytes of all connections of an origin.
    pub(super) fn backlog(&self, origin: PeerOrigin) -> usize {
        self.all.get(&origin).map_or(0, |held| held.backlog)
    }

    /// Returns the newest place of the origin with the most places, if it has at least two more than `than`:
    /// closing it in favour of a new connection of `than` makes the division fairer.
    pub(super) fn to_give_way(&self, than: PeerOrigin) -> Option<PeerId> {
        let own = self.all.get(&than).map_or(0, |held| held.places.len());
        let (most, origin) = self.by_size.last()?;
        let held = self.all.get(origin).filter(|_| *most > own + 1)?;
        held.places.last().copied()
    }

    /// Lets a connection replay, if it replays already or its origin has less than `max` replays.
    pub(super) fn begin_replay(&mut self, origin: PeerOrigin, peer: PeerId, max: usize) -> bool {
        let Some(held) = self.all.get_mut(&origin) else {
            return false;
        };
        if held.replaying.contains(&peer) {
            return true;
        }
        if held.replaying.len() >= max {
            return false;
        }
        self.replaying += u64::from(held.replaying.is_empty());
        held.replaying.insert(peer)
    }

    /// Lets a connection go on with a replay that its peer did not read for a while, whatever the number of
    /// replays that began since.
    pub(super) fn resume_replay(&mut self, origin: PeerOrigin, peer: PeerId) {
        self.begin_replay(origin, peer, usize::MAX);
    }

    /// Records that a connection replays no more.
    pub(super) fn end_replay(&mut self, origin: PeerOrigin, peer: PeerId) {
        if let Some(held) = self.all.get_mut(&origin)
            && held.replaying.remove(&peer)
        {
            self.replaying -= u64::from(held.replaying.is_empty());
        }
    }

    /// Returns the guaranteed part of this rate for a connection that replays, or is about to: the rate is
    /// divided by origin first, then by connection.
    pub(super) fn replay_share(&self, bytes_per_s: u64, origin: PeerOrigin, peer: PeerId) -> u64 {
        let held = self.all.get(&origin);
        let others = held.map_or(0, |held| {
            held.replaying.len() - usize::from(held.replaying.contains(&peer))
        });
        let is_new = held.is_none_or(|held| held.replaying.is_empty());
        let origins = self.replaying + u64::from(is_new);
        bytes_per_s / origins.max(1) / (others as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: u8) -> PeerOrigin {
        PeerOrigin::V4([10, 0, 0, number].into())
    }

    #[test]
    fn replay_rate_is_divided_by_origin_then_connection() {
        let mut origins = Origins::default();
        for peer in 1..=10 {
            origins.connect(origin(1), PeerId(peer));
        }
        origins.connect(origin(2), PeerId(20));
        let share =
            |origins: &Origins, at, peer| origins.replay_share(1_200, origin(at), PeerId(peer));
        assert_eq!(share(&origins, 1, 1), 1_200);
        assert!(origins.begin_replay(origin(1), PeerId(1), 3));
        assert_eq!((share(&origins, 1, 1), share(&origins, 1, 2)), (1_200, 600));
        assert_eq!(share(&origins, 2, 20), 600);
        assert!(origins.begin_replay(origin(1), PeerId(2), 3));
        assert!(origins.begin_replay(origin(1), PeerId(3), 3));
        assert!(!origins.begin_replay(origin(1), PeerId(4), 3));
        assert!(origins.begin_replay(origin(1), PeerId(3), 3));
        assert_eq!(
            share(&origins, 2, 20),
            600,
            "whatever the other's connections"
        );
        assert!(origins.begin_replay(origin(2), PeerId(20), 3));
        assert_eq!((share(&origins, 1, 1), share(&origins, 2, 20)), (200, 600));
        for peer in 1..=3 {
            origins.end_replay(origin(1), PeerId(peer));
            origins.end_replay(origin(1), PeerId(peer));
        }
        assert_eq!(share(&origins, 2, 20), 1_200);
        assert!(!origins.begin_replay(origin(9), PeerId(90), 3));
    }

    #[test]
    fn largest_origin_gives_way_to_smaller_ones_only() {
        let mut origins = Origins::default();
        assert_eq!(origins.to_give_way(origin(1)), None);
        for peer in [1, 2, 3] {
            origins.connect(origin(1), PeerId(peer));
        }
        origins.connect(origin(2), PeerId(4));
        assert_eq!(origins.to_give_way(origin(3)), Some(PeerId(3)));
        assert_eq!(origins.to_give_way(origin(2)), Some(PeerId(3)));
        assert_eq!(origins.to_give_way(origin(1)), None);
        origins.connect(origin(2), PeerId(5));
        assert_eq!(origins.to_give_way(origin(2)), None);
        assert!(!origins.disconnect(origin(1), PeerId(3)));
        assert_eq!(origins.to_give_way(origin(3)), Some(PeerId(5)));
        for peer in [1, 2] {
            assert_eq!(origins.disconnect(origin(1), PeerId(peer)), peer == 2);
        }
        assert!(!origins.disconnect(origin(1), PeerId(1)));
        assert_eq!(origins.to_give_way(origin(1)), Some(PeerId(5)));
    }

    #[test]
    fn further_connection_of_a_session_takes_no_place() {
        let mut origins = Origins::default();
        origins.connect(origin(1), PeerId(1));
        for peer in [2, 3, 4] {
            origins.connect(origin(1), PeerId(peer));
            assert!(!origins.join(origin(1), origin(1), PeerId(peer)));
        }
        assert_eq!(origins.to_give_way(origin(2)), None);
        // From another address it moves to that of its session.
        origins.connect(origin(2), PeerId(5));
        assert!(origins.join(origin(2), origin(1), PeerId(5)));
        assert!(origins.begin_replay(origin(1), PeerId(5), 1));
        for peer in 1..=4 {
            assert!(!origins.disconnect(origin(1), PeerId(peer)));
        }
        assert_eq!(origins.to_give_way(origin(2)), None);
        assert!(origins.disconnect(origin(1), PeerId(5)));
        assert_eq!(origins.replay_share(8, origin(2), PeerId(6)), 8);
    }
}
