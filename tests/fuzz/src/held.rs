//! The messages of a feed's packet, found by lengths alone, to compare a decoder with.

use tickcast_feeds::iex::transport::HEADER_LEN as SEGMENT_HEADER_LEN;
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN as MOLD_HEADER_LEN};
use tickcast_reliability::types::SourcePosition;

/// The messages that a packet announces, and those that it contains whole.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    /// Sequence of the first message; 0 in a file.
    pub(crate) first: u64,
    announced: u64,
    blocks: Vec<&'a [u8]>,
}

/// The messages that a decoder reported.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Messages that were delivered, or reported one by one as unreadable.
    pub(crate) read: u64,
    /// Messages that were reported as late or as duplicates.
    pub(crate) old: u64,
}

impl<'a> Held<'a> {
    /// Returns the messages of a MoldUDP64 packet.
    pub(crate) fn in_mold(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_at_checked(MOLD_HEADER_LEN) else {
            return Self::of(0, 0, &[], u16::from_be_bytes);
        };
        let announced = match u16::from_be_bytes([header[18], header[19]]) {
            END_OF_SESSION => 0,
            count => count,
        };
        let first = header[10..18]
            .iter()
            .fold(0, |first, byte| first << 8 | u64::from(*byte));
        Self::of(first, announced, rest, u16::from_be_bytes)
    }

    /// Returns the messages of an IEX-TP segment.
    pub(crate) fn in_segment(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_at_checked(SEGMENT_HEADER_LEN) else {
            return Self::of(0, 0, &[], u16::from_le_bytes);
        };
        let len = usize::from(u16::from_le_bytes([header[12], header[13]]));
        let announced = u16::from_le_bytes([header[14], header[15]]);
        let first = header[24..32]
            .iter()
            .rev()
            .fold(0, |first, byte| first << 8 | u64::from(*byte));
        Self::of(
            first,
            announced,
            &rest[..len.min(rest.len())],
            u16::from_le_bytes,
        )
    }

    /// Returns a message of a file, where each message is a packet of its own.
    pub(crate) fn message(message: &'a [u8]) -> Self {
        Self {
            first: 0,
            announced: 1,
            blocks: vec![message],
        }
    }

    fn of(first: u64, announced: u16, mut rest: &'a [u8], len: fn([u8; 2]) -> u16) -> Self {
        let mut blocks = Vec::new();
        while blocks.len() < announced.into()
            && let Some((head, after)) = rest.split_first_chunk::<2>()
            && let Some((block, after)) = after.split_at_checked(len(*head).into())
        {
            blocks.push(block);
            rest = after;
        }
        // A last message without bytes, and bytes behind it: its length became 0.
        let is_last = blocks.len() == usize::from(announced);
        if is_last && !rest.is_empty() && blocks.last().is_some_and(|it| it.is_empty()) {
            blocks.pop();
        }
        Self {
            first,
            announced: announced.into(),
            blocks,
        }
    }

    /// Returns the whole messages; none for a packet whose messages have no positions.
    pub(crate) fn readable(&self) -> &[&'a [u8]] {
        match self.first > SourcePosition::SEQUENCE_MAX - self.announced {
            true => &[],
            false => &self.blocks,
        }
    }
}
