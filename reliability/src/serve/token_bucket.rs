//! A token bucket: in any window of time it lets at most `rate × time + burst` bytes pass.
//!
//! The bucket is exact: it keeps credit in billionths of a byte, so no rate is too small and no
//! interval too short to count (docs/PROTOCOL.md §6.4).

use crate::types::Nanos;

/// Nanoseconds in a second, so also the credit that one byte costs.
const SCALE: u128 = 1_000_000_000;

/// A rate in bytes per second, with a burst.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_s: u64,
    burst: u128,
    credit: u128,
    at: Nanos,
}

impl TokenBucket {
    /// Returns a full bucket.
    #[must_use]
    pub fn new(bytes_per_s: u64, burst_bytes: u64, now: Nanos) -> Self {
        let burst = u128::from(burst_bytes) * SCALE;
        Self {
            bytes_per_s,
            burst,
            credit: burst,
            at: now,
        }
    }

    /// Returns the rate in bytes per second.
    #[must_use]
    pub const fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Returns the maximum number of bytes that pass at once.
    #[must_use]
    pub const fn burst_bytes(&self) -> u64 {
        (self.burst / SCALE) as u64
    }

    /// Changes the rate and the burst from now on. Credit above the new burst is lost.
    pub fn set(&mut self, now: Nanos, bytes_per_s: u64, burst_bytes: u64) {
        self.refill(now);
        self.bytes_per_s = bytes_per_s;
        self.burst = u128::from(burst_bytes) * SCALE;
        self.credit = self.credit.min(self.burst);
    }

    fn refill(&mut self, now: Nanos) {
        if now > self.at {
            let gained = u128::from(now.since(self.at).0) * u128::from(self.bytes_per_s);
            self.credit = (self.credit + gained).min(self.burst);
            self.at = now;
        }
    }

    /// Returns whether `bytes` may pass now.
    #[inline]
    pub fn has(&mut self, now: Nanos, bytes: usize) -> bool {
        self.refill(now);
        self.credit >= bytes as u128 * SCALE
    }

    /// Takes `bytes` if they may pass now, and returns whether they may.
    #[inline]
    pub fn take(&mut self, now: Nanos, bytes: usize) -> bool {
        let enough = self.has(now, bytes);
        if enough {
            self.credit -= bytes as u128 * SCALE;
        }
        enough
    }

    /// Takes as many bytes as may pass now, at most `most`, and returns their number.
    pub fn take_up_to(&mut self, now: Nanos, most: u64) -> u64 {
        self.take_above(now, most, 0)
    }

    /// Takes as many bytes as may pass now, at most `most`, but leaves this number of quarters of the burst.
    /// Returns their number.
    pub fn take_above(&mut self, now: Nanos, most: u64, quarters: u32) -> u64 {
        self.refill(now);
        let stays = self.burst * u128::from(quarters) / 4;
        let there = self.credit.saturating_sub(stays) / SCALE;
        let bytes = u64::try_from(there).map_or(most, |there| there.min(most));
        self.credit -= u128::from(bytes) * SCALE;
        bytes
    }

    /// Returns unused bytes to the bucket.
    pub fn give_back(&mut self, bytes: u64) {
        self.credit = (self.credit + u128::from(bytes) * SCALE).min(self.burst);
    }

    /// Returns when `bytes` may pass if nothing else passes before; [`Nanos::MAX`] when never.
    #[must_use]
    pub fn available_at(&self, bytes: usize) -> Nanos {
        let cost = bytes as u128 * SCALE;
        if cost <= self.credit {
            return self.at;
        }
        if cost > self.burst || self.bytes_per_s == 0 {
            return Nanos::MAX;
        }
        let wait = (cost - self.credit).div_ceil(u128::from(self.bytes_per_s));
        self.at
            .after(Nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn token_bucket_never_exceeds_rate_and_burst(
            rate in 1u64..20_000_000_000,
            burst in 1u64..1_000_000,
            steps in proptest::collection::vec((0u64..5_000_000, 1usize..9_000), 1..200),
        ) {
            let mut bucket = TokenBucket::new(rate, burst, Nanos::ZERO);
            let mut now = Nanos::ZERO;
            let mut passed: Vec<(Nanos, u128)> = Vec::new();
            for (wait, bytes) in steps {
                now = now.after(Nanos(wait));
                if bucket.take(now, bytes) {
                    passed.push((now, bytes as u128));
                }
            }
            for (index, (from, _)) in passed.iter().enumerate() {
                let mut sum = 0;
                for (at, bytes) in &passed[index..] {
                    sum += bytes;
                    let allowed = u128::from(rate) * u128::from(at.since(*from).0)
                        + u128::from(burst) * SCALE;
                    prop_assert!(sum * SCALE <= allowed);
                }
            }
        }

        #[test]
        fn token_bucket_availability_time_is_exact(
            rate in 1u64..1_000_000_000,
            burst in 9_000u64..100_000,
            bytes in 1usize..9_000,
        ) {
            let mut bucket = TokenBucket::new(rate, burst, Nanos::ZERO);
            while bucket.take(Nanos::ZERO, bytes) {}
            let at = bucket.available_at(bytes);
            prop_assert!(at > Nanos::ZERO);
            prop_assert!(!bucket.clone().take(Nanos(at.0 - 1), bytes));
            prop_assert!(bucket.take(at, bytes));
        }
    }

    #[test]
    fn token_bucket_gains_no_credit_from_backward_clock() {
        let mut bucket = TokenBucket::new(1_000, 100, Nanos::from_secs(10));
        assert!(bucket.take(Nanos::from_secs(10), 100));
        assert!(!bucket.take(Nanos::from_secs(1), 1));
        assert!(!bucket.take(Nanos::from_secs(10), 1));
        assert!(bucket.take(Nanos::from_secs(11), 100));
    }

    #[test]
    fn request_above_burst_is_never_available() {
        let bucket = TokenBucket::new(1_000, 100, Nanos::ZERO);
        assert_eq!(bucket.available_at(101), Nanos::MAX);
    }

    #[test]
    fn bucket_credit_is_available_now_and_fills_to_burst() {
        let mut bucket = TokenBucket::new(1_000, 100, Nanos(5));
        assert_eq!(bucket.bytes_per_s(), 1_000);
        assert_eq!(bucket.available_at(100), Nanos(5));
        assert!(bucket.has(Nanos(5), 100) && !bucket.has(Nanos(5), 101));
        assert!(bucket.take(Nanos(5), 40));
        assert_eq!(bucket.available_at(60), Nanos(5));
        assert_eq!(bucket.available_at(61), Nanos(5).after(Nanos::from_ms(1)));
        assert_eq!(bucket.available_at(100), Nanos(5).after(Nanos::from_ms(40)));
        let mut dry = TokenBucket::new(0, 100, Nanos(5));
        assert!(dry.take(Nanos(5), 100));
        assert_eq!(dry.available_at(1), Nanos::MAX);
    }

    #[test]
    fn quarters_of_burst_stay_for_others() {
        let mut bucket = TokenBucket::new(1_000, 100, Nanos::ZERO);
        assert_eq!(bucket.take_above(Nanos::ZERO, 30, 3), 25);
        assert_eq!(bucket.take_above(Nanos::ZERO, 20, 2), 20);
        assert_eq!(bucket.take_above(Nanos::ZERO, 20, 2), 5);
        assert_eq!(bucket.take_above(Nanos::ZERO, 20, 2), 0);
        assert_eq!(bucket.take_up_to(Nanos::ZERO, 200), 50);
        assert_eq!(bucket.take_above(Nanos::from_ms(40), 30, 2), 0);
        assert_eq!(bucket.take_above(Nanos::from_ms(60), 30, 2), 10);
    }
}
