//! The progress of the threads without which a publisher serves nobody.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Rounds of the publish thread and of the repair thread. A thread that hangs completes none.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    publish: Count,
    repair: Count,
}

/// A count on a cache line of its own, because each thread writes its count in every round.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Rounds {
    /// Counts a round of the publish thread, its only writer.
    #[inline]
    pub(crate) fn published(&self) {
        self.publish.increment();
    }

    /// Counts a round of the repair thread, its only writer.
    #[inline]
    pub(crate) fn repaired(&self) {
        self.repair.increment();
    }

    /// Returns the rounds of the publish thread, then those of the repair thread.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.publish.0.load(Relaxed), self.repair.0.load(Relaxed))
    }
}

impl Count {
    #[inline]
    fn increment(&self) {
        let count = self.0.load(Relaxed).wrapping_add(1);
        self.0.store(count, Relaxed);
    }
}
