//! Positions as words, the form in which threads share them.

use tickcast_reliability::delivery::{LineId, Position, Quality, Via};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};

/// Words of a packed position: one cache line.
pub(crate) const POSITION_WORDS: usize = 8;
/// The offsets of the epoch and of the record number.
pub(crate) const EPOCH_WORD: usize = 1;
pub(crate) const RECORD_WORD: usize = 3;

const REPAIR: u64 = 0xff;
const CONFLATED_MAX: u32 = (1 << 21) - 1;

/// Packs a position. The conflated count is kept up to [`CONFLATED_MAX`].
#[inline]
pub(crate) fn pack(position: &Position) -> [u64; POSITION_WORDS] {
    let via = match position.via {
        Via::Line(line) => u64::from(line.0),
        Via::Repair => REPAIR,
    };
    let quality = position.quality;
    let quality = u64::from(quality.repaired)
        | u64::from(quality.out_of_order) << 1
        | u64::from(quality.after_loss) << 2
        | u64::from(quality.conflated.min(CONFLATED_MAX)) << 3;
    let (channel, source) = (u64::from(position.channel.0), u64::from(position.source.0));
    [
        channel | source << 16 | via << 32 | quality << 40,
        position.epoch.0,
        position.sequence.0,
        position.record.0,
        position.source_position.0,
        position.sent_at.0,
        position.received_at.0,
        position.missing_for.0,
    ]
}

/// Returns the position that was packed.
#[inline]
pub(crate) fn unpack(words: &[u64; POSITION_WORDS]) -> Position {
    let [
        first,
        epoch,
        sequence,
        record,
        source,
        sent,
        received,
        missing,
    ] = *words;
    let quality = first >> 40;
    let via = match (first >> 32) & 0xff {
        REPAIR => Via::Repair,
        line => Via::Line(LineId(line as u8)),
    };
    Position {
        channel: ChannelId(first as u16),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        record: RecordNumber(record),
        via,
        quality: Quality {
            repaired: quality & 1 != 0,
            out_of_order: quality & 2 != 0,
            after_loss: quality & 4 != 0,
            conflated: (quality >> 3) as u32,
        },
        source: SourceId((first >> 16) as u16),
        source_position: SourcePosition(source),
        sent_at: Nanos(sent),
        received_at: Nanos(received),
        missing_for: Nanos(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_packing_roundtrip_is_lossless() {
        for bits in 0..8 {
            let via = [Via::Repair, Via::Line(LineId(1))][bits & 1];
            let position = Position {
                channel: ChannelId(u16::MAX),
                epoch: Epoch(u64::MAX),
                sequence: Sequence(2),
                record: RecordNumber(3),
                via,
                quality: Quality {
                    repaired: bits & 1 != 0,
                    out_of_order: bits & 2 != 0,
                    after_loss: bits & 4 != 0,
                    conflated: bits as u32 * (CONFLATED_MAX / 7),
                },
                source: SourceId(u16::MAX - 1),
                source_position: SourcePosition(4),
                sent_at: Nanos(5),
                received_at: Nanos(6),
                missing_for: Nanos(7),
            };
            let words = pack(&position);
            assert_eq!(unpack(&words), position);
            assert_eq!((words[EPOCH_WORD], words[RECORD_WORD]), (u64::MAX, 3));
        }
    }
}
