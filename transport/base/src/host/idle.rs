//! The idle policy of a thread: trades a core against latency.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Waiting policy of a polling thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Idle {
    /// Never gives up the core: lowest latency, for a core of its own.
    Spin,
    /// Gives up the core if other threads wait for it.
    #[default]
    Yield,
    /// Sleeps, for hosts whose cores are shared. Adds at least that much latency.
    Sleep {
        /// Shortest sleep, in microseconds.
        us: u32,
    },
}

impl Idle {
    /// Waits if the last round of the polling loop did nothing. Call it after every round.
    #[inline]
    pub fn idle(&mut self, worked: bool) {
        if worked {
            return;
        }
        match *self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Sleep { us } => std::thread::sleep(Duration::from_micros(us.into())),
        }
    }
}
