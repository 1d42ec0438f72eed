//! Whether anything waits for a server's thread, for another thread to see: one on the same core, say,
//! that never sleeps and can give way.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use mio::Poll;

/// Looks at what a [`ControlServer`](super::ControlServer) has not polled yet, and takes nothing of it.
#[derive(Debug)]
pub struct Unserved(OwnedFd);

impl Unserved {
    pub(super) fn of(poll: &Poll) -> io::Result<Self> {
        // SAFETY: `poll` keeps the descriptor open for as long as it is borrowed here. Exercised by
        // `tests/control.rs::another_thread_sees_what_waits_for_the_server_until_it_polls`.
        let epoll = unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) };
        epoll.try_clone_to_owned().map(Self)
    }

    /// Whether something has come that no poll of the server has told of. One system call, which waits
    /// for nothing to come; it may wait for a poll of the server's to let go of the same list.
    #[must_use]
    pub fn is_any(&self) -> bool {
        let mut epoll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: it is one valid `pollfd`, to which the kernel writes. Exercised by
        // `tests/control.rs::another_thread_sees_what_waits_for_the_server_until_it_polls`.
        unsafe { libc::poll(&raw mut epoll, 1, 0) > 0 }
    }
}
