//! The inputs of the repair service's core: one variant for each change that comes from outside. The journal
//! writes these variants.

use crate::control::Message;
use crate::serve::peer::Carrier;
use crate::serve::peer_id::PeerId;
use crate::types::{ChannelId, PeerOrigin};

/// An input of [`RepairCore::handle`](super::RepairCore::handle).
///
/// An input borrows its data, so it is small and needs no drop.
#[derive(Clone, Copy, Debug)]
pub enum RepairInput<'a> {
    /// A connection over this carrier was accepted from this origin. When too many are open, one that has
    /// not joined is rejected.
    Connected(PeerId, Carrier, PeerOrigin),
    /// A message came. Messages after the peer's rejection are ignored.
    Message(PeerId, ChannelId, &'a Message<'a>),
    /// Bytes came that are no control message. The text describes the error.
    Malformed(PeerId, &'a str),
    /// A connection is over. Its pending sequences are abandoned.
    Disconnected(PeerId),
    /// This number of bytes of a peer's output is unsent. The driver gives it after each attempt to write.
    Backlog(PeerId, usize),
    /// This number of bytes of a peer's output has not arrived at its system yet, including unsent ones.
    ///
    /// The driver gives it before the peer's messages: answers in flight are not sent again. A driver without
    /// that number does not give it, and then every repeated NACK is answered again.
    InFlight(PeerId, usize),
    /// This number of WRITEs over a connection is complete.
    Written(PeerId, u32),
    /// WRITEs over a connection are impossible. Its standby is informed.
    Unwritable(PeerId),
    /// The time reached [`poll_timeout`](super::RepairCore::poll_timeout). Early or repeated inputs do
    /// nothing.
    Timeout,
}
