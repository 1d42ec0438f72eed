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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_expire_in_order_and_once() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let [first, second, third] = [1, 2, 3].map(ConnectionId);
        let mut timers = Timers::default();
        assert_eq!((timers.next(), timers.take_expired(now)), (None, None));
        timers.set(first, at(30));
        timers.set(second, at(20));
        timers.set(third, at(10));
        timers.set(third, at(40));
        timers.cancel(second);
        assert_eq!(timers.next(), Some(at(30)));
        assert_eq!(timers.take_expired(at(29)), None);
        let expired: Vec<_> = std::iter::from_fn(|| timers.take_expired(at(40))).collect();
        assert_eq!(expired, [first, third]);
        assert_eq!(timers.next(), None);
    }
}
