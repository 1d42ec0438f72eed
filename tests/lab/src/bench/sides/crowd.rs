//! Several subscribers of one process, polled in turn. A tick counts once all of them have it. A tick that
//! any of them lacks does not count.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bench::protocol::{Outcome, Tick};
use crate::bench::side::Take;

/// The subscribers, and the ticks that they share.
pub(super) struct Crowd<T> {
    members: Vec<Member<T>>,
    /// Ticks that the first subscriber has and that others may lack.
    waiting: VecDeque<(Tick, bool)>,
    /// Ranges of numbers that a subscriber skipped, until all subscribers are past them.
    gaps: Vec<Range<u64>>,
    /// Ticks that all subscribers had.
    handed_over: u64,
}

struct Member<T> {
    take: T,
    /// The number of its last tick.
    last: u64,
    /// Ticks that it skipped so far.
    passed_over: u64,
}

impl<T: Take> Crowd<T> {
    pub(super) fn of(members: Vec<T>) -> Self {
        let member = |take| Member {
            take,
            last: 0,
            passed_over: 0,
        };
        Self {
            members: members.into_iter().map(member).collect(),
            waiting: VecDeque::new(),
            gaps: Vec::new(),
            handed_over: 0,
        }
    }

    /// Returns the last tick of the slowest subscriber.
    fn all_have(&self) -> u64 {
        let last = self.members.iter().map(|member| member.last);
        last.min().unwrap_or(0)
    }
}

impl<T: Take> Take for Crowd<T> {
    fn is_joined(&mut self) -> bool {
        self.members
            .iter_mut()
            .all(|member| member.take.is_joined())
    }

    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let mut came = false;
        let (waiting, gaps) = (&mut self.waiting, &mut self.gaps);
        for (at, member) in self.members.iter_mut().enumerate() {
            let (last, passed_over) = (&mut member.last, &mut member.passed_over);
            came |= member.take.poll(|tick, was_dropped| match tick {
                Some(tick) if tick.number > *last => {
                    let next = *last + 1;
                    if tick.number > next {
                        *passed_over += tick.number - next;
                        gaps.push(next..tick.number);
                    }
                    *last = tick.number;
                    if at == 0 {
                        waiting.push_back((tick, was_dropped));
                    }
                }
                _ => on(None, was_dropped),
            })?;
        }
        let all_have = self.all_have();
        let due = |(tick, _): &mut (Tick, bool)| tick.number <= all_have;
        while let Some((tick, was_dropped)) = self.waiting.pop_front_if(due) {
            if !self.gaps.iter().any(|gap| gap.contains(&tick.number)) {
                self.handed_over += 1;
                on(Some(tick), was_dropped);
            }
        }
        self.gaps.retain(|gap| gap.end > all_have + 1);
        Ok(came)
    }

    fn received(&mut self, number: u64) {
        if let Some(first) = self.members.first_mut() {
            first.take.received(number);
        }
    }

    fn declared_lost(&mut self) -> u64 {
        // Left-out ticks count as declared if every subscriber declared the ticks that it skipped. A
        // subscriber that declared more lost ticks at the very end.
        let (mut unsaid, mut at_end) = (0, 0);
        for member in &mut self.members {
            let declared = member.take.declared_lost();
            unsaid = unsaid.max(member.passed_over.saturating_sub(declared));
            at_end = at_end.max(declared.saturating_sub(member.passed_over));
        }
        let left_out = self.all_have() - self.handed_over;
        left_out.saturating_sub(unsaid) + at_end
    }

    fn notes(&self) -> Vec<String> {
        let first = self.members.first();
        first.map(|first| first.take.notes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives these ticks, one a poll, and declares `declared_lost` lost.
    struct Scripted {
        ticks: VecDeque<u64>,
        declared_lost: u64,
    }

    impl Take for Scripted {
        fn is_joined(&mut self) -> bool {
            true
        }

        fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
            let number = self.ticks.pop_front();
            if let Some(number) = number {
                on(Some(Tick { number, at: 0 }), false);
            }
            Ok(number.is_some())
        }

        fn received(&mut self, _: u64) {}

        fn declared_lost(&mut self) -> u64 {
            self.declared_lost
        }
    }

    /// Returns the common ticks, the number of wrong ones, and the number that counts as declared lost.
    fn in_common(members: &[(&[u64], u64)]) -> (Vec<u64>, usize, u64) {
        let scripted = |&(ticks, declared_lost): &(&[u64], u64)| Scripted {
            ticks: ticks.iter().copied().collect(),
            declared_lost,
        };
        let mut crowd = Crowd::of(members.iter().map(scripted).collect());
        let (mut all, mut wrong) = (Vec::new(), 0);
        let mut on = |tick: Option<Tick>, _| match tick {
            Some(tick) => all.push(tick.number),
            None => wrong += 1,
        };
        while crowd.poll(&mut on).is_ok_and(|came| came) {}
        let declared_lost = crowd.declared_lost();
        (all, wrong, declared_lost)
    }

    const WHOLE: (&[u64], u64) = (&[1, 2, 3, 4, 5, 6], 0);

    #[test]
    fn tick_counts_once_for_all_crowd_members() {
        assert_eq!(in_common(&[WHOLE, WHOLE]), (WHOLE.0.to_vec(), 0, 0));
        let slower = in_common(&[WHOLE, (&[1, 2], 0)]);
        assert_eq!(slower, (vec![1, 2], 0, 0), "one of them is not there yet");
    }

    #[test]
    fn tick_skipped_by_any_member_does_not_count() {
        let gap: (&[u64], u64) = (&[1, 2, 5, 6], 0);
        for members in [
            [gap, WHOLE, WHOLE],
            [WHOLE, gap, WHOLE],
            [WHOLE, WHOLE, gap],
        ] {
            assert_eq!(in_common(&members), (vec![1, 2, 5, 6], 0, 0));
        }
    }

    #[test]
    fn duplicate_tick_of_any_member_is_wrong() {
        let twice: (&[u64], u64) = (&[1, 2, 2, 3, 4, 5, 6], 0);
        assert_eq!(in_common(&[WHOLE, twice]), (WHOLE.0.to_vec(), 1, 0));
    }

    #[test]
    fn loss_is_declared_if_all_affected_members_report_it() {
        let (second, fifth): (&[u64], &[u64]) = (&[1, 3, 4, 5, 6], &[1, 2, 3, 4, 6]);
        let both = in_common(&[WHOLE, (second, 1), (fifth, 1)]);
        assert_eq!(both, (vec![1, 3, 4, 6], 0, 2), "one each, not the same");
        let same = in_common(&[(second, 1), (second, 1)]);
        assert_eq!(same, (vec![1, 3, 4, 5, 6], 0, 1), "the same one");
        let silent = in_common(&[WHOLE, (second, 1), (fifth, 0)]);
        assert_eq!(silent.2, 1, "one of the two is missing without a word");
        let at_end = in_common(&[WHOLE, (&[1, 2, 3, 4], 2)]);
        assert_eq!(at_end, (vec![1, 2, 3, 4], 0, 2), "nothing came behind it");
    }
}
