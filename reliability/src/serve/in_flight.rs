//! What a connection was given in answer and its other side has not taken in yet: over a link that is
//! slower than what is asked for, asking again is not to be answered again (docs/PROTOCOL.md §6.3).

use std::collections::{BTreeMap, VecDeque};

use crate::types::{Sequence, SequenceRange};

/// Runs that are remembered: those before are forgotten, and given again to whoever asks again.
const RUNS_MAX: usize = 1024;
/// Sequences of one run: none of it has arrived before its last one has.
const RUN_LEN_MAX: u64 = 64;

/// What was given one after the other: sequences of a channel, as the peer numbers its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    at: usize,
    range: SequenceRange,
    /// Bytes that the connection had been given with its last one.
    end_bytes: u64,
}

/// The answers of one connection that are on the way, as its driver says how far it has come. Of one
/// that never says so, nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Whether the driver tells how much is on the way.
    is_told: bool,
    /// Bytes that the connection was ever given.
    given_bytes: u64,
    /// In the order in which it was given.
    runs: VecDeque<Run>,
    /// The same by channel and first sequence; the later of two that begin alike.
    by_first: BTreeMap<(usize, Sequence), Run>,
}

impl InFlight {
    /// The connection was given so many bytes; they end with the answer named, if they are one.
    pub(crate) fn give(&mut self, bytes: usize, answer: Option<(usize, Sequence)>) {
        self.given_bytes += bytes as u64;
        let Some((at, sequence)) = answer.filter(|_| self.is_told) else {
            return;
        };
        let end_bytes = self.given_bytes;
        let continues = |run: &&mut Run| {
            let follows = run.at == at && run.range.last.next() == sequence;
            follows && run.range.len() < RUN_LEN_MAX
        };
        let run = if let Some(run) = self.runs.back_mut().filter(continues) {
            run.range.last = sequence;
            run.end_bytes = end_bytes;
            *run
        } else {
            if self.runs.len() >= RUNS_MAX {
                self.forget_first();
            }
            let range = SequenceRange::one(sequence);
            let run = Run {
                at,
                range,
                end_bytes,
            };
            self.runs.push_back(run);
            run
        };
        self.by_first.insert((at, run.range.first), run);
    }

    /// So many of the bytes given have not arrived yet: what lies before them has.
    pub(crate) fn has_left(&mut self, bytes: usize) {
        self.is_told = true;
        let arrived = self.given_bytes.saturating_sub(bytes as u64);
        while (self.runs.front()).is_some_and(|run| run.end_bytes <= arrived) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(run) = self.runs.pop_front() {
            let key = (run.at, run.range.first);
            if self.by_first.get(&key) == Some(&run) {
                self.by_first.remove(&key);
            }
        }
    }

    /// What there is of this range behind those that it begins with and that are on the way: what has
    /// been answered of a question asked again is its beginning.
    pub(crate) fn rest_of(&self, at: usize, range: SequenceRange) -> Option<SequenceRange> {
        let mut rest = range;
        while let Some((_, run)) = self
            .by_first
            .range((at, Sequence::NONE)..=(at, rest.first))
            .next_back()
            && run.range.last >= rest.first
        {
            rest = SequenceRange::new(run.range.last.next(), rest.last)?;
        }
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn give(way: &mut InFlight, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            way.give(100, Some((0, Sequence(sequence))));
        }
    }

    #[test]
    fn what_was_given_is_on_the_way_until_it_has_arrived() {
        let mut way = InFlight::default();
        give(&mut way, [1]);
        assert_eq!(way.rest_of(0, run(1, 1)), Some(run(1, 1)), "nobody tells");
        way.has_left(100);
        give(&mut way, 5..=7);
        way.give(50, None);
        give(&mut way, [9, 8]);
        assert_eq!(way.rest_of(0, run(5, 12)), Some(run(10, 12)));
        assert_eq!(way.rest_of(0, run(6, 9)), None);
        assert_eq!(way.rest_of(0, run(4, 9)), Some(run(4, 9)));
        assert_eq!(way.rest_of(1, run(5, 9)), Some(run(5, 9)));
        way.has_left(251);
        assert_eq!(way.rest_of(0, run(5, 9)), None);
        way.has_left(250);
        assert_eq!(way.rest_of(0, run(5, 9)), Some(run(5, 9)));
        assert_eq!(way.rest_of(0, run(8, 10)), Some(run(10, 10)));
        way.has_left(1);
        assert_eq!(way.rest_of(0, run(8, 9)), Some(run(9, 9)));
        way.has_left(0);
        assert_eq!(way.rest_of(0, run(8, 9)), Some(run(8, 9)));
    }

    #[test]
    fn twice_sent_is_in_flight_until_later_arrives() {
        let mut way = InFlight::default();
        way.has_left(0);
        give(&mut way, [3, 3]);
        way.has_left(100);
        assert_eq!(way.rest_of(0, run(3, 3)), None);
        way.has_left(0);
        assert_eq!(way.rest_of(0, run(3, 3)), Some(run(3, 3)));
    }

    #[test]
    fn so_much_is_remembered_and_no_more() {
        let mut way = InFlight::default();
        way.has_left(0);
        let runs = RUNS_MAX as u64 + 10;
        give(&mut way, (1..=runs).map(|it| 2 * it));
        assert_eq!((way.runs.len(), way.by_first.len()), (RUNS_MAX, RUNS_MAX));
        assert_eq!(way.rest_of(0, run(20, 20)), Some(run(20, 20)));
        assert_eq!(way.rest_of(0, run(22, 22)), None);
    }

    #[test]
    fn one_run_does_not_grow_for_ever() {
        let mut way = InFlight::default();
        way.has_left(0);
        give(&mut way, 1..=RUN_LEN_MAX + 1);
        way.has_left(100);
        assert_eq!(way.rest_of(0, run(1, 1)), Some(run(1, 1)));
        assert_eq!(way.rest_of(0, run(RUN_LEN_MAX + 1, RUN_LEN_MAX + 1)), None);
    }
}
