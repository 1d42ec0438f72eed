//! Pending sequences, kept as runs. A NACK for a whole ring takes no more memory than one for a single
//! datagram, and a repeated NACK is answered once.

use std::collections::VecDeque;

use crate::types::{Sequence, SequenceRange};

/// Disjoint runs in ascending order. The number of requested runs is bounded. Removals from within a run
/// can make more, but never more than there are sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRanges {
    ranges: VecDeque<SequenceRange>,
    sequences: u64,
}

impl PendingRanges {
    /// Adds a run, reports the parts of it that were not pending, and returns their number of sequences.
    /// Returns `None`, without effect, when it would be the run after `ranges_max`.
    pub(super) fn insert(
        &mut self,
        range: SequenceRange,
        ranges_max: usize,
        mut on_new: impl FnMut(SequenceRange),
    ) -> Option<u64> {
        // These runs overlap or touch `range`.
        let from = (self.ranges).partition_point(|r| r.last.next() < range.first);
        let to = (self.ranges).partition_point(|r| r.first <= range.last.next());
        if from >= to {
            if self.ranges.len() >= ranges_max {
                return None;
            }
            self.ranges.insert(from, range);
            self.sequences = self.sequences.saturating_add(range.len());
            on_new(range);
            return Some(range.len());
        }
        let mut rest = Some(range);
        for held in self.ranges.range(from..to) {
            let Some(part) = rest else { break };
            let below = SequenceRange::new(part.first, held.first.previous());
            below.into_iter().for_each(&mut on_new);
            let above = part.last > held.last;
            rest = above.then(|| SequenceRange {
                first: part.first.max(held.last.next()),
                ..part
            });
        }
        rest.into_iter().for_each(on_new);
        let merged = SequenceRange {
            first: self.ranges[from].first.min(range.first),
            last: self.ranges[to - 1].last.max(range.last),
        };
        let before: u64 = self.ranges.range(from..to).map(|r| r.len()).sum();
        self.ranges[from] = merged;
        self.ranges.drain(from + 1..to);
        let added = merged.len() - before;
        self.sequences = self.sequences.saturating_add(added);
        Some(added)
    }

    /// Returns the first pending sequence.
    #[must_use]
    pub(super) fn first(&self) -> Option<Sequence> {
        Some(self.ranges.front()?.first)
    }

    /// Removes and returns the first sequence.
    pub(super) fn pop(&mut self) -> Option<Sequence> {
        let first = self.first()?;
        self.take_below(first.next()).map(|range| range.first)
    }

    /// Removes one sequence at any position and returns whether it was pending. Removal from within a run
    /// leaves two runs.
    pub(super) fn remove(&mut self, sequence: Sequence) -> bool {
        let at = self.ranges.partition_point(|r| r.last < sequence);
        let Some(held) = self.ranges.get_mut(at).filter(|r| r.first <= sequence) else {
            return false;
        };
        let (first, last) = (held.first, held.last);
        let below = (first < sequence).then(|| SequenceRange {
            first,
            last: sequence.previous(),
        });
        let above = (sequence < last).then(|| SequenceRange {
            first: sequence.next(),
            last,
        });
        match (below, above) {
            (None, None) => drop(self.ranges.remove(at)),
            (Some(below), Some(above)) => {
                *held = above;
                self.ranges.insert(at, below);
            }
            (Some(rest), None) | (None, Some(rest)) => *held = rest,
        }
        self.sequences -= 1;
        true
    }

    /// Removes and returns the first run, or the part of it below `floor`; `None` when nothing is below.
    pub(super) fn take_below(&mut self, floor: Sequence) -> Option<SequenceRange> {
        let front = self.ranges.front_mut()?;
        if front.first >= floor {
            return None;
        }
        let mut taken = *front;
        if front.last < floor {
            self.ranges.pop_front();
        } else {
            taken.last = floor.previous();
            front.first = floor;
        }
        self.sequences = self.sequences.saturating_sub(taken.len());
        Some(taken)
    }

    /// Removes everything and returns the number of sequences removed.
    pub(super) fn clear(&mut self) -> u64 {
        self.ranges.clear();
        std::mem::take(&mut self.sequences)
    }

    /// Returns the number of runs.
    #[must_use]
    pub(super) fn runs(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the number of pending sequences.
    #[must_use]
    pub(super) const fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Returns whether nothing is pending.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn run(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn insert(pending: &mut PendingRanges, range: SequenceRange, max: usize) -> Option<u64> {
        pending.insert(range, max, |_| ())
    }

    proptest! {
        #[test]
        fn pending_ranges_agree_with_set_model(
            asked in proptest::collection::vec((1u64..200, 0u64..20), 1..60),
            answered in proptest::collection::vec(1u64..220, 0..40),
            floor in 1u64..220,
        ) {
            let mut pending = PendingRanges::default();
            let mut model = BTreeSet::new();
            for (first, more) in asked {
                let wanted: Vec<u64> = (first..=first + more).collect();
                let expected: Vec<u64> =
                    wanted.iter().filter(|s| !model.contains(*s)).copied().collect();
                model.extend(wanted);
                let mut new = Vec::new();
                let added = pending.insert(run(first, first + more), 1000, |part| {
                    new.extend(part.iter().map(|s| s.0));
                });
                prop_assert_eq!(added, Some(expected.len() as u64));
                prop_assert_eq!(new, expected);
                prop_assert_eq!(pending.sequences(), model.len() as u64);
            }
            for sequence in answered {
                let removed = pending.remove(Sequence(sequence));
                prop_assert_eq!(removed, model.remove(&sequence));
                prop_assert_eq!(pending.sequences(), model.len() as u64);
            }
            let gaps = model.iter().filter(|s| !model.contains(&(*s + 1)));
            prop_assert_eq!(pending.runs(), gaps.count());
            while let Some(range) = pending.take_below(Sequence(floor)) {
                for sequence in range.iter() {
                    prop_assert!(model.remove(&sequence.0) && sequence.0 < floor);
                }
            }
            for sequence in model {
                prop_assert_eq!(pending.pop(), Some(Sequence(sequence)));
            }
            prop_assert!(pending.is_empty());
            prop_assert_eq!(pending.sequences(), 0);
        }
    }

    #[test]
    fn pending_run_count_is_bounded_and_adjacent_runs_merge() {
        let mut pending = PendingRanges::default();
        assert_eq!(insert(&mut pending, run(10, 20), 2), Some(11));
        assert_eq!(insert(&mut pending, run(30, 40), 2), Some(11));
        assert_eq!(insert(&mut pending, run(50, 50), 2), None);
        assert_eq!(insert(&mut pending, run(41, 49), 2), Some(9));
        let mut new = Vec::new();
        let added = pending.insert(run(1, u64::MAX), 2, |part| new.push(part));
        assert_eq!(added, Some(u64::MAX - 31));
        assert_eq!(new, [run(1, 9), run(21, 29), run(50, u64::MAX)]);
        assert_eq!(pending.clear(), u64::MAX);
    }

    #[test]
    fn newly_pending_parts_are_never_empty() {
        let mut pending = PendingRanges::default();
        insert(&mut pending, run(10, 20), 9);
        assert!(!pending.is_empty());
        for (first, expected) in [(5, vec![run(5, 9)]), (7, vec![])] {
            let mut new = Vec::new();
            pending.insert(run(first, 20), 9, |part| new.push(part));
            assert_eq!(new, expected);
        }
    }

    #[test]
    fn taking_below_a_floor_splits_the_run_that_crosses_it() {
        let mut pending = PendingRanges::default();
        assert_eq!((pending.first(), pending.pop()), (None, None));
        insert(&mut pending, run(10, 20), 9);
        insert(&mut pending, run(30, 40), 9);
        assert_eq!(pending.first(), Some(Sequence(10)));
        assert_eq!(pending.take_below(Sequence(10)), None);
        assert_eq!(pending.take_below(Sequence(20)), Some(run(10, 19)));
        assert_eq!(
            (pending.first(), pending.sequences()),
            (Some(Sequence(20)), 12)
        );
        assert_eq!(pending.take_below(Sequence(21)), Some(run(20, 20)));
        assert_eq!(pending.take_below(Sequence(99)), Some(run(30, 40)));
        assert!(pending.is_empty() && pending.take_below(Sequence(99)).is_none());
        assert_eq!(pending.clear(), 0);
    }
}
