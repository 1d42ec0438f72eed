//! The reader of a journal. A journal is complete up to the last commit of the recording process, even
//! when the process died or overwrote older segments meanwhile.

use thiserror::Error;

use super::layout::{
    Emitted, EntryKind, FILE_HEAD_LEN, JournalOrigin, JournalSide, Note, Published, RECORD_MAGIC,
    RECORD_VERSION, SEGMENT_HEAD_LEN, SEGMENTS, SealedBy, Served, of_line, segment,
};
use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::publish::{HEARTBEAT_LEN, PublisherEvent};
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{ChannelId, FanOutId, Nanos, Sequence};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN};

/// Why bytes are not a journal, or not a complete one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JournalReadError {
    /// The bytes do not begin with the magic of a journal.
    #[error(
        "the file is not a journal: it does not begin with a journal's magic; name the file that `tickcast listen --journal`, or a publisher with `journal`, wrote"
    )]
    Magic,
    /// The journal has another layout version.
    #[error(
        "the journal has layout {version}, this build reads layout 1; use the build that wrote it"
    )]
    Version {
        /// Version found in the head.
        version: u32,
    },
    /// The file is truncated, or its head was overwritten.
    #[error(
        "the journal is damaged: its head announces {segments} segments of {segment_len} bytes but the file has {len} bytes; copy the whole file again"
    )]
    Length {
        /// Number of segments in the head.
        segments: u32,
        /// Segment length in the head, in bytes.
        segment_len: u64,
        /// The actual length in bytes.
        len: usize,
    },
    /// Nothing was recorded yet.
    #[error(
        "the journal has no readable entry: it was copied before its first entry was written, or all of it is damaged"
    )]
    Empty,
    /// A segment is damaged: its entries and all older ones are unreadable.
    #[error(
        "the journal is damaged: segment {nth} of {SEGMENTS}, at byte {offset}, is invalid; its entries and all older ones can't be read, newer entries can"
    )]
    Segment {
        /// Number of the segment in the file, from 1 on.
        nth: usize,
        /// Offset of the segment in the file.
        offset: usize,
    },
    /// The snapshot of a segment is damaged.
    #[error(
        "the journal is damaged: the snapshot of the core at byte {offset} is invalid; the entries can be read, but not replayed from there"
    )]
    Snapshot {
        /// Offset of the snapshot in the file.
        offset: usize,
    },
    /// An entry is invalid.
    #[error(
        "the journal is damaged at byte {offset}: {what}; the entries before it can be read, later ones can't"
    )]
    Entry {
        /// Offset of the entry in the file.
        offset: usize,
        /// The error.
        what: &'static str,
    },
}

/// Returns the bytes that all segments of a journal take by its head; 0 if `head` is none of a journal.
#[must_use]
pub fn segments_len(head: &[u8]) -> u64 {
    if head.len() < FILE_HEAD_LEN || head[..8] != RECORD_MAGIC {
        return 0;
    }
    (word(head, 8) >> 32).saturating_mul(word(head, 16))
}

/// Returns the offsets of the words that hold each segment's generation; none when `bytes` are not a
/// journal. A segment whose word changes while the journal is copied was overwritten during the copy.
pub fn generation_offsets(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let is_one = bytes.len() >= FILE_HEAD_LEN && bytes[..8] == RECORD_MAGIC;
    let word = |at| if is_one { word(bytes, at) } else { 0 };
    let (count, segment_len) = (word(8) >> 32, usize::try_from(word(16)).unwrap_or(0));
    let fits = bytes.len().checked_div(segment_len).unwrap_or(0);
    let offset = move |nth: usize| FILE_HEAD_LEN + nth * segment_len + segment::GENERATION;
    let last = bytes.len().saturating_sub(8);
    (0..fits.min(count as usize))
        .map(offset)
        .filter(move |at| *at <= last)
}

/// A journal opened for reading.
#[derive(Debug)]
pub struct Journal {
    bytes: Vec<u8>,
    origin: JournalOrigin,
    segments: Vec<Segment>,
    damage: Option<JournalReadError>,
}

/// One segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    generation: u64,
    pub(super) first_at: Nanos,
    pub(super) digest: u64,
    pub(super) inputs: u64,
    pub(super) snapshot: std::ops::Range<usize>,
    entries: std::ops::Range<usize>,
}

/// Place of an entry in write order. The file offset alone has no such order, because a newer segment may
/// lie before an older one in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPlace {
    /// Generation of its segment, from 1 on.
    pub generation: u64,
    /// Offset in the file.
    pub offset: usize,
}

/// One entry.
#[derive(Debug)]
pub struct JournalEntry<'a> {
    /// Protocol time of the recording process.
    pub at: Nanos,
    /// Number of core inputs before this entry since recording began.
    pub inputs: u64,
    /// Place of the entry.
    pub place: EntryPlace,
    /// The content of the entry.
    pub what: EntryBody<'a>,
}

/// The content of an entry.
#[derive(Debug)]
#[non_exhaustive]
pub enum EntryBody<'a> {
    /// A datagram arrived on a line. Only the header of a data datagram is kept.
    Datagram {
        /// Channel of the socket that received it.
        channel: ChannelId,
        /// Line of the socket that received it.
        line: LineId,
        /// Whether its CRC matched.
        verdict: CrcVerdict,
        /// Whether its records were valid, or it has none.
        readable: bool,
        /// The whole datagram, or its header.
        kept: &'a [u8],
    },
    /// A message arrived at a subscriber, and a part of the digest of all outputs before it.
    Message(u16, Path, ChannelId, Message<'a>),
    /// Any other input of a subscriber's core, and a part of the digest of all outputs before it.
    Input(u16, SubscriberInput<'a>),
    /// An input that the journal does not hold. Entries after it cannot be replayed.
    Unrecorded,
    /// Frames were sent on a path; only their first bytes may be kept.
    Sent(Path, u16, &'a [u8]),
    /// An action was taken from the core.
    Action(u16),
    /// A request for the publisher's memory was taken from the core.
    Request(u16),
    /// The core emitted an event.
    Event(Emitted),
    /// Something happened around the core.
    Note(Note),
    /// A publisher sealed a datagram with this header.
    Sealed(SealedBy, &'a [u8; HEADER_LEN]),
    /// A message arrived at a publisher while no datagram was open; whether one is open now.
    Begun(bool),
    /// A heartbeat was due, at this time of day.
    Due(Nanos),
    /// A fan-out posted all datagrams up to this sequence to its transport.
    Posted(FanOutId, Sequence),
    /// The transport of a fan-out completed all datagrams up to this sequence.
    Completed(FanOutId, Sequence),
    /// A fan-out sent this heartbeat.
    Beat(FanOutId, &'a [u8; HEARTBEAT_LEN]),
    /// Another input of a publisher's core.
    Published(Published),
    /// An event that a publisher's core emitted.
    Happened(PublisherEvent),
    /// The repair service received a peer's message.
    Heard(PeerId, ChannelId, Message<'a>),
    /// The repair service answered a peer.
    Said(PeerId, ChannelId, Message<'a>),
    /// The repair service resent a datagram with this header to one peer, or to all.
    Repaired(Option<PeerId>, ChannelId, &'a [u8; HEADER_LEN]),
    /// A connection event of the repair service.
    Served(Served),
}

impl EntryBody<'_> {
    /// Returns whether the entry is an input of the core.
    #[must_use]
    pub const fn is_input(&self) -> bool {
        matches!(
            self,
            Self::Datagram { .. }
                | Self::Message(..)
                | Self::Input(..)
                | Self::Unrecorded
                | Self::Sealed(
                    SealedBy::Flush
                        | SealedBy::FlushLast
                        | SealedBy::Message
                        | SealedBy::MessageAlone,
                    _,
                )
                | Self::Begun(_)
                | Self::Due(_)
                | Self::Posted(..)
                | Self::Completed(..)
                | Self::Beat(..)
                | Self::Published(_)
                | Self::Happened(_)
        )
    }
}

impl Journal {
    /// Reads a journal. An invalid entry is only reported when it is read.
    ///
    /// # Errors
    /// [`JournalReadError`] when the bytes are not a journal, have another layout, are truncated or hold no
    /// entries.
    pub fn read(bytes: Vec<u8>) -> Result<Self, JournalReadError> {
        let len = bytes.len();
        if len < FILE_HEAD_LEN || bytes[..8] != RECORD_MAGIC {
            return Err(JournalReadError::Magic);
        }
        let version = word(&bytes, 8) as u32;
        if version != RECORD_VERSION {
            return Err(JournalReadError::Version { version });
        }
        let (count, segment_len) = ((word(&bytes, 8) >> 32) as u32, word(&bytes, 16));
        let total = u64::from(count).checked_mul(segment_len);
        let fits = total.is_some_and(|total| total <= (len - FILE_HEAD_LEN) as u64);
        let damaged = JournalReadError::Length {
            segments: count,
            segment_len,
            len,
        };
        if !fits || segment_len < SEGMENT_HEAD_LEN as u64 {
            return Err(damaged);
        }
        let origin = postcard::from_bytes(&bytes[64..FILE_HEAD_LEN]).map_err(|_| damaged)?;
        let (mut segments, mut damage) = (Vec::new(), None);
        for nth in 0..count as usize {
            let base = FILE_HEAD_LEN + nth * segment_len as usize;
            match Segment::read(&bytes[base..base + segment_len as usize], base) {
                Ok(None) => {}
                // Segments are used in turn, so a generation fits only one index.
                Ok(Some((segment, of_state)))
                    if (segment.generation - 1) % u64::from(count) == nth as u64 =>
                {
                    segments.push(segment);
                    damage = damage.or(of_state);
                }
                Ok(Some(_)) | Err(Damaged) => {
                    let (nth, offset) = (nth + 1, base);
                    damage = Some(JournalReadError::Segment { nth, offset });
                }
            }
        }
        segments.sort_unstable_by_key(|it| it.generation);
        // Keep only the unbroken run of generations up to the newest segment.
        let pairs = segments.windows(2).rev();
        let follow = pairs.take_while(|pair| pair[0].generation + 1 == pair[1].generation);
        let broken = segments.len().saturating_sub(1 + follow.count());
        if let Some(lone) = segments.drain(..broken).next_back() {
            // Only damage leaves a hole in the generations.
            let base = lone.snapshot.start - SEGMENT_HEAD_LEN;
            let nth = 1 + (base - FILE_HEAD_LEN) / segment_len as usize;
            damage = damage.or(Some(JournalReadError::Segment { nth, offset: base }));
        }
        if segments.is_empty() {
            return Err(JournalReadError::Empty);
        }
        Ok(Self {
            bytes,
            origin,
            segments,
            damage,
        })
    }

    /// Returns the damage found without reading the entries, if any.
    #[must_use]
    pub const fn damage(&self) -> Option<&JournalReadError> {
        self.damage.as_ref()
    }

    /// Returns the origin of the journal.
    #[must_use]
    pub const fn origin(&self) -> &JournalOrigin {
        &self.origin
    }

    /// Returns the side whose core was recorded.
    #[must_use]
    pub const fn side(&self) -> JournalSide {
        self.origin.side
    }

    /// Returns whether the core received anything (a datagram or a message) or, for a publisher, sealed
    /// anything.
    #[must_use]
    pub fn has_heard_anybody(&self) -> bool {
        let from_others = |it: &EntryBody<'_>| {
            matches!(
                it,
                EntryBody::Datagram { .. }
                    | EntryBody::Message(..)
                    | EntryBody::Sealed(..)
                    | EntryBody::Heard(..)
            )
        };
        let mut entries = self.entries().flatten();
        entries.any(|entry| from_others(&entry.what))
    }

    /// Returns whether the journal reaches back to the start of the core.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.segments.first().is_some_and(|it| it.generation == 1)
    }

    /// Returns the time of day (UTC) at protocol time `at`. Ignores any clock change since recording began.
    #[must_use]
    pub const fn utc(&self, at: Nanos) -> Nanos {
        let origin = &self.origin;
        Nanos((origin.began_utc.0.wrapping_add(at.0)).wrapping_sub(origin.began.0))
    }

    /// Returns all entries, oldest first. The iterator ends after the first error.
    pub fn entries(&self) -> impl Iterator<Item = Result<JournalEntry<'_>, JournalReadError>> {
        self.entries_from(0)
    }

    /// Returns the entries from this segment on.
    pub(super) fn entries_from(
        &self,
        segment: usize,
    ) -> impl Iterator<Item = Result<JournalEntry<'_>, JournalReadError>> {
        let segments = self.segments[segment..].iter();
        let mut failed = false;
        segments
            .flat_map(|it| Entries {
                bytes: &self.bytes[..it.entries.end],
                generation: it.generation,
                offset: it.entries.start,
                at: it.first_at,
                inputs: it.inputs,
            })
            .take_while(move |entry| !std::mem::replace(&mut failed, entry.is_err()))
    }

    /// Returns the segments, oldest first.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the bytes of a snapshot.
    pub(super) fn snapshot(&self, segment: &Segment) -> &[u8] {
        &self.bytes[segment.snapshot.clone()]
    }
}

impl Segment {
    /// Parses the segment in `bytes`, which lies at offset `base` of the file, and returns any damage of its
    /// snapshot. Returns `None` when the segment is unused.
    fn read(
        bytes: &[u8],
        base: usize,
    ) -> Result<Option<(Self, Option<JournalReadError>)>, Damaged> {
        let generation = word(bytes, segment::GENERATION);
        if generation == 0 {
            return Ok(None);
        }
        let below_end = |at: usize| {
            let word = usize::try_from(word(bytes, at));
            word.ok().filter(|it| *it <= bytes.len()).ok_or(Damaged)
        };
        let committed = below_end(segment::COMMITTED)?;
        if word(bytes, segment::FIRST_AT) > TIME_MAX.0 {
            return Err(Damaged);
        }
        let len = below_end(segment::SNAPSHOT_LEN)?;
        let entries = SEGMENT_HEAD_LEN + len.next_multiple_of(8);
        if entries > committed {
            return Err(Damaged);
        }
        let mut snapshot = SEGMENT_HEAD_LEN..SEGMENT_HEAD_LEN + len;
        let crc = word(bytes, segment::SNAPSHOT_CRC);
        let mut damage = None;
        if u64::from(crc32c::crc32c(&bytes[snapshot.clone()])) != crc {
            let offset = base + snapshot.start;
            damage = Some(JournalReadError::Snapshot { offset });
            // Treat a damaged snapshot like one that was too large to keep: without a snapshot.
            snapshot.end = snapshot.start;
        }
        let segment = Self {
            generation,
            first_at: Nanos(word(bytes, segment::FIRST_AT)),
            digest: word(bytes, segment::DIGEST),
            inputs: word(bytes, segment::INPUTS),
            snapshot: base + snapshot.start..base + snapshot.end,
            entries: base + entries..base + committed,
        };
        Ok(Some((segment, damage)))
    }
}

/// Latest valid time: 292 years. The limit keeps additions in the core from overflowing.
const TIME_MAX: Nanos = Nanos(u64::MAX >> 1);

/// A segment that no journal writes.
struct Damaged;

/// Iterator over the entries of a segment.
struct Entries<'a> {
    /// The file's bytes up to the end of the segment.
    bytes: &'a [u8],
    generation: u64,
    offset: usize,
    at: Nanos,
    inputs: u64,
}

impl<'a> Entries<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.offset..)?.get(..len)?;
        self.offset += len;
        Some(taken)
    }

    fn take_fixed<const LEN: usize>(&mut self) -> Option<&'a [u8; LEN]> {
        self.take(LEN)?.first_chunk()
    }

    fn take_word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take_fixed()?))
    }

    fn take_long(&mut self) -> Option<&'a [u8]> {
        let len = self.take(8)?;
        let len = usize::try_from(word(len, 0)).ok()?;
        let padded = self.take(len.checked_next_multiple_of(8)?)?;
        Some(&padded[..len])
    }

    fn entry(&mut self) -> Result<EntryBody<'a>, &'static str> {
        const SHORT: &str = "an entry is truncated";
        let head = self.take(8).ok_or(SHORT)?;
        let kinds = EntryKind::ALL.into_iter();
        let kind = kinds.into_iter().find(|kind| *kind as u8 == head[0]);
        let kind = kind.ok_or("an entry has an unknown kind")?;
        let (a, b) = (head[1], u16::from_le_bytes([head[2], head[3]]));
        let since = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        self.at = self.at.after(Nanos(since.into()));
        if self.at > TIME_MAX {
            return Err("an entry has an impossible time");
        }
        let path = || {
            let path = postcard::from_bytes::<Path>(&[a]);
            path.map_err(|_| "an entry has an unknown path")
        };
        let datagram = |kept| EntryBody::Datagram {
            channel: ChannelId(b),
            line: LineId(u8::from(a & of_line::B != 0)),
            verdict: match a & (of_line::BAD | of_line::UNAUTHENTICATED) {
                0 => CrcVerdict::Good,
                of_line::UNAUTHENTICATED => CrcVerdict::Unauthenticated,
                _ => CrcVerdict::Bad,
            },
            readable: a & of_line::UNREADABLE == 0,
            kept,
        };
        const UNREADABLE: &str = "the content of an entry can't be decoded";
        Ok(match kind {
            EntryKind::Data => {
                let kept = self.take(HEADER_LEN).ok_or(SHORT)?;
                datagram(kept)
            }
            EntryKind::Other => {
                let kept = self.take_long().ok_or(SHORT)?;
                Datagram::parse(kept).map_err(|_| UNREADABLE)?;
                datagram(kept)
            }
            EntryKind::Timeout => EntryBody::Input(b, SubscriberInput::Timeout),
            EntryKind::Poll => EntryBody::Input(b, SubscriberInput::Poll),
            EntryKind::Sent => EntryBody::Sent(path()?, b, self.take_long().ok_or(SHORT)?),
            EntryKind::Message => {
                let frame = self.take_long().ok_or(SHORT)?;
                match Message::read(frame, BODY_LEN_MAX_TO_SUBSCRIBER) {
                    Ok(Some((channel, message, _))) => {
                        EntryBody::Message(b, path()?, channel, message)
                    }
                    _ => return Err(UNREADABLE),
                }
            }
            EntryKind::Read => {
                let body = self.take_long().ok_or(SHORT)?;
                let (tag, bytes) = body.split_first_chunk::<8>().ok_or(SHORT)?;
                let tag = u64::from_le_bytes(*tag);
                EntryBody::Input(b, SubscriberInput::Read { tag, bytes })
            }
            EntryKind::Input => EntryBody::Input(b, self.decoded()?),
            EntryKind::Unrecorded => EntryBody::Unrecorded,
            EntryKind::Action => EntryBody::Action(b),
            EntryKind::Request => EntryBody::Request(b),
            EntryKind::Event => EntryBody::Event(self.decoded()?),
            EntryKind::Note => EntryBody::Note(self.decoded()?),
            EntryKind::Sealed => {
                let by = SealedBy::ALL.into_iter().find(|by| *by as u8 == a);
                let by = by.ok_or("a sealed datagram has an unknown cause")?;
                EntryBody::Sealed(by, self.take_fixed().ok_or(SHORT)?)
            }
            EntryKind::Begun => EntryBody::Begun(a != 0),
            EntryKind::Due => EntryBody::Due(Nanos(self.take_word().ok_or(SHORT)?)),
            EntryKind::Posted => {
                EntryBody::Posted(FanOutId(a), Sequence(self.take_word().ok_or(SHORT)?))
            }
            EntryKind::Completed => {
                EntryBody::Completed(FanOutId(a), Sequence(self.take_word().ok_or(SHORT)?))
            }
            EntryKind::Beat => EntryBody::Beat(FanOutId(a), self.take_fixed().ok_or(SHORT)?),
            EntryKind::Published => EntryBody::Published(self.decoded()?),
            EntryKind::Happened => EntryBody::Happened(self.decoded()?),
            EntryKind::Heard | EntryKind::Said => {
                let body = self.take_long().ok_or(SHORT)?;
                let (peer, frame) = body.split_first_chunk::<8>().ok_or(SHORT)?;
                let peer = PeerId(u64::from_le_bytes(*peer));
                match Message::read(frame, BODY_LEN_MAX_TO_SUBSCRIBER) {
                    Ok(Some((channel, message, _))) if kind == EntryKind::Heard => {
                        EntryBody::Heard(peer, channel, message)
                    }
                    Ok(Some((channel, message, _))) => EntryBody::Said(peer, channel, message),
                    _ => return Err(UNREADABLE),
                }
            }
            EntryKind::Repaired => {
                let peer = PeerId(self.take_word().ok_or(SHORT)?);
                let header = self.take_fixed().ok_or(SHORT)?;
                EntryBody::Repaired((a == 0).then_some(peer), ChannelId(b), header)
            }
            EntryKind::Served => EntryBody::Served(self.decoded()?),
            EntryKind::Time => {
                self.at = Nanos(word(self.take(8).ok_or(SHORT)?, 0));
                // A time entry belongs to the next entry, so read that one.
                return self.entry();
            }
        })
    }

    fn decoded<T: serde::Deserialize<'a>>(&mut self) -> Result<T, &'static str> {
        let body = self.take_long().ok_or("an entry is truncated")?;
        postcard::from_bytes(body).map_err(|_| "the content of an entry can't be decoded")
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<JournalEntry<'a>, JournalReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let (generation, offset, inputs) = (self.generation, self.offset, self.inputs);
        Some(match self.entry() {
            Ok(what) => {
                self.inputs = (self.inputs).saturating_add(what.is_input().into());
                Ok(JournalEntry {
                    at: self.at,
                    inputs,
                    place: EntryPlace { generation, offset },
                    what,
                })
            }
            Err(what) => {
                self.offset = self.bytes.len();
                Err(JournalReadError::Entry { offset, what })
            }
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|it| it.first_chunk());
    u64::from_le_bytes(word.copied().unwrap_or_default())
}
