//! The messages of a feed's packet, found by lengths alone, to compare a decoder with.

use tickcast_feeds::iex::transport::HEADER_LEN as SEGMENT_HEADER_LEN;
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN as MOLD_HEADER_LEN};

/// The messages that a packet announces, and those that it contains whole.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) announced: u64,
    pub(crate) blocks: Vec<&'a [u8]>,
    /// Whether messages without bytes are not reported.
    pub(crate) empty_is_silent: bool,
}

/// A decoder's result for a packet.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Messages that were delivered, or reported one by one as unreadable.
    pub(crate) read: u64,
    /// Messages that were reported as duplicates: the first ones.
    pub(crate) old: u64,
    /// Number of faults that were reported for the packet itself.
    pub(crate) refused: u64,
}

impl<'a> Held<'a> {
    /// Returns the messages of a MoldUDP64 packet.
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

    /// Returns the messages of an IEX-TP segment.
    pub(crate) fn in_segment(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_at_checked(SEGMENT_HEADER_LEN) else {
            return Self::of(0, &[], u16::from_le_bytes);
        };
        let len = usize::from(u16::from_le_bytes([header[12], header[13]]));
        let announced = u16::from_le_bytes([header[14], header[15]]);
        Self::of(announced, &rest[..len.min(rest.len())], u16::from_le_bytes)
    }

    /// Returns a message of a file, where each message is a packet of its own.
    pub(crate) fn message(message: &'a [u8]) -> Self {
        Self {
            announced: 1,
            blocks: vec![message],
            empty_is_silent: false,
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
            empty_is_silent: false,
        }
    }

    /// Returns the number of messages without bytes after the first `old`.
    pub(crate) fn empty_from(&self, old: u64) -> u64 {
        let rest = self.blocks.iter().skip(old as usize);
        rest.filter(|block| block.is_empty()).count() as u64
    }

    /// Asserts that every whole message was read, or that the packet was refused as a whole. Without a
    /// reported fault, every announced message must be present.
    pub(crate) fn assert_accounted_for(&self, tally: &Tally) {
        let silent = match self.empty_is_silent {
            true => self.empty_from(tally.old),
            false => 0,
        };
        let whole = (self.blocks.len() as u64).saturating_sub(tally.old) - silent;
        let refused_as_one = tally.refused == 1 && tally.read == 0 && tally.old == 0;
        assert!(
            tally.read == whole || refused_as_one,
            "{tally:?} of {whole} messages"
        );
        assert!(tally.refused <= 1, "{tally:?}");
        if tally.refused == 0 {
            let sum = tally.read + tally.old + silent;
            assert_eq!(sum, self.announced, "{tally:?} of those announced");
        }
    }
}
