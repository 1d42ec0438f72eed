//! The bytes of a heartbeat datagram, with a tag on an authenticated channel.

use std::fmt;
use std::ops::Deref;

use crate::wire::authentication::{ChannelKeys, TAG_LEN, TAGGED_HEADER_LEN};
use crate::wire::{Datagram, HEADER_LEN, Header, Heartbeat, crc_of, datagram_flags};

/// Length of a heartbeat datagram without a tag, in bytes.
pub const HEARTBEAT_LEN: usize = HEADER_LEN + Heartbeat::LEN;

/// A heartbeat datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatDatagram {
    bytes: [u8; HEARTBEAT_LEN + TAG_LEN],
    len: usize,
}

impl fmt::Debug for HeartbeatDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeartbeatDatagram").field(&&**self).finish()
    }
}

impl Deref for HeartbeatDatagram {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl HeartbeatDatagram {
    /// Returns the datagram of this header, which announces no tag, and body. Keys add a tag.
    pub(super) fn new(header: Header, body: &Heartbeat, keys: Option<&ChannelKeys>) -> Self {
        let body = body.to_bytes();
        let mut bytes = [0; HEARTBEAT_LEN + TAG_LEN];
        let Some(keys) = keys else {
            bytes[HEADER_LEN..HEARTBEAT_LEN].copy_from_slice(&body);
            return Self::sealed(header, bytes, HEARTBEAT_LEN);
        };
        let header = Header {
            flags: header.flags | datagram_flags::TAGGED,
            header_len: TAGGED_HEADER_LEN as u16,
            ..header
        };
        let of = keys.key(keys.number_of(header.sequence));
        let tag = of.key.tag(&header.to_bytes(0), &body);
        bytes[HEADER_LEN..TAGGED_HEADER_LEN].copy_from_slice(&tag);
        bytes[TAGGED_HEADER_LEN..].copy_from_slice(&body);
        Self::sealed(header, bytes, HEARTBEAT_LEN + TAG_LEN)
    }

    fn sealed(header: Header, mut bytes: [u8; HEARTBEAT_LEN + TAG_LEN], len: usize) -> Self {
        let crc = crc_of(&header.to_bytes(0), &bytes[HEADER_LEN..len]);
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes(crc));
        Self { bytes, len }
    }

    /// Returns the datagram as it would be without authentication. No key decides its bytes, so that a
    /// journal holds it, and a replay makes it again.
    #[must_use]
    pub fn plain(&self) -> [u8; HEARTBEAT_LEN] {
        let mut plain = [0; HEARTBEAT_LEN];
        let Ok(datagram) = Datagram::parse(self) else {
            return plain;
        };
        let header = Header {
            flags: datagram.header().flags & !datagram_flags::TAGGED,
            header_len: HEADER_LEN as u16,
            ..*datagram.header()
        };
        let crc = crc_of(&header.to_bytes(0), datagram.payload());
        plain[..HEADER_LEN].copy_from_slice(&header.to_bytes(crc));
        plain[HEADER_LEN..].copy_from_slice(datagram.payload());
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        ChannelId, ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
    };
    use crate::wire::authentication::Key;
    use crate::wire::{CrcVerdict, Kind, PublisherState};

    #[test]
    fn heartbeat_under_keys_carries_tag_of_its_sequence() {
        let header = Header {
            kind: Kind::Heartbeat,
            channel: ChannelId(3),
            count: 0,
            epoch: Epoch(5),
            sequence: Sequence(25),
            first_record: RecordNumber(1),
            source_position: SourcePosition(2),
            sent_at: Nanos(3),
            retained: 1,
            source: SourceId(1),
            payload_len: Heartbeat::LEN as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        let body = Heartbeat {
            next_interval_us: 100,
            hold_off_us: 0,
            subscribers: 1,
            state: PublisherState::Live,
            config_hash: ConfigHash(1),
        };
        let keys = ChannelKeys::new(Key::new([7; 32]), 10, ChannelId(3), Epoch(5));
        let tagged = HeartbeatDatagram::new(header, &body, Some(&keys));
        let datagram = Datagram::parse(&tagged).unwrap();
        assert_eq!(datagram.verdict(), CrcVerdict::Good);
        assert_eq!(datagram.payload(), body.to_bytes());
        assert!(keys.key(2).key.made(&datagram));
        assert!(!keys.key(1).key.made(&datagram));
        let plain = HeartbeatDatagram::new(header, &body, None);
        assert_eq!((plain.len(), &plain.plain()[..]), (HEARTBEAT_LEN, &*plain));
        assert_eq!(tagged.plain(), plain.plain(), "it is recorded without tag");
    }
}
