//! The times of each feed's first packets: the trade date of ITCH comes from the first one.

use tickcast_reliability::types::Nanos;

use crate::capture::STEP_MAX;
use crate::itch::TradeDate;
use crate::itch::clock::SessionClock;

/// Times that are kept: the first one, the next, and the one that confirms that.
const KEPT: usize = 3;

/// The first known times of each feed.
#[derive(Debug, Default)]
pub(super) struct FirstTimes(Vec<Vec<Nanos>>);

impl FirstTimes {
    /// Adds the time of a feed's packet; 0 is unknown.
    pub(super) fn add(&mut self, feed: usize, at: Nanos) {
        if feed >= self.0.len() {
            self.0.resize(feed + 1, Vec::new());
        }
        if let Some(times) = self.0.get_mut(feed)
            && times.len() < KEPT
            && at != Nanos::ZERO
        {
            times.push(at);
        }
    }

    /// Returns a note if a feed's first packet has another date than the next ones, more than a minute away.
    pub(super) fn note(&self, feed: usize) -> Option<String> {
        let times = self.0.get(feed)?;
        let [first, next] = *times.first_chunk()?;
        let apart = Nanos(first.0.abs_diff(next.0));
        let is_confirmed = times
            .get(2)
            .is_none_or(|third| Nanos(third.0.abs_diff(next.0)) <= STEP_MAX);
        let midnight = |at| SessionClock::new(TradeDate::Received, at).utc(0);
        let is_doubtful = apart > STEP_MAX && is_confirmed && midnight(first) != midnight(next);
        is_doubtful.then(|| {
            format!(
                "the stamp of the first packet is {} s from the next one, on another day: the trade date \
                 comes from the first one and is in doubt, unless trade_date states it",
                apart.0 / 1_000_000_000
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const DAY: u64 = 86_400;
    /// 10:00 in New York.
    const NOON: u64 = 1_692_712_800;

    fn is_doubtful(seconds: &[u64]) -> bool {
        let mut times = FirstTimes::default();
        for at in seconds {
            times.add(1, Nanos(at * S));
        }
        assert_eq!(times.note(0), None);
        times.note(1).is_some()
    }

    #[test]
    fn first_time_of_another_day_than_the_next_is_doubtful() {
        for (times, expected) in [
            (&[NOON + 9 * DAY, NOON, NOON + 1][..], true),
            (&[NOON - 9 * DAY, NOON, NOON + 1], true),
            (&[NOON - DAY, NOON], true),
            (&[0, NOON + DAY, NOON, 0, NOON + 1], true),
            (&[NOON, NOON + 1, NOON + 9 * DAY], false),
            // Nothing confirms the second one.
            (&[NOON, NOON + 9 * DAY, NOON + 1], false),
            // Of the same day.
            (&[NOON - 3_600, NOON, NOON + 1], false),
            (&[NOON], false),
            (&[], false),
        ] {
            assert_eq!(is_doubtful(times), expected, "{times:?}");
        }
        // Midnight in New York lies between them.
        let midnight = NOON + 14 * 3_600;
        assert!(!is_doubtful(&[midnight - 30, midnight + 30, midnight + 31]));
        assert!(is_doubtful(&[midnight - 31, midnight + 30, midnight + 31]));
    }
}
