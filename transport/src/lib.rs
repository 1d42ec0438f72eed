//! The only code that touches a socket, shared memory or a clock; everything above it speaks the
//! two traits here and cannot tell one transport from another.
//!
//! A transport sends *slots*: bytes that stay where they are until it says that it is done with
//! them ([`FanOut`]). It receives into buffers of its own, of which there are finitely many, and
//! lends each for the length of one call ([`Receive`]). It does not order, repair or trust
//! anything: that is `tickcast-reliability`'s part.
//!
//! | module | is |
//! |---|---|
//! | [`udp`] | multicast on one line or two, batched; and the live input of a feed |
//! | [`shm`] | the ring itself, mapped read-only by subscribers in the publisher's host |
//! | [`memory`] | the transport for tests: completes late, runs out of buffers, stalls on demand |
//! | [`control`] | join, repair and replay over TCP, NACK connections over verbs; never blocking |
//! | [`faults`] | seeded loss, disorder and damage around any [`Receive`] |
//! | [`mapping`], [`available`] | the shared memory that rings live in, and how much there is |
//! | [`clock`], [`idle`], [`pin`], [`prompt`] | time, waiting, and where and how soon a thread runs |
//! | [`whole_file`] | results that a reader finds whole or not at all |

pub mod available;
pub mod clock;
pub mod control;
pub mod error;
pub mod faults;
#[doc(hidden)]
pub mod gauges;
pub mod idle;
pub mod mapping;
pub mod memory;
pub mod pin;
pub mod prompt;
pub mod recording;
pub mod shm;
mod tsc;
pub mod udp;
pub mod verbs;
pub mod whole_file;

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::units::{Epoch, Nanos, Sequence, SequenceRange};

pub use error::{FanOutError, ReceiveError};

/// Where a fan-out finds the bytes to send: the ring, as its writer sees it.
pub trait Slots {
    /// The bytes of a sealed datagram, exactly as they go on the wire; `None` when that sequence
    /// is not sealed or no longer held.
    fn slot(&self, sequence: Sequence) -> Option<&[u8]>;
}

impl Slots for RingWriter {
    #[inline]
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        Self::slot(self, sequence)
    }
}

/// How far a [`FanOut::post`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The last sequence of the range that the transport has taken on *every* line, so that it
    /// need not be posted again; `None` when it took not even the first.
    pub last: Option<Sequence>,
    /// Whether the transport stopped because its send queue is full. Post the rest later.
    pub stalled: bool,
}

/// Sends a channel's datagrams to all who listen, straight from their slots.
///
/// What was posted is *pinned* until [`completed`](Self::completed) says otherwise: the transport
/// may read those bytes at any time until then, so the slot must not be written.
pub trait FanOut: Send {
    /// Takes the slots of `range` for sending, in order, as far as the send queue has room. Call
    /// it again with the rest (from `Posted::last + 1`); a range that begins elsewhere starts anew.
    /// With two lines, one that stalls does not hold back the other.
    ///
    /// # Errors
    /// [`FanOutError`] when the transport is of no more use or was handed what it can't send.
    /// That a network refuses a datagram is no error: it is counted, and the stream goes on.
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError>;

    /// The highest sequence such that it and everything posted before it is no longer pinned;
    /// `None` before the first. Call it often: it is also what moves a transport along.
    fn completed(&mut self) -> Option<Sequence>;

    /// Sends bytes that are copied, not pinned: heartbeats, repairs for many. `false` when a line
    /// had no room; that is counted, and whoever needs certainty sends again.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError>;

    /// Drops everything that is posted and not yet sent, and unpins it. Afterwards
    /// [`completed`](Self::completed) is `None` and a post may begin anywhere.
    fn reset(&mut self);

    /// The longest datagram it can carry, in bytes.
    fn datagram_len_max(&self) -> usize;

    /// Counters since it was opened, one entry a line.
    fn stats(&self) -> &[SendStats];
}

/// What one line of a fan-out has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Datagrams handed to the network.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls into the operating system or to the device.
    pub batches: u64,
    /// Whether runs of datagrams are handed over as one buffer (GSO): asked for, and not refused of late.
    pub gso: bool,
    /// Runs of two datagrams at least that went as one buffer.
    pub runs: u64,
    /// Datagrams of those.
    pub run_datagrams: u64,
    /// Zeros between those datagrams, so that they are equally long.
    pub padding_bytes: u64,
    /// Runs that the operating system would not cut; after each it is given none for a while.
    pub runs_refused: u64,
    /// Times the send queue was full.
    pub stalls: u64,
    /// Datagrams of the stream that the network refused and that were therefore not sent on this line.
    pub refused: u64,
    /// Copied datagrams that found no room or were refused.
    pub unpinned_sends_dropped: u64,
    /// Of the datagrams handed over, those that came back unsent: dropped by [`FanOut::reset`], or
    /// given up by a device.
    pub flushed: u64,
    /// Times a device was made to give everything back: for a reset, or because it gave up.
    pub restarts: u64,
    /// The last error number that the operating system gave, 0 for none.
    pub last_errno: i32,
}

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

    /// What the sender's memory held no longer when it was wanted, where a receiver reads that memory:
    /// of which epoch, and which sequences. It says so once; ask after every poll, and tell the core
    /// before the next one. Who does not ask finds the gap.
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

/// What one line of a receiver has seen.
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
