//! The receiving side of a transport: [`Receive`] lends each datagram for the length of one call.

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Epoch, Nanos, SequenceRange};

use crate::error::ReceiveError;

/// One datagram, lent for the length of a call.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The line it came on.
    pub line: LineId,
    /// The address it was sent from, as the network says.
    pub from: Ipv4Addr,
    /// Its bytes, aligned to 8 at least. The buffer is used again as soon as the call returns.
    pub bytes: &'a [u8],
    /// The `now` of the poll that brought it.
    pub received_at: Nanos,
    /// Whether the transport knows these to be the bytes that were sealed, so that nobody need
    /// compute their CRC: no network can say so.
    pub whole: bool,
}

/// Receives a channel's datagrams, from one line or two.
pub trait Receive: Send {
    /// Hands over what has arrived, at most a batch per line, and never blocks. How many there
    /// were. `now` is protocol time and stamps the whole batch.
    ///
    /// # Errors
    /// [`ReceiveError`] when the transport is of no more use. What a network may do at any time
    /// is counted instead.
    fn poll(&mut self, now: Nanos, on: &mut dyn FnMut(Received<'_>))
    -> Result<usize, ReceiveError>;

    /// Becomes a member of a line's group; nothing happens where it is one already.
    ///
    /// # Errors
    /// [`ReceiveError`] when the line does not exist or the network refuses.
    fn join(&mut self, line: LineId) -> Result<(), ReceiveError>;

    /// Gives up membership of a line's group.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError>;

    /// Leaves and joins, whatever the network thinks the state is: the remedy when a switch or a
    /// host forgot us.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    fn rejoin(&mut self, line: LineId) -> Result<(), ReceiveError> {
        // A membership that is gone already can't be left; what matters is that we join.
        let _ = self.leave(line);
        self.join(line)
    }

    /// Descriptors that become readable when something arrives, for `epoll`; none where a
    /// transport has to be polled.
    fn raw_fds(&self) -> &[RawFd];

    /// The same, borrowed from the receiver.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether somebody waits on the descriptors, as is taken for granted until this says otherwise.
    /// For one who spins a transport need not see to it that they become readable, which may cost
    /// calls and interrupts. Whoever begins to wait finds them readable if something came meanwhile.
    fn set_waited(&mut self, _waited: bool) {}

    /// Returns the epoch and sequences that the sender's memory no longer held when they were wanted,
    /// where a receiver reads that memory. Each overrun is returned once. Call this after every poll,
    /// and report the result to the core before the next one. Without the call, the core finds the gap.
    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        None
    }

    /// Counters since it was opened, one entry a line.
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
    /// Datagrams handed over.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls that brought at least one datagram.
    pub batches: u64,
    /// Whether runs of datagrams are taken over as one buffer (GRO).
    pub gro: bool,
    /// Runs of two datagrams at least that came as one buffer.
    pub runs: u64,
    /// Datagrams of those.
    pub run_datagrams: u64,
    /// Datagrams lost because no buffer was free: the kernel's count as of the last datagram that
    /// arrived, or the device's since the line was opened, where it has one. Of a run that it would
    /// have handed over as one, the kernel counts one.
    pub buffer_drops: u64,
    /// Datagrams that the device refused for their Q_Key since the line was opened, where it counts
    /// them: of all its groups.
    pub wrong_q_keys: u64,
    /// Datagrams longer than the receive buffers; dropped.
    pub oversize: u64,
    /// Datagrams from addresses that are not among the known senders; dropped.
    pub strangers: u64,
    /// Errors of the network that went away by themselves.
    pub transient_errors: u64,
    /// Times this line's group was joined.
    pub joins: u64,
    /// Times the device's queue broke and was started anew.
    pub restarts: u64,
    /// The last error number that the operating system gave, 0 for none.
    pub last_errno: i32,
}
