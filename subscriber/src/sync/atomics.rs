//! The atomics of all memory that threads share here. The files of the protocols import them only from this
//! module, so that a test can replace them by those of a model checker
//! (`tests/protocol/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Threads that sleep until a word changes.
pub(crate) mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait as sleep, wake};

    /// Sleeps while `word` is `value`, at most for `timeout`. May wake spuriously.
    pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
        // A duration that the clock can't represent is replaced by the longest one that it can.
        let longest = Timespec {
            tv_sec: i64::MAX / 2,
            tv_nsec: 0,
        };
        let timeout = Timespec::try_from(timeout).unwrap_or(longest);
        // Ignore the result, because the caller checks its condition again.
        let _ = sleep(word, Flags::PRIVATE, value, Some(&timeout));
    }

    /// Wakes all threads that sleep on `word`.
    pub(crate) fn wake_all(word: &AtomicU32) {
        // The call fails only for invalid addresses.
        let _ = wake(word, Flags::PRIVATE, u32::MAX >> 1);
    }
}
