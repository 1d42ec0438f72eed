//! The connections and replays of each origin: the shares that one origin has of what all origins divide
//! (docs/PROTOCOL.md §6.4).

use std::collections::{BTreeMap, BTreeSet};

use crate::serve::peer_id::PeerId;
use crate::serve::places::Places;
use crate::serve::token_bucket::TokenBucket;
use crate::types::{Nanos, PeerOrigin};

#[derive(Debug, Default)]
struct Held {
    /// Number of connections of any kind, including closing ones.
    connections: usize,
    /// Connections that replay now.
    replaying: BTreeSet<PeerId>,
    /// Unread bytes of all its connections: in the core and in the driver.
    unread: usize,
    /// The repair connections whose sessions may READ.
    reading: BTreeSet<PeerId>,
    /// Its guaranteed part of the tokens for READ, while it has any such session.
    read_share: Option<TokenBucket>,
}

/// All origins with a connection.
#[derive(Debug, Default)]
pub(super) struct Origins {
    all: BTreeMap<PeerOrigin, Held>,
    /// The connections without a session, apart from closing ones.
    arriving: Places,
    /// The connections of sessions.
    joined: Places,
    /// Number of origins that replay now.
    replaying: u64,
    /// Number of origins with a session that may READ.
    reading: u64,
}

impl Origins {
    /// Adds a connection without a session. When more than `max` connections are open, returns the one that
    /// must close: the oldest without a session, of the origin with the most of those. So a connection that
    /// never joins costs no session its place, and no newcomer.
    pub(super) fn connect(
        &mut self,
        origin: PeerOrigin,
        peer: PeerId,
        max: usize,
    ) -> Option<PeerId> {
        self.all.entry(origin).or_default().connections += 1;
        self.arriving.take(origin, peer);
        let is_full = self.arriving.taken() + self.joined.taken() > max;
        (self.arriving.oldest_of_largest()).filter(|_| is_full)
    }

    /// Returns whether there are `max` connections of sessions.
    pub(super) const fn is_full(&self, max: usize) -> bool {
        self.joined.taken() >= max
    }

    /// Returns the connection of a session that gives way to a joining one of this origin, if any does.
    pub(super) fn to_give_way(&self, than: PeerOrigin) -> Option<PeerId> {
        self.joined.to_give_way(than)
    }

    /// Moves a connection to those of sessions, and to the origin of its session. Returns whether it was the
    /// last one of the origin before.
    pub(super) fn join(&mut self, from: PeerOrigin, to: PeerOrigin, peer: PeerId) -> bool {
        self.all.entry(to).or_default().connections += 1;
        let is_last = self.disconnect(from, peer);
        self.joined.take(to, peer);
        is_last
    }

    /// Frees what a connection holds, because it is being closed.
    pub(super) fn vacate(&mut self, origin: PeerOrigin, peer: PeerId) {
        self.end_replay(origin, peer);
        self.end_read(origin, peer);
        self.arriving.free(origin, peer);
        self.joined.free(origin, peer);
    }

    /// Removes a connection, and returns whether it was the origin's last.
    pub(super) fn disconnect(&mut self, origin: PeerOrigin, peer: PeerId) -> bool {
        self.vacate(origin, peer);
        let Some(held) = self.all.get_mut(&origin) else {
            return false;
        };
        held.connections -= 1;
        let is_last = held.connections == 0;
        if is_last {
            self.all.remove(&origin);
        }
        is_last
    }

    /// Records that the unread bytes of a connection changed.
    pub(super) fn set_unread(&mut self, origin: PeerOrigin, before: usize, after: usize) {
        if let Some(held) = self.all.get_mut(&origin) {
            held.unread = held.unread.saturating_sub(before).saturating_add(after);
        }
    }

    /// Returns the unread bytes of all connections of an origin.
    pub(super) fn unread(&self, origin: PeerOrigin) -> usize {
        self.all.get(&origin).map_or(0, |held| held.unread)
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

    /// Records that the session of a repair connection may READ. The share of a new origin begins empty: no
    /// origin gains by leaving and coming back.
    pub(super) fn begin_read(&mut self, origin: PeerOrigin, peer: PeerId, now: Nanos) {
        if let Some(held) = self.all.get_mut(&origin) {
            self.reading += u64::from(held.reading.is_empty());
            held.reading.insert(peer);
            held.read_share
                .get_or_insert_with(|| TokenBucket::new(0, 0, now));
        }
    }

    /// Records that the session of a repair connection may READ no more.
    pub(super) fn end_read(&mut self, origin: PeerOrigin, peer: PeerId) {
        if let Some(held) = self.all.get_mut(&origin)
            && held.reading.remove(&peer)
            && held.reading.is_empty()
        {
            held.read_share = None;
            self.reading -= 1;
        }
    }

    /// Returns the guaranteed part of the tokens for READ of an origin, and the number of origins that
    /// divide them; `None` if no session of the origin may READ.
    pub(super) fn read_share(&mut self, origin: PeerOrigin) -> Option<(&mut TokenBucket, u64)> {
        let share = self.all.get_mut(&origin)?.read_share.as_mut()?;
        Some((share, self.reading))
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
            origins.connect(origin(1), PeerId(peer), 99);
        }
        origins.connect(origin(2), PeerId(20), 99);
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
    fn connection_without_session_takes_no_place_of_a_session() {
        let mut origins = Origins::default();
        for peer in 1..=4 {
            assert_eq!(origins.connect(origin(1), PeerId(peer), 6), None);
            assert!(!origins.join(origin(1), origin(1), PeerId(peer)));
        }
        for peer in 5..=6 {
            assert_eq!(origins.connect(origin(2), PeerId(peer), 6), None);
        }
        // All six are taken. Of those that have not joined, the largest origin gives way; no session does.
        assert_eq!(origins.connect(origin(3), PeerId(7), 6), Some(PeerId(5)));
        origins.vacate(origin(2), PeerId(5));
        // A closing connection takes no place, and is never chosen again.
        assert_eq!(origins.connect(origin(3), PeerId(8), 6), Some(PeerId(7)));
        origins.vacate(origin(3), PeerId(7));
        assert_eq!(origins.connect(origin(2), PeerId(9), 7), None);
        assert!(origins.is_full(4) && !origins.is_full(5));
        assert_eq!(origins.to_give_way(origin(4)), Some(PeerId(4)));
        origins.vacate(origin(1), PeerId(4));
        assert!(!origins.is_full(4));
    }

    #[test]
    fn further_connection_moves_to_the_origin_of_its_session() {
        let mut origins = Origins::default();
        origins.connect(origin(1), PeerId(1), 9);
        assert!(!origins.join(origin(1), origin(1), PeerId(1)));
        origins.connect(origin(2), PeerId(5), 9);
        assert!(origins.join(origin(2), origin(1), PeerId(5)));
        assert!(origins.begin_replay(origin(1), PeerId(5), 1));
        // Each connection counts, whatever its session.
        assert_eq!(origins.to_give_way(origin(2)), Some(PeerId(5)));
        assert!(!origins.disconnect(origin(1), PeerId(1)));
        assert!(origins.disconnect(origin(1), PeerId(5)));
        assert_eq!(origins.to_give_way(origin(2)), None);
        assert_eq!(origins.replay_share(8, origin(2), PeerId(6)), 8);
    }
}
