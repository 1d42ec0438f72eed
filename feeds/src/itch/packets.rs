//! MoldUDP64 packets of ITCH as a recording sees them, before a decoder follows one session.

use super::{PROTOCOL, messages::message_len};
use crate::arbiter::{Blocks, MessageNumber, PacketFormat, Protocol};
use crate::moldudp64::MoldHeader;

/// Packets of MoldUDP64 with ITCH 5.0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItchPackets;

impl PacketFormat for ItchPackets {
    /// Returns whether the packet consists of ITCH message blocks from end to end. A packet without
    /// messages is not recognised.
    fn recognises(&self, datagram: &[u8]) -> bool {
        let packet = &datagram[..self.first_len(datagram)];
        let Ok((head, mut messages)) = PROTOCOL.read(packet) else {
            return false;
        };
        let are_known = (messages.by_ref()).all(|message| PROTOCOL.is_known(message));
        head.count > 0 && are_known && messages.fault().is_none() && messages.is_exact()
    }

    fn recognises_beginning(&self, beginning: &[u8]) -> bool {
        let Some((header, blocks)) = MoldHeader::split(beginning) else {
            return false;
        };
        let Some((len, [kind, ..])) = blocks.split_first_chunk::<2>() else {
            return false;
        };
        (header.session.iter()).all(|c| c.is_ascii_graphic() || *c == b' ')
            && message_len(*kind) == Some(u16::from_be_bytes(*len).into())
    }

    fn messages(&self, datagram: &[u8], each: &mut dyn FnMut(MessageNumber, &[u8])) {
        MessageNumber::each(&PROTOCOL, datagram, each);
    }

    fn first_len(&self, datagram: &[u8]) -> usize {
        let Ok((head, mut messages)) = PROTOCOL.read(datagram) else {
            return datagram.len();
        };
        messages.by_ref().for_each(drop);
        let rest = messages.rest();
        let is_next = PROTOCOL
            .read(rest)
            .is_ok_and(|(it, _)| it.session == head.session);
        match messages.fault().is_none() && is_next {
            true => datagram.len() - rest.len(),
            false => datagram.len(),
        }
    }
}
