//! The sending side of a transport: [`FanOut`] takes slots, reports which it is done with, and counts.

use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{Sequence, SequenceRange};

use crate::error::FanOutError;

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
/// A posted slot is *pinned* until [`completed`](Self::completed) covers it: the transport
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

/// Counters of one fan-out line.
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
