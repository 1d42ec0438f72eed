//! Shares work among connections: by address first, then among the connections of each address.
//!
//! A pass gives every address that has work the same share, in an order that rotates. Within an address the
//! connections take one turn each, the longest waiting first. An address that uses up its share continues in
//! the next pass. So a connection waits for the shares of the other addresses, however many connections
//! those have. A turn is never cut: an address whose turn took more than twice its share has no share until
//! as many passes have made up for it. A connection without work costs nothing. A connection that ended is
//! taken once more at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tickcast_reliability::types::PeerOrigin;

use super::ConnectionId;

/// Connections that wait for a turn.
pub(super) struct Turns {
    /// Work after which an address has had its share of a pass.
    share: usize,
    /// The waiting connections of each address, the longest waiting first.
    waiting: BTreeMap<PeerOrigin, VecDeque<ConnectionId>>,
    members: BTreeSet<ConnectionId>,
    /// The addresses with waiting connections but for `current`, in the order of service.
    order: VecDeque<PeerOrigin>,
    /// The address whose share is being used.
    current: Option<PeerOrigin>,
    /// Addresses still to serve in this pass.
    origins_left: usize,
    /// Connections that the current address may still serve in this pass: one turn each.
    turns_left: usize,
    /// Work of the current address in this pass.
    work: usize,
    /// The work of addresses beyond twice their share, until passes have made up for it.
    debts: BTreeMap<PeerOrigin, usize>,
}

impl Turns {
    /// Creates an empty queue, with the share of an address in a pass.
    pub(super) const fn new(share: usize) -> Self {
        Self {
            share,
            waiting: BTreeMap::new(),
            members: BTreeSet::new(),
            order: VecDeque::new(),
            current: None,
            origins_left: 0,
            turns_left: 0,
            work: 0,
            debts: BTreeMap::new(),
        }
    }

    /// Returns whether no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether this connection waits.
    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.members.contains(&id)
    }

    /// Appends a connection, unless it waits already.
    pub(super) fn add(&mut self, origin: PeerOrigin, id: ConnectionId) {
        if !self.members.insert(id) {
            return;
        }
        let queue = self.waiting.entry(origin).or_default();
        if queue.is_empty() && self.current != Some(origin) {
            self.order.push_back(origin);
        }
        queue.push_back(id);
    }

    /// Begins a pass over the connections that wait now. Those added meanwhile wait for the next one.
    pub(super) fn begin_pass(&mut self) {
        self.origins_left = self.order.len();
        let paid = self.share.saturating_mul(2);
        self.debts.retain(|_, debt| {
            *debt = debt.saturating_sub(paid);
            *debt > 0
        });
    }

    /// Takes the next connection of the pass; `None` at its end.
    pub(super) fn next(&mut self) -> Option<ConnectionId> {
        loop {
            if self.turns_left > 0
                && self.work < self.share
                && let Some(origin) = self.current
                && let Some(id) = self.waiting.get_mut(&origin).and_then(VecDeque::pop_front)
            {
                self.turns_left -= 1;
                self.members.remove(&id);
                return Some(id);
            }
            self.end_share();
            if self.origins_left == 0 {
                // Otherwise the first address would always be the first.
                if self.order.len() > 1 {
                    self.order.rotate_left(1);
                }
                return None;
            }
            self.origins_left -= 1;
            self.current = self.order.pop_front();
            let payer = (self.current).filter(|it| !self.debts.contains_key(it));
            let queue = payer.and_then(|it| self.waiting.get(&it));
            self.turns_left = queue.map_or(0, VecDeque::len);
            self.work = 0;
        }
    }

    /// Charges work to the address of the connection taken last.
    pub(super) const fn charge(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    fn end_share(&mut self) {
        let Some(origin) = self.current.take() else {
            return;
        };
        let debt = self.work.saturating_sub(self.share.saturating_mul(2));
        if debt > 0 {
            self.debts.insert(origin, debt);
        }
        if self.waiting.get(&origin).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&origin);
        } else {
            self.order.push_back(origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const fn origin(number: u8) -> PeerOrigin {
        PeerOrigin::V4(Ipv4Addr::new(10, 0, 0, number))
    }

    /// Runs a pass in which every turn costs `work` and leaves more to do.
    fn pass(turns: &mut Turns, of: &[(u8, usize)], work: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        turns.begin_pass();
        while let Some(id) = turns.next() {
            let (at, _) = of.iter().find(|(_, number)| *number == id.0).unwrap();
            turns.charge(work);
            turns.add(origin(*at), id);
            taken.push(id.0);
        }
        taken
    }

    #[test]
    fn address_share_is_independent_of_its_connections() {
        let of = [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)];
        let mut turns = Turns::new(20);
        assert!(turns.is_empty() && turns.next().is_none());
        for (at, number) in of {
            turns.add(origin(at), ConnectionId(number));
            turns.add(origin(at), ConnectionId(number));
        }
        // Two turns of 10 are a share, and a connection has one turn in a pass. The first address of a
        // pass is the last of the next.
        assert_eq!(pass(&mut turns, &of, 10), [10, 11, 20, 30, 31]);
        assert_eq!(pass(&mut turns, &of, 10), [20, 30, 31, 12, 10]);
        assert_eq!(pass(&mut turns, &of, 10), [30, 31, 11, 12, 20]);
        assert_eq!(pass(&mut turns, &of, 40), [10, 20, 30]);
        assert_eq!(pass(&mut turns, &of, 0), [20, 31, 30, 11, 12, 10]);
    }

    #[test]
    fn turn_beyond_its_share_is_made_up_for() {
        let of = [(1, 10), (1, 11), (2, 20)];
        let mut turns = Turns::new(20);
        for (at, number) in of {
            turns.add(origin(at), ConnectionId(number));
        }
        turns.begin_pass();
        assert_eq!(turns.next(), Some(ConnectionId(10)));
        turns.charge(40 + 3 * 40);
        turns.add(origin(1), ConnectionId(10));
        assert_eq!(turns.next(), Some(ConnectionId(20)));
        turns.charge(40);
        turns.add(origin(2), ConnectionId(20));
        assert_eq!(turns.next(), None);
        // Three passes pay the debt in the order of service; a turn of twice the share leaves none.
        for _ in 0..2 {
            assert_eq!(pass(&mut turns, &of, 40), [20]);
        }
        let mut next = pass(&mut turns, &of, 40);
        next.sort_unstable();
        assert_eq!(next, [11, 20]);
        assert!(turns.debts.is_empty());
    }

    #[test]
    fn connection_without_work_leaves_the_passes() {
        let mut turns = Turns::new(1);
        for _ in 0..3 {
            turns.add(origin(1), ConnectionId(1));
            turns.add(origin(2), ConnectionId(2));
            assert!(turns.contains(ConnectionId(1)));
            turns.begin_pass();
            let first = turns.next();
            // A connection that is added in a pass waits for the next one, of whatever address it is.
            turns.add(origin(1), ConnectionId(3));
            turns.add(origin(3), ConnectionId(4));
            let rest = [turns.next(), turns.next()];
            assert_eq!(
                (first, rest),
                (Some(ConnectionId(1)), [Some(ConnectionId(2)), None])
            );
            turns.begin_pass();
            let mut taken: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
            taken.sort();
            assert_eq!(taken, [ConnectionId(3), ConnectionId(4)]);
            assert!(turns.is_empty() && !turns.contains(ConnectionId(3)));
            assert!(turns.waiting.is_empty() && turns.order.is_empty());
        }
    }
}
