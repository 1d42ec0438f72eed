//! The protocol settings of a subscriber, with defaults for a rack, and the check that the timers fit
//! each other (docs/PROTOCOL.md §11).

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::delivery::Delivery;
use crate::types::Nanos;

/// The rungs of the repair ladder above TCP. TCP is always the last rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepairOrder {
    /// READ of the publisher's ring.
    Read,
    /// NACKs on a connection of their own.
    Nack,
    /// READ; gaps that READ does not bring are NACKed on that connection.
    #[default]
    ReadThenNack,
}

impl RepairOrder {
    /// Returns whether the ring is READ.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadThenNack)
    }

    /// Returns whether the NACK connection is used.
    #[must_use]
    pub const fn nacks(self) -> bool {
        matches!(self, Self::Nack | Self::ReadThenNack)
    }
}

/// The settings of one channel's receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiverConfig {
    /// The order of delivery, and how long to wait for it.
    pub delivery: Delivery,
    /// Whether to repair at all. Without repair, a gap is lost unless it fills by itself in time.
    pub repair: bool,
    /// The rungs of the repair ladder above TCP, used where the publisher offers them.
    pub ladder: RepairOrder,
    /// How many datagrams can wait behind a gap; rounded up to a power of two.
    pub window_slots: u32,
    /// How long a gap must outlive the network's own reordering before it is requested.
    pub reorder_grace_us: u32,
    /// How long the slower of two live lines may lag.
    pub line_skew_us: u32,
    /// A line is down after this long a silence (or three announced intervals) while another is
    /// heard.
    pub line_silence_us: u32,
    /// The shortest retry timeout; a longer one is four measured round trips.
    pub nack_retry_us: u32,
    /// After this many unanswered requests the path counts as down and is built anew.
    pub nack_attempts: u32,
    /// A gap of more sequences than this is not NACKed but replayed (`ordered`), or given up.
    pub burst_max: u32,
    /// The most sequences of a replay in flight.
    pub replay_in_flight: u32,
    /// With `repair` off: how long a gap may still fill by itself.
    pub unrepaired_wait_us: u32,
    /// The shortest silence that counts as stale.
    pub stale_us: u32,
    /// A publisher that is silent on every path for this long counts as dead.
    pub dead_us: u32,
    /// How often progress is reported to the publisher.
    pub progress_us: u32,
    /// While multicast is lost: how often the publisher is asked how far it is.
    pub follow_us: u32,
    /// How often a cursor in the publisher's memory is written, where there is one.
    pub cursor_us: u32,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            delivery: Delivery::Ordered,
            repair: true,
            ladder: RepairOrder::ReadThenNack,
            window_slots: 4096,
            reorder_grace_us: 0,
            line_skew_us: 500,
            line_silence_us: 30_000,
            nack_retry_us: 50,
            nack_attempts: 8,
            burst_max: 2048,
            replay_in_flight: 512,
            unrepaired_wait_us: 20_000,
            stale_us: 30_000,
            dead_us: 5_000_000,
            progress_us: 100_000,
            follow_us: 1_000,
            cursor_us: 10_000,
        }
    }
}

/// Settings that do not fit each other; the config is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReceiverConfigError {
    /// A setting is out of its range.
    #[error("{name} is {value}, it must be from {min} to {max}")]
    Range {
        /// The name of the setting.
        name: &'static str,
        /// The given value.
        value: u64,
        /// The least value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
    },
    /// The deadline leaves no time for a repair.
    #[error(
        "the delivery deadline of {deadline_us} us leaves no time for a repair: it must be at least 2 x nack_retry_us ({nack_retry_us}) and 4 x reorder_grace_us ({reorder_grace_us})"
    )]
    Deadline {
        /// The deadline of `ordered within`.
        deadline_us: u64,
        /// The first retry.
        nack_retry_us: u32,
        /// The reorder grace.
        reorder_grace_us: u32,
    },
    /// A publisher would be dead before it is stale.
    #[error(
        "dead_us ({dead_us}) must be larger than stale_us ({stale_us}): a publisher is stale before it is dead"
    )]
    DeadBeforeStale {
        /// The given silence for dead.
        dead_us: u32,
        /// The given silence for stale.
        stale_us: u32,
    },
}

impl ReceiverConfig {
    /// Checks every setting, and that the settings fit each other.
    ///
    /// # Errors
    /// [`ReceiverConfigError`] names the first setting that is wrong.
    pub fn check(&self) -> Result<(), ReceiverConfigError> {
        let ranges = [
            ("window_slots", self.window_slots, 16, 1 << 20),
            ("reorder_grace_us", self.reorder_grace_us, 0, 1_000_000),
            ("line_skew_us", self.line_skew_us, 0, 1_000_000),
            ("line_silence_us", self.line_silence_us, 100, 60_000_000),
            ("nack_retry_us", self.nack_retry_us, 1, 10_000_000),
            ("nack_attempts", self.nack_attempts, 1, 1_000),
            ("burst_max", self.burst_max, 1, u32::MAX),
            ("replay_in_flight", self.replay_in_flight, 1, 1 << 20),
            ("unrepaired_wait_us", self.unrepaired_wait_us, 0, 60_000_000),
            ("stale_us", self.stale_us, 100, 60_000_000),
            ("dead_us", self.dead_us, 1_000, u32::MAX),
            ("progress_us", self.progress_us, 100, 10_000_000),
            ("follow_us", self.follow_us, 10, 10_000_000),
            ("cursor_us", self.cursor_us, 100, 10_000_000),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                let (value, min, max) = (value.into(), min.into(), max.into());
                return Err(ReceiverConfigError::Range {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        if let Delivery::OrderedWithin(deadline) = self.delivery {
            let least =
                (2 * u64::from(self.nack_retry_us)).max(4 * u64::from(self.reorder_grace_us));
            if deadline < Nanos::from_us(least) {
                return Err(ReceiverConfigError::Deadline {
                    deadline_us: deadline.as_us(),
                    nack_retry_us: self.nack_retry_us,
                    reorder_grace_us: self.reorder_grace_us,
                });
            }
        }
        if self.dead_us <= self.stale_us {
            let (dead_us, stale_us) = (self.dead_us, self.stale_us);
            return Err(ReceiverConfigError::DeadBeforeStale { dead_us, stale_us });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiver_config_defaults_pass_check() {
        assert_eq!(ReceiverConfig::default().check(), Ok(()));
    }

    #[test]
    fn settings_that_do_not_fit_are_named() {
        let default = ReceiverConfig::default();
        let within = Delivery::OrderedWithin(Nanos::from_us(99));
        let error = ReceiverConfig {
            delivery: within,
            ..default
        }
        .check()
        .unwrap_err();
        assert!(error.to_string().contains("99 us"), "{error}");
        let error = ReceiverConfig {
            dead_us: 20_000,
            ..default
        }
        .check()
        .unwrap_err();
        assert!(error.to_string().contains("stale"), "{error}");
        let error = ReceiverConfig {
            window_slots: 3,
            ..default
        }
        .check()
        .unwrap_err();
        assert!(
            error.to_string().starts_with("window_slots is 3"),
            "{error}"
        );
    }

    #[test]
    fn receiver_config_minimums_pass_and_one_less_fails() {
        let default = ReceiverConfig::default();
        let within = |us, nack_retry_us, reorder_grace_us| ReceiverConfig {
            delivery: Delivery::OrderedWithin(Nanos::from_us(us)),
            nack_retry_us,
            reorder_grace_us,
            ..default
        };
        for (least, nack_retry_us, reorder_grace_us) in [(100, 50, 0), (240, 50, 60)] {
            let config = within(least, nack_retry_us, reorder_grace_us);
            assert_eq!(config.check(), Ok(()));
            let config = within(least - 1, nack_retry_us, reorder_grace_us);
            let wrong = config.check().is_err();
            assert!(wrong, "{least}");
        }
        let silence = |stale_us, dead_us| ReceiverConfig {
            stale_us,
            dead_us,
            ..default
        };
        assert!(silence(2_000, 2_001).check().is_ok());
        assert!(silence(2_000, 2_000).check().is_err());
        let window = |window_slots| ReceiverConfig {
            window_slots,
            ..default
        };
        assert!(window(16).check().is_ok() && window(1 << 20).check().is_ok());
        assert!(window(15).check().is_err() && window((1 << 20) + 1).check().is_err());
        let replay = |replay_in_flight| ReceiverConfig {
            replay_in_flight,
            ..default
        };
        assert!(replay(1 << 20).check().is_ok());
        assert!(replay((1 << 20) + 1).check().is_err());
    }
}
