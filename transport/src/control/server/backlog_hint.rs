//! Reports to another thread whether input waits for a server's thread, so that a thread that spins on
//! the same core can yield.
//!
//! While that thread polls the hint, it also wakes the server's thread, which sleeps on an eventfd
//! meanwhile and not on the sockets. Otherwise the core that receives a message would interrupt this one
//! to run the sleeper. That takes 1 us, and between the cores of a virtual machine 10 to 20 us on either.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use mio::Poll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// The longest sleep that relies on the polls of another thread. It exceeds the tick of most kernels, so
/// its timer is not the next one to fire and costs no write to the device. It ends too rarely to
/// disturb the polling thread.
const DOZE_MAX: Duration = Duration::from_millis(20);
/// Longest mean interval between polls of a thread that the server relies on.
const POLL_INTERVAL_MAX: Duration = Duration::from_micros(100);
/// Bound of the stored core numbers. Larger numbers are reduced modulo this.
const CORES: u64 = 1 << 16;

/// Checks for input that a [`ControlServer`](super::ControlServer) has not polled yet, and takes none of it.
#[derive(Debug)]
pub struct BacklogHint {
    epoll: OwnedFd,
    watch: Arc<Watch>,
}

impl BacklogHint {
    /// Returns whether input has arrived that no poll of the server has reported. If so, wakes the server's
    /// thread, should it rely on these calls. One system call, which never waits for input; it may wait for a
    /// poll of the server to release the same list.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.watch.count_poll();
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        let waits = poll(&mut epoll, Some(&ZERO)).is_ok_and(|ready| ready > 0);
        if waits {
            self.watch.wake();
        }
        waits
    }
}

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// State shared by the two threads.
#[derive(Debug)]
struct Watch {
    /// Number of polls, and the core of the last one.
    polls: AtomicU64,
    /// Whether the server's thread sleeps on `woken`.
    is_dozing: AtomicBool,
    woken: OwnedFd,
}

impl Watch {
    fn count_poll(&self) {
        let count = self.polls.load(Relaxed) / CORES + 1;
        self.polls.store(count * CORES + core(), Relaxed);
    }

    fn wake(&self) {
        // A thread that falls asleep just now is woken by the next poll, because the input stays.
        if self.is_dozing.swap(false, Relaxed) {
            // It fails only if the counter is full, and a full counter wakes the thread as well.
            let _ = write(&self.woken, &1_u64.to_ne_bytes());
        }
    }

    /// Returns whether the polls since `then`, when their number was `before`, suffice to rely on them again.
    fn is_polled(&self, before: u64, then: Instant) -> bool {
        let polls = (self.polls.load(Relaxed) / CORES).saturating_sub(before / CORES);
        let polls = u32::try_from(polls).unwrap_or(u32::MAX);
        // A single poll has no interval.
        polls > 1 && POLL_INTERVAL_MAX.saturating_mul(polls) >= then.elapsed()
    }

    /// Sleeps until woken or for this long; returns whether it was woken.
    fn doze(&self, at_most: Duration) -> Result<bool, Errno> {
        let timeout = at_most.try_into().unwrap_or(ZERO);
        match poll(
            &mut [PollFd::new(&self.woken, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => read(&self.woken, &mut [0_u8; 8]).map(|_| true),
            Err(error) => Err(error),
        }
    }
}

/// Returns the core that this thread runs on.
fn core() -> u64 {
    // SAFETY: it takes nothing and gives a number. Exercised by
    // `tests/local/control.rs::poll_ends_by_spinner_on_core_or_by_arrival`.
    (unsafe { libc::sched_getcpu() }) as u64 % CORES
}

/// The server's side.
#[derive(Debug, Default)]
pub(super) struct Watched {
    by: Option<Arc<Watch>>,
    /// Whether the other thread polled often enough during the last wait.
    is_polled: bool,
}

impl Watched {
    /// Creates the hint for another thread.
    pub(super) fn hint(&mut self, of: &Poll) -> io::Result<BacklogHint> {
        // SAFETY: `of` keeps the descriptor open for as long as it is borrowed here. Exercised by
        // `tests/local/control.rs::another_thread_sees_what_waits_for_the_server_until_it_polls`.
        let epoll = unsafe { BorrowedFd::borrow_raw(of.as_raw_fd()) };
        let watch = Arc::new(Watch {
            polls: AtomicU64::new(0),
            is_dozing: AtomicBool::new(false),
            woken: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        self.by = Some(watch.clone());
        Ok(BacklogHint {
            epoll: epoll.try_clone_to_owned()?,
            watch,
        })
    }

    /// Waits by `for_events` for at most `timeout`. While another thread polls on this core, waits for it
    /// instead, then calls `for_events` without a timeout. Returns whether that thread ended the wait.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut for_events: impl FnMut(Option<Duration>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(watch) = (self.by.as_deref()).filter(|_| timeout != Some(Duration::ZERO)) else {
            return for_events(timeout).map(|()| false);
        };
        let (before, began) = (watch.polls.load(Relaxed), Instant::now());
        let is_here = before % CORES == core();
        if !(self.is_polled && is_here) {
            let waited = for_events(timeout);
            self.is_polled = watch.is_polled(before, began);
            return waited.map(|()| false);
        }
        let at_most = timeout.map_or(DOZE_MAX, |timeout| timeout.min(DOZE_MAX));
        watch.is_dozing.store(true, Relaxed);
        let woken = watch.doze(at_most);
        // A wake-up that arrives now ends the next sleep early, which is harmless.
        watch.is_dozing.store(false, Relaxed);
        self.is_polled = watch.is_polled(before, began);
        for_events(Some(Duration::ZERO))?;
        Ok(woken?)
    }
}
