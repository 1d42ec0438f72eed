//! Datagrams that an impostor makes: their CRC is right, and their content is not the publisher's.

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{
    ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{
    HEADER_LEN, Header, Heartbeat, Kind, PublisherState, SourceLossReason, StreamEvent, crc_of,
};

use crate::faults::plan::CHANNEL;
use crate::truth::{ContentKey, push_record};

/// A source loss of at least as many messages is forged.
pub const FORGED_MESSAGES: u64 = 1 << 40;

/// Returns a forged datagram with this sequence and first record, and the number of its records.
/// The records of every fourth sequence are invalid. A heartbeat advises this hold-off, and announces as long
/// an interval.
#[must_use]
pub fn forged_datagram(
    kind: Kind,
    epoch: Epoch,
    (sequence, record): (Sequence, u64),
    sent_at: Nanos,
    hold_off_us: u32,
) -> (Vec<u8>, u64) {
    let mut body = Vec::new();
    let count = match kind {
        Kind::Data => {
            let mut batch = RecordBatch::default();
            let key = ContentKey::of(CHANNEL, epoch, 7);
            let count = 1 + sequence.0 % 3;
            (0..count).for_each(|n| push_record(&mut batch, key, record + n));
            batch
                .records()
                .for_each(|it| body.extend_from_slice(it.as_ref()));
            if sequence.0.is_multiple_of(4) {
                body.fill(0xa5);
            }
            count
        }
        Kind::Event => {
            let lost = StreamEvent::SourceLost {
                source: SourceId(1),
                reason: SourceLossReason::Overflow,
                from: SourcePosition(1),
                messages: FORGED_MESSAGES,
                instruments: Vec::new(),
            };
            lost.write(&mut body);
            0
        }
        Kind::Heartbeat => {
            let beat = Heartbeat {
                next_interval_us: hold_off_us.max(100),
                hold_off_us,
                subscribers: hold_off_us.max(1),
                state: PublisherState::Live,
                config_hash: ConfigHash(1),
            };
            body.extend_from_slice(&beat.to_bytes());
            0
        }
        Kind::End => 0,
    };
    let header = Header {
        kind,
        channel: CHANNEL,
        count: count as u16,
        epoch,
        sequence,
        first_record: RecordNumber(record),
        source_position: SourcePosition(1),
        sent_at,
        retained: 1,
        source: SourceId(1),
        payload_len: body.len() as u16,
        flags: 0,
        header_len: HEADER_LEN as u16,
        relay: 0,
    };
    let crc = crc_of(&header.to_bytes(0), &body);
    let mut bytes = header.to_bytes(crc).to_vec();
    bytes.extend_from_slice(&body);
    (bytes, count)
}
