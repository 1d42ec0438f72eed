//! Subscribers whose connection broke before END. They reconnect, so the end of the session waits for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::serve::peer_id::PeerId;
use crate::types::Nanos;

/// The subscribers that are joined, by name, and those whose return is awaited.
#[derive(Debug, Default)]
pub(super) struct Absent {
    joined: BTreeMap<String, BTreeSet<PeerId>>,
    /// The connection that broke, and the end of the wait.
    awaited: BTreeMap<(String, PeerId), Nanos>,
}

impl Absent {
    /// Records that a subscriber joined with this connection: one that is awaited under its name is back.
    pub(super) fn returned(&mut self, name: &str, peer: PeerId) {
        let joined = self.joined.entry(name.to_owned()).or_default();
        joined.insert(peer);
        let first = (name.to_owned(), PeerId(0));
        let awaited = self.awaited.range(first..).next();
        let awaited = awaited.filter(|((of, _), _)| of == name);
        if let Some(awaited) = awaited.map(|(key, _)| key.clone()) {
            self.awaited.remove(&awaited);
        }
    }

    /// Records that a subscriber's connection is no longer joined.
    pub(super) fn left(&mut self, name: &str, peer: PeerId) {
        if let Some(joined) = self.joined.get_mut(name) {
            joined.remove(&peer);
            if joined.is_empty() {
                self.joined.remove(name);
            }
        }
    }

    /// Awaits the subscriber of a broken connection, unless it has already reconnected: the end of a
    /// connection can be noticed late.
    pub(super) fn broke(&mut self, name: &str, peer: PeerId, until: Nanos, max: usize) {
        let joined = self.joined.get(name);
        let is_back = joined.is_some_and(|joined| joined.last().is_some_and(|it| *it > peer));
        if !is_back && self.awaited.len() < max {
            self.awaited.insert((name.to_owned(), peer), until);
        }
    }

    /// Advances time: nobody is awaited longer than until the end of the wait.
    pub(super) fn handle_timeout(&mut self, now: Nanos) {
        self.awaited.retain(|_, until| now < *until);
    }

    /// Returns the number of awaited subscribers.
    pub(super) fn awaited(&self) -> usize {
        self.awaited.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_subscriber_is_awaited_until_return_or_timeout() {
        let mut absent = Absent::default();
        let (a, b) = (PeerId(1), PeerId(2));
        absent.returned("risk-1", a);
        absent.returned("risk-2", b);
        absent.broke("risk-1", a, Nanos(10), 9);
        absent.left("risk-1", a);
        absent.broke("risk-2", b, Nanos(20), 9);
        absent.left("risk-2", b);
        absent.broke("risk-3", PeerId(3), Nanos(20), 2);
        assert_eq!(absent.awaited(), 2, "no more than allowed");
        absent.returned("risk-1", PeerId(4));
        assert_eq!(absent.awaited(), 1);
        absent.returned("risk-1", PeerId(5));
        absent.handle_timeout(Nanos(19));
        assert_eq!(absent.awaited(), 1);
        absent.handle_timeout(Nanos(20));
        assert_eq!(absent.awaited(), 0);
    }

    #[test]
    fn late_report_of_a_broken_connection_awaits_nobody() {
        let mut absent = Absent::default();
        absent.returned("risk-1", PeerId(7));
        absent.returned("risk-1", PeerId(8));
        absent.broke("risk-1", PeerId(7), Nanos(10), 9);
        assert_eq!(absent.awaited(), 0);
        absent.broke("risk-1", PeerId(8), Nanos(10), 9);
        assert_eq!(absent.awaited(), 1, "the other one is an earlier one");
    }
}
