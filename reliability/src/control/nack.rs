//! NACK frames: written from borrowed ranges, and read even when they are cut off.

use super::{
    ControlError, DATAGRAM, FRAME_HEAD_LEN, Fields, Message, NACK, NACK_RANGES_MAX, NackClass,
    REFUSED, Refused, bad, begin, end, frame_len,
};
use crate::types::{ChannelId, Epoch, Sequence, SequenceRange};
use crate::wire::headers_only::header_of;

/// Appends a NACK frame like [`Message::write`], but from borrowed ranges, so that nothing is allocated
/// while ticks arrive. At most [`NACK_RANGES_MAX`] ranges, ascending.
pub fn write_nack(
    channel: ChannelId,
    epoch: Epoch,
    class: NackClass,
    ranges: &[SequenceRange],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    begin(NACK, channel, out);
    nack_body(epoch, class, ranges, out);
    end(start, out);
}

pub(super) fn nack_body(
    epoch: Epoch,
    class: NackClass,
    ranges: &[SequenceRange],
    out: &mut Vec<u8>,
) {
    out.extend(epoch.0.to_le_bytes());
    out.extend([class as u8, 0]);
    out.extend((ranges.len() as u16).to_le_bytes());
    out.extend([0; 4]);
    for range in ranges {
        out.extend(range.first.0.to_le_bytes());
        out.extend(range.last.0.to_le_bytes());
    }
}

pub(super) fn read_nack(body: &[u8]) -> Result<Message<'static>, ControlError> {
    let mut fields = Fields::new("NACK", body, 16)?;
    let epoch = Epoch(fields.u64());
    let tail = fields.u64();
    let class = match tail as u8 {
        1 => NackClass::Repair,
        2 => NackClass::Replay,
        _ => return Err(bad("NACK", "its class is neither repair nor replay")),
    };
    let count = usize::from((tail >> 16) as u16);
    if count > NACK_RANGES_MAX {
        return Err(bad(
            "NACK",
            format!("{count} ranges, at most {NACK_RANGES_MAX} are allowed"),
        ));
    }
    if fields.left() < count * 16 {
        return Err(bad("NACK", "it is truncated"));
    }
    let ranges = (0..count)
        .map(|_| {
            SequenceRange::new(Sequence(fields.u64()), Sequence(fields.u64()))
                .filter(|range| range.first != Sequence::NONE)
                .ok_or_else(|| bad("NACK", "a range is empty or starts at 0"))
        })
        .collect::<Result<_, _>>()?;
    Ok(Message::Nack {
        epoch,
        class,
        ranges,
    })
}

/// Returns the complete ranges of a NACK frame that is cut off. Returns `None` when it is no NACK, or ends
/// before the first range.
pub fn read_cut_nack(bytes: &[u8]) -> Option<(ChannelId, Epoch, Vec<SequenceRange>)> {
    let (head, body) = bytes.split_first_chunk::<FRAME_HEAD_LEN>()?;
    if head[4] != NACK {
        return None;
    }
    let channel = ChannelId(u16::from_le_bytes([head[6], head[7]]));
    let mut fields = Fields::new("NACK", body, 16).ok()?;
    let (epoch, _) = (Epoch(fields.u64()), fields.u64());
    let ranges = std::iter::from_fn(|| {
        let is_there = fields.left() >= 16;
        let range = || SequenceRange::new(Sequence(fields.u64()), Sequence(fields.u64()));
        is_there.then(range).flatten()
    });
    Some((channel, epoch, ranges.collect()))
}

/// An answer to a NACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NackAnswer {
    /// This datagram is sent again.
    Sent(Epoch, Sequence),
    /// These sequences are not sent.
    Refused(Refused),
}

/// Returns the answers to NACKs among whole frames that this side has written, each with its channel. Only
/// the heads of datagrams are read, because they are this side's own.
pub fn nack_answers(frames: &[u8]) -> impl Iterator<Item = (ChannelId, NackAnswer)> {
    let mut rest = frames;
    let each = std::iter::from_fn(move || {
        let (frame, after) = rest.split_at_checked(frame_len(rest)?)?;
        rest = after;
        Some(frame)
    });
    each.filter_map(|frame| {
        let (head, body) = frame.split_first_chunk::<FRAME_HEAD_LEN>()?;
        let answer = match head[4] {
            DATAGRAM => {
                let header = header_of(body.first_chunk()?)?;
                NackAnswer::Sent(header.epoch, header.sequence)
            }
            REFUSED => match Message::read(frame, frame.len()).ok()?? {
                (_, Message::Refused(refused), _) => NackAnswer::Refused(refused),
                _ => return None,
            },
            _ => return None,
        };
        Some((ChannelId(u16::from_le_bytes([head[6], head[7]])), answer))
    })
}
