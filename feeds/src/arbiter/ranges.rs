//! Sets of message sequences as ranges.

use std::collections::VecDeque;

/// The messages `from..to`, and a tag of the caller's.
#[derive(Clone, Copy, Debug)]
struct Range {
    from: u64,
    to: u64,
    tag: u64,
}

/// The part of a set that was taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) messages: u64,
    /// The smallest tag of the ranges.
    pub(super) tag: u64,
}

/// Disjoint ranges in order. At the limit the oldest range is forgotten, but still counted.
#[derive(Clone, Debug)]
pub(super) struct Ranges {
    all: VecDeque<Range>,
    limit: usize,
    messages: u64,
}

impl Ranges {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            all: VecDeque::with_capacity(limit + 1),
            limit,
            messages: 0,
        }
    }

    /// Returns the messages in the set, with those of forgotten ranges.
    pub(super) const fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.messages = 0;
    }

    /// Adds a range that lies beyond all others.
    pub(super) fn push(&mut self, from: u64, to: u64, tag: u64) {
        self.messages += to - from;
        match self.all.back_mut() {
            Some(last) if last.to == from && last.tag == tag => last.to = to,
            _ => self.all.push_back(Range { from, to, tag }),
        }
        self.bound();
    }

    /// Adds a range that lies before all others, if that is not forgotten at once.
    pub(super) fn push_front(&mut self, from: u64, to: u64, tag: u64) {
        self.messages += to - from;
        if self.all.len() < self.limit {
            self.all.push_front(Range { from, to, tag });
        }
    }

    /// Takes `from..to` out of the set.
    pub(super) fn take(&mut self, from: u64, to: u64) -> Taken {
        let mut taken = Taken::default();
        let mut at = self.all.partition_point(|range| range.to <= from);
        while let Some(range) = self.all.get_mut(at).filter(|range| range.from < to) {
            let Range { to: end, tag, .. } = *range;
            let (cut_from, cut_to) = (range.from.max(from), end.min(to));
            taken.tag = match taken.messages {
                0 => tag,
                _ => taken.tag.min(tag),
            };
            taken.messages += cut_to - cut_from;
            range.to = cut_from;
            if range.from == cut_from {
                self.all.remove(at);
            } else {
                at += 1;
            }
            if cut_to < end {
                let rest = Range {
                    from: cut_to,
                    to: end,
                    tag,
                };
                self.all.insert(at, rest);
            }
        }
        self.messages -= taken.messages;
        self.bound();
        taken
    }

    fn bound(&mut self) {
        if self.all.len() > self.limit {
            self.all.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_any_part_leaves_exactly_the_rest() {
        for from in 0..30 {
            for to in from..30 {
                let mut ranges = Ranges::new(8);
                let mut plain: Vec<u64> = Vec::new();
                let mut tags = Vec::new();
                for (a, b, tag) in [(2, 5, 9), (7, 8, 3), (10, 20, 6)] {
                    ranges.push(a, b, tag);
                    plain.extend(a..b);
                    tags.extend((a.max(from) < b.min(to)).then_some(tag));
                }
                let before = plain.len();
                plain.retain(|n| !(from..to).contains(n));
                let taken = ranges.take(from, to);
                assert_eq!(taken.messages, (before - plain.len()) as u64);
                if taken.messages > 0 {
                    assert_eq!(Some(taken.tag), tags.into_iter().min(), "{from}..{to}");
                }
                assert_eq!(ranges.messages(), plain.len() as u64);
                let rest: Vec<u64> = ranges.all.iter().flat_map(|r| r.from..r.to).collect();
                assert_eq!(rest, plain, "{from}..{to}");
            }
        }
    }

    #[test]
    fn oldest_range_beyond_limit_is_forgotten_and_counted() {
        let mut ranges = Ranges::new(2);
        for at in [1, 5, 9] {
            ranges.push(at, at + 2, at);
        }
        assert_eq!(ranges.messages(), 6);
        assert_eq!(ranges.take(1, 3).messages, 0);
        assert_eq!(
            ranges.take(0, 100),
            Taken {
                messages: 4,
                tag: 5
            }
        );
        assert_eq!(ranges.messages(), 2);
    }

    #[test]
    fn range_before_others_is_only_counted_at_the_limit() {
        let mut ranges = Ranges::new(2);
        ranges.push(9, 11, 1);
        ranges.push_front(5, 7, 2);
        ranges.push_front(1, 3, 3);
        assert_eq!(ranges.messages(), 6);
        assert_eq!(ranges.take(1, 3).messages, 0, "forgotten at once");
        assert_eq!(ranges.take(5, 11).messages, 4);
        assert_eq!(ranges.messages(), 2);
    }
}
