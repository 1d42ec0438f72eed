//! The one descriptor that a thread waits on: readable when a queue has news, or when one was opened again.
//! It stays the same while queues come and go.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use super::queue::ReceiveQueue;
use crate::error::VerbsError;

/// Wakes the thread that waits, by an event descriptor: unlike a pipe, it needs no reader.
#[derive(Clone)]
pub(super) struct WakeUp(Arc<File>);

impl WakeUp {
    fn new() -> Result<Self, VerbsError> {
        // SAFETY: the descriptor returned is nobody else's. Exercised by
        // `verbs::stuck::removed_device_of_receiver_stops_no_other`.
        let file = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        };
        let file = file.ok_or_else(|| failed(io::Error::last_os_error()))?;
        Ok(Self(Arc::new(file)))
    }

    /// Makes the descriptor readable until the message is taken.
    pub(super) fn send(&self) {
        // It only fails if 2^64 messages are waiting.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Takes all messages.
    fn take(&self) {
        // Without a message there is nothing to take.
        let _ = (&*self.0).read(&mut [0; 8]);
    }
}

/// The descriptor, if waiting is enabled, and its parts.
pub(super) struct Waiting {
    epoll: Option<OwnedFd>,
    wake_up: WakeUp,
}

impl Waiting {
    /// Creates a descriptor without queues, if `waitable`.
    ///
    /// # Errors
    /// [`VerbsError::Call`] if the system has no descriptors left.
    pub(super) fn new(waitable: bool) -> Result<Self, VerbsError> {
        // SAFETY: the descriptor returned is nobody else's. Exercised by
        // `verbs::datagrams::sleeping_verbs_receiver_is_woken_by_datagram`.
        let created = || unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let epoll = match waitable {
            true => Some(created().ok_or_else(|| failed(io::Error::last_os_error()))?),
            false => None,
        };
        let waiting = Self {
            epoll,
            wake_up: WakeUp::new()?,
        };
        waiting.control(libc::EPOLL_CTL_ADD, waiting.wake_up.0.as_raw_fd())?;
        Ok(waiting)
    }

    /// Returns the descriptor.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    /// Returns the side that wakes the thread.
    pub(super) const fn wake_up(&self) -> &WakeUp {
        &self.wake_up
    }

    /// Takes the messages of all lines, each of which is then to be polled.
    pub(super) fn take(&self) {
        self.wake_up.take();
    }

    /// Adds a queue.
    ///
    /// # Errors
    /// [`VerbsError::Call`] if the system refuses.
    pub(super) fn add(&self, queue: &ReceiveQueue) -> Result<(), VerbsError> {
        let mut fds = queue.fds().into_iter();
        fds.try_for_each(|fd| self.control(libc::EPOLL_CTL_ADD, fd))
    }

    /// Removes a queue that is given up. Its descriptors stay open, and perhaps readable, until it is closed.
    pub(super) fn remove(&self, queue: &ReceiveQueue) {
        for fd in queue.fds() {
            if let Err(error) = self.control(libc::EPOLL_CTL_DEL, fd) {
                tracing::debug!("a queue that is given up stays watched: {error}");
            }
        }
    }

    fn control(&self, operation: i32, fd: RawFd) -> Result<(), VerbsError> {
        let Some(epoll) = self.epoll.as_ref().filter(|_| fd >= 0) else {
            return Ok(());
        };
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let event = ptr::from_mut(&mut event);
        // SAFETY: the event lives through the call, which copies it. Exercised by
        // `verbs::datagrams::sleeping_verbs_receiver_is_woken_by_datagram`.
        match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, event) } {
            0 => Ok(()),
            _ => Err(failed(io::Error::last_os_error())),
        }
    }
}

fn failed(source: io::Error) -> VerbsError {
    VerbsError::Call {
        what: "wait for a queue",
        source,
    }
}
