//! Sequences that came with two contents: the publisher is asked for its own copy until that comes
//! or the window forgets the sequence (docs/PROTOCOL.md §5.2).
//!
//! The memory of contents marks the contested sequences, so its span bounds their number, however many
//! somebody forges. This type holds those of them that wait to be requested, or for their copy.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::types::{Nanos, Sequence, SequenceRange};

/// Requests after which a wait grows no more: an outage, or steady forgery, must not delay decisions.
const ATTEMPTS_MAX: u32 = 4;

/// When a contested sequence is requested next, and the number of requests so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Schedule {
    at: Nanos,
    attempts: u32,
}

/// Contested sequences that wait to be requested, or for their copy. Each has a time of its own, so that
/// no newer one postpones it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ContestedSequences {
    schedules: BTreeMap<Sequence, Schedule>,
    /// The same sequences by the time of their next request.
    by_time: BTreeSet<(Nanos, Sequence)>,
}

impl ContestedSequences {
    /// Returns whether no sequence waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.schedules.is_empty()
    }

    /// Returns whether a copy may soon decide about a sequence: one was not requested often yet.
    pub(crate) fn is_settling(&self) -> bool {
        let mut all = self.schedules.values();
        all.any(|it| it.attempts <= ATTEMPTS_MAX)
    }

    /// Returns when the next request is due; [`Nanos::MAX`] if no sequence waits.
    pub(crate) fn due_at(&self) -> Nanos {
        self.by_time.first().map_or(Nanos::MAX, |(at, _)| *at)
    }

    /// Adds a sequence that was not contested before.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.schedule(sequence, Nanos::ZERO, 0);
    }

    /// Requests these contested sequences again at this time, because they were refused for a while.
    pub(crate) fn request_again(&mut self, contested: impl Iterator<Item = Sequence>, at: Nanos) {
        for sequence in contested {
            let before = self.schedules.get(&sequence).map_or(0, |it| it.attempts);
            self.schedule(sequence, at, before);
        }
    }

    /// Requests everything at once, as if for the first time: the repair connection is new.
    pub(crate) fn request_all_again(&mut self) {
        self.by_time.clear();
        for (sequence, schedule) in &mut self.schedules {
            (schedule.at, schedule.attempts) = (Nanos::ZERO, 0);
            self.by_time.insert((schedule.at, *sequence));
        }
    }

    /// The copy of this sequence came that decides between its contents.
    pub(crate) fn decide(&mut self, sequence: Sequence) {
        if let Some(schedule) = self.schedules.remove(&sequence) {
            self.by_time.remove(&(schedule.at, sequence));
        }
    }

    /// Moves everything that is due and still contested to `requests`, in as few ranges as possible.
    /// Multicast may have answered an earlier request, and only a copy that comes over a connection decides.
    /// `wait` returns how long the copies may take after this many attempts.
    pub(crate) fn take_due(
        &mut self,
        now: Nanos,
        is_contested: impl Fn(Sequence) -> bool,
        mut wait: impl FnMut(u32) -> Nanos,
        requests: &mut Vec<SequenceRange>,
    ) {
        let mut due = Vec::new();
        while let Some((_, sequence)) = self.by_time.first().filter(|(at, _)| *at <= now).copied() {
            let attempts = self.schedules.get(&sequence).map_or(0, |it| it.attempts);
            self.decide(sequence);
            if is_contested(sequence) {
                due.push((sequence, (attempts + 1).min(ATTEMPTS_MAX + 1)));
            }
        }
        due.sort_unstable();
        // Those requested together wait together, so that they are requested together again.
        let mut waits = [None; ATTEMPTS_MAX as usize + 1];
        for (sequence, attempts) in due {
            let level = attempts.min(ATTEMPTS_MAX);
            let wait = *waits[level as usize].get_or_insert_with(|| wait(level));
            self.schedule(sequence, now.after(wait), attempts);
            match requests.last_mut() {
                Some(range) if range.last.next() == sequence => range.last = sequence,
                _ => requests.push(SequenceRange::one(sequence)),
            }
        }
    }

    /// Forgets the sequences above `last`.
    pub(crate) fn forget_above(&mut self, last: Sequence) {
        let above = self.schedules.split_off(&last.next());
        for (sequence, schedule) in above {
            self.by_time.remove(&(schedule.at, sequence));
        }
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.schedules.clear();
        self.by_time.clear();
    }

    fn schedule(&mut self, sequence: Sequence, at: Nanos, attempts: u32) {
        self.decide(sequence);
        self.schedules.insert(sequence, Schedule { at, attempts });
        self.by_time.insert((at, sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn taken(contested: &mut ContestedSequences, now: u64) -> Vec<SequenceRange> {
        taken_if(contested, now, |_| true)
    }

    /// A copy may take 10 ns for each attempt.
    fn taken_if(
        contested: &mut ContestedSequences,
        now: u64,
        is_contested: impl Fn(Sequence) -> bool,
    ) -> Vec<SequenceRange> {
        let mut requests = Vec::new();
        let wait = |n| Nanos(u64::from(n) * 10);
        contested.take_due(Nanos(now), is_contested, wait, &mut requests);
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
        assert!(contested.is_empty() && contested.due_at() == Nanos::MAX);
    }

    #[test]
    fn requested_sequences_are_retried_while_contested() {
        let mut contested = ContestedSequences::default();
        contested.add(Sequence(3));
        contested.add(Sequence(4));
        assert_eq!(taken(&mut contested, 100), [range(3, 4)]);
        assert_eq!(contested.due_at(), Nanos(110));
        assert_eq!(taken(&mut contested, 109), []);
        let retried = taken_if(&mut contested, 110, |it| it == Sequence(4));
        assert_eq!(retried, [range(4, 4)]);
        assert_eq!(
            contested.due_at(),
            Nanos(130),
            "the second attempt waits longer"
        );
        assert_eq!(taken_if(&mut contested, 130, |_| false), []);
        assert!(contested.is_empty());
        contested.add(Sequence(9));
        assert_eq!(taken(&mut contested, 200), [range(9, 9)]);
        assert_eq!(contested.due_at(), Nanos(210));
        contested.forget_above(Sequence(8));
        assert!(contested.is_empty() && contested.due_at() == Nanos::MAX);
    }

    #[test]
    fn newer_contested_sequences_postpone_no_retry() {
        let mut contested = ContestedSequences::default();
        contested.add(Sequence(1));
        assert_eq!(taken(&mut contested, 100), [range(1, 1)]);
        for at in 101..110 {
            contested.add(Sequence(at));
            assert_eq!(taken(&mut contested, at), [range(at, at)]);
        }
        assert_eq!(taken(&mut contested, 110), [range(1, 1)]);
    }

    #[test]
    fn wait_of_contested_sequence_is_bounded_and_starts_anew() {
        let mut contested = ContestedSequences::default();
        contested.add(Sequence(1));
        let mut now = 0;
        for waits in [10, 20, 30, 40] {
            assert!(contested.is_settling());
            assert_eq!(taken(&mut contested, now), [range(1, 1)]);
            assert_eq!(contested.due_at(), Nanos(now + waits));
            now += waits;
        }
        for _ in 0..3 {
            assert_eq!(taken(&mut contested, now), [range(1, 1)]);
            assert_eq!(contested.due_at(), Nanos(now + 40), "no longer");
            assert!(!contested.is_settling());
            now += 40;
        }
        contested.request_all_again();
        assert!(contested.is_settling());
        assert_eq!(taken(&mut contested, now), [range(1, 1)]);
        assert_eq!(contested.due_at(), Nanos(now + 10));
    }

    #[test]
    fn refused_sequence_alone_waits_until_requested_again() {
        let mut contested = ContestedSequences::default();
        contested.request_again([].into_iter(), Nanos(100));
        assert!(contested.is_empty(), "nothing of the range is contested");
        for sequence in [3, 4, 5] {
            contested.add(Sequence(sequence));
        }
        let refused = [3, 5].map(Sequence);
        contested.request_again(refused.into_iter(), Nanos(100));
        assert_eq!(taken(&mut contested, 0), [range(4, 4)]);
        assert_eq!(taken(&mut contested, 99), [range(4, 4)]);
        contested.decide(Sequence(4));
        assert_eq!(contested.due_at(), Nanos(100));
        assert_eq!(taken(&mut contested, 100), [range(3, 3), range(5, 5)]);
    }
}
