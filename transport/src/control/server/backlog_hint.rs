//! Whether anything waits for a server's thread, for another thread to see: one on the same core, say,
//! that never sleeps and can give way.
//!
//! While such a thread looks, it also wakes the server's, which sleeps on a word of its own meanwhile
//! and not on the sockets. Else whichever core a message comes in on would interrupt this one to have
//! the sleeper run: that takes 1 us, and between the cores of a virtual machine 10 to 20 us on either.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use mio::Poll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// The longest sleep that relies on another thread's looking. Longer than between two ticks of most
/// kernels: then its timer is not the next one to fire, and costs the device nothing to set and to reset;
/// and not so short that its end would disturb the thread that looks.
const DOZE_MAX: Duration = Duration::from_millis(20);
/// Who looks less often than this, all in all, does something else as well, and is not relied on.
const LOOKED_WITHIN: Duration = Duration::from_micros(100);
/// Cores that are told apart; of the numbers of others only these bits.
const CORES: u64 = 1 << 16;

/// Looks at what a [`ControlServer`](super::ControlServer) has not polled yet, and takes nothing of it.
#[derive(Debug)]
pub struct Unserved {
    epoll: OwnedFd,
    watch: Arc<Watch>,
}

impl Unserved {
    /// Whether something has come that no poll of the server has told of; then its thread is woken, if it
    /// sleeps because we look. One system call, which waits for nothing to come; it may wait for a poll
    /// of the server's to let go of the same list.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.watch.looked();
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

/// What the two threads share.
#[derive(Debug)]
struct Watch {
    /// How often it was looked, and on which core the last time.
    looks: AtomicU64,
    /// Whether the server's thread sleeps on `woken`.
    is_dozing: AtomicBool,
    woken: OwnedFd,
}

impl Watch {
    fn looked(&self) {
        let count = self.looks.load(Relaxed) / CORES + 1;
        self.looks.store(count * CORES + core(), Relaxed);
    }

    fn wake(&self) {
        // One that falls asleep just now is woken by the next look: what has come is there until then.
        if self.is_dozing.swap(false, Relaxed) {
            // It can only fail by being full, and then it wakes all the same.
            let _ = write(&self.woken, &1_u64.to_ne_bytes());
        }
    }

    /// Whether it was looked often enough to sleep on it again, after `before`, which was then.
    fn is_looked_at(&self, before: u64, then: Instant) -> bool {
        let looks = (self.looks.load(Relaxed) / CORES).saturating_sub(before / CORES);
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        // One alone says nothing of how often.
        looks > 1 && LOOKED_WITHIN.saturating_mul(looks) >= then.elapsed()
    }

    /// Sleeps until it is woken, whether it was, or for this long.
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

/// The core that this thread is on just now.
fn core() -> u64 {
    // SAFETY: it takes nothing and gives a number. Exercised by
    // `tests/control.rs::a_poll_is_ended_by_the_thread_that_spins_on_its_core_and_else_by_what_comes`.
    (unsafe { libc::sched_getcpu() }) as u64 % CORES
}

/// The side of the thread that is watched.
#[derive(Debug, Default)]
pub(super) struct Watched {
    by: Option<Arc<Watch>>,
    /// Whether anybody has looked lately, as far as is known.
    is_looked_at: bool,
}

impl Watched {
    /// Lets another thread look.
    pub(super) fn by_another(&mut self, of: &Poll) -> io::Result<Unserved> {
        // SAFETY: `of` keeps the descriptor open for as long as it is borrowed here. Exercised by
        // `tests/control.rs::another_thread_sees_what_waits_for_the_server_until_it_polls`.
        let epoll = unsafe { BorrowedFd::borrow_raw(of.as_raw_fd()) };
        let watch = Arc::new(Watch {
            looks: AtomicU64::new(0),
            is_dozing: AtomicBool::new(false),
            woken: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        self.by = Some(watch.clone());
        Ok(Unserved {
            epoll: epoll.try_clone_to_owned()?,
            watch,
        })
    }

    /// Waits by `for_events`, for as long at most as it is given; while another thread on this core
    /// looks, until that one tells, and then by `for_events` for nothing. Whether it told.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut for_events: impl FnMut(Option<Duration>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(watch) = (self.by.as_deref()).filter(|_| timeout != Some(Duration::ZERO)) else {
            return for_events(timeout).map(|()| false);
        };
        let (before, began) = (watch.looks.load(Relaxed), Instant::now());
        let is_here = before % CORES == core();
        if !(self.is_looked_at && is_here) {
            let waited = for_events(timeout);
            self.is_looked_at = watch.is_looked_at(before, began);
            return waited.map(|()| false);
        }
        let at_most = timeout.map_or(DOZE_MAX, |timeout| timeout.min(DOZE_MAX));
        watch.is_dozing.store(true, Relaxed);
        let told = watch.doze(at_most);
        // One that tells just now wakes the next sleep in vain.
        watch.is_dozing.store(false, Relaxed);
        self.is_looked_at = watch.is_looked_at(before, began);
        for_events(Some(Duration::ZERO))?;
        Ok(told?)
    }
}
