//! The lines about events on standard error. A stranger on the network causes some kinds of events as
//! often as it sends, so each kind has a limit of its own.

use std::collections::BTreeMap;
use std::time::Instant;

use tickcast_log::LogLimit;
use tickcast_reliability::types::Nanos;

/// Lines of one kind at once, as each call site of the log has.
const BURST: u64 = 400;
/// Lines of one kind sustained.
const PER_SECOND: f64 = 1.0;
/// Interval of the sums.
const SUMS_EVERY: Nanos = Nanos::from_secs(1);

/// The limits of all kinds of events, and the events without a line.
#[derive(Debug)]
pub(super) struct EventLines {
    limits: BTreeMap<&'static str, LogLimit>,
    has_suppressed: bool,
    began: Instant,
    summed_at: Nanos,
}

impl EventLines {
    pub(super) fn new() -> Self {
        Self {
            limits: BTreeMap::new(),
            has_suppressed: false,
            began: Instant::now(),
            summed_at: Nanos::ZERO,
        }
    }

    /// Returns whether an event of this kind has a line. Counts it as suppressed otherwise.
    pub(super) fn allow(&mut self, kind: &'static str) -> bool {
        let now = self.now();
        self.allow_at(kind, now)
    }

    fn allow_at(&mut self, kind: &'static str, now: Nanos) -> bool {
        let limit = self.limits.entry(kind);
        let limit = limit.or_insert_with(|| LogLimit::new(BURST, PER_SECOND));
        let allowed = limit.allow_at(now);
        self.has_suppressed |= !allowed;
        allowed
    }

    /// Returns the numbers of suppressed events by kind, once a second and, at the end, at once.
    pub(super) fn take_sums(&mut self, is_end: bool) -> Vec<(&'static str, u64)> {
        if !self.has_suppressed {
            return Vec::new();
        }
        let now = self.now();
        self.take_sums_at(is_end, now)
    }

    fn take_sums_at(&mut self, is_end: bool, now: Nanos) -> Vec<(&'static str, u64)> {
        if !is_end && now.since(self.summed_at) < SUMS_EVERY {
            return Vec::new();
        }
        self.summed_at = now;
        self.has_suppressed = false;
        let all = self.limits.iter();
        all.map(|(kind, limit)| (*kind, limit.take_suppressed()))
            .filter(|(_, events)| *events > 0)
            .collect()
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_one_kind_is_cut_and_summed_beside_others() {
        let mut lines = EventLines::new();
        let at = Nanos::from_secs;
        let flood = |lines: &mut EventLines, now| {
            let all = (0..5_000).filter(|_| lines.allow_at("fencing_violation", now));
            all.count() as u64
        };
        assert_eq!(flood(&mut lines, at(1)), BURST);
        assert!(lines.allow_at("lost", at(1)));
        assert_eq!(
            lines.take_sums_at(false, at(1)),
            [("fencing_violation", 4_600)]
        );
        assert_eq!(flood(&mut lines, at(3)), 2);
        let early = lines.take_sums_at(false, Nanos::from_ms(1_999));
        assert!(early.is_empty(), "{early:?}");
        assert_eq!(
            lines.take_sums_at(true, Nanos::from_ms(1_999)),
            [("fencing_violation", 4_998)]
        );
        assert!(lines.take_sums_at(true, at(9)).is_empty());
    }
}
