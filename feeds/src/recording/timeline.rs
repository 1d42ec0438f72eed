//! The time of a paced recording: it never goes back, and no wait is longer than a bound.

use tickcast_reliability::types::Nanos;

/// A step back of more is a clock that was set; less is reordering.
const REORDERING_MAX: Nanos = Nanos::from_secs(60);

/// Time since the first packet, with long waits cut short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    last: Option<Nanos>,
    elapsed: Nanos,
    capped: u64,
}

impl Timeline {
    /// Returns the time of a packet stamped `at` since the first one. A wait of more than
    /// `wait_max` is cut to it and counted. An unknown time (0) is that of the packet before.
    pub fn advance(&mut self, at: Nanos, wait_max: Nanos) -> Nanos {
        if at == Nanos::ZERO {
            return self.elapsed;
        }
        let last = *self.last.get_or_insert(at);
        let wait = at.since(last);
        self.capped += u64::from(wait > wait_max);
        self.elapsed = self.elapsed.after(wait.min(wait_max));
        if at > last || at.after(REORDERING_MAX) < last {
            self.last = Some(at);
        }
        self.elapsed
    }

    /// Returns the time of the last packet since the first one.
    #[must_use]
    pub const fn elapsed(&self) -> Nanos {
        self.elapsed
    }

    /// Returns the number of waits that were cut.
    #[must_use]
    pub const fn capped(&self) -> u64 {
        self.capped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Nanos = Nanos::from_secs(10);

    #[test]
    fn stamp_a_year_ahead_costs_one_capped_wait() {
        let s = Nanos::from_secs;
        let mut time = Timeline::default();
        assert_eq!(time.advance(s(100), MAX), s(0));
        assert_eq!(time.advance(s(101), MAX), s(1));
        assert_eq!(time.advance(s(101 + 31_536_000), MAX), s(11));
        assert_eq!(time.advance(s(103), MAX), s(11));
        assert_eq!(time.advance(s(104), MAX), s(12));
        assert_eq!((time.elapsed(), time.capped()), (s(12), 1));
    }

    #[test]
    fn reordered_and_unknown_stamps_add_no_time() {
        let ms = Nanos::from_ms;
        let mut time = Timeline::default();
        for at in [ms(5), ms(9), ms(7), Nanos::ZERO, ms(9)] {
            time.advance(at, MAX);
        }
        assert_eq!((time.elapsed(), time.capped()), (ms(4), 0));
        assert_eq!(time.advance(ms(10), MAX), ms(5));
    }
}
