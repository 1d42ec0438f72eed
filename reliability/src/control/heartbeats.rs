//! How long the heartbeats of a channel may let their receivers wait.

use serde::{Deserialize, Serialize};

use crate::wire::Heartbeat;

/// The longest times that the heartbeats of a channel announce (docs/PROTOCOL.md §6.1). A receiver limits
/// those of every heartbeat to them, because anybody can send one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeartbeatLimits {
    /// Maximum time until the next heartbeat.
    pub interval_max_us: u32,
    /// Maximum random wait of receivers before a first NACK.
    pub hold_off_max_us: u32,
}

impl Default for HeartbeatLimits {
    /// Returns the limits of a publisher that announces none, which no publisher's own exceed.
    fn default() -> Self {
        Self {
            interval_max_us: 10_000_000,
            hold_off_max_us: 10_000,
        }
    }
}

impl HeartbeatLimits {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the smaller of each limit.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            interval_max_us: self.interval_max_us.min(other.interval_max_us),
            hold_off_max_us: self.hold_off_max_us.min(other.hold_off_max_us),
        }
    }

    /// Returns the heartbeat with its times within these limits.
    #[must_use]
    pub fn limit(self, heartbeat: Heartbeat) -> Heartbeat {
        Heartbeat {
            next_interval_us: heartbeat.next_interval_us.min(self.interval_max_us),
            hold_off_us: heartbeat.hold_off_us.min(self.hold_off_max_us),
            ..heartbeat
        }
    }
}
