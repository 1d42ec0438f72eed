//! The order in which connections are served: by origin, then by session, then by connection, so that neither
//! many connections nor many sessions of one origin delay another origin (docs/PROTOCOL.md §6.4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::serve::lane::Lane;
use crate::serve::peer_id::PeerId;
use crate::types::{Nanos, PeerOrigin};

/// The place of a connection in the order of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The origin of the session.
    pub(super) origin: PeerOrigin,
    /// The connection that owns the session; the connection itself before it has one.
    pub(super) owner: PeerId,
    pub(super) peer: PeerId,
}

/// Members that wait for their turn within a group, and whether the group itself waits.
#[derive(Debug)]
struct Group<K> {
    waiting: VecDeque<K>,
    is_waiting: bool,
}

impl<K> Default for Group<K> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            is_waiting: false,
        }
    }
}

impl<K> Group<K> {
    /// Adds a member, and returns whether the group must be added to its own group.
    fn push(&mut self, member: K) -> bool {
        self.waiting.push_back(member);
        !std::mem::replace(&mut self.is_waiting, true)
    }

    /// Removes the next member, and returns it and whether the group still waits.
    fn pop(&mut self) -> Option<(K, bool)> {
        let member = self.waiting.pop_front();
        self.is_waiting = !self.waiting.is_empty();
        Some((member?, self.is_waiting))
    }
}

/// The connections with something of one kind to send. Each call takes constant time, apart from the search
/// of a group by its key. A group stays allocated as long as its origin or its owner is connected.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The only connection that waits, while it is the only one: the usual case takes no search.
    only: Option<Place>,
    order: VecDeque<PeerOrigin>,
    owners: BTreeMap<PeerOrigin, Group<PeerId>>,
    connections: BTreeMap<PeerId, Group<PeerId>>,
    /// Connections that have no budget before a time.
    paused: BTreeSet<(Nanos, PeerId)>,
}

impl Turns {
    /// Adds a connection at the end of its session, its session at the end of its origin, and its origin at
    /// the end of the order, unless they wait already. The caller adds a connection once.
    pub(super) fn push(&mut self, place: Place) {
        if let Some(only) = self.only.take() {
            self.enqueue(only);
        } else if self.order.is_empty() {
            self.only = Some(place);
            return;
        }
        self.enqueue(place);
    }

    fn enqueue(&mut self, place: Place) {
        let Place {
            origin,
            owner,
            peer,
        } = place;
        let is_new = self.connections.entry(owner).or_default().push(peer);
        if is_new && self.owners.entry(origin).or_default().push(owner) {
            self.order.push_back(origin);
        }
    }

    /// Removes and returns the connection whose turn it is.
    pub(super) fn pop(&mut self) -> Option<PeerId> {
        if let Some(only) = self.only.take() {
            return Some(only.peer);
        }
        loop {
            let origin = self.order.pop_front()?;
            // Groups of closed connections are passed over.
            let Some(owners) = self.owners.get_mut(&origin) else {
                continue;
            };
            let Some((owner, has_more_owners)) = owners.pop() else {
                self.owners.remove(&origin);
                continue;
            };
            if has_more_owners {
                self.order.push_back(origin);
            }
            let connections = self.connections.get_mut(&owner);
            let Some((peer, has_more)) = connections.and_then(Group::pop) else {
                continue;
            };
            if has_more && owners.push(owner) {
                self.order.push_back(origin);
            }
            return Some(peer);
        }
    }

    /// Reminds the caller at this time to add a connection again. It may do so before.
    pub(super) fn pause(&mut self, peer: PeerId, until: Nanos) {
        self.paused.insert((until, peer));
    }

    /// Removes and returns a connection whose pause is over.
    pub(super) fn resumed(&mut self, now: Nanos) -> Option<PeerId> {
        let (until, _) = self.paused.first()?;
        (*until <= now).then(|| self.paused.pop_first().map(|(_, peer)| peer))?
    }

    /// Returns the end of the first pause.
    pub(super) fn resumes_at(&self) -> Option<Nanos> {
        self.paused.first().map(|(until, _)| *until)
    }

    /// Returns whether a connection waits for its turn, apart from paused ones.
    pub(super) fn is_waiting(&self) -> bool {
        self.only.is_some() || !self.order.is_empty()
    }

    /// Ends a session: its connections wait on their own from now on.
    fn disband(&mut self, origin: PeerOrigin, owner: PeerId) {
        if let Some(only) = self.only.as_mut().filter(|only| only.owner == owner) {
            only.owner = only.peer;
        }
        let group = self.connections.remove(&owner);
        for peer in group.into_iter().flat_map(|group| group.waiting) {
            self.push(Place {
                origin,
                owner: peer,
                peer,
            });
        }
    }

    /// Forgets a closed connection, which owns no session any more.
    fn forget(&mut self, peer: PeerId) {
        self.only.take_if(|only| only.peer == peer);
        self.connections.remove(&peer);
    }

    /// Forgets an origin without connections. While it is in the order it stays known, so that it has one
    /// turn in each round if it returns.
    fn forget_origin(&mut self, origin: PeerOrigin) {
        match self.owners.get_mut(&origin) {
            Some(owners) if owners.is_waiting => owners.waiting.clear(),
            _ => drop(self.owners.remove(&origin)),
        }
    }
}

/// The turns of all lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The turns of each [`Lane`].
    turns: [Turns; 3],
    /// The lane that was served last.
    last: Lane,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            turns: Default::default(),
            last: Lane::Replay,
        }
    }
}

impl Lanes {
    /// Passes to the next lane, and returns it.
    pub(super) const fn next(&mut self) -> Lane {
        self.last = self.last.next();
        self.last
    }

    pub(super) const fn turns(&self, lane: Lane) -> &Turns {
        &self.turns[lane as usize]
    }

    pub(super) const fn turns_mut(&mut self, lane: Lane) -> &mut Turns {
        &mut self.turns[lane as usize]
    }

    /// Ends a session, as [`Turns::disband`].
    pub(super) fn disband(&mut self, origin: PeerOrigin, owner: PeerId) {
        for turns in &mut self.turns {
            turns.disband(origin, owner);
        }
    }

    /// Forgets a closed connection, as [`Turns::forget`].
    pub(super) fn forget(&mut self, peer: PeerId) {
        for turns in &mut self.turns {
            turns.forget(peer);
        }
    }

    /// Forgets an origin, as [`Turns::forget_origin`].
    pub(super) fn forget_origin(&mut self, origin: PeerOrigin) {
        for turns in &mut self.turns {
            turns.forget_origin(origin);
        }
    }

    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        self.turns.iter().any(Turns::is_waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(origin: u8, owner: u64, peer: u64) -> Place {
        Place {
            origin: PeerOrigin::V4([10, 0, 0, origin].into()),
            owner: PeerId(owner),
            peer: PeerId(peer),
        }
    }

    /// Serves `count` turns; each connection always has more to send.
    fn serve(turns: &mut Turns, all: &[Place], count: usize) -> Vec<u64> {
        let again = |turns: &mut Turns| {
            let peer = turns.pop().unwrap();
            turns.push(*all.iter().find(|it| it.peer == peer).unwrap());
            peer.0
        };
        (0..count).map(|_| again(turns)).collect()
    }

    #[test]
    fn turns_are_divided_by_origin_then_session() {
        let mut turns = Turns::default();
        let mut all: Vec<Place> = (100..500).map(|it| place(1, it, it)).collect();
        // The second origin has two sessions, one of them with three connections.
        all.extend([
            place(2, 1, 1),
            place(2, 1, 2),
            place(2, 1, 3),
            place(2, 4, 4),
        ]);
        all.push(place(3, 9, 9));
        for it in &all {
            turns.push(*it);
        }
        let served = serve(&mut turns, &all, 1_200);
        let count =
            |range: std::ops::Range<u64>| served.iter().filter(|it| range.contains(it)).count();
        assert_eq!(
            (count(100..500), count(1..5), count(9..10)),
            (400, 400, 400)
        );
        assert_eq!((count(1..4), count(4..5)), (200, 200));
        for peer in 1..4 {
            assert!((66..=67).contains(&count(peer..peer + 1)), "{peer}");
        }
        for peer in 100..500 {
            assert_eq!(count(peer..peer + 1), 1);
        }
    }

    #[test]
    fn late_connection_waits_for_one_turn_of_each_origin() {
        let mut turns = Turns::default();
        let mut all: Vec<Place> = (0..300)
            .map(|it| place(it as u8 % 8, 100 + it, 100 + it))
            .collect();
        for it in &all {
            turns.push(*it);
        }
        serve(&mut turns, &all, 77);
        all.push(place(9, 1, 1));
        turns.push(place(9, 1, 1));
        let served = serve(&mut turns, &all, 9);
        assert!(served.contains(&1), "{served:?}");
    }

    #[test]
    fn ended_session_leaves_turns_to_its_connections() {
        let mut turns = Turns::default();
        for peer in [1, 2, 3] {
            turns.push(place(1, 1, peer));
        }
        let origin = place(1, 1, 1).origin;
        turns.disband(origin, PeerId(1));
        turns.forget(PeerId(1));
        let mut rest: Vec<u64> = std::iter::from_fn(|| turns.pop()).map(|it| it.0).collect();
        rest.sort_unstable();
        assert_eq!(rest, [2, 3]);
        assert!(!turns.is_waiting());
        turns.push(place(1, 4, 4));
        turns.push(place(1, 5, 5));
        turns.forget_origin(origin);
        assert_eq!(turns.pop(), None);
        turns.push(place(1, 7, 7));
        turns.forget(PeerId(7));
        assert_eq!(turns.pop(), None);
        turns.push(place(1, 6, 6));
        assert_eq!(turns.pop(), Some(PeerId(6)));
    }

    #[test]
    fn origin_that_returns_has_one_turn_in_each_round() {
        let mut turns = Turns::default();
        let all = [place(1, 1, 1), place(2, 2, 2), place(2, 3, 3)];
        turns.push(all[1]);
        turns.push(all[0]);
        // The connections of the second origin end while it waits, and others take their place.
        for _ in 0..5 {
            turns.forget(PeerId(2));
            turns.forget_origin(all[1].origin);
            turns.push(all[1]);
        }
        let served = serve(&mut turns, &all, 20);
        assert_eq!(served.iter().filter(|it| **it == 1).count(), 10);
        turns.forget(PeerId(2));
        turns.forget_origin(all[1].origin);
        assert_eq!(turns.pop(), Some(PeerId(1)));
        assert_eq!((turns.pop(), turns.owners.len()), (None, 1));
    }

    #[test]
    fn paused_connection_resumes_at_its_time() {
        let mut turns = Turns::default();
        turns.pause(PeerId(1), Nanos(20));
        turns.pause(PeerId(2), Nanos(10));
        assert_eq!(turns.resumes_at(), Some(Nanos(10)));
        assert_eq!(turns.resumed(Nanos(9)), None);
        assert_eq!(turns.resumed(Nanos(20)), Some(PeerId(2)));
        assert_eq!(turns.resumed(Nanos(20)), Some(PeerId(1)));
        assert_eq!(turns.resumed(Nanos(99)), None);
    }
}
