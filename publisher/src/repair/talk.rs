//! What connections make us say in the log is bounded, all of them together: whoever comes and goes without
//! end, or breaks the protocol each time, fills no disk with that. Now and then it is said how many lines
//! were left out.

use std::cell::Cell;

use tickcast_reliability::types::Nanos;

use crate::repair::seldom::Seldom;

/// As many lines may come at once: a host full of subscribers joins in a moment.
const AT_ONCE: u64 = 400;
/// And so many a second for good.
const A_SECOND: u64 = 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Talk {
    /// Lines that may be said yet.
    left: Cell<u64>,
    left_out: Cell<u64>,
    /// Until when lines were given.
    given_at: Nanos,
    seldom: Seldom,
}

impl Default for Talk {
    fn default() -> Self {
        Self {
            left: Cell::new(AT_ONCE),
            left_out: Cell::new(0),
            given_at: Nanos::ZERO,
            seldom: Seldom::default(),
        }
    }
}

impl Talk {
    /// Whether another line may be said. One that may not is counted.
    pub(crate) fn may_say(&self) -> bool {
        let left = self.left.get();
        match left {
            0 => self.left_out.update(|it| it + 1),
            _ => self.left.set(left - 1),
        }
        left > 0
    }

    /// Time goes on: more may be said, and it is said how much was not.
    pub(crate) fn look(&mut self, now: Nanos) {
        if let Some(count) = self.news(now) {
            tracing::warn!(
                count,
                "lines about connections were left out, since they come, go or break the protocol too often: \
                 --audit FILE keeps who it is, and `banned` keeps them away"
            );
        }
    }

    /// How many lines were left out since it was said last.
    fn news(&mut self, now: Nanos) -> Option<u64> {
        let seconds = now.since(self.given_at).as_us() / 1_000_000;
        if seconds > 0 {
            let more = seconds.saturating_mul(A_SECOND);
            self.left.update(|it| it.saturating_add(more).min(AT_ONCE));
            self.given_at = now;
        }
        if self.left_out.get() == 0 || !self.seldom.is_due(now) {
            return None;
        }
        self.seldom.said(now);
        Some(self.left_out.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_may_be_said_at_once_and_few_for_good_and_what_was_left_out_is_counted() {
        let mut talk = Talk::default();
        let say = |talk: &Talk, count: u64| (0..count).filter(|_| talk.may_say()).count() as u64;
        let now = Nanos::from_secs;
        assert_eq!(talk.news(now(100)), None, "nothing was left out");
        assert_eq!(say(&talk, AT_ONCE + 7), AT_ONCE);
        assert_eq!(talk.news(now(100)), Some(7));
        assert_eq!(say(&talk, 5), 0);
        assert_eq!(talk.news(now(101)), None, "it was said");
        assert_eq!(say(&talk, 1_000), A_SECOND);
        assert_eq!(talk.news(now(111)), Some(5 + 1_000 - A_SECOND));
        assert_eq!(say(&talk, 1_000), 10 * A_SECOND);
        assert_eq!(talk.news(now(10_000)), Some(1_000 - 10 * A_SECOND));
        assert_eq!(
            say(&talk, 2 * AT_ONCE),
            AT_ONCE,
            "and no more, however long it was quiet"
        );
    }
}
