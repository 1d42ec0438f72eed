//! Two clocks: monotonic protocol time, on which every timer runs, and UTC, for measurements only.
//!
//! Both are nanoseconds. Protocol time is `CLOCK_MONOTONIC`, common to all processes of a host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tickcast_reliability::types::{Nanos, Now};

use super::tsc;

/// A source of time.
pub trait Clock: Send {
    /// Returns protocol time, which never steps back and has no relation to the calendar.
    fn now(&self) -> Nanos;

    /// Returns UTC since the Unix epoch, which may step either way. For measurements, never for decisions.
    fn utc(&self) -> Nanos;
}

/// The operating system's clocks, read without entering the kernel: by the processor's counter if
/// the kernel keeps time by it too.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Returns both clocks at one moment.
    #[inline]
    #[must_use]
    pub fn both(&self) -> Now {
        match tsc::both() {
            Some(both) => Now {
                monotonic: Nanos(both.monotonic),
                utc: Nanos(both.utc),
            },
            None => Now {
                monotonic: tsc::system_clock(libc::CLOCK_MONOTONIC),
                utc: tsc::system_clock(libc::CLOCK_REALTIME),
            },
        }
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Nanos {
        tsc::both().map_or_else(
            || tsc::system_clock(libc::CLOCK_MONOTONIC),
            |both| Nanos(both.monotonic),
        )
    }

    #[inline]
    fn utc(&self) -> Nanos {
        tsc::both().map_or_else(
            || tsc::system_clock(libc::CLOCK_REALTIME),
            |both| Nanos(both.utc),
        )
    }
}

/// A clock that advances only by call, for tests and simulations. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that shows `now`.
    #[must_use]
    pub fn at(now: Nanos) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Advances the clock.
    pub fn advance(&self, span: Nanos) {
        self.0.fetch_add(span.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    fn utc(&self) -> Nanos {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_time_goes_forward_and_utc_is_this_century() {
        let first = SystemClock.now();
        assert!(first > Nanos::ZERO);
        assert!(SystemClock.now() >= first);
        assert!(SystemClock.utc() > Nanos::from_secs(1_600_000_000));
    }

    #[test]
    fn clones_of_a_manual_clock_show_the_same_time() {
        let clock = ManualClock::at(Nanos(5));
        let other = clock.clone();
        clock.advance(Nanos(7));
        assert_eq!((other.now(), other.utc()), (Nanos(12), Nanos(12)));
    }
}
