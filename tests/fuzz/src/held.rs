//! What a packet of a feed holds, walked by its lengths alone, to hold a decoder against.

use tickcast_feeds::iex::transport::HEADER_LEN as SEGMENT_HEADER_LEN;
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN as MOLD_HEADER_LEN};

/// The messages that a packet announces, and those that are there whole.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) announced: u64,
    pub(crate) blocks: Vec<&'a [u8]>,
}

/// The messages that a decoder told of.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Messages that were given out, or told one by one not to be readable.
    pub(crate) read: u64,
    /// Messages that were told to have been there before: the first ones.
    pub(crate) old: u64,
}

impl<'a> Held<'a> {
    /// In a packet of MoldUDP64.
    pub(crate) fn in_mold(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_at_checked(MOLD_HEADER_LEN) else {
            return Self::of(0, &[], u16::from_be_bytes);
        };
        let announced = match u16::from_be_bytes([header[18], header[19]]) {
            END_OF_SESSION => 0,
            count => count,
        };
        Self::of(announced, rest, u16::from_be_bytes)
    }

    /// In a segment of IEX-TP.
    pub(crate) fn in_segment(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_at_checked(SEGMENT_HEADER_LEN) else {
            return Self::of(0, &[], u16::from_le_bytes);
        };
        let len = usize::from(u16::from_le_bytes([header[12], header[13]]));
        let announced = u16::from_le_bytes([header[14], header[15]]);
        Self::of(announced, &rest[..len.min(rest.len())], u16::from_le_bytes)
    }

    /// In a file, where a message is its own packet.
    pub(crate) fn message(message: &'a [u8]) -> Self {
        Self {
            announced: 1,
            blocks: vec![message],
        }
    }

    fn of(announced: u16, mut rest: &'a [u8], len: fn([u8; 2]) -> u16) -> Self {
        let mut blocks = Vec::new();
        while blocks.len() < announced.into()
            && let Some((head, after)) = rest.split_first_chunk::<2>()
            && let Some((block, after)) = after.split_at_checked(len(*head).into())
        {
            blocks.push(block);
            rest = after;
        }
        Self {
            announced: announced.into(),
            blocks,
        }
    }

    /// How many messages without bytes there are behind the first `old`.
    pub(crate) fn empty_from(&self, old: u64) -> u64 {
        let rest = self.blocks.iter().skip(old as usize);
        rest.filter(|block| block.is_empty()).count() as u64
    }
}
