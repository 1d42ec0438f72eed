//! The atomics that threads here share memory by. Their protocols are files that name them from
//! here and nothing else, so that a test can put a model checker's in their place
//! (`tests/protocol/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Threads that sleep on a word until it is another.
pub(crate) mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait as sleep, wake};

    /// Sleeps while `word` is `value`, at most for so long; may wake for no reason.
    pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        // A span that no clock can tell is as good as the longest that one can.
        let longest = Timespec {
            tv_sec: i64::MAX / 2,
            tv_nsec: 0,
        };
        let timeout = Timespec::try_from(timeout).unwrap_or(longest);
        // Whatever it says, who sleeps looks again.
        let _ = sleep(word, Flags::PRIVATE, value, Some(&timeout));
    }

    /// Wakes all that sleep on `word`.
    pub(crate) fn wake_all(word: &AtomicU32) {
        // It fails for addresses that are none.
        let _ = wake(word, Flags::PRIVATE, u32::MAX >> 1);
    }
}
