//! Datagrams with the right lengths and CRC.

use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{HEADER_LEN, Header, Kind, crc_of, datagram_flags};

/// Returns a data datagram with this count and payload.
pub(super) fn sealed(count: u16, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Data,
        channel: ChannelId(4),
        count,
        epoch: Epoch(9),
        sequence: Sequence(1_000),
        first_record: RecordNumber(5_001),
        source_position: SourcePosition::new(3, 123_456),
        sent_at: Nanos(1_700_000_000_123_456_789),
        retained: 900,
        source: SourceId(7),
        payload_len: 0,
        flags: datagram_flags::LAST_OF_BURST,
        header_len: 64,
        relay: 0,
    };
    encoded(&header, &[], payload)
}

/// Encodes a datagram with the lengths of these extensions and payload, and the right CRC.
pub(super) fn encoded(header: &Header, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        header_len: (HEADER_LEN + extensions.len()) as u16,
        payload_len: payload.len() as u16,
        ..*header
    };
    let rest = [extensions, payload].concat();
    let crc = crc_of(&header.to_bytes(0), &rest);
    [&header.to_bytes(crc)[..], &rest].concat()
}
