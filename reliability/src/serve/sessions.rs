//! The sessions of all subscribers: their numbers, their owners and their budgets.

use std::collections::BTreeMap;
use std::fmt;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::serve::peer_id::PeerId;
use crate::serve::token_bucket::TokenBucket;

/// The shared state of a subscriber's connections.
#[derive(Clone, Debug)]
struct Session {
    /// The connection that follows the session's channels.
    owner: PeerId,
    /// The repair budget, shared by all connections of the session.
    bucket: TokenBucket,
}

/// All sessions by number.
pub(super) struct Sessions {
    all: BTreeMap<u64, Session>,
    /// Generates session numbers with ChaCha20 from a secret, so that known numbers reveal no others.
    numbers: ChaCha20Rng,
    /// Number of subscribers that have reached the end of all their channels.
    at_end: usize,
}

impl fmt::Debug for Sessions {
    /// Prints all state that decides what the core does next, without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("all", &self.all)
            .field("given", &self.numbers.get_word_pos())
            .finish_non_exhaustive()
    }
}

impl Sessions {
    /// Returns an empty set, whose numbers follow from `secret`.
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self {
            all: BTreeMap::new(),
            numbers: ChaCha20Rng::from_seed(secret),
            at_end: 0,
        }
    }

    /// Begins a session of this connection, and returns its number.
    pub(super) fn begin(&mut self, owner: PeerId, bucket: TokenBucket) -> u64 {
        let number = self.next_number();
        self.all.insert(number, Session { owner, bucket });
        number
    }

    /// Returns an unused session number that nobody can compute without the secret.
    fn next_number(&mut self) -> u64 {
        loop {
            let number = self.numbers.next_u64();
            if number != 0 && !self.all.contains_key(&number) {
                return number;
            }
        }
    }

    /// Ends a session.
    pub(super) fn end(&mut self, number: u64) {
        self.all.remove(&number);
    }

    /// Returns the connection that owns a session.
    pub(super) fn owner(&self, number: u64) -> Option<PeerId> {
        Some(self.all.get(&number)?.owner)
    }

    /// Returns the repair budget of a session.
    pub(super) fn bucket_mut(&mut self, number: u64) -> Option<&mut TokenBucket> {
        Some(&mut self.all.get_mut(&number)?.bucket)
    }

    /// Returns the repair budgets of all sessions.
    pub(super) fn buckets_mut(&mut self) -> impl Iterator<Item = &mut TokenBucket> {
        self.all.values_mut().map(|session| &mut session.bucket)
    }

    /// Records whether the subscriber of a session was at the end of all its channels, and is now.
    pub(super) fn set_at_end(&mut self, before: bool, after: bool) {
        self.at_end = self.at_end - usize::from(before) + usize::from(after);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of sessions whose subscriber has not reached the end of all its channels.
    pub(super) fn short_of_end(&self) -> usize {
        self.all.len() - self.at_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Nanos;

    #[test]
    fn session_number_in_use_is_passed_over() {
        let bucket = || TokenBucket::new(1, 1, Nanos::ZERO);
        let mut sessions = Sessions::new([42; 32]);
        let unused = sessions.numbers.clone();
        let first = sessions.begin(PeerId(1), bucket());
        sessions.numbers = unused;
        let second = sessions.begin(PeerId(2), bucket());
        assert_ne!(first, second);
        assert_eq!(sessions.owner(first), Some(PeerId(1)));
        sessions.end(first);
        assert_eq!(sessions.owner(first), None);
        assert!(sessions.bucket_mut(first).is_none());
        assert_eq!(sessions.short_of_end(), 1);
        sessions.set_at_end(false, true);
        assert_eq!(sessions.short_of_end(), 0);
    }
}
