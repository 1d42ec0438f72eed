//! When to ask: at once in small groups, after a random hold-off in large ones, and again after a
//! time that scales with the measured round trip (docs/PROTOCOL.md §5.4).
//!
//! Randomness comes from a seed, so that a simulated run can be replayed.

use crate::units::Nanos;

/// The round trip assumed before the first one was measured.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// No group is so large that its receivers should hold off longer.
const HOLD_OFF_MAX: Nanos = Nanos::from_ms(10);
/// A longer round trip was a stall, not the network's.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Retries double at most this often.
const DOUBLINGS_MAX: u32 = 8;

/// Times of asking for one path.
#[derive(Clone, Debug)]
pub struct NackTimer {
    retry_min: Nanos,
    rtt: Option<Nanos>,
    hold_off: Nanos,
    random: u64,
}

impl NackTimer {
    /// A timer that never asks again earlier than `retry_min` (less jitter).
    #[must_use]
    pub const fn new(retry_min: Nanos, seed: u64) -> Self {
        Self {
            retry_min,
            rtt: None,
            hold_off: Nanos::ZERO,
            random: seed,
        }
    }

    /// What the publisher advises: receivers wait at random up to this long before a first NACK.
    /// Bounded, because it comes in a datagram.
    pub fn advise_hold_off(&mut self, hold_off: Nanos) {
        self.hold_off = hold_off.min(HOLD_OFF_MAX);
    }

    /// A question was answered after `rtt`.
    pub fn measured(&mut self, rtt: Nanos) {
        self.rtt = Some(match self.rtt {
            None => rtt,
            // Weight 1/8, as TCP smooths its round trip (RFC 6298 §2).
            Some(old) => Nanos(old.0 - old.0 / 8 + rtt.0 / 8),
        });
    }

    /// The smoothed round trip, if one was measured.
    #[must_use]
    pub const fn rtt(&self) -> Option<Nanos> {
        self.rtt
    }

    /// How long to hold off before a first question.
    pub fn first(&mut self) -> Nanos {
        if self.hold_off == Nanos::ZERO {
            Nanos::ZERO
        } else {
            self.up_to(self.hold_off)
        }
    }

    /// How long to wait for the answer to question number `tries` (from 1): four round trips,
    /// doubled with each try, a quarter more or less at random.
    pub fn retry(&mut self, tries: u32) -> Nanos {
        let rtt = self.rtt.unwrap_or(RTT_UNKNOWN).min(RTT_MAX);
        let base = rtt.times(4).max(self.retry_min);
        let doubled = base.times(1 << tries.saturating_sub(1).min(DOUBLINGS_MAX));
        let jitter = self.up_to(Nanos(doubled.0 / 2));
        Nanos(doubled.0 - doubled.0 / 4 + jitter.0)
    }

    /// A random span from zero up to (not including) `span`.
    pub fn up_to(&mut self, span: Nanos) -> Nanos {
        // SplitMix64: enough to spread timers, and one word of state.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Nanos(((u128::from(z) * u128::from(span.0)) >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_groups_ask_at_once_and_large_ones_spread_out() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 1);
        assert_eq!(timer.first(), Nanos::ZERO);
        timer.advise_hold_off(Nanos(1000));
        let asked: Vec<u64> = (0..1000).map(|_| timer.first().0).collect();
        assert!(asked.iter().all(|&ns| ns < 1000));
        let mean = asked.iter().sum::<u64>() / 1000;
        assert!(
            (450..550).contains(&mean),
            "uniform, but the mean is {mean}"
        );
    }

    #[test]
    fn a_retry_scales_with_the_round_trip_and_doubles_within_its_jitter() {
        let mut timer = NackTimer::new(Nanos::from_us(20), 2);
        for rtt in [5_000u64, 100_000] {
            for _ in 0..200 {
                timer.measured(Nanos(rtt));
            }
            let base = (4 * timer.rtt().unwrap().0).max(20_000);
            for tries in 1..=5u32 {
                let expected = base << (tries - 1);
                let retry = timer.retry(tries).0;
                assert!(retry >= expected - expected / 4 && retry <= expected + expected / 4);
            }
        }
        assert!(timer.retry(1000).0 < u64::MAX / 1000, "doubling is bounded");
    }
}
