//! The packets of a format as a recording sees them, before an arbiter follows one feed of it.

use super::protocol::Protocol;

/// Number of a message, unique within one channel of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageNumber {
    /// The session, as [`PacketHead`](super::PacketHead) codes it.
    session: u128,
    sequence: u64,
}

impl MessageNumber {
    /// Returns the session.
    pub(crate) const fn session(self) -> u128 {
        self.session
    }

    /// Calls `each` with the messages of one packet; with none if its header can't be read.
    pub(crate) fn each(protocol: &impl Protocol, packet: &[u8], each: &mut dyn FnMut(Self, &[u8])) {
        let Ok((head, messages)) = protocol.read(packet) else {
            return;
        };
        let session = head.session;
        let mut sequence = head.first;
        for message in messages {
            each(Self { session, sequence }, message);
            sequence = sequence.saturating_add(1);
        }
    }
}

/// Recognises the packets of one format, and finds the messages that two lines have in common.
pub(crate) trait PacketFormat {
    /// Returns whether the first packet of a datagram is of this format from end to end.
    fn recognises(&self, datagram: &[u8]) -> bool;

    /// Returns whether a datagram is a whole packet of this format that has no message.
    fn is_heartbeat(&self, datagram: &[u8]) -> bool;

    /// Returns whether the beginning of a packet is of this format.
    fn recognises_beginning(&self, beginning: &[u8]) -> bool;

    /// Returns whether a datagram begins like a packet of this format, with messages or without.
    fn begins_or_beats(&self, datagram: &[u8]) -> bool {
        self.recognises_beginning(datagram) || self.is_heartbeat(datagram)
    }

    /// Returns the channel of a packet, in formats whose destinations may carry several.
    fn channel(&self, _packet: &[u8]) -> Option<u32> {
        None
    }

    /// Returns the length of the first packet of a datagram. A kernel may merge several on receipt.
    fn first_len(&self, datagram: &[u8]) -> usize {
        datagram.len()
    }

    /// Calls `each` with the messages of a datagram's first packet, as far as it holds them.
    fn messages(&self, datagram: &[u8], each: &mut dyn FnMut(MessageNumber, &[u8]));
}
