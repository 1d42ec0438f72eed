//! The limits of an arbiter: how long and how much it holds.

use serde::{Deserialize, Serialize};
use tickcast_reliability::types::Nanos;

/// How long an arbiter waits for what may still come, and how much it holds meanwhile.
///
/// A wait costs latency only while a message is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holding {
    /// A line has passed a missing message this long after it sent a later one.
    pub reorder_us: u32,
    /// A line has also passed it after so many more packets.
    pub reorder_packets: u32,
    /// The longest that one line may lag behind another, and the longest wait for a message.
    pub skew_us: u32,
    /// The time within which a packet of the old session refutes a new one. It exceeds the interval of
    /// the venue's heartbeats, because a quiet session sends nothing else.
    pub session_us: u32,
    /// The time within which the slower lines bring the rest of what one of them brought before.
    pub stragglers_us: u32,
    /// A line that is silent this long while another is heard has stopped.
    pub stopped_us: u32,
    /// Early packets held at most.
    pub packets_max: u32,
    /// Bytes of early packets held at most.
    pub bytes_max: u32,
    /// Whether the packets of an only line are compared with earlier ones under their numbers. A file may
    /// hold two runs of one session.
    #[serde(default)]
    pub compares_alone: bool,
}

impl Holding {
    /// Holds nothing: every packet is taken as it comes.
    pub const NONE: Self = Self {
        reorder_us: 0,
        reorder_packets: 0,
        skew_us: 0,
        session_us: 0,
        stragglers_us: 0,
        stopped_us: 5_000_000,
        packets_max: 0,
        bytes_max: 0,
        compares_alone: false,
    };

    /// The limits for packets of a file, where a wait costs nothing.
    pub const RECORDED: Self = Self {
        reorder_us: 1_000_000,
        reorder_packets: 1024,
        skew_us: 1_000_000,
        stragglers_us: 1_000_000,
        compares_alone: true,
        ..Self::live(0, 0)
    };

    /// Returns the limits of a live feed with this reorder and line skew.
    #[must_use]
    pub const fn live(reorder_us: u32, skew_us: u32) -> Self {
        Self {
            reorder_us,
            reorder_packets: 256,
            skew_us,
            // Two of the venues' heartbeats, one of which may be lost, and some time to arrive.
            session_us: 2_500_000,
            stragglers_us: 100_000,
            // Three of the venues' heartbeats, and some time to arrive.
            stopped_us: 3_500_000,
            packets_max: 4096,
            bytes_max: 8 << 20,
            compares_alone: false,
        }
    }

    pub(super) const fn reorder(&self) -> Nanos {
        Nanos::from_us(self.reorder_us as u64)
    }

    pub(super) const fn stopped(&self) -> Nanos {
        Nanos::from_us(self.stopped_us as u64)
    }

    pub(super) const fn session(&self) -> Nanos {
        Nanos::from_us(self.session_us as u64)
    }

    /// Returns the time within which all lines bring what one of them brought before.
    pub(super) fn stragglers(&self) -> Nanos {
        let stragglers = Nanos::from_us(self.stragglers_us.into());
        stragglers.max(self.wait())
    }

    /// Returns the longest wait for one message.
    pub(super) fn wait(&self) -> Nanos {
        Nanos::from_us(self.skew_us.max(self.reorder_us).into())
    }
}

/// The lines of a source, as its decoder needs to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Number of lines, at least 1.
    pub count: usize,
    /// The limits of the arbiter.
    pub holding: Holding,
}

impl Default for Lines {
    /// Returns one line and no holding.
    fn default() -> Self {
        Self {
            count: 1,
            holding: Holding::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_live_feeds_files_and_none_are_as_documented() {
        let live = Holding {
            reorder_us: 7,
            reorder_packets: 256,
            skew_us: 9,
            session_us: 2_500_000,
            stragglers_us: 100_000,
            stopped_us: 3_500_000,
            packets_max: 4_096,
            bytes_max: 8_388_608,
            compares_alone: false,
        };
        assert_eq!(Holding::live(7, 9), live);
        let recorded = Holding {
            reorder_us: 1_000_000,
            reorder_packets: 1_024,
            skew_us: 1_000_000,
            stragglers_us: 1_000_000,
            compares_alone: true,
            ..live
        };
        assert_eq!(Holding::RECORDED, recorded);
        let none = Holding {
            reorder_us: 0,
            reorder_packets: 0,
            skew_us: 0,
            session_us: 0,
            stragglers_us: 0,
            stopped_us: 5_000_000,
            packets_max: 0,
            bytes_max: 0,
            compares_alone: false,
        };
        assert_eq!(Holding::NONE, none);
        let one = Lines {
            count: 1,
            holding: none,
        };
        assert_eq!(Lines::default(), one);
    }

    #[test]
    fn waits_are_the_longer_ones() {
        for (reorder_us, skew_us, stragglers_us, wait, stragglers) in [
            (1, 2, 3, 2, 3),
            (2, 1, 3, 2, 3),
            (1, 9, 3, 9, 9),
            (9, 1, 3, 9, 9),
        ] {
            let holding = Holding {
                reorder_us,
                skew_us,
                session_us: 77,
                stragglers_us,
                ..Holding::NONE
            };
            assert_eq!(holding.wait(), Nanos::from_us(wait));
            assert_eq!(holding.stragglers(), Nanos::from_us(stragglers));
            assert_eq!(holding.reorder(), Nanos::from_us(reorder_us.into()));
            assert_eq!(holding.session(), Nanos::from_us(77));
        }
        assert_eq!(Holding::NONE.stopped(), Nanos::from_us(5_000_000));
    }
}
