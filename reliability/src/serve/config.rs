//! The repair side's settings: budgets and time limits, defaults for a rack, and the checks between them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::control::FRAME_HEAD_LEN;
use crate::ring::Geometry;

/// The smallest burst: the largest datagram in its frame must fit.
pub const BURST_BYTES_MIN: u64 = Geometry::SLOT_LEN_MAX as u64 + FRAME_HEAD_LEN as u64;

/// Unread bytes of all connections of one origin at which those with unread bytes get no more datagrams, as a
/// multiple of `backlog_pause_bytes`.
const ORIGIN_PAUSES: usize = 16;
/// Unread bytes of all connections of one origin at which none may have more than [`UNREAD_SPARED`], as a
/// multiple of `backlog_pause_bytes`. Both together bound the memory that one host can fill.
const ORIGIN_CLOSES: usize = 4 * ORIGIN_PAUSES;
/// Unread bytes that every connection may have, whatever its origin has. A peer that reads has less.
const UNREAD_SPARED: usize = 64 << 10;
/// Maximum number of connections without a session beside `peers_max` connections of sessions.
const ARRIVING_MAX: usize = 64;

/// The repair settings of a publisher. All budgets count the bytes of whole frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RepairConfig {
    /// Repair budget of all subscribers together, including multicast repairs. It protects fresh data.
    pub repair_bytes_per_s: u64,
    /// Burst of the repair budget.
    pub repair_burst_bytes: u64,
    /// Repair budget of one subscriber. It protects the others from a lossy one.
    pub subscriber_bytes_per_s: u64,
    /// Burst of one subscriber's budget.
    pub subscriber_burst_bytes: u64,
    /// Replay budget of all joiners together.
    pub joiner_bytes_per_s: u64,
    /// Burst of the replay budget.
    pub joiner_burst_bytes: u64,
    /// NACKs for one sequence within this span count as one loss.
    pub repair_coalesce_us: u64,
    /// How long after a multicast repair further NACKs for that sequence count as answered by it.
    /// Must be below the subscribers' `nack_retry_us`.
    pub sender_ignore_us: u64,
    /// Whether a sequence that many subscribers want is multicast at all.
    pub multicast_repair: bool,
    /// Number of subscribers from which a group is large: all but a few scouts hold off, and three askers
    /// trigger a multicast.
    pub large_group: u32,
    /// A typical round trip of a NACK. The hold-off of large groups follows from it.
    pub rtt_us: u32,
    /// Maximum runs of pending sequences of one subscriber and channel; further NACKs are refused for lack of
    /// budget. A multicast in the middle of a run splits it into two, and both count.
    pub pending_ranges_max: usize,
    /// Unsent bytes of a connection at which it gets no more datagrams.
    pub backlog_pause_bytes: usize,
    /// Unsent bytes of a connection at which it is closed, because its peer does not read.
    pub backlog_close_bytes: usize,
    /// Maximum number of connections of sessions at a time.
    pub peers_max: usize,
    /// Maximum connections of one IPv4 address or IPv6 network of 64 bits; `None` means half of `peers_max`,
    /// so that no host takes all places.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub peers_per_address_max: Option<usize>,
    /// Maximum replays of one IPv4 address or IPv6 network of 64 bits at a time. A further one is refused and
    /// may retry, so that no host takes the whole replay budget with many small shares.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub replays_per_address_max: usize,
    /// Maximum time from connecting to JOIN.
    pub join_timeout_us: u64,
    /// Maximum silence of a connection after JOIN. Subscribers report their progress every 100 ms; replay
    /// connections are exempt.
    pub silent_timeout_us: u64,
}

impl Default for RepairConfig {
    fn default() -> Self {
        Self {
            repair_bytes_per_s: 312_500_000,
            repair_burst_bytes: 1 << 20,
            subscriber_bytes_per_s: 125_000_000,
            subscriber_burst_bytes: 512 << 10,
            joiner_bytes_per_s: 312_500_000,
            joiner_burst_bytes: 1 << 20,
            repair_coalesce_us: 5,
            sender_ignore_us: 15,
            multicast_repair: true,
            large_group: 64,
            rtt_us: 10,
            pending_ranges_max: 1024,
            backlog_pause_bytes: 1 << 20,
            backlog_close_bytes: 4 << 20,
            peers_max: 1024,
            peers_per_address_max: None,
            replays_per_address_max: 16,
            join_timeout_us: 2_000_000,
            silent_timeout_us: 60_000_000,
        }
    }
}

macro_rules! budgets {
    ($($setting:ident,)+) => {
        impl RepairConfig {
            /// Names of the settings that a running publisher can change: the rates and bursts.
            pub const BUDGETS: &'static [&'static str] = &[$(stringify!($setting)),+];

            /// Returns these settings with the [`BUDGETS`](Self::BUDGETS) of `other`.
            #[must_use]
            pub const fn with_budgets_of(self, other: &Self) -> Self {
                Self {
                    $($setting: other.$setting,)+
                    ..self
                }
            }
        }
    };
}

budgets!(
    repair_bytes_per_s,
    repair_burst_bytes,
    subscriber_bytes_per_s,
    subscriber_burst_bytes,
    joiner_bytes_per_s,
    joiner_burst_bytes,
);

/// A conflict between repair settings. The config is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RepairConfigError {
    /// A number that must not be zero.
    #[error("{setting} is 0; it must be at least 1")]
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A burst smaller than the largest datagram.
    #[error("{setting} is {bytes}; the largest datagram needs {BURST_BYTES_MIN}")]
    Burst {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        bytes: u64,
    },
    /// Two settings in the wrong order.
    #[error("{smaller} ({smaller_value}) must not be above {larger} ({larger_value})")]
    Order {
        /// Name of the setting that must be smaller.
        smaller: &'static str,
        /// Its value.
        smaller_value: u64,
        /// Name of the setting that must be larger.
        larger: &'static str,
        /// Its value.
        larger_value: u64,
    },
    /// Repair and replay may take more than half of the link.
    #[error(
        "repair and replay may take {budget_bytes_per_s} bytes/s, more than half of the link's {link_bytes_per_s}; fresh data would suffer"
    )]
    Link {
        /// Sum of both budgets.
        budget_bytes_per_s: u64,
        /// Speed of the link.
        link_bytes_per_s: u64,
    },
}

impl RepairConfig {
    /// Checks each setting and the relations between them.
    ///
    /// # Errors
    /// [`RepairConfigError`] names the wrong settings, their values and the valid ones.
    pub fn check(&self) -> Result<(), RepairConfigError> {
        for (setting, value) in [
            ("repair_bytes_per_s", self.repair_bytes_per_s),
            ("subscriber_bytes_per_s", self.subscriber_bytes_per_s),
            ("joiner_bytes_per_s", self.joiner_bytes_per_s),
            ("pending_ranges_max", self.pending_ranges_max as u64),
            ("peers_max", self.peers_max as u64),
            ("peers_per_address_max", self.of_one_address_max() as u64),
            (
                "replays_per_address_max",
                self.replays_per_address_max as u64,
            ),
            ("join_timeout_us", self.join_timeout_us),
            ("silent_timeout_us", self.silent_timeout_us),
        ] {
            if value == 0 {
                return Err(RepairConfigError::Zero { setting });
            }
        }
        for (setting, bytes) in [
            ("repair_burst_bytes", self.repair_burst_bytes),
            ("subscriber_burst_bytes", self.subscriber_burst_bytes),
            ("joiner_burst_bytes", self.joiner_burst_bytes),
            ("backlog_pause_bytes", self.backlog_pause_bytes as u64),
        ] {
            if bytes < BURST_BYTES_MIN {
                return Err(RepairConfigError::Burst { setting, bytes });
            }
        }
        let in_order = |smaller, smaller_value, larger, larger_value| {
            if smaller_value <= larger_value {
                return Ok(());
            }
            Err(RepairConfigError::Order {
                smaller,
                smaller_value,
                larger,
                larger_value,
            })
        };
        in_order(
            "subscriber_bytes_per_s",
            self.subscriber_bytes_per_s,
            "repair_bytes_per_s",
            self.repair_bytes_per_s,
        )?;
        in_order(
            "repair_coalesce_us",
            self.repair_coalesce_us,
            "sender_ignore_us",
            self.sender_ignore_us,
        )?;
        in_order(
            "peers_per_address_max",
            self.of_one_address_max() as u64,
            "peers_max",
            self.peers_max as u64,
        )?;
        in_order(
            "twice backlog_pause_bytes",
            self.backlog_pause_bytes as u64 * 2,
            "backlog_close_bytes",
            self.backlog_close_bytes as u64,
        )
    }

    /// Returns these settings with bursts that hold the largest datagram.
    pub(super) fn with_whole_bursts(mut self) -> Self {
        for burst in [
            &mut self.repair_burst_bytes,
            &mut self.subscriber_burst_bytes,
            &mut self.joiner_burst_bytes,
        ] {
            *burst = (*burst).max(BURST_BYTES_MIN);
        }
        self
    }

    /// Returns whether a connection with this many unread bytes gets datagrams, where all connections of its
    /// origin have `of_origin` unread bytes. A connection that reads everything always does.
    #[must_use]
    pub(super) const fn may_send(&self, bytes: usize, of_origin: usize) -> bool {
        let of_origin_max = self.backlog_pause_bytes.saturating_mul(ORIGIN_PAUSES);
        bytes == 0 || bytes < self.backlog_pause_bytes && of_origin < of_origin_max
    }

    /// Returns whether a connection may have this many unread bytes of answers that cost no budget, where all
    /// connections of its origin have `of_origin` unread bytes. The length of a WELCOME depends on the
    /// publisher alone, so one alone is never too long.
    #[must_use]
    pub(super) const fn may_answer(&self, bytes: usize, of_origin: usize, welcomes: bool) -> bool {
        let of_origin_max = self.backlog_pause_bytes.saturating_mul(ORIGIN_CLOSES);
        (welcomes || bytes <= self.backlog_close_bytes)
            && (bytes <= UNREAD_SPARED || of_origin <= of_origin_max)
    }

    /// Returns the maximum number of open connections, with and without a session.
    #[must_use]
    pub const fn connections_max(&self) -> usize {
        self.peers_max.saturating_add(ARRIVING_MAX)
    }

    /// Returns the maximum number of connections of one IP address.
    #[must_use]
    pub fn of_one_address_max(&self) -> usize {
        (self.peers_per_address_max).unwrap_or(self.peers_max.div_ceil(2))
    }

    /// Checks that a subscriber's NACK retry interval is longer than `sender_ignore_us`.
    ///
    /// # Errors
    /// [`RepairConfigError::Order`] when its repeated NACKs would be ignored.
    pub const fn check_against_retry(&self, nack_retry_us: u64) -> Result<(), RepairConfigError> {
        if self.sender_ignore_us < nack_retry_us {
            return Ok(());
        }
        Err(RepairConfigError::Order {
            smaller: "sender_ignore_us",
            smaller_value: self.sender_ignore_us,
            larger: "nack_retry_us",
            larger_value: nack_retry_us,
        })
    }

    /// Checks that repair and replay leave fresh data half of the link.
    ///
    /// # Errors
    /// [`RepairConfigError::Link`] when they do not.
    pub const fn check_against_link(&self, link_bytes_per_s: u64) -> Result<(), RepairConfigError> {
        let budget_bytes_per_s = (self.repair_bytes_per_s).saturating_add(self.joiner_bytes_per_s);
        if budget_bytes_per_s <= link_bytes_per_s / 2 {
            return Ok(());
        }
        Err(RepairConfigError::Link {
            budget_bytes_per_s,
            link_bytes_per_s,
        })
    }

    /// Returns the maximum random wait of subscribers before a first NACK.
    ///
    /// It is zero below a large group and without multicast repair: a lone loss is by far the most frequent
    /// one, and any wait would only delay its repair. In a large group it is up to two and a half round
    /// trips: all but a few scouts wait at least half of it (docs/PROTOCOL.md §5.4). By then, the multicast
    /// that answers the scouts has reached everyone.
    #[must_use]
    pub const fn hold_off_us(&self, subscribers: u32) -> u32 {
        if subscribers < self.large_group || !self.multicast_repair {
            0
        } else {
            self.rtt_us.saturating_mul(5) / 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_config_defaults_pass_and_faults_are_named() {
        let good = RepairConfig::default();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.check_against_retry(20), Ok(()));
        assert_eq!(good.check_against_link(3_125_000_000), Ok(()));
        let wrong = |change: fn(&mut RepairConfig)| {
            let mut config = good;
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(wrong(|c| c.joiner_bytes_per_s = 0).contains("joiner_bytes_per_s is 0"));
        assert!(wrong(|c| c.repair_burst_bytes = 100).contains("8968"));
        assert!(wrong(|c| c.subscriber_bytes_per_s = u64::MAX).contains("subscriber_bytes_per_s"));
        assert!(wrong(|c| c.sender_ignore_us = 1).contains("repair_coalesce_us (5)"));
        assert!(wrong(|c| c.backlog_close_bytes = 1 << 20).contains("backlog_close_bytes"));
        assert!(good.check_against_retry(15).is_err());
        assert!(good.check_against_link(1_000_000_000).is_err());
    }

    #[test]
    fn hold_off_of_small_group_is_zero() {
        let config = RepairConfig::default();
        assert_eq!(config.hold_off_us(0), 0);
        assert_eq!(config.hold_off_us(63), 0);
        assert_eq!(config.hold_off_us(64), 25);
        let unicast = RepairConfig {
            multicast_repair: false,
            ..config
        };
        assert_eq!(
            unicast.hold_off_us(1_000),
            0,
            "nobody would answer the rest"
        );
    }

    #[test]
    fn repair_config_limits_are_inclusive() {
        let good = RepairConfig::default();
        let with = |change: fn(&mut RepairConfig)| {
            let mut config = good;
            change(&mut config);
            config.check().is_ok()
        };
        assert_eq!(BURST_BYTES_MIN, 8_968);
        assert!(with(|c| c.joiner_burst_bytes = BURST_BYTES_MIN));
        assert!(!with(|c| c.joiner_burst_bytes = BURST_BYTES_MIN - 1));
        assert!(with(|c| c.subscriber_bytes_per_s = c.repair_bytes_per_s));
        assert!(with(|c| c.sender_ignore_us = c.repair_coalesce_us));
        assert!(with(|c| c.backlog_close_bytes = 2 << 20));
        assert!(!with(|c| c.backlog_close_bytes = (2 << 20) - 1));
        assert!(good.check_against_retry(16).is_ok());
        assert!(good.check_against_link(1_250_000_000).is_ok());
        assert!(good.check_against_link(1_249_999_999).is_err());
    }

    #[test]
    fn address_has_half_of_places_by_default() {
        let of = |peers_max, peers_per_address_max| {
            let config = RepairConfig {
                peers_max,
                peers_per_address_max,
                ..RepairConfig::default()
            };
            config.check().map(|()| config.of_one_address_max())
        };
        assert_eq!(RepairConfig::default().of_one_address_max(), 512);
        assert_eq!((of(1, None), of(9, None)), (Ok(1), Ok(5)));
        assert_eq!((of(9, Some(1)), of(9, Some(9))), (Ok(1), Ok(9)));
        let said = |wrong: Result<usize, RepairConfigError>| wrong.unwrap_err().to_string();
        assert!(said(of(9, Some(0))).contains("peers_per_address_max is 0"));
        assert!(said(of(9, Some(10))).contains("peers_per_address_max (10) must not be above"));
    }

    #[test]
    fn repair_config_defaults_have_rack_sizes() {
        let good = RepairConfig::default();
        let bursts = [
            good.repair_burst_bytes,
            good.subscriber_burst_bytes,
            good.joiner_burst_bytes,
        ];
        assert_eq!(bursts, [1_048_576, 524_288, 1_048_576]);
        let backlogs = (good.backlog_pause_bytes, good.backlog_close_bytes);
        assert_eq!(backlogs, (1_048_576, 4_194_304));
    }
}
