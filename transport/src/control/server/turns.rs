//! Shares work among connections: by address first, then among the connections of each address.
//!
//! A pass gives every address that has work the same share, in an order that rotates. Within an address the
//! connections take one turn each, the longest waiting first. An address that uses up its share continues in
//! the next pass. So a connection waits for the shares of the other addresses, however many connections
//! those have. A connection without work costs nothing. A connection that ended is taken once more at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tickcast_reliability::types::Origin;

use super::ConnectionId;

/// Connections that wait for a turn.
pub(super) struct Turns {
    /// Work after which an address has had its share of a pass.
    share: usize,
    /// The waiting connections of each address, the longest waiting first.
    waiting: BTreeMap<Origin, VecDeque<ConnectionId>>,
    members: BTreeSet<ConnectionId>,
    /// The addresses with waiting connections but for `current`, in the order of service.
    order: VecDeque<Origin>,
    /// The address whose share is being used.
    current: Option<Origin>,
    /// Addresses still to serve in this pass.
    origins_left: usize,
    /// Connections that the current address may still serve in this pass: one turn each.
    turns_left: usize,
    /// Work of the current address in this pass.
    work: usize,
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
    pub(super) fn add(&mut self, origin: Origin, id: ConnectionId) {
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
            let queue = self.current.and_then(|it| self.waiting.get(&it));
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
        if self.waiting.get(&origin).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&origin);
        } else {
            self.order.push_back(origin);
        }
    }
}
