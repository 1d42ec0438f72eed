//! IEX-TP packets as a recording sees them, before a decoder follows one feed.

use std::ops::Range;

use super::transport::{IexTp, Segment};
use crate::arbiter::{Blocks, MessageNumber, PacketFormat};

/// Packets of IEX-TP: one segment each. A destination may carry several channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IexPackets;

impl IexPackets {
    /// Returns the session of a segment and the sequences of its messages: in a heartbeat none, before the
    /// next one.
    pub(crate) fn numbers(packet: &[u8]) -> Option<(u128, Range<u64>)> {
        let segment = Segment::read(packet).ok()?;
        let behind = segment.first.saturating_add(segment.count.into());
        Some((segment.session.into(), segment.first..behind))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of DEEP on channel 7 that announces so many messages of two bytes.
    fn segment(messages: u16) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[0] = 1;
        bytes[2..4].copy_from_slice(&0x8004_u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&7_u32.to_le_bytes());
        bytes[12..14].copy_from_slice(&(messages * 4).to_le_bytes());
        bytes[14..16].copy_from_slice(&messages.to_le_bytes());
        bytes[24] = 1;
        bytes.extend([2, 0, b'm', b'm'].repeat(messages.into()));
        bytes
    }

    #[test]
    fn heartbeat_is_a_sound_header_without_messages() {
        assert!(IexPackets.is_heartbeat(&segment(0)));
        assert!(!IexPackets.is_heartbeat(&segment(1)));
        assert!(!IexPackets.is_heartbeat(&segment(0)[..39]), "too short");
        let mut other = segment(0);
        other[0] = 2;
        assert!(!IexPackets.is_heartbeat(&other), "another version");
    }

    #[test]
    fn segment_is_recognised_whole_its_beginning_by_its_header() {
        for messages in [0, 1, 3] {
            let bytes = segment(messages);
            assert!(IexPackets.recognises(&bytes), "{messages}");
            assert!(IexPackets.recognises_beginning(&bytes[..40]));
        }
        let cut = &segment(2)[..47];
        assert!(!IexPackets.recognises(cut) && IexPackets.recognises_beginning(cut));
        assert!(!IexPackets.recognises_beginning(&cut[..39]));
    }

    #[test]
    fn numbers_are_session_and_sequences_of_a_segment() {
        let mut bytes = segment(3);
        bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
        assert_eq!(IexPackets::numbers(&bytes), Some((99, 1..4)));
        assert_eq!(IexPackets::numbers(&segment(0)), Some((0, 1..1)));
        assert_eq!(IexPackets::numbers(&bytes[..39]), None);
    }

    #[test]
    fn channel_is_the_second_word() {
        assert_eq!(IexPackets.channel(&segment(0)), Some(7));
        assert_eq!(IexPackets.channel(&segment(0)[..7]), None);
    }
}
