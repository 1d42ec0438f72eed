//! Wakes threads that wait for the local ring, at the price of a fence while nobody does.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicUsize, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::monitor::locked;
use crate::wake::Wake;

#[derive(Debug, Default)]
pub(crate) struct Bell {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Wakes all who wait. Enters the kernel only if somebody does.
    #[inline]
    pub(crate) fn ring(&self) {
        // Either we see who waits, or it sees what we wrote before ringing.
        fence(SeqCst);
        if self.waiting.load(Relaxed) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(locked(&self.lock));
        self.rung.notify_all();
    }

    /// Waits until `ready`, at most for so long.
    pub(crate) fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> Wake {
        if ready() {
            return Wake::Ready;
        }
        let until = Instant::now().checked_add(timeout);
        self.waiting.fetch_add(1, SeqCst);
        fence(SeqCst);
        let mut guard = locked(&self.lock);
        let wake = loop {
            if ready() {
                break Wake::Ready;
            }
            let left = until.map_or(Duration::from_secs(3600), |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break Wake::Timeout;
            }
            let waited = self.rung.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(guard);
        self.waiting.fetch_sub(1, SeqCst);
        wake
    }
}
