//! Wakes threads that wait for the local ring, at the price of a fence while nobody does. No lock:
//! one word counts who waits, and one how often the notifier rang, which the kernel compares.

use std::time::{Duration, Instant};

use super::atomics::Ordering::{Acquire, Relaxed, Release, SeqCst};
use super::atomics::{AtomicU32, fence, futex};
use super::wake::Wake;

#[derive(Debug)]
pub(crate) struct Notifier {
    waiting: AtomicU32,
    notified: AtomicU32,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicU32::new(0),
            notified: AtomicU32::new(0),
        }
    }

    /// Wakes all who wait. Enters the kernel only if somebody does.
    #[inline]
    pub(crate) fn notify(&self) {
        // Either we see who waits, or it sees what we wrote before ringing.
        fence(SeqCst);
        if self.waiting.load(Relaxed) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.notified.fetch_add(1, Release);
        futex::wake_all(&self.notified);
    }

    /// How often it woke somebody.
    #[cfg(test)]
    pub(crate) fn notifications(&self) -> u32 {
        self.notified.load(Relaxed)
    }

    /// Waits until `ready`, at most for so long.
    pub(crate) fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> Wake {
        if ready() {
            return Wake::Ready;
        }
        let until = Instant::now().checked_add(timeout);
        self.waiting.fetch_add(1, SeqCst);
        fence(SeqCst);
        let wake = loop {
            // Before we look: who rings from here on changes it, and we do not fall asleep.
            let notified = self.notified.load(Acquire);
            if ready() {
                break Wake::Ready;
            }
            let left = until.map_or(Duration::from_secs(3600), |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break Wake::Timeout;
            }
            futex::wait(&self.notified, notified, left);
        };
        self.waiting.fetch_sub(1, SeqCst);
        wake
    }
}
