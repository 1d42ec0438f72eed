//! The interface between an arbiter and a venue's packets.

use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::source::Incident;

/// Two copies of a packet were sent less than this apart, the interval of the venues' heartbeats.
pub(super) const RESEND_NS: u64 = 1_000_000_000;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Messages, or without any a heartbeat that names the next sequence.
    Data,
    /// The end of the session; names the next sequence.
    End,
}

/// The header of a packet, as far as arbitration needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead<N> {
    /// The session, in any injective coding.
    pub session: u128,
    /// Sequence of the first message; without messages, of the next one to come.
    pub first: u64,
    /// Number of messages.
    pub count: u64,
    /// The kind of the packet.
    pub kind: PacketKind,
    /// Time at which the venue sent it, UTC; 0 if the protocol has none.
    pub sent_at: u64,
    /// Facts that the packet's messages need.
    pub note: N,
}

/// The messages of a packet.
pub trait Blocks<'a>: Iterator<Item = &'a [u8]> {
    /// After the last message: returns the reason why the bytes do not fit the header, if any.
    fn fault(&self) -> Option<&'static str>;
}

/// A venue's packets.
pub trait Protocol {
    /// Facts of a packet that its messages need besides their own bytes.
    type Note: Copy;
    /// The messages of a packet.
    type Blocks<'a>: Blocks<'a> + Clone;

    /// Splits a packet into header and messages.
    ///
    /// # Errors
    /// The incident to report instead.
    fn read<'a>(
        &self,
        payload: &'a [u8],
    ) -> Result<(PacketHead<Self::Note>, Self::Blocks<'a>), Incident>;

    /// Records that the source begins with a packet of this note. From then on, [`read`](Self::read)
    /// may refuse the packets of other feeds.
    fn follow(&mut self, _: &Self::Note) {}

    /// Returns whether a message is of a known type and length.
    fn is_known(&self, message: &[u8]) -> bool;
}

/// Takes what an arbiter returns, in order.
pub trait Listen<P: Protocol> {
    /// Announces the packet of the messages that follow.
    fn packet(&mut self, received_at: Nanos, note: &P::Note);

    /// Takes a message that was not given before. It may be empty.
    fn message(&mut self, position: SourcePosition, message: &[u8]);

    /// Takes an incident of the source.
    fn incident(&mut self, incident: Incident);
}

/// Returns the number of whole messages.
pub(super) fn count<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> u64 {
    blocks.fold(0, |count, _| count + 1)
}

/// Returns whether the messages fill the packet as its header says.
pub(super) fn is_exact<'a>(mut blocks: impl Blocks<'a>) -> bool {
    blocks.by_ref().for_each(drop);
    blocks.fault().is_none()
}

/// Returns whether a packet was sent so shortly before another that it is no news of the venue's.
pub(super) const fn trails(sent_at: u64, other: u64) -> bool {
    sent_at < other && other - sent_at <= RESEND_NS
}
