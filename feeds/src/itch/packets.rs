//! MoldUDP64 packets of ITCH as a recording sees them, before a decoder follows one session.

use tickcast_reliability::types::SourcePosition;

use super::{PROTOCOL, messages::message_len};
use crate::arbiter::{Blocks, MessageNumber, PacketFormat, Protocol};
use crate::moldudp64::{END_OF_SESSION, MoldHeader};

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
        head.count > 0 && are_known && messages.fault().is_none()
    }

    fn is_heartbeat(&self, datagram: &[u8]) -> bool {
        MoldHeader::split(datagram).is_some_and(|(header, rest)| {
            let has_messages = !matches!(header.count, 0 | END_OF_SESSION);
            !has_messages && rest.is_empty() && has_name(&header)
        })
    }

    fn recognises_beginning(&self, beginning: &[u8]) -> bool {
        let Some((header, blocks)) = MoldHeader::split(beginning) else {
            return false;
        };
        let Some((len, [kind, ..])) = blocks.split_first_chunk::<2>() else {
            return false;
        };
        has_name(&header) && message_len(*kind) == Some(u16::from_be_bytes(*len).into())
    }

    fn messages(&self, datagram: &[u8], each: &mut dyn FnMut(MessageNumber, &[u8])) {
        MessageNumber::each(&PROTOCOL, datagram, each);
    }

    fn first_len(&self, datagram: &[u8]) -> usize {
        let Ok((head, mut messages)) = PROTOCOL.read(datagram) else {
            return datagram.len();
        };
        messages.by_ref().for_each(drop);
        let next = messages.rest().filter(|rest| {
            let read = PROTOCOL.read(rest);
            read.is_ok_and(|(it, _)| it.session == head.session)
        });
        datagram.len() - next.map_or(0, <[u8]>::len)
    }
}

/// Returns whether the session has a name, and its sequence can be one.
fn has_name(header: &MoldHeader) -> bool {
    let mut name = header.session.iter();
    name.all(|c| c.is_ascii_graphic() || *c == b' ')
        && header.sequence <= SourcePosition::SEQUENCE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &[u8] = b"S\0\0\0\0\0\0\0\0\0\0O";

    fn packet(session: &[u8; 10], count: u16, messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = session.to_vec();
        bytes.extend(1_u64.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for message in messages {
            bytes.extend((message.len() as u16).to_be_bytes());
            bytes.extend(*message);
        }
        bytes
    }

    #[test]
    fn packet_is_recognised_from_end_to_end() {
        let two = packet(b"SESSION001", 2, &[EVENT, EVENT]);
        assert!(ItchPackets.recognises(&two));
        for (bytes, case) in [
            (packet(b"SESSION001", 0, &[]), "a heartbeat"),
            (packet(b"SESSION001", 1, &[EVENT, EVENT]), "a rest"),
            (packet(b"SESSION001", 3, &[EVENT, EVENT]), "one too few"),
            (packet(b"SESSION001", 2, &[EVENT, b"zzz"]), "unknown"),
        ] {
            assert!(!ItchPackets.recognises(&bytes), "{case}");
        }
    }

    #[test]
    fn beginning_is_recognised_by_session_and_first_message() {
        let begins = |session, message: &[u8]| {
            let bytes = packet(session, 1, &[message]);
            ItchPackets.recognises_beginning(&bytes)
        };
        assert!(begins(b"SESSION 01", EVENT));
        assert!(!begins(b"SESSION\x0001", EVENT), "no name");
        assert!(!begins(b"SESSION 01", &EVENT[..11]), "another length");
        assert!(!begins(b"SESSION\x0001", b"zzz"));
    }

    #[test]
    fn heartbeat_is_whole_header_with_name_and_no_message() {
        let session = b"SESSION 01";
        for count in [0, END_OF_SESSION] {
            assert!(ItchPackets.is_heartbeat(&packet(session, count, &[])));
        }
        let (mut beyond, heartbeat) = (packet(session, 0, &[]), packet(session, 0, &[]));
        beyond[10] = 1;
        for (bytes, case) in [
            (packet(session, 1, &[EVENT]), "a message"),
            (packet(session, 0, &[EVENT]), "a rest"),
            (packet(b"SESSION\x0001", 0, &[]), "no name"),
            (heartbeat[..19].to_vec(), "too short"),
            (beyond, "no sequence"),
        ] {
            assert!(!ItchPackets.is_heartbeat(&bytes), "{case}");
        }
    }

    #[test]
    fn merged_packets_of_one_session_are_parted() {
        let first = packet(b"SESSION001", 1, &[EVENT]);
        let same = [&first[..], &first].concat();
        assert_eq!(ItchPackets.first_len(&same), first.len());
        assert!(ItchPackets.recognises(&same));
        let other = packet(b"SESSION002", 1, &[EVENT]);
        let merged = [&first[..], &other].concat();
        assert_eq!(ItchPackets.first_len(&merged), merged.len());
        let cut = packet(b"SESSION001", 2, &[EVENT]);
        assert_eq!(ItchPackets.first_len(&cut), cut.len());
        let short = &first[..10];
        assert_eq!(ItchPackets.first_len(short), 10);
    }
}
