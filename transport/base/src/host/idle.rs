//! The idle policy of a thread: trades a core against latency.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a polling thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Idle {
    /// Never gives up the core: lowest latency, for a core of its own.
    Spin,
    /// Gives up the core when others wait for it.
    #[default]
    Yield,
    /// Sleeps: for hosts whose cores are shared; adds that much latency and more.
    Sleep {
        /// For how long at least.
        us: u32,
    },
}

impl Idle {
    /// Call it after every round of a polling loop; it waits only when the round did nothing.
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
