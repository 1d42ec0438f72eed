//! Wakes threads that wait for the local ring. While no thread waits, a notification costs one fence.
//! There is no lock: one word counts the waiting threads, and one counts the notifications. The kernel
//! compares the latter.

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

    /// Wakes all waiting threads. Enters the kernel only if a thread waits.
    #[inline]
    pub(crate) fn notify(&self) {
        // Either this thread sees the waiting thread, or the waiting thread sees the words written before.
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

    /// Returns how often a thread was woken.
    #[cfg(test)]
    pub(crate) fn notifications(&self) -> u32 {
        self.notified.load(Relaxed)
    }

    /// Waits until `ready` returns true, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> Wake {
        if ready() {
            return Wake::Ready;
        }
        let until = Instant::now().checked_add(timeout);
        self.waiting.fetch_add(1, SeqCst);
        fence(SeqCst);
        let wake = loop {
            // Read the count before the check: a notification from here on changes it, which prevents
            // the sleep.
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
