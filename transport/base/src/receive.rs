//! The receiving side of a transport: [`Receive`] lends each datagram for the length of one call.

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Epoch, Nanos, SequenceRange};

use crate::error::ReceiveError;

/// One datagram, lent for the length of a call.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The line it arrived on.
    pub line: LineId,
    /// The sender's address, as the network reports it.
    pub from: Ipv4Addr,
    /// The bytes, aligned to at least 8. The buffer is reused as soon as the call returns.
    pub bytes: &'a [u8],
    /// The `now` of the poll that returned it.
    pub received_at: Nanos,
    /// Whether the transport guarantees that these are the sealed bytes, so that the CRC need not be
    /// checked. Never true for a network.
    pub whole: bool,
}

/// Receives a channel's datagrams, from one line or two.
pub trait Receive: Send {
    /// Passes arrived datagrams to `on`, at most a batch per line, and never blocks. Returns their number.
    /// `now` is protocol time and stamps the whole batch.
    ///
    /// # Errors
    /// [`ReceiveError`] if the transport is not usable any more. Ordinary network faults are counted
    /// instead.
    fn poll(&mut self, now: Nanos, on: &mut dyn FnMut(Received<'_>))
    -> Result<usize, ReceiveError>;

    /// Joins a line's group. Does nothing if the line is already a member.
    ///
    /// # Errors
    /// [`ReceiveError`] if the line does not exist or the network refuses.
    fn join(&mut self, line: LineId) -> Result<(), ReceiveError>;

    /// Leaves a line's group.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError>;

    /// Leaves a line's group and joins it again, whatever the current state. This is the remedy when a
    /// switch or a host lost the membership.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    fn rejoin(&mut self, line: LineId) -> Result<(), ReceiveError> {
        // Leaving fails if the membership is already lost; only the join matters.
        let _ = self.leave(line);
        self.join(line)
    }

    /// Returns descriptors for `epoll` that become readable when something arrives. Empty if the transport
    /// must be polled.
    fn raw_fds(&self) -> &[RawFd];

    /// Returns the same descriptors, borrowed from the receiver.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Sets whether a thread waits on the descriptors; the default is that one does. Without a waiting
    /// thread a transport need not make them readable, which may cost calls and interrupts. A thread that
    /// starts to wait finds them readable if something arrived meanwhile.
    fn set_waited(&mut self, _waited: bool) {}

    /// Returns the epoch and sequences that the sender overwrote before they were read, for a receiver that
    /// reads the sender's memory. Each overrun is returned once. Call this after every poll, and report the
    /// result to the core before the next one. Without the call, the core finds the gap.
    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        None
    }

    /// Returns the counters since opening, one entry per line.
    fn stats(&self) -> &[ReceiveStats];
}

impl<R: Receive + ?Sized> Receive for Box<R> {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        (**self).poll(now, on)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        (**self).join(line)
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        (**self).leave(line)
    }

    fn rejoin(&mut self, line: LineId) -> Result<(), ReceiveError> {
        (**self).rejoin(line)
    }

    fn raw_fds(&self) -> &[RawFd] {
        (**self).raw_fds()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        (**self).fds()
    }

    fn set_waited(&mut self, waited: bool) {
        (**self).set_waited(waited);
    }

    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        (**self).take_overrun()
    }

    fn stats(&self) -> &[ReceiveStats] {
        (**self).stats()
    }
}

/// Counters of one receiver line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveStats {
    /// Datagrams passed to the caller.
    pub datagrams: u64,
    /// Bytes of these datagrams.
    pub bytes: u64,
    /// Calls that returned at least one datagram.
    pub batches: u64,
    /// Whether runs of datagrams are received as one buffer (GRO).
    pub gro: bool,
    /// Runs of at least two datagrams that arrived as one buffer.
    pub runs: u64,
    /// Datagrams in these runs.
    pub run_datagrams: u64,
    /// Datagrams lost because no buffer was free: the kernel's count as of the last datagram that arrived,
    /// or the device's since the line was opened, if it has one. The kernel counts a run that it would have
    /// delivered as one buffer as one.
    pub buffer_drops: u64,
    /// Datagrams that the device refused because of their Q_Key since the line was opened, if it counts
    /// them. The count includes all groups of the device.
    pub wrong_q_keys: u64,
    /// Datagrams longer than the receive buffers; dropped.
    pub oversize: u64,
    /// Frames that are not whole, or whose IP header is damaged; dropped. Only a transport below the kernel's
    /// UDP sees them.
    pub malformed: u64,
    /// Datagrams from addresses that are not allowed senders; dropped.
    pub unknown_senders: u64,
    /// Network errors that went away by themselves.
    pub transient_errors: u64,
    /// Times this line's group was joined.
    pub joins: u64,
    /// Times the device's queue broke and was restarted.
    pub restarts: u64,
    /// The operating system's last error number, 0 for none.
    pub last_errno: i32,
}
