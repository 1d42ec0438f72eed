//! NACK timing (docs/PROTOCOL.md §5.4). In small groups, the first NACK is sent at once. In large groups,
//! a few scouts send it at once. The others wait a random hold-off, within which the multicast repair for
//! the scouts reaches them. Retries follow after a time that scales with the measured round trip.
//!
//! Randomness comes from a seed, so that a simulated run can be replayed.

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};
use crate::types::{Nanos, split_mix};

/// Round trip assumed before the first measurement.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// Maximum round trip: a longer one was a stall of a process, not of the network.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Maximum number of doublings of the retry interval.
const DOUBLINGS_MAX: u32 = 8;

/// NACK timers of one path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NackTimer {
    retry_min: Nanos,
    rtt: Option<Nanos>,
    hold_off: Nanos,
    group: u32,
    random: u64,
}

impl NackTimer {
    /// Returns a timer whose retries wait at least `retry_min` (less jitter).
    #[must_use]
    pub(crate) const fn new(retry_min: Nanos, seed: u64) -> Self {
        Self {
            retry_min,
            rtt: None,
            hold_off: Nanos::ZERO,
            group: 0,
            random: seed,
        }
    }

    /// Sets the publisher's advice: the maximum random wait before a first NACK, and the size of the group.
    pub(crate) const fn advise_hold_off(&mut self, hold_off: Nanos, group: u32) {
        (self.hold_off, self.group) = (hold_off, group);
    }

    /// Adds a measured round trip.
    pub(crate) fn measured(&mut self, rtt: Nanos) {
        self.rtt = Some(match self.rtt {
            None => rtt,
            // Weight 1/8, as TCP smooths its round trip (RFC 6298 §2).
            Some(old) => Nanos(old.0 - old.0 / 8 + rtt.0 / 8),
        });
    }

    /// Records that an answer arrived after its timeout: the round-trip estimate grows by half.
    pub(crate) fn late(&mut self) {
        let rtt = self.rtt.unwrap_or(RTT_UNKNOWN);
        self.rtt = Some(Nanos(rtt.0 + rtt.0 / 2).min(RTT_MAX));
    }

    /// Records that no answer came within `waited` and the connection was closed. The next connection
    /// waits at least as long, because otherwise no answer could ever arrive in time.
    pub(crate) fn unanswered(&mut self, waited: Nanos) {
        let rtt = self.rtt.unwrap_or(RTT_UNKNOWN);
        self.rtt = Some(rtt.max(waited).min(RTT_MAX));
    }

    /// Returns whether all but scouts hold off before a first NACK.
    #[must_use]
    pub(crate) fn holds_off(&self) -> bool {
        self.hold_off > Nanos::ZERO
    }

    /// Returns the hold-off before a first NACK. Scouts wait zero: on average ⌊log2 of the group size⌋ + 1
    /// receivers. The others wait between half of the advised hold-off and all of it. When all receivers miss
    /// the same datagram, only the scouts send a NACK. A receiver with a loss of its own waits little more
    /// than a round trip.
    pub(crate) fn first(&mut self) -> Nanos {
        let scouts = u64::from(self.group.max(1).ilog2() + 1);
        if planted(Bug::HoldOffIgnored) {
            return Nanos::ZERO;
        }
        if !self.holds_off() || self.up_to(Nanos(self.group.into())).0 < scouts {
            return Nanos::ZERO;
        }
        let half = Nanos(self.hold_off.0 / 2);
        half.after(self.up_to(Nanos(self.hold_off.0 - half.0)))
    }

    /// Returns how long to wait for the answer to NACK number `attempts` (from 1): four round trips, doubled
    /// with each try, with a random deviation of up to a quarter.
    pub(crate) fn retry(&mut self, attempts: u32) -> Nanos {
        let doubled =
            (self.first_retry()).times(1 << attempts.saturating_sub(1).min(DOUBLINGS_MAX));
        let jitter = self.up_to(Nanos(doubled.0 / 2));
        Nanos(doubled.0 - doubled.0 / 4 + jitter.0)
    }

    /// Returns the longest wait for the answer to a first NACK: an answer after it is late for certain.
    pub(crate) fn first_retry_max(&self) -> Nanos {
        let first = self.first_retry();
        Nanos(first.0 + first.0 / 4)
    }

    /// Returns the wait for the answer to a first NACK, without deviation.
    fn first_retry(&self) -> Nanos {
        let rtt = self.rtt.unwrap_or(RTT_UNKNOWN).min(RTT_MAX);
        rtt.times(4).max(self.retry_min)
    }

    /// Returns a random span from zero up to (not including) `span`.
    pub(crate) fn up_to(&mut self, span: Nanos) -> Nanos {
        let z = split_mix(&mut self.random);
        Nanos(((u128::from(z) * u128::from(span.0)) >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_off_spares_small_groups_and_large_group_scouts() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 1);
        assert_eq!(timer.first(), Nanos::ZERO);
        for (group, scouts) in [(64u32, 7), (100, 7), (1_000, 10), (1_024, 11)] {
            timer.advise_hold_off(Nanos(1_001), group);
            let rounds = 2_000;
            let asked: Vec<u64> = (0..group * rounds).map(|_| timer.first().0).collect();
            let at_once = asked.iter().filter(|&&ns| ns == 0).count() as u32;
            let (least, most) = (rounds * scouts * 95 / 100, rounds * scouts * 105 / 100);
            assert!((least..most).contains(&at_once), "{at_once} of {group}");
            let others: Vec<u64> = asked.into_iter().filter(|&ns| ns > 0).collect();
            assert!(others.iter().all(|ns| (500..1_001).contains(ns)));
            let mean = others.iter().sum::<u64>() / others.len() as u64;
            assert!((745..755).contains(&mean), "uniform, but of mean {mean}");
        }
    }

    #[test]
    fn group_of_at_most_two_nacks_without_hold_off() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 1);
        for group in [0, 1, 2] {
            timer.advise_hold_off(Nanos(1_000), group);
            assert!((0..1_000).all(|_| timer.first() == Nanos::ZERO));
        }
    }

    #[test]
    fn retry_scales_with_rtt_and_doubles_in_jitter() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 2);
        for rtt in [5_000u64, 100_000] {
            for _ in 0..200 {
                timer.measured(Nanos(rtt));
            }
            let base = (4 * timer.rtt.unwrap().0).max(20_000);
            for attempts in 1..=5u32 {
                let expected = base << (attempts - 1);
                let retry = timer.retry(attempts).0;
                assert!(retry >= expected - expected / 4 && retry <= expected + expected / 4);
            }
        }
        assert!(timer.retry(1000).0 < u64::MAX / 1000, "doubling is bounded");
    }

    #[test]
    fn random_spans_follow_generator_within_bound() {
        let mut state = 0;
        let numbers = [(); 3].map(|()| split_mix(&mut state));
        let mut timer = NackTimer::new(Nanos::ZERO, 0);
        let spans = [(); 3].map(|()| timer.up_to(Nanos(1 << 32)).0);
        assert_eq!(spans, numbers.map(|number| number >> 32));
        assert_eq!(timer.up_to(Nanos::ZERO), Nanos::ZERO);
    }

    #[test]
    fn rtt_is_smoothed_by_eighth_and_stall_is_bounded() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 1);
        assert_eq!(timer.rtt, None);
        let spread = |timer: &mut NackTimer, attempts| {
            let waits: Vec<u64> = (0..2_000).map(|_| timer.retry(attempts).0).collect();
            (*waits.iter().min().unwrap(), *waits.iter().max().unwrap())
        };
        let near = |(least, most): (u64, u64), base: u64| {
            assert!(
                (base * 3 / 4..base * 76 / 100).contains(&least),
                "{least} of {base}"
            );
            assert!(
                (base * 124 / 100..=base * 5 / 4).contains(&most),
                "{most} of {base}"
            );
        };
        near(spread(&mut timer, 1), 4 * RTT_UNKNOWN.0);
        timer.measured(Nanos(80_000));
        assert_eq!(timer.rtt, Some(Nanos(80_000)));
        timer.measured(Nanos(160_000));
        assert_eq!(timer.rtt, Some(Nanos(90_000)));
        near(spread(&mut timer, 1), 360_000);
        near(spread(&mut timer, 3), 4 * 360_000);
        near(spread(&mut timer, 9), 256 * 360_000);
        near(spread(&mut timer, 10), 256 * 360_000);
        timer.measured(Nanos::from_secs(60));
        near(spread(&mut timer, 1), 4 * RTT_MAX.0);
    }

    #[test]
    fn timed_out_wait_becomes_least_rtt() {
        let mut timer = NackTimer::new(Nanos::from_us(50), 1);
        timer.unanswered(Nanos::from_us(100));
        assert_eq!(timer.rtt, Some(RTT_UNKNOWN), "no less than is assumed");
        // A copy that was already in flight makes the round trip appear to be zero.
        let mut timer = NackTimer::new(Nanos::from_us(50), 1);
        timer.measured(Nanos(319));
        timer.unanswered(Nanos::from_us(200));
        assert_eq!(timer.rtt, Some(Nanos::from_us(200)));
        timer.unanswered(Nanos::from_us(150));
        assert_eq!(timer.rtt, Some(Nanos::from_us(200)));
        timer.measured(Nanos::from_us(120));
        assert_eq!(timer.rtt, Some(Nanos::from_us(190)), "it is smoothed again");
        timer.unanswered(Nanos::from_secs(3));
        assert_eq!(timer.rtt, Some(RTT_MAX));
    }

    #[test]
    fn hold_off_of_zero_disables_it() {
        let mut timer = NackTimer::new(Nanos::ZERO, 5);
        timer.advise_hold_off(Nanos::from_ms(10), u32::MAX);
        let longest = (0..2_000).map(|_| timer.first()).max().unwrap();
        assert!(longest < Nanos::from_ms(10) && longest > Nanos::from_ms(9));
        timer.advise_hold_off(Nanos::ZERO, 1_000);
        assert_eq!(timer.first(), Nanos::ZERO);
    }
}
