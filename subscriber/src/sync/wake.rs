//! Waiting without a busy loop: one epoll descriptor with all sockets, and a timer for the deadlines of the
//! protocol.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tickcast_reliability::types::Nanos;

/// The result of waiting.
///
/// ```
/// # use std::time::Duration;
/// # use tickcast_subscriber::{Subscriber, Wake};
/// # let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// if subscriber.wait(Duration::from_millis(100)).is_ok_and(|wake| wake == Wake::Ready) {
///     subscriber.poll(|item| println!("{item:?}"));
/// }
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There may be something to do: poll.
    Ready,
    /// The timeout has passed, and nothing happened.
    Timeout,
}

/// The descriptors to wait on. They are armed only on request: polling alone arms nothing.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Whether a thread waits on the descriptor.
    used: Cell<bool>,
    /// The time to which the timer is set.
    armed: Cell<Nanos>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &timer, data, epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            timer,
            used: Cell::new(false),
            armed: Cell::new(Nanos::MAX),
        })
    }

    /// Watches a socket for reading or writing. A second call for a socket replaces the first. A closed
    /// socket is not watched any more.
    pub(crate) fn watch(&self, socket: BorrowedFd<'_>, read: bool, write: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        let data = epoll::EventData::new_u64(0);
        match epoll::add(&self.epoll, socket, data, flags) {
            Err(rustix::io::Errno::EXIST) => epoll::modify(&self.epoll, socket, data, flags)?,
            other => other?,
        }
        Ok(())
    }

    /// Returns whether a thread waits on the descriptor.
    #[inline]
    pub(crate) const fn is_used(&self) -> bool {
        self.used.get()
    }

    /// Registers that a thread waits. `due` is the next deadline of the protocol.
    pub(crate) fn start(&self, due: Nanos, now: Nanos) -> io::Result<()> {
        self.used.set(true);
        self.arm(due, now)
    }

    /// Sets the timer to `due` if its current setting is later or has passed.
    pub(crate) fn arm(&self, due: Nanos, now: Nanos) -> io::Result<()> {
        let armed = self.armed.get();
        if due >= armed && armed > now {
            return Ok(());
        }
        self.armed.set(due);
        // Zero would disarm the timer, but a deadline in the past must wake at once.
        let at = if due == Nanos::MAX { 0 } else { due.0.max(1) };
        let value = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(at),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)?;
        Ok(())
    }

    /// Waits until a socket or the timer is ready.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<Wake> {
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64;
        let timeout = timespec(millis * 1_000_000);
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(0) => Ok(Wake::Timeout),
            // A signal arrived. The caller should check for its effects, so return as ready.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(Wake::Ready),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

const fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
