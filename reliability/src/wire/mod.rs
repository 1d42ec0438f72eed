//! The datagram: a 64-byte header and whole records, little-endian. It has the same bytes in a ring slot,
//! on the wire and in a receive buffer (docs/PROTOCOL.md §3).
//!
//! [`Datagram`] is a view on bytes of checked structure; [`Header`] holds its field values. Checking the
//! CRC is a separate step ([`Datagram::verdict`]), because the verdict is an input of the cores: a
//! recorded run can be replayed without the payload.

pub mod authentication;
mod crc;
pub mod headers_only;
mod versions;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::versions::WireVersions;

use crate::planted::{Bug, planted};
use crate::record::{RecordError, Records};
use crate::types::{
    ChannelId, ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};
use crate::wire::crc::crc32c_of;

/// Length of the header in bytes: one cache line.
pub const HEADER_LEN: usize = 64;
/// First two bytes of every datagram, "TK" when read as text.
pub const MAGIC: u16 = u16::from_le_bytes(*b"TK");
/// The wire version that this code speaks. Version 1 carries DBN version 3 records.
pub const WIRE_VERSION: u8 = 1;
/// Offset of the sequence in the header: in a ring slot this word is the seal.
pub const SEQUENCE_OFFSET: usize = 16;
/// Offset of the relay byte. Only this byte and the CRC itself are outside the CRC.
pub const RELAY_OFFSET: usize = 59;
const CRC_OFFSET: usize = 60;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Records.
    Data = 1,
    /// An event of the stream itself; takes a sequence.
    Event = 2,
    /// The last sequence sent; takes none and is never repaired.
    Heartbeat = 3,
    /// The end of the session; takes a sequence, the last one.
    End = 4,
}

impl Kind {
    /// Returns whether datagrams of this kind take a sequence and can be repaired.
    #[must_use]
    pub const fn is_sequenced(self) -> bool {
        !matches!(self, Self::Heartbeat)
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Data),
            2 => Some(Self::Event),
            3 => Some(Self::Heartbeat),
            4 => Some(Self::End),
            _ => None,
        }
    }
}

/// Bits of the header's `flags` field. Unknown bits are kept and ignored.
pub mod datagram_flags {
    /// Records come from a snapshot, not from the live stream.
    pub const SNAPSHOT: u16 = 1 << 0;
    /// No more messages were waiting when this datagram was sealed.
    pub const LAST_OF_BURST: u16 = 1 << 1;
    /// The extensions begin with a tag ([`super::authentication`]).
    pub const TAGGED: u16 = 1 << 2;
}

/// Bits of the header's `relay` byte.
pub mod relay_flags {
    /// Resent in answer to a NACK.
    pub const RETRANSMITTED: u8 = 1 << 7;
    /// The low bits count the relays that it passed.
    pub const HOPS: u8 = 0x7f;
}

/// The header's fields, without magic, version and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the datagram.
    pub kind: Kind,
    /// The channel of the sequence space.
    pub channel: ChannelId,
    /// Records in the payload.
    pub count: u16,
    /// The publisher's incarnation.
    pub epoch: Epoch,
    /// Sequence of this datagram; in a heartbeat, the last one sent on this fan-out.
    pub sequence: Sequence,
    /// Number of the first record; in a heartbeat, event or END, of the next record.
    pub first_record: RecordNumber,
    /// Position of the last complete source message in the datagram.
    pub source_position: SourcePosition,
    /// Seal time, UTC. It is only measured, and no rule depends on it.
    pub sent_at: Nanos,
    /// `sequence + 1 − oldest held`; 0 when nothing is held.
    pub retained: u32,
    /// The source of the messages.
    pub source: SourceId,
    /// Bytes after the header.
    pub payload_len: u16,
    /// Bits of [`datagram_flags`].
    pub flags: u16,
    /// Length of header and extensions in bytes, a multiple of 8, at least [`HEADER_LEN`].
    pub header_len: u16,
    /// Bits of [`relay_flags`].
    pub relay: u8,
}

/// Why bytes are not a datagram. The sender or the network is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than a header.
    #[error("{len} bytes are too short for a datagram, which has a header of 64")]
    Short {
        /// Number of bytes.
        len: usize,
    },
    /// The bytes do not start with the magic.
    #[error(
        "the datagram starts with {magic:#06x}, not with the magic of tickcast; is something else sending to this group?"
    )]
    Magic {
        /// The first two bytes.
        magic: u16,
    },
    /// The publisher speaks another wire version.
    #[error(
        "the datagram has wire version {version}; this build reads version 1, upgrade the older side"
    )]
    Version {
        /// The version byte.
        version: u8,
    },
    /// A kind that this version does not know.
    #[error("the datagram has unknown kind {kind}")]
    Kind {
        /// The kind byte.
        kind: u8,
    },
    /// The lengths in the header do not match the number of bytes.
    #[error(
        "the header announces {header_len} + {payload_len} bytes but the datagram has {len}; was it truncated on the way?"
    )]
    Length {
        /// Header length in the header.
        header_len: usize,
        /// Payload length in the header.
        payload_len: usize,
        /// Number of bytes.
        len: usize,
    },
    /// An epoch or sequence of zero, which no publisher sends.
    #[error("epoch {epoch} and sequence {sequence}: zero is never sent in a sequenced datagram")]
    Zero {
        /// The epoch field.
        epoch: u64,
        /// The sequence field.
        sequence: u64,
    },
}

/// Whether a datagram is what was sealed, as its CRC and its tag show: an input of the receiving core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcVerdict {
    /// The bytes are unchanged since they were sealed.
    Good,
    /// The bytes were altered: the datagram is dropped and counted.
    Bad,
    /// The CRC is right, but the channel is authenticated, and none of its known keys made the tag: the
    /// datagram is dropped and counted.
    Unauthenticated,
}

fn u16_at(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}

impl Header {
    /// Returns the words of this header with the given CRC: its bytes read as little-endian words.
    #[must_use]
    #[inline]
    pub const fn to_words(&self, crc: u32) -> [u64; HEADER_LEN / 8] {
        const fn at(byte: u32, value: u64) -> u64 {
            value << (8 * byte)
        }
        let version_and_kind = at(2, WIRE_VERSION as u64) | at(3, self.kind as u64);
        let len_and_relay = at(2, self.header_len as u64 / 8 % 256) | at(3, self.relay as u64);
        [
            at(0, MAGIC as u64)
                | version_and_kind
                | at(4, self.channel.0 as u64)
                | at(6, self.count as u64),
            self.epoch.0,
            self.sequence.0,
            self.first_record.0,
            self.source_position.0,
            self.sent_at.0,
            at(0, self.retained as u64)
                | at(4, self.source.0 as u64)
                | at(6, self.payload_len as u64),
            at(0, self.flags as u64) | len_and_relay | at(4, crc as u64),
        ]
    }

    /// Returns the bytes of this header with the given CRC.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self, crc: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(self.to_words(crc).map(u64::to_le_bytes).as_flattened());
        bytes
    }

    /// Returns the oldest sequence that the sender still holds, derived from `retained`; `None` when it
    /// holds nothing.
    #[must_use]
    pub const fn oldest(&self) -> Option<Sequence> {
        if self.retained == 0 {
            None
        } else {
            Some(Sequence(
                (self.sequence.0.saturating_sub(self.retained as u64)).saturating_add(1),
            ))
        }
    }

    /// Returns the length of header, extensions and payload together, in bytes.
    #[must_use]
    pub const fn datagram_len(&self) -> usize {
        self.header_len as usize + self.payload_len as usize
    }
}

/// Returns the CRC32C of a datagram: over the header without relay byte and CRC, then over all bytes
/// behind it (docs/PROTOCOL.md §3).
#[must_use]
#[inline]
pub fn crc_of(header: &[u8; HEADER_LEN], rest: &[u8]) -> u32 {
    crc32c_of(header, planted(Bug::RelayByteCovered), rest)
}

/// A view on bytes of checked structure: header, extensions and payload are complete.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    header: Header,
    crc: u32,
    bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Parses the header and checks every length. Bytes after the payload are padding and ignored.
    ///
    /// # Errors
    /// [`WireError`] when the bytes are not a datagram. Nothing is ever read out of bounds.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Short { len: bytes.len() });
        };
        let magic = u16_at(head, 0);
        if magic != MAGIC {
            return Err(WireError::Magic { magic });
        }
        if head[2] != WIRE_VERSION {
            return Err(WireError::Version { version: head[2] });
        }
        let Some(kind) = Kind::from_byte(head[3]) else {
            return Err(WireError::Kind { kind: head[3] });
        };
        let header = Header {
            kind,
            channel: ChannelId(u16_at(head, 4)),
            count: u16_at(head, 6),
            epoch: Epoch(u64_at(head, 8)),
            sequence: Sequence(u64_at(head, SEQUENCE_OFFSET)),
            first_record: RecordNumber(u64_at(head, 24)),
            source_position: SourcePosition(u64_at(head, 32)),
            sent_at: Nanos(u64_at(head, 40)),
            retained: u32_at(head, 48),
            source: SourceId(u16_at(head, 52)),
            payload_len: u16_at(head, 54),
            flags: u16_at(head, 56),
            header_len: u16::from(head[58]) * 8,
            relay: head[RELAY_OFFSET],
        };
        let len = header.datagram_len();
        if usize::from(header.header_len) < HEADER_LEN || len > bytes.len() {
            return Err(WireError::Length {
                header_len: header.header_len.into(),
                payload_len: header.payload_len.into(),
                len: bytes.len(),
            });
        }
        if header.epoch == Epoch::NONE || (kind.is_sequenced() && header.sequence == Sequence::NONE)
        {
            return Err(WireError::Zero {
                epoch: header.epoch.0,
                sequence: header.sequence.0,
            });
        }
        Ok(Self {
            header,
            crc: u32_at(head, CRC_OFFSET),
            bytes: &bytes[..len],
        })
    }

    /// Returns the header's fields.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the CRC in the header, which identifies the content.
    #[must_use]
    pub const fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns the datagram without padding.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes after header and extensions.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header.header_len.into()..]
    }

    /// Parses bytes like [`parse`](Self::parse) and returns the verdict on their CRC. It is not computed for
    /// `whole` bytes, which are known to be exactly what was sealed.
    ///
    /// # Errors
    /// [`WireError`] under the conditions of [`parse`](Self::parse).
    // A call would return the header through memory.
    #[inline(always)]
    pub fn checked(bytes: &'a [u8], whole: bool) -> Result<(Self, CrcVerdict), WireError> {
        let datagram = Self::parse(bytes)?;
        let verdict = match whole {
            true => CrcVerdict::Good,
            false => datagram.verdict(),
        };
        Ok((datagram, verdict))
    }

    /// Computes the CRC over the bytes and compares it with the header's.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> CrcVerdict {
        let good = self
            .bytes
            .split_first_chunk::<HEADER_LEN>()
            .is_some_and(|(head, rest)| crc_of(head, rest) == self.crc);
        if good {
            CrcVerdict::Good
        } else {
            CrcVerdict::Bad
        }
    }

    /// Returns the records of a data datagram; empty for other kinds.
    ///
    /// # Errors
    /// [`RecordError`] when the payload is not `count` whole records of wire version 1.
    #[inline(always)]
    pub fn records(&self) -> Result<Records<'a>, RecordError> {
        match self.header.kind {
            Kind::Data => Records::check(self.payload(), self.header.count.into()),
            _ => Records::check(&[], 0),
        }
    }
}

/// The publisher's state in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PublisherState {
    /// Seals and sends.
    Live = 1,
    /// Has sent END; repairs until every subscriber has it or the linger time is over.
    Ended = 2,
    /// Holds the stream but does not publish.
    Standby = 3,
}

/// Body of a heartbeat, 24 bytes (docs/PROTOCOL.md §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Maximum time until the next heartbeat.
    pub next_interval_us: u32,
    /// Maximum random wait of receivers before a first NACK; 0 in small groups.
    pub hold_off_us: u32,
    /// Number of joined subscribers.
    pub subscribers: u32,
    /// The publisher's state.
    pub state: PublisherState,
    /// The channel's config hash; 0 when unknown.
    pub config_hash: ConfigHash,
}

impl Heartbeat {
    /// Length of the body in bytes.
    pub const LEN: usize = 24;

    /// Returns the body's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.next_interval_us.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.hold_off_us.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.subscribers.to_le_bytes());
        bytes[12] = self.state as u8;
        bytes[16..24].copy_from_slice(&self.config_hash.0.to_le_bytes());
        bytes
    }

    /// Parses a heartbeat's payload; `None` when it is too short or its state is unknown. The unknown end of
    /// a longer body is ignored.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let body: &[u8; Self::LEN] = payload.first_chunk()?;
        let word =
            |at: usize| u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        Some(Self {
            next_interval_us: word(0),
            hold_off_us: word(4),
            subscribers: word(8),
            state: match body[12] {
                1 => PublisherState::Live,
                2 => PublisherState::Ended,
                3 => PublisherState::Standby,
                _ => return None,
            },
            config_hash: ConfigHash(u64::from(word(16)) | (u64::from(word(20)) << 32)),
        })
    }
}

/// Why the publisher lost messages of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u16)]
pub enum SourceLossReason {
    /// The venue's stream had a gap.
    Gap = 1,
    /// The queue between the feed and the publish thread was full.
    Overflow = 2,
    /// Messages were unreadable.
    Malformed = 3,
}

/// Body of an event datagram (docs/PROTOCOL.md §4.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamEvent {
    /// The publisher never had these messages of a source, so books may be wrong.
    SourceLost {
        /// The source of the messages.
        source: SourceId,
        /// The cause of the loss.
        reason: SourceLossReason,
        /// Position of the first message lost; that of the last message before, if none is missing.
        from: SourcePosition,
        /// Number of messages; `u64::MAX` when unknown. 0: none is missing, but order books begin anew.
        messages: u64,
        /// The affected instruments; empty means all of the source.
        instruments: Vec<u32>,
    },
    /// The reason for this epoch, as its first datagram.
    EpochOpened {
        /// The reason, for people.
        reason: EpochReason,
        /// The epoch before it, or [`Epoch::NONE`].
        previous: Epoch,
        /// The last sequence sealed in that epoch, 0 when unknown.
        previous_last: Sequence,
    },
    /// Nothing has arrived of a source for several of its venue's heartbeat intervals, so its books are old.
    SourceSilent {
        /// The source.
        source: SourceId,
        /// When it was heard last, UTC; when the publisher began to listen, if it never was.
        since: Nanos,
        /// The affected instruments; empty means all of the source.
        instruments: Vec<u32>,
    },
    /// A source that was silent is heard again.
    SourceBack {
        /// The source.
        source: SourceId,
        /// When it was heard last before the silence, UTC; 0 if a publisher that continues an epoch does
        /// not know.
        since: Nanos,
        /// The affected instruments; empty means all of the source.
        instruments: Vec<u32>,
    },
}

/// Why an epoch was opened (docs/PROTOCOL.md §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u16)]
pub enum EpochReason {
    /// A first start.
    Fresh = 1,
    /// A restart that could not continue the ring, for a reason unknown to this version or because the
    /// publisher keeps no ring.
    Restart = 2,
    /// A standby took over.
    Promotion = 3,
    /// A restart that found no ring.
    RingGone = 4,
    /// The host was rebooted since.
    Rebooted = 5,
    /// A restart with another ring geometry or other inputs.
    Reconfigured = 6,
    /// A restart with a live input, which does not repeat the messages sent meanwhile.
    LiveInput = 7,
    /// A restart that found a damaged ring.
    RingDamaged = 8,
    /// The previous session had ended.
    SessionEnded = 9,
    /// A restart whose state does not include the epoch of the ring.
    StateGone = 10,
    /// A restart whose capture file has changed.
    SourceChanged = 11,
}

impl fmt::Display for EpochReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl EpochReason {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Fresh,
        Self::Restart,
        Self::Promotion,
        Self::RingGone,
        Self::Rebooted,
        Self::Reconfigured,
        Self::LiveInput,
        Self::RingDamaged,
        Self::SessionEnded,
        Self::StateGone,
        Self::SourceChanged,
    ];

    /// Returns a short text.
    const fn text(self) -> &'static str {
        match self {
            Self::Fresh => "first start",
            Self::Restart => "restart",
            Self::Promotion => "promotion of a standby",
            Self::RingGone => "restart without the previous ring",
            Self::Rebooted => "restart of the host",
            Self::Reconfigured => "restart with another config",
            Self::LiveInput => "restart with a live input",
            Self::RingDamaged => "restart with a damaged ring",
            Self::SessionEnded => "end of the previous session",
            Self::StateGone => "restart without the previous state",
            Self::SourceChanged => "restart with another capture",
        }
    }

    /// Returns its number on the wire, and the kind of restart. A version that knows only three reasons reads
    /// a plain restart.
    const fn codes(self) -> [u16; 2] {
        match self {
            Self::Fresh | Self::Restart | Self::Promotion => [self as u16, 0],
            _ => [Self::Restart as u16, self as u16],
        }
    }

    fn of([reason, restart]: [u16; 2]) -> Option<Self> {
        let all = || Self::ALL.into_iter();
        let known = all().find(|it| it.codes() == [reason, restart]);
        known.or_else(|| all().find(|it| it.codes() == [reason, 0]))
    }
}

impl StreamEvent {
    /// Maximum number of instruments in an event; more are encoded as "all of the source".
    pub const INSTRUMENTS_MAX: usize = 128;
    /// The number of messages in a loss of unknown size.
    pub const MESSAGES_UNKNOWN: u64 = u64::MAX;
    const SOURCE_LOST: u16 = 1;
    const EPOCH_OPENED: u16 = 2;
    const SOURCE_SILENT: u16 = 3;
    const SOURCE_BACK: u16 = 4;

    /// Appends the body's bytes to `out`, a multiple of 8 in length.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::SourceLost {
                source,
                reason,
                from,
                messages,
                instruments,
            } => {
                let head = [Self::SOURCE_LOST, *reason as u16, source.0];
                write_of_source(head, [from.0, *messages], instruments, out);
            }
            Self::SourceSilent {
                source,
                since,
                instruments,
            } => {
                let head = [Self::SOURCE_SILENT, 0, source.0];
                write_of_source(head, [since.0, 0], instruments, out);
            }
            Self::SourceBack {
                source,
                since,
                instruments,
            } => {
                let head = [Self::SOURCE_BACK, 0, source.0];
                write_of_source(head, [since.0, 0], instruments, out);
            }
            Self::EpochOpened {
                reason,
                previous,
                previous_last,
            } => {
                let [reason, restart] = reason.codes();
                out.extend(Self::EPOCH_OPENED.to_le_bytes());
                out.extend(reason.to_le_bytes());
                out.extend(restart.to_le_bytes());
                out.extend([0; 2]);
                out.extend(previous.0.to_le_bytes());
                out.extend(previous_last.0.to_le_bytes());
            }
        }
    }

    /// Returns the number of source messages that the event declares lost. A loss of unknown size counts as
    /// one message, so that it is visible.
    #[must_use]
    pub const fn source_messages_lost(&self) -> u64 {
        match *self {
            Self::SourceLost {
                messages: Self::MESSAGES_UNKNOWN,
                ..
            } => 1,
            Self::SourceLost { messages, .. } => messages,
            Self::SourceSilent { .. } | Self::SourceBack { .. } | Self::EpochOpened { .. } => 0,
        }
    }

    /// Parses an event's payload; `None` when it is truncated or of a kind unknown to this version.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (head, rest) = payload.split_first_chunk::<24>()?;
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let mut first = [0; 8];
        first.copy_from_slice(&head[8..16]);
        let mut second = [0; 8];
        second.copy_from_slice(&head[16..24]);
        let (first, second) = (u64::from_le_bytes(first), u64::from_le_bytes(second));
        let instruments = || -> Option<Vec<u32>> {
            let named = rest.get(..usize::from(short(6)) * 4)?.chunks_exact(4);
            let ids = named.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Some(ids.collect())
        };
        match short(0) {
            Self::SOURCE_LOST => Some(Self::SourceLost {
                source: SourceId(short(4)),
                reason: match short(2) {
                    1 => SourceLossReason::Gap,
                    2 => SourceLossReason::Overflow,
                    3 => SourceLossReason::Malformed,
                    _ => return None,
                },
                from: SourcePosition(first),
                messages: second,
                instruments: instruments()?,
            }),
            Self::SOURCE_SILENT => Some(Self::SourceSilent {
                source: SourceId(short(4)),
                since: Nanos(first),
                instruments: instruments()?,
            }),
            Self::SOURCE_BACK => Some(Self::SourceBack {
                source: SourceId(short(4)),
                since: Nanos(first),
                instruments: instruments()?,
            }),
            Self::EPOCH_OPENED => Some(Self::EpochOpened {
                reason: EpochReason::of([short(2), short(4)])?,
                previous: Epoch(first),
                previous_last: Sequence(second),
            }),
            _ => None,
        }
    }
}

/// Appends the body of an event that concerns instruments of a source: type, reason and source, two words,
/// and the instruments. Too many of them are written as none, which means all.
fn write_of_source(head: [u16; 3], words: [u64; 2], instruments: &[u32], out: &mut Vec<u8>) {
    let named = if instruments.len() > StreamEvent::INSTRUMENTS_MAX {
        &[]
    } else {
        instruments
    };
    for short in head {
        out.extend(short.to_le_bytes());
    }
    out.extend((named.len() as u16).to_le_bytes());
    for word in words {
        out.extend(word.to_le_bytes());
    }
    for instrument in named {
        out.extend(instrument.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(8), 0);
}

#[cfg(test)]
mod tests;
