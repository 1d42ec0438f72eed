//! IEX-TP packets as a recording sees them, before a decoder follows one feed.

use super::transport::{IexTp, Segment};
use crate::arbiter::{Blocks, MessageNumber, PacketFormat};

/// Packets of IEX-TP: one segment each. A destination may carry several channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IexPackets;

impl PacketFormat for IexPackets {
    fn recognises(&self, datagram: &[u8]) -> bool {
        Segment::read(datagram).is_ok_and(|segment| {
            let mut messages = segment.messages();
            messages.by_ref().for_each(drop);
            messages.fault().is_none()
        })
    }

    fn is_heartbeat(&self, datagram: &[u8]) -> bool {
        Segment::read(datagram).is_ok_and(|segment| segment.count == 0)
    }

    fn recognises_beginning(&self, beginning: &[u8]) -> bool {
        Segment::read(beginning).is_ok()
    }

    fn channel(&self, packet: &[u8]) -> Option<u32> {
        const AT: usize = 4;
        let field = packet.get(AT..)?.first_chunk()?;
        Some(u32::from_le_bytes(*field))
    }

    fn messages(&self, datagram: &[u8], each: &mut dyn FnMut(MessageNumber, &[u8])) {
        MessageNumber::each(&IexTp::default(), datagram, each);
    }
}
