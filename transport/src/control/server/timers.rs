//! One timer for each connection, in order of time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::ConnectionId;

/// Timers of connections.
#[derive(Default)]
pub(super) struct Timers {
    in_order: BTreeSet<(Instant, ConnectionId)>,
    of: BTreeMap<ConnectionId, Instant>,
}

impl Timers {
    /// Sets the timer of a connection instead of its earlier one.
    pub(super) fn set(&mut self, id: ConnectionId, at: Instant) {
        self.cancel(id);
        self.of.insert(id, at);
        self.in_order.insert((at, id));
    }

    /// Cancels the timer of a connection, if it has one.
    pub(super) fn cancel(&mut self, id: ConnectionId) {
        if let Some(at) = self.of.remove(&id) {
            self.in_order.remove(&(at, id));
        }
    }

    /// Returns when the next timer expires.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }

    /// Takes the next connection whose timer has expired.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<ConnectionId> {
        let (_, id) = *self.in_order.first().filter(|(at, _)| *at <= now)?;
        self.cancel(id);
        Some(id)
    }
}
