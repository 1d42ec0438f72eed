//! The heartbeat schedule: soon after data, then ever more rarely, and at ambient intervals. The loss of
//! a burst's tail is thus detected within microseconds, and an idle channel costs little.
//!
//! There are two timers (docs/PROTOCOL.md §4.1). One restarts with every datagram sealed and doubles from
//! `first_us` to `idle_us`. The ambient one runs freely, so that a joiner is served under constant data
//! too. Each heartbeat announces the latest time of the next one.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::planted::{Bug, planted};
use crate::types::Nanos;

/// The intervals of heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatConfig {
    /// Interval from the last datagram to the first heartbeat.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub first_us: u64,
    /// Maximum of the doubling interval.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub idle_us: u64,
    /// Interval between the heartbeats that are sent regardless of data.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub ambient_us: u64,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self {
            first_us: 20,
            idle_us: 10_000,
            ambient_us: 100_000,
        }
    }
}

/// A conflict between heartbeat intervals. The config is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "heartbeat intervals of {first_us}, {idle_us} and {ambient_us} us: they must satisfy 1 <= first_us <= idle_us <= ambient_us <= 10000000"
)]
pub struct HeartbeatConfigError {
    first_us: u64,
    idle_us: u64,
    ambient_us: u64,
}

impl HeartbeatConfig {
    /// Checks that the intervals rise.
    ///
    /// # Errors
    /// [`HeartbeatConfigError`] when they do not.
    pub const fn check(&self) -> Result<(), HeartbeatConfigError> {
        let rising = 1 <= self.first_us
            && self.first_us <= self.idle_us
            && self.idle_us <= self.ambient_us
            && self.ambient_us <= 10_000_000;
        if rising {
            return Ok(());
        }
        Err(HeartbeatConfigError {
            first_us: self.first_us,
            idle_us: self.idle_us,
            ambient_us: self.ambient_us,
        })
    }
}

/// The two timers of one channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HeartbeatSchedule {
    config: HeartbeatConfig,
    interval_us: u64,
    decaying_at: Nanos,
    ambient_at: Nanos,
}

impl HeartbeatSchedule {
    /// Returns the timers as if data had just been sealed at `now`.
    #[must_use]
    pub(super) const fn new(config: HeartbeatConfig, now: Nanos) -> Self {
        Self {
            config,
            interval_us: config.first_us,
            decaying_at: now.after(Nanos::from_us(config.first_us)),
            ambient_at: now.after(Nanos::from_us(config.ambient_us)),
        }
    }

    /// Restarts the timers after a sealed datagram.
    #[inline]
    pub(super) const fn on_data(&mut self, now: Nanos) {
        self.interval_us = self.config.first_us;
        self.decaying_at = now.after(Nanos::from_us(self.interval_us));
    }

    /// Returns when the next heartbeat is due.
    #[must_use]
    #[inline]
    pub(super) fn timeout(&self) -> Nanos {
        self.decaying_at.min(self.ambient_at)
    }

    /// Returns the interval to announce when a heartbeat is due: the time until the next one.
    pub(super) fn handle_timeout(&mut self, now: Nanos) -> Option<Nanos> {
        if now < self.timeout() {
            return None;
        }
        if planted(Bug::TimerDeadAfterPause) && now.since(self.timeout()) > Nanos::from_ms(1) {
            (self.decaying_at, self.ambient_at) = (Nanos::MAX, Nanos::MAX);
            return None;
        }
        if now >= self.decaying_at {
            self.decaying_at = now.after(Nanos::from_us(self.interval_us));
            let next_us = (self.interval_us.saturating_mul(2)).min(self.config.idle_us);
            if !planted(Bug::HeartbeatsNeverRarer) {
                self.interval_us = next_us;
            }
        }
        if now >= self.ambient_at {
            self.ambient_at = now.after(Nanos::from_us(self.config.ambient_us));
        }
        Some(self.timeout().since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(schedule: &mut HeartbeatSchedule, until: Nanos) -> Vec<u64> {
        let mut times = Vec::new();
        while schedule.timeout() <= until {
            let now = schedule.timeout();
            let announced = schedule.handle_timeout(now).unwrap();
            assert_eq!(
                now.after(announced),
                schedule.timeout(),
                "it keeps its word"
            );
            times.push(now.as_us());
        }
        times
    }

    #[test]
    fn heartbeats_after_data_start_fast_and_back_off() {
        let mut schedule = HeartbeatSchedule::new(HeartbeatConfig::default(), Nanos::ZERO);
        let times = run(&mut schedule, Nanos::from_ms(60));
        assert_eq!(times[..6], [20, 40, 80, 160, 320, 640]);
        let last = times.len() - 1;
        assert_eq!(times[last] - times[last - 1], 10_000, "{times:?}");
        assert!(times.len() < 20);
        schedule.on_data(Nanos::from_ms(60));
        assert_eq!(schedule.timeout(), Nanos::from_us(60_020));
    }

    #[test]
    fn heartbeats_under_constant_data_are_ambient_only() {
        let mut schedule = HeartbeatSchedule::new(HeartbeatConfig::default(), Nanos::ZERO);
        let mut times = Vec::new();
        for us in (0..1_000_000).step_by(10) {
            let now = Nanos::from_us(us);
            if schedule.handle_timeout(now).is_some() {
                times.push(us);
            }
            schedule.on_data(now);
        }
        assert_eq!(times.len(), 9, "{times:?}");
        assert!(times.windows(2).all(|w| w[1] - w[0] == 100_000));
    }

    #[test]
    fn late_heartbeat_timeout_emits_one_not_backlog() {
        let mut schedule = HeartbeatSchedule::new(HeartbeatConfig::default(), Nanos::ZERO);
        assert_eq!(schedule.handle_timeout(Nanos::from_us(19)), None);
        let late = Nanos::from_secs(5);
        assert!(schedule.handle_timeout(late).is_some());
        assert_eq!(schedule.handle_timeout(late), None, "one, not a backlog");
        assert!(schedule.timeout() > late);
    }

    #[test]
    fn intervals_that_do_not_rise_are_refused() {
        let mut config = HeartbeatConfig::default();
        assert_eq!(config.check(), Ok(()));
        config.first_us = 0;
        assert!(config.check().is_err());
        config.first_us = config.idle_us + 1;
        assert!(config.check().unwrap_err().to_string().contains("10001"));
    }

    #[test]
    fn intervals_may_be_equal_and_the_longest_is_ten_seconds() {
        let config = |first_us, idle_us, ambient_us| HeartbeatConfig {
            first_us,
            idle_us,
            ambient_us,
        };
        assert!(config(1, 1, 1).check().is_ok());
        assert!(config(5, 5, 10_000_000).check().is_ok());
        for wrong in [
            config(5, 5, 10_000_001),
            config(5, 4, 100),
            config(5, 50, 49),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn heartbeat_is_due_on_time_with_nearer_timer() {
        let config = HeartbeatConfig {
            first_us: 30,
            idle_us: 60,
            ambient_us: 100,
        };
        let mut schedule = HeartbeatSchedule::new(config, Nanos::ZERO);
        let mut beats = Vec::new();
        while beats.len() < 4 {
            let now = schedule.timeout();
            assert_eq!(schedule.handle_timeout(Nanos(now.0 - 1)), None);
            beats.push((now.as_us(), schedule.handle_timeout(now).unwrap().as_us()));
        }
        assert_eq!(beats, [(30, 30), (60, 40), (100, 20), (120, 60)]);
    }
}
