//! Repairs in flight on one connection: over a slow link, a repeated NACK must not be answered again
//! while its answer is still in flight (docs/PROTOCOL.md §6.3).

use std::collections::{BTreeMap, VecDeque};

use crate::types::{Sequence, SequenceRange};

/// Maximum number of runs kept. Older ones are dropped, and a repeated NACK for them is answered again.
const RUNS_MAX: usize = 1024;
/// Maximum sequences in one run. A run counts as in flight until its last sequence has arrived.
const RUN_LEN_MAX: u64 = 64;

/// Consecutive answers: sequences of a channel, by the peer's index of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    at: usize,
    range: SequenceRange,
    /// Total bytes queued for the connection up to the end of the run.
    end_bytes: u64,
}

/// The answers in flight on one connection, according to its driver. Empty when the driver does not report
/// arrivals.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Whether the driver reports how many bytes are in flight.
    is_reported: bool,
    /// Total bytes ever queued for the connection.
    given_bytes: u64,
    /// The runs in sending order.
    runs: VecDeque<Run>,
    /// The runs by channel and first sequence. Of two runs with the same start, the later one.
    by_first: BTreeMap<(usize, Sequence), Run>,
}

impl InFlight {
    /// Records bytes queued for the connection. If they are an answer, it ends there.
    pub(crate) fn give(&mut self, bytes: usize, answer: Option<(usize, Sequence)>) {
        self.given_bytes += bytes as u64;
        let Some((at, sequence)) = answer.filter(|_| self.is_reported) else {
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

    /// Records how many of the queued bytes have not arrived yet, and drops the runs that have arrived.
    pub(crate) fn has_left(&mut self, bytes: usize) {
        self.is_reported = true;
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

    /// Returns the rest of this range behind the in-flight beginning, because the answers in flight cover the
    /// beginning of a repeated NACK's range.
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
    fn answer_is_in_flight_until_driver_reports_arrival() {
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
    fn in_flight_run_length_is_bounded() {
        let mut way = InFlight::default();
        way.has_left(0);
        give(&mut way, 1..=RUN_LEN_MAX + 1);
        way.has_left(100);
        assert_eq!(way.rest_of(0, run(1, 1)), Some(run(1, 1)));
        assert_eq!(way.rest_of(0, run(RUN_LEN_MAX + 1, RUN_LEN_MAX + 1)), None);
    }
}
