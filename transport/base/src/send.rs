//! The sending side of a transport: [`FanOut`] takes slots, reports which it has completed, and counts.

use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{Sequence, SequenceRange};

use crate::error::FanOutError;

/// The source of the bytes to send: the ring, as its writer sees it.
pub trait Slots {
    /// Returns the bytes of a sealed datagram, exactly as sent. `None` if that sequence is not sealed or no
    /// longer held.
    fn slot(&self, sequence: Sequence) -> Option<&[u8]>;

    /// Returns the bytes from the first datagram of a range through the last one, whose slots lie one behind
    /// the other and are equally long. A datagram that reaches into the last cache line of its slot is
    /// followed by zeros up to the slot's end. `None` if the slots do not lie so.
    fn adjacent(&self, range: SequenceRange) -> Option<&[u8]> {
        let _ = range;
        None
    }
}

impl Slots for RingWriter {
    #[inline]
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        Self::slot(self, sequence)
    }

    #[inline]
    fn adjacent(&self, range: SequenceRange) -> Option<&[u8]> {
        Self::adjacent(self, range)
    }
}

/// Progress of a [`FanOut::post`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The last sequence of the range that the transport took on *every* line. It need not be posted again.
    /// `None` if not even the first was taken.
    pub last: Option<Sequence>,
    /// Whether the transport stopped because its send queue is full. Post the rest later.
    pub stalled: bool,
}

/// Sends a channel's datagrams to all receivers, directly from their slots.
///
/// A posted slot is *pinned* until [`completed`](Self::completed) covers it: the transport
/// may read those bytes at any time until then, so the slot must not be written.
pub trait FanOut: Send {
    /// Takes the slots of `range` for sending, in order, as far as the send queue has room. Call
    /// it again with the rest (from `Posted::last + 1`). A range that begins elsewhere restarts the stream.
    /// All lines share one position, so a line that stalls also stalls the post. A publisher opens a fan-out
    /// for each line, and none waits for another.
    ///
    /// # Errors
    /// [`FanOutError`] if the transport is not usable any more, or can't send a slot. A datagram that the
    /// network refuses is not an error: it is counted, and the stream continues.
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError>;

    /// Returns the highest sequence up to which no posted slot is pinned any more. `None` before the first of
    /// the stream.
    /// Call it often, because it also advances a transport.
    fn completed(&mut self) -> Option<Sequence>;

    /// Sends bytes that are copied, not pinned: heartbeats, and repairs by multicast. Returns `false` if a
    /// line had no room. That is counted, and a caller that needs certainty sends again.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError>;

    /// Drops and unpins everything posted and not yet sent. Afterwards [`completed`](Self::completed) returns
    /// `None` and a post may begin anywhere. A device may still send what it reads meanwhile.
    fn reset(&mut self);

    /// Returns the length of the longest datagram that can be sent, in bytes.
    fn datagram_len_max(&self) -> usize;

    /// Returns the counters since opening, one entry per line.
    fn stats(&self) -> &[SendStats];
}

/// Counters of one fan-out line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Datagrams given to the network.
    pub datagrams: u64,
    /// Bytes of these datagrams.
    pub bytes: u64,
    /// Calls into the operating system or to the device.
    pub batches: u64,
    /// Whether runs of datagrams are sent as one buffer (GSO): requested, and not refused recently.
    pub gso: bool,
    /// Runs of at least two datagrams sent as one buffer.
    pub runs: u64,
    /// Datagrams in these runs.
    pub run_datagrams: u64,
    /// Padding between these datagrams, in bytes, which makes them equally long.
    pub padding_bytes: u64,
    /// Runs that the operating system refused to cut. After each, no runs are sent for a while.
    pub runs_refused: u64,
    /// Times the send queue was full.
    pub stalls: u64,
    /// Datagrams of the stream that the network refused and that were therefore not sent on this line.
    pub refused: u64,
    /// Copied datagrams that found no room or were refused.
    pub unpinned_sends_dropped: u64,
    /// Datagrams given to the network that came back unsent: dropped by [`FanOut::reset`], or failed by a
    /// device.
    pub flushed: u64,
    /// Times a device had to return all sends: for a reset, or after a failure.
    pub restarts: u64,
    /// The operating system's last error number, 0 for none.
    pub last_errno: i32,
}
