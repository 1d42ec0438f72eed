//! Connections of one kind by origin, and the choice of the one that gives way when all places are taken
//! (docs/PROTOCOL.md §6.4).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::serve::peer_id::PeerId;
use crate::types::PeerOrigin;

/// The connections that hold a place of one kind.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_origin: BTreeMap<PeerOrigin, BTreeSet<PeerId>>,
    /// Each origin by its number of places, then by its oldest connection: an address decides nothing.
    by_size: BTreeSet<(usize, Reverse<PeerId>, PeerOrigin)>,
    taken: usize,
}

impl Places {
    /// Returns the number of taken places.
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Gives a connection a place.
    pub(super) fn take(&mut self, origin: PeerOrigin, peer: PeerId) {
        self.resize(origin, |held| held.insert(peer));
    }

    /// Frees the place of a connection, if it has one.
    pub(super) fn free(&mut self, origin: PeerOrigin, peer: PeerId) {
        if self.by_origin.contains_key(&origin) {
            self.resize(origin, |held| held.remove(&peer));
        }
    }

    /// Returns the newest connection of the origin with the most places, if that has at least two more than
    /// `than`: closing it in favour of a connection of `than` makes the division fairer.
    pub(super) fn to_give_way(&self, than: PeerOrigin) -> Option<PeerId> {
        let own = self.by_origin.get(&than).map_or(0, BTreeSet::len);
        let (most, _, origin) = self.by_size.last()?;
        let held = self.by_origin.get(origin).filter(|_| *most > own + 1)?;
        held.last().copied()
    }

    /// Returns the oldest connection of the origin with the most places; among equal ones, of the origin
    /// with the oldest.
    pub(super) fn oldest_of_largest(&self) -> Option<PeerId> {
        let (_, _, origin) = self.by_size.last()?;
        self.by_origin.get(origin)?.first().copied()
    }

    fn resize(&mut self, origin: PeerOrigin, change: impl FnOnce(&mut BTreeSet<PeerId>) -> bool) {
        let held = self.by_origin.entry(origin).or_default();
        let size = |held: &BTreeSet<PeerId>| {
            let oldest = held.first()?;
            Some((held.len(), Reverse(*oldest), origin))
        };
        let (before, had) = (size(held), held.len());
        change(held);
        let (after, has) = (size(held), held.len());
        self.taken = self.taken - had + has;
        if let Some(before) = before {
            self.by_size.remove(&before);
        }
        if let Some(after) = after {
            self.by_size.insert(after);
        } else {
            self.by_origin.remove(&origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: u8) -> PeerOrigin {
        PeerOrigin::V4([10, 0, 0, number].into())
    }

    #[test]
    fn largest_origin_gives_way_to_smaller_ones_only() {
        let mut places = Places::default();
        assert_eq!(places.to_give_way(origin(1)), None);
        for peer in [1, 2, 3] {
            places.take(origin(1), PeerId(peer));
            places.take(origin(1), PeerId(peer));
        }
        places.take(origin(2), PeerId(4));
        assert_eq!(places.taken(), 4);
        assert_eq!(places.to_give_way(origin(3)), Some(PeerId(3)));
        assert_eq!(places.oldest_of_largest(), Some(PeerId(1)));
        assert_eq!(places.to_give_way(origin(2)), Some(PeerId(3)));
        assert_eq!(places.to_give_way(origin(1)), None);
        places.take(origin(2), PeerId(5));
        assert_eq!(places.to_give_way(origin(2)), None);
        places.free(origin(1), PeerId(3));
        places.free(origin(1), PeerId(3));
        places.free(origin(9), PeerId(3));
        assert_eq!((places.taken(), places.by_size.len()), (4, 2));
        assert_eq!(places.to_give_way(origin(3)), Some(PeerId(2)));
        for peer in [1, 2] {
            places.free(origin(1), PeerId(peer));
        }
        assert_eq!(places.to_give_way(origin(1)), Some(PeerId(5)));
        for peer in [4, 5] {
            places.free(origin(2), PeerId(peer));
        }
        assert_eq!((places.taken(), places.by_origin.len()), (0, 0));
        assert_eq!(places.to_give_way(origin(3)), None);
    }

    #[test]
    fn oldest_of_equal_origins_gives_way_at_any_address() {
        let mut places = Places::default();
        for (address, peer) in [(5, 1), (1, 2), (9, 3)] {
            places.take(origin(address), PeerId(peer));
        }
        assert_eq!(places.oldest_of_largest(), Some(PeerId(1)));
        places.free(origin(5), PeerId(1));
        assert_eq!(places.oldest_of_largest(), Some(PeerId(2)));
        places.take(origin(9), PeerId(4));
        assert_eq!(places.oldest_of_largest(), Some(PeerId(3)));
    }
}
