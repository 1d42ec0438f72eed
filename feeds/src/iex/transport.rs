//! IEX-TP: segments and their messages.
//!
//! [`Segment`] walks messages by the lengths on the wire and never past the payload. The sequence is
//! followed by [`crate::arbiter`]. No resends are asked for: what is missing is reported.
//! Source: IEX Transport Specification.

use tickcast_reliability::types::SourcePosition;

use super::messages::IexMessage;
use crate::arbiter::{Blocks, MessageBlocks, PacketHead, PacketKind, Protocol};
use crate::source::Incident;

/// Bytes of the segment header.
pub const HEADER_LEN: usize = 40;
const VERSION: u8 = 1;

/// Which feed a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IexFeed {
    /// Top of book: TOPS 1.5 or 1.6.
    Tops,
    /// Price levels: DEEP 1.0.
    Deep,
}

impl IexFeed {
    const fn of(protocol: u16) -> Option<Self> {
        match protocol {
            0x8002 | 0x8003 => Some(Self::Tops),
            0x8004 => Some(Self::Deep),
            _ => None,
        }
    }
}

/// One segment: a checked header and the bytes of its messages.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The feed.
    pub feed: IexFeed,
    /// The venue's channel; each has its own sequence.
    pub channel: u32,
    /// The venue's session.
    pub session: u32,
    /// How many messages the header announces; 0 in a heartbeat.
    pub count: u16,
    /// Sequence of the first message; in a heartbeat, of the next one. At least 1; with `count`
    /// added, at most [`SourcePosition::SEQUENCE_MAX`].
    pub first: u64,
    /// When the venue sent it, ns since 1970, UTC.
    pub sent_at: u64,
    /// The messages, each after its length; shorter than announced when the packet is cut.
    blocks: &'a [u8],
    /// Whether the packet holds all bytes that the header announces.
    is_whole: bool,
}

impl<'a> Segment<'a> {
    /// Reads a segment's header.
    ///
    /// # Errors
    /// The fault, in one phrase.
    #[inline]
    pub fn read(packet: &'a [u8]) -> Result<Self, &'static str> {
        let Some((header, rest)) = packet.split_first_chunk::<HEADER_LEN>() else {
            return Err("the packet is shorter than an IEX-TP header");
        };
        if header[0] != VERSION {
            return Err("the IEX-TP version is not 1");
        }
        let Some(feed) = IexFeed::of(u16_at(header, 2)) else {
            return Err("the IEX-TP message protocol is neither TOPS 1.5, TOPS 1.6 nor DEEP 1.0");
        };
        let first = u64_at(header, 24);
        let payload_len = usize::from(u16_at(header, 12));
        let count = u16_at(header, 14);
        // Beyond 48 bits several messages would have one position.
        if !(1..=SourcePosition::SEQUENCE_MAX - u64::from(count)).contains(&first) {
            return Err("the IEX-TP first sequence is out of range");
        }
        if count == 0 && payload_len > 0 {
            return Err("the IEX-TP payload holds more than the announced 0 messages");
        }
        let [_, _, _, _, e, f, g, h, a, b, c, d, ..] = *header;
        Ok(Self {
            feed,
            channel: u32::from_le_bytes([e, f, g, h]),
            session: u32::from_le_bytes([a, b, c, d]),
            count,
            first,
            sent_at: u64_at(header, 32),
            // Bytes after the announced payload are padding of the network.
            blocks: rest.get(..payload_len).unwrap_or(rest),
            is_whole: rest.len() >= payload_len,
        })
    }

    /// The messages in order, no more than announced.
    #[must_use]
    pub const fn messages(&self) -> Messages<'a> {
        Messages {
            blocks: MessageBlocks::new(self.blocks, self.count),
            is_whole: self.is_whole,
        }
    }
}

/// Returns whether a packet begins with version and protocol of a feed.
fn is_of_format(packet: &[u8]) -> bool {
    let header = packet.first_chunk::<HEADER_LEN>();
    header.is_some_and(|it| it[0] == VERSION && IexFeed::of(u16_at(it, 2)).is_some())
}

/// The messages of a segment, each after its length in little-endian order.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    blocks: MessageBlocks<'a, false>,
    is_whole: bool,
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.blocks.next()
    }
}

/// IEX-TP of one feed and one channel: each counts its messages on its own. The segment with which
/// the source begins decides which.
#[derive(Clone, Copy, Debug, Default)]
pub struct IexTp {
    of: Option<(IexFeed, u32)>,
}

impl IexTp {
    /// Returns the coding of a session for a later decoder: the session in the lowest 32 bits, the
    /// channel in the next 32, and whether the feed is DEEP.
    pub(super) fn session_id(&self, session: u128) -> Option<u128> {
        let (feed, channel) = self.of?;
        Some(u128::from(feed == IexFeed::Deep) << 64 | u128::from(channel) << 32 | session)
    }
}

/// Returns the session that an id codes, and the facts of its first segment.
pub(super) const fn from_session_id(id: u128) -> (u128, SegmentNote) {
    let note = SegmentNote {
        feed: match id >> 64 & 1 {
            0 => IexFeed::Tops,
            _ => IexFeed::Deep,
        },
        channel: (id >> 32) as u32,
        sent_at: 0,
    };
    (id & 0xffff_ffff, note)
}

/// Facts of a segment that its messages need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentNote {
    /// The feed.
    pub feed: IexFeed,
    /// The venue's channel.
    pub channel: u32,
    /// When the venue sent the segment, ns since 1970, UTC.
    pub sent_at: u64,
}

impl Protocol for IexTp {
    type Note = SegmentNote;
    type Blocks<'a> = Messages<'a>;

    #[inline]
    fn read<'a>(
        &self,
        payload: &'a [u8],
    ) -> Result<(PacketHead<SegmentNote>, Messages<'a>), Incident> {
        let segment = Segment::read(payload).map_err(|reason| match is_of_format(payload) {
            true => Incident::Malformed { reason },
            false => Incident::foreign(reason),
        })?;
        let (feed, channel) = self.of.unwrap_or((segment.feed, segment.channel));
        if feed != segment.feed {
            let reason = "TOPS and DEEP are mixed in one source, give each a source of its own";
            return Err(Incident::foreign(reason));
        }
        if channel != segment.channel {
            let reason = "two IEX channels are mixed in one source, give each a source of its own";
            return Err(Incident::foreign(reason));
        }
        let head = PacketHead {
            session: segment.session.into(),
            first: segment.first,
            count: segment.count.into(),
            kind: PacketKind::Data,
            sent_at: segment.sent_at,
            note: SegmentNote {
                feed,
                channel,
                sent_at: segment.sent_at,
            },
        };
        Ok((head, segment.messages()))
    }

    fn follow(&mut self, note: &SegmentNote) {
        self.of = Some((note.feed, note.channel));
    }

    fn is_known(&self, message: &[u8]) -> bool {
        IexMessage::read(message).is_ok()
    }
}

impl<'a> Blocks<'a> for Messages<'a> {
    #[inline]
    fn fault(&self) -> Option<&'static str> {
        if !self.is_whole {
            return Some("the packet ends before the IEX-TP payload does");
        }
        let fewer = "the IEX-TP payload holds fewer messages than announced";
        let more = "the IEX-TP payload goes on after its last message";
        self.blocks.fault_named(fewer, more)
    }
}

fn u16_at(header: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn u64_at(header: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(field)
}
