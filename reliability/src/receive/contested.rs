//! Sequences that came with two contents: the publisher is asked for its own copy until that comes
//! or the window forgets the sequence (docs/PROTOCOL.md §5.2).
//!
//! The memory of contents marks the contested sequences, so its span bounds their number, however many
//! somebody forges. This type holds those of them that wait to be requested, or for their copy.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::types::{Nanos, Sequence, SequenceRange};

/// Contested sequences that wait to be requested, or for the publisher's copy.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ContestedSequences {
    waiting: BTreeSet<Sequence>,
    not_before: Nanos,
    /// Sequences that were requested, and when to look whether their copies came.
    requested: BTreeSet<Sequence>,
    retry_at: Nanos,
    attempts: u32,
}

impl ContestedSequences {
    /// Returns whether no sequence waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.requested.is_empty()
    }

    /// Returns when the next request is due; [`Nanos::MAX`] if no sequence waits.
    pub(crate) fn due_at(&self) -> Nanos {
        let request = match self.waiting.is_empty() {
            true => Nanos::MAX,
            false => self.not_before,
        };
        let retry = match self.requested.is_empty() {
            true => Nanos::MAX,
            false => self.retry_at,
        };
        request.min(retry)
    }

    /// Adds a sequence that was not contested before.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.waiting.insert(sequence);
    }

    /// Requests the contested sequences of `range`, which are these, again at this time.
    pub(crate) fn request_again(
        &mut self,
        contested: impl Iterator<Item = Sequence>,
        range: SequenceRange,
        at: Nanos,
    ) {
        let mut contested = contested.peekable();
        if contested.peek().is_some() {
            remove(&mut self.waiting, range);
            remove(&mut self.requested, range);
            self.waiting.extend(contested);
            self.not_before = at;
        }
    }

    /// The copy of this sequence came that decides between its contents.
    pub(crate) fn decide(&mut self, sequence: Sequence) {
        self.waiting.remove(&sequence);
        self.requested.remove(&sequence);
    }

    /// Requests again what was requested and is still contested, if its time is over. Multicast may have
    /// answered, and only a copy that comes over a connection decides.
    pub(crate) fn retry(&mut self, now: Nanos, mut is_contested: impl FnMut(Sequence) -> bool) {
        if self.requested.is_empty() || now < self.retry_at {
            return;
        }
        let before = self.waiting.len();
        let requested = std::mem::take(&mut self.requested).into_iter();
        self.waiting
            .extend(requested.filter(|it| is_contested(*it)));
        self.attempts = match self.waiting.len() > before {
            true => self.attempts.saturating_add(1),
            false => 0,
        };
    }

    /// Moves everything that is due to `requests`, in as few ranges as possible. `wait` returns how long
    /// the copies may take after this many attempts.
    pub(crate) fn take_due(
        &mut self,
        now: Nanos,
        wait: impl FnOnce(u32) -> Nanos,
        requests: &mut Vec<SequenceRange>,
    ) {
        if self.waiting.is_empty() || self.not_before > now {
            return;
        }
        for sequence in &self.waiting {
            match requests.last_mut() {
                Some(range) if range.last.next() == *sequence => range.last = *sequence,
                _ => requests.push(SequenceRange::one(*sequence)),
            }
        }
        self.requested.append(&mut self.waiting);
        self.retry_at = now.after(wait(self.attempts + 1));
        self.not_before = Nanos::ZERO;
    }

    /// Forgets the sequences above `last`.
    pub(crate) fn forget_above(&mut self, last: Sequence) {
        self.waiting.retain(|sequence| *sequence <= last);
        self.requested.retain(|sequence| *sequence <= last);
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.requested.clear();
        self.attempts = 0;
    }
}

/// Removes the sequences of `range`, without a look at any other: each of many refusals may name one.
fn remove(sequences: &mut BTreeSet<Sequence>, range: SequenceRange) {
    while let Some(first) = sequences.range(range.first..=range.last).next() {
        let first = *first;
        sequences.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn taken(contested: &mut ContestedSequences, now: u64) -> Vec<SequenceRange> {
        let mut requests = Vec::new();
        contested.take_due(Nanos(now), |n| Nanos(u64::from(n) * 10), &mut requests);
        requests
    }

    #[test]
    fn due_sequences_are_taken_once_as_ranges() {
        let mut contested = ContestedSequences::default();
        assert_eq!(
            (contested.is_empty(), contested.due_at()),
            (true, Nanos::MAX)
        );
        for sequence in [7, 3, 4, 3] {
            contested.add(Sequence(sequence));
        }
        assert_eq!(
            (contested.is_empty(), contested.due_at()),
            (false, Nanos::ZERO)
        );
        assert_eq!(taken(&mut contested, 0), [range(3, 4), range(7, 7)]);
        assert_eq!(taken(&mut contested, 0), []);
        contested.add(Sequence(9));
        contested.clear();
        assert!(contested.is_empty());
    }

    #[test]
    fn requested_sequences_are_retried_while_contested() {
        let mut contested = ContestedSequences::default();
        contested.add(Sequence(3));
        contested.add(Sequence(4));
        assert_eq!(taken(&mut contested, 100), [range(3, 4)]);
        assert_eq!(contested.due_at(), Nanos(110));
        contested.retry(Nanos(109), |_| true);
        assert_eq!(taken(&mut contested, 109), []);
        contested.retry(Nanos(110), |it| it == Sequence(4));
        assert_eq!(taken(&mut contested, 110), [range(4, 4)]);
        assert_eq!(
            contested.due_at(),
            Nanos(130),
            "the second attempt waits longer"
        );
        contested.retry(Nanos(130), |_| false);
        assert!(contested.is_empty());
        contested.add(Sequence(9));
        assert_eq!(taken(&mut contested, 200), [range(9, 9)]);
        assert_eq!(contested.due_at(), Nanos(210));
        contested.forget_above(Sequence(8));
        assert!(contested.is_empty());
    }

    #[test]
    fn contested_of_range_wait_until_requested_again() {
        let mut contested = ContestedSequences::default();
        contested.request_again([].into_iter(), range(4, 4), Nanos(100));
        assert!(contested.is_empty(), "sequence 4 is not contested");
        contested.add(Sequence(3));
        let both = [3, 5].map(Sequence);
        contested.request_again(both.into_iter(), range(3, 9), Nanos(100));
        assert_eq!(contested.due_at(), Nanos(100));
        assert_eq!(taken(&mut contested, 99), []);
        assert_eq!(taken(&mut contested, 100), [range(3, 3), range(5, 5)]);
        // The delay counts once.
        contested.add(Sequence(4));
        assert_eq!(contested.due_at(), Nanos::ZERO);
    }
}
