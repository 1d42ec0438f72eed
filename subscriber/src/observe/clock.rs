//! The offset of the publisher's clock, from the round trips of PROGRESS and STATUS.

use tickcast_hlog::ClockOffset;
use tickcast_reliability::control::Status;
use tickcast_reliability::types::{Counter, Nanos, Now};

/// A shorter round trip replaces the offset at once, and any round trip replaces an older one.
const KEPT: Nanos = Nanos::from_secs(10);
/// The error before the first round trip.
const UNKNOWN: u64 = u64::MAX;

/// The offset of the shortest of the recent round trips. One thread writes it by plain stores, any reads it.
#[derive(Debug)]
pub(crate) struct PublisherClock {
    /// The bits of a signed number.
    offset: Counter,
    error: Counter,
    /// Protocol time of the round trip's end.
    measured_at: Counter,
}

impl Default for PublisherClock {
    fn default() -> Self {
        let clock = Self {
            offset: Counter::default(),
            error: Counter::default(),
            measured_at: Counter::default(),
        };
        clock.forget();
        clock
    }
}

impl PublisherClock {
    /// Forgets the offset: another publisher may have another clock.
    pub(crate) fn forget(&self) {
        self.error.set(UNKNOWN);
    }

    /// Takes a STATUS that is here at `now`. The publisher answered between the PROGRESS and now: the offset
    /// assumes the middle, and the error is half of the round trip. On one host both are zero.
    pub(crate) fn take(&self, status: &Status, now: Now, is_same_host: bool) {
        if is_same_host {
            self.offset.set(0);
            self.error.set(0);
            return;
        }
        let Some(round_trip) = now.monotonic.0.checked_sub(status.echo.0) else {
            return;
        };
        let error = round_trip.div_ceil(2);
        let is_old = now.monotonic.since(Nanos(self.measured_at.get())) > KEPT;
        if error > self.error.get() && !is_old {
            return;
        }
        let middle = now.utc.0.saturating_sub(round_trip / 2);
        // Beyond 292 years the difference wraps; a publisher with such a clock has other problems.
        self.offset.set(status.answered_at.0.wrapping_sub(middle));
        self.error.set(error);
        self.measured_at.set(now.monotonic.0);
    }

    /// Returns the offset; `None` before the first round trip.
    pub(crate) fn offset(&self) -> Option<ClockOffset> {
        let error_ns = self.error.get();
        (error_ns != UNKNOWN).then(|| ClockOffset {
            offset_ns: self.offset.get().cast_signed(),
            error_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::types::{Epoch, RecordNumber, Sequence};

    use super::*;

    const UTC: u64 = 1_700_000_000_000_000_000;

    /// Passes a round trip that ends at `now`, at a publisher whose clock is ahead. The ways there and back
    /// take the given times.
    fn trip(of: &PublisherClock, now: u64, ahead: i64, [there, back]: [u64; 2]) {
        let answered_at = (UTC + now - back).saturating_add_signed(ahead);
        let status = Status {
            epoch: Epoch(1),
            newest: Sequence(1),
            oldest: Sequence(1),
            next_record: RecordNumber(1),
            echo: Nanos(now - back - there),
            answered_at: Nanos(answered_at),
            ended: false,
        };
        let now = Now {
            monotonic: Nanos(now),
            utc: Nanos(UTC + now),
        };
        of.take(&status, now, false);
    }

    #[test]
    fn true_offset_lies_within_the_error_for_any_ways() {
        for ahead in [-5_000_000, -1, 0, 77, 3_000_000_000] {
            for ways in [[10, 10], [1, 99_999], [70_001, 0], [0, 0]] {
                let clock = PublisherClock::default();
                trip(&clock, 1_000_000, ahead, ways);
                let found = clock.offset().unwrap();
                let off = found.offset_ns.abs_diff(ahead);
                assert!(off <= found.error_ns, "{ahead} {ways:?} {found:?}");
                assert_eq!(found.error_ns, (ways[0] + ways[1]).div_ceil(2));
            }
        }
    }

    #[test]
    fn shortest_round_trip_counts_until_it_is_old() {
        let clock = PublisherClock::default();
        assert_eq!(clock.offset(), None);
        let error = || clock.offset().map(|it| it.error_ns);
        trip(&clock, 1_000_000, 0, [500, 500]);
        trip(&clock, 2_000_000, 0, [900, 900]);
        assert_eq!(error(), Some(500));
        trip(&clock, 3_000_000, 0, [100, 100]);
        assert_eq!(error(), Some(100));
        trip(&clock, 3_000_000 + KEPT.0, 0, [300, 300]);
        assert_eq!(error(), Some(100));
        trip(&clock, 3_000_001 + KEPT.0, 0, [300, 300]);
        assert_eq!(error(), Some(300));
        clock.forget();
        assert_eq!(clock.offset(), None);
    }

    #[test]
    fn echo_of_the_future_is_ignored() {
        let clock = PublisherClock::default();
        let status = Status {
            epoch: Epoch(1),
            newest: Sequence(1),
            oldest: Sequence(1),
            next_record: RecordNumber(1),
            echo: Nanos(9),
            answered_at: Nanos(UTC),
            ended: false,
        };
        let now = Now {
            monotonic: Nanos(8),
            utc: Nanos(UTC),
        };
        clock.take(&status, now, false);
        assert_eq!(clock.offset(), None);
        clock.take(&status, now, true);
        let same = ClockOffset {
            offset_ns: 0,
            error_ns: 0,
        };
        assert_eq!(clock.offset(), Some(same));
    }
}
