//! READ of the publisher's ring: the rung of the repair ladder that costs the publisher's CPU
//! nothing (docs/PROTOCOL.md §6.6).
//!
//! A READ races with the writer of the ring. A slot is believed only if it holds the wanted sequence of
//! our epoch and its CRC is right. A slot that was being written is READ once more. A slot with a later
//! sequence says how far the ring has moved on.

use serde::{Deserialize, Serialize};

use crate::control::{CURSOR_LEN, Cursor, Grant, REPORT_OFFSET, REPORT_WORDS, RemoteAccess};
use crate::planted::{Bug, planted};
use crate::ring::{CONTROL_PAGE_LEN, Geometry, LAYOUT_VERSION, RING_MAGIC, offset};
use crate::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use crate::wire::{CrcVerdict, Datagram, Header};

/// An operation on the publisher's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteOp {
    /// READ of the slots of these sequences, which are adjacent.
    Slots(SequenceRange),
    /// READ of the head of the control page.
    Page,
    /// Claim of a cursor: compares its word with 0, and swaps it for this one if equal. The word before
    /// comes back.
    Claim(u64),
    /// WRITE of these words, a report. Nothing comes back.
    Report([u64; REPORT_WORDS]),
}

impl RemoteOp {
    /// Returns whether the operation is a WRITE. Their number has a limit of its own.
    pub(crate) const fn writes(&self) -> bool {
        matches!(self, Self::Report(_))
    }
}

/// The room of the READ connection now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRoom {
    /// READs that may still begin.
    pub reads: u32,
    /// The most bytes of one READ.
    pub len_max: u32,
    /// When the oldest request in flight began, except WRITEs.
    pub oldest_at: Option<Nanos>,
}

/// A ring that may be READ, and our cursor beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Readable {
    grant: Grant,
    geometry: Geometry,
    /// Bytes of the READs begun since the first grant of this attempt.
    used: u64,
    /// The bytes that could be READ when tokens were granted last.
    span: u64,
    /// Since when there are no tokens for a gap.
    dry_since: Option<Nanos>,
    /// When the publisher was last seen alive, by its own clock on the control page.
    heartbeat_at: u64,
    /// Our cursor, where the publisher has one for us.
    cursor: Option<Cursor>,
}

/// The publisher's state on a control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageView {
    /// Whether the publisher's heartbeat has moved since the last READ.
    pub is_alive: bool,
    /// The newest sequence that it has sent.
    pub sent: Sequence,
}

/// The content that a READ found in the slot of a sequence.
pub(crate) enum ReadSlot<'a> {
    /// The datagram with that sequence.
    Whole(Datagram<'a>),
    /// A later sequence: the ring has moved on.
    Lapped(Sequence),
    /// A datagram that was being written, or is damaged.
    Torn,
}

impl<'a> ReadSlot<'a> {
    /// Examines a slot. `is_ours` says whether a header belongs to the stream that is followed.
    pub(crate) fn of(slot: &'a [u8], wanted: Sequence, is_ours: impl Fn(&Header) -> bool) -> Self {
        let datagram = Datagram::parse(slot).ok().filter(|datagram| {
            let good = datagram.verdict() == CrcVerdict::Good;
            (good || planted(Bug::TornReadDelivered)) && is_ours(datagram.header())
        });
        let Some(datagram) = datagram else {
            return Self::Torn;
        };
        let found = datagram.header().sequence;
        if found == wanted || (planted(Bug::LappedReadDelivered) && found > wanted) {
            Self::Whole(datagram)
        } else if found > wanted {
            Self::Lapped(found)
        } else {
            Self::Torn
        }
    }
}

/// The part of a gap that one READ can bring now.
pub(crate) enum ReadPlan {
    /// This number of its first sequences.
    Slots(u64),
    /// Nothing until this time, unless something happens before.
    Wait(Nanos),
    /// Nothing; request the gap elsewhere.
    Nothing,
}

impl Readable {
    /// The ring of a first grant, which has this shape.
    pub(crate) fn new(grant: &Grant, geometry: Geometry) -> Self {
        Self {
            grant: *grant,
            geometry,
            used: 0,
            span: grant.tokens,
            dry_since: None,
            heartbeat_at: 0,
            cursor: grant.cursor.map(Cursor::new),
        }
    }

    /// Takes more tokens from a further grant. Returns `false` if that belongs to another connection.
    pub(crate) fn extend(&mut self, grant: &Grant) -> bool {
        if self.grant.attempt != grant.attempt {
            return false;
        }
        self.grant.tokens = self.grant.tokens.max(grant.tokens);
        if self.left() >= self.geometry.slot_len() as u64 {
            self.dry_since = None;
        }
        self.span = self.left();
        self.cursor = self.cursor.take().or(grant.cursor.map(Cursor::new));
        true
    }

    /// The shape of the ring.
    pub(crate) const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Our cursor, where the publisher has one for us.
    pub(crate) const fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Our cursor, to be claimed or written.
    pub(crate) const fn cursor_mut(&mut self) -> Option<&mut Cursor> {
        self.cursor.as_mut()
    }

    /// Takes the READ of a control page of this epoch and channel. Returns what the publisher says there;
    /// `None` if the page is not of such a ring.
    pub(crate) fn take_page(
        &mut self,
        page: &[u8],
        epoch: Epoch,
        channel: ChannelId,
    ) -> Option<PageView> {
        let word = |at: usize| {
            let word = page.get(at..).and_then(|rest| rest.first_chunk::<8>());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        let ours = word(offset::MAGIC) == RING_MAGIC
            && word(offset::LAYOUT) == LAYOUT_VERSION
            && word(offset::EPOCH) == epoch.0
            && word(offset::CHANNEL) == u64::from(channel.0);
        if !ours {
            return None;
        }
        let heartbeat_at = word(offset::HEARTBEAT_AT);
        let before = std::mem::replace(&mut self.heartbeat_at, heartbeat_at);
        // Each word is whole, but the words may be of different times, so none is compared with another.
        let fan_outs = (word(offset::FAN_OUTS) as usize).min(crate::ring::FAN_OUTS_MAX);
        let sent = (0..fan_outs).map(|it| word(offset::SENT + it * 8)).max();
        Some(PageView {
            is_alive: before != 0 && heartbeat_at != before,
            sent: Sequence(sent.unwrap_or(0)),
        })
    }

    /// Returns how much of a gap can be READ at once, and takes it from `room`. Waits for room at most
    /// until the oldest READ is late, and for tokens at most until an answer over TCP would be late. After
    /// that, returns [`ReadPlan::Nothing`].
    pub(crate) fn plan_read(
        &mut self,
        now: Nanos,
        (room_wait_max, tokens_wait_max): (Nanos, Nanos),
        range: SequenceRange,
        room: &mut ReadRoom,
    ) -> ReadPlan {
        let slot_len = self.geometry.slot_len() as u64;
        if u64::from(room.len_max) < slot_len {
            return ReadPlan::Nothing;
        }
        let wait_until = |until| match now < until {
            true => ReadPlan::Wait(until),
            false => ReadPlan::Nothing,
        };
        if room.reads == 0 {
            // A READ that completes makes room, but READs complete in order, and the first may be late.
            return wait_until(room.oldest_at.unwrap_or(now).after(room_wait_max));
        }
        let left = self.left();
        if left < slot_len && !planted(Bug::ReadTokensIgnored) {
            // A subscriber that never had tokens does not wait for any.
            if self.grant.tokens < slot_len {
                return ReadPlan::Nothing;
            }
            let since = *self.dry_since.get_or_insert(now);
            return wait_until(since.after(tokens_wait_max));
        }
        self.dry_since = None;
        let mask = self.geometry.slots() - 1;
        let to_the_end = self.geometry.slots() - (range.first.0 & mask);
        let most = u64::from(room.len_max).min(left.max(slot_len)) / slot_len;
        let slots = range.len().min(to_the_end).min(most);
        room.reads -= 1;
        room.oldest_at.get_or_insert(now);
        self.used += slots * slot_len;
        ReadPlan::Slots(slots)
    }

    /// Returns whether half of the tokens are used, so that more should be requested.
    pub(crate) const fn is_low(&self) -> bool {
        self.span == 0 || self.left() < self.span / 2
    }

    /// The bytes that may still be READ.
    const fn left(&self) -> u64 {
        self.grant.tokens.saturating_sub(self.used)
    }

    /// The bytes of the READs begun since the first grant.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// Returns the memory of an operation. Slots do not wrap around the ring. `None` for a cursor if
    /// there is none.
    pub(crate) fn place(&self, what: &RemoteOp) -> Option<RemoteAccess> {
        let cursor = self.cursor.as_ref().map(|cursor| cursor.at);
        let (of, offset, len) = match what {
            RemoteOp::Slots(range) => {
                let offset = self.geometry.slot_offset(range.first) as u64;
                let len = range.len() * self.geometry.slot_len() as u64;
                (self.grant.ring, offset, len)
            }
            RemoteOp::Page => (self.grant.ring, 0, PAGE_READ_LEN),
            RemoteOp::Claim(_) => (cursor?, 0, REPORT_OFFSET),
            RemoteOp::Report(_) => (cursor?, REPORT_OFFSET, CURSOR_LEN as u64 - REPORT_OFFSET),
        };
        Some(RemoteAccess {
            address: of.address + offset,
            len,
            key: of.key,
        })
    }
}

/// The bytes of the control page that say how far a publisher is.
pub(crate) const PAGE_READ_LEN: u64 = (offset::SENT + crate::ring::FAN_OUTS_MAX * 8) as u64;
const _: () = assert!(PAGE_READ_LEN as usize <= CONTROL_PAGE_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AlignedCopy;
    use crate::types::{RecordNumber, SourceId, SourcePosition};
    use crate::wire::{HEADER_LEN, Kind, crc_of};

    fn grant(attempt: u64, tokens: u64) -> Grant {
        let geometry = Geometry::new(1024, 16).unwrap();
        Grant {
            epoch: Epoch(1),
            attempt,
            ring: RemoteAccess {
                address: 0,
                len: geometry.bytes() as u64,
                key: 1,
            },
            tokens,
            cursor: None,
        }
    }

    /// A ring of 16 slots of 1,024 bytes.
    fn readable(tokens: u64) -> Readable {
        Readable::new(&grant(1, tokens), Geometry::new(1024, 16).unwrap())
    }

    fn slots_of(readable: &mut Readable, first: u64, last: u64, reads: u32) -> Option<u64> {
        let range = SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
        let mut room = ReadRoom {
            reads,
            len_max: 4096,
            oldest_at: None,
        };
        match readable.plan_read(Nanos(1), (Nanos(5), Nanos(7)), range, &mut room) {
            ReadPlan::Slots(count) => Some(count),
            ReadPlan::Wait(_) | ReadPlan::Nothing => None,
        }
    }

    #[test]
    fn read_stays_within_ring_length_and_tokens() {
        let mut ring = readable(1 << 20);
        assert_eq!(slots_of(&mut ring, 1, 2, 1), Some(2));
        assert_eq!(
            slots_of(&mut ring, 14, 20, 1),
            Some(2),
            "the ring ends there"
        );
        assert_eq!(slots_of(&mut ring, 1, 9, 1), Some(4), "longest READ");
        assert_eq!(ring.used(), 8 * 1024);
        let mut ring = readable(2 * 1024);
        assert_eq!(slots_of(&mut ring, 1, 9, 1), Some(2), "tokens of two slots");
        assert_eq!(slots_of(&mut ring, 1, 9, 1), None);
    }

    #[test]
    fn further_grant_extends_only_its_own_connection() {
        let mut ring = readable(4 * 1024);
        assert_eq!(
            (slots_of(&mut ring, 1, 3, 1), ring.is_low()),
            (Some(3), true)
        );
        assert!(!ring.extend(&grant(2, 99 * 1024)));
        assert!(ring.is_low());
        assert!(ring.extend(&grant(1, 16 * 1024)));
        assert_eq!((ring.used(), ring.is_low()), (3 * 1024, false));
        assert!(
            ring.extend(&grant(1, 1)),
            "an older grant takes nothing away"
        );
        assert!(!ring.is_low());
    }

    fn page(epoch: u64, heartbeat_at: u64, sent: [u64; 2]) -> Vec<u8> {
        let mut page = vec![0; PAGE_READ_LEN as usize];
        for (at, word) in [
            (offset::MAGIC, RING_MAGIC),
            (offset::LAYOUT, LAYOUT_VERSION),
            (offset::EPOCH, epoch),
            (offset::CHANNEL, 3),
            (offset::HEARTBEAT_AT, heartbeat_at),
            (offset::FAN_OUTS, 2),
            (offset::SENT, sent[0]),
            (offset::SENT + 8, sent[1]),
        ] {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    #[test]
    fn page_shows_publisher_alive_when_its_heartbeat_moved() {
        let mut ring = readable(1024);
        let mut view = |page: &[u8]| ring.take_page(page, Epoch(1), ChannelId(3));
        let seen = |is_alive, sent| {
            let sent = Sequence(sent);
            Some(PageView { is_alive, sent })
        };
        assert_eq!(view(&page(1, 50, [4, 9])), seen(false, 9), "the first one");
        assert_eq!(view(&page(1, 50, [9, 4])), seen(false, 9));
        assert_eq!(view(&page(1, 51, [9, 4])), seen(true, 9));
        assert_eq!(view(&page(2, 52, [9, 4])), None, "another epoch");
        assert_eq!(view(&page(1, 51, [9, 4])[..16]), None, "cut off");
        assert_eq!(view(&page(1, 51, [9, 4])), seen(false, 9));
        assert_eq!(
            ring.take_page(&page(1, 1, [0; 2]), Epoch(1), ChannelId(4)),
            None
        );
    }

    fn slot(sequence: u64) -> Vec<u8> {
        let header = Header {
            kind: Kind::End,
            channel: ChannelId(3),
            count: 0,
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            first_record: RecordNumber(1),
            source_position: SourcePosition(0),
            sent_at: Nanos(1),
            retained: 1,
            source: SourceId(1),
            payload_len: 0,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        let crc = crc_of(&header.to_bytes(0), &[]);
        header.to_bytes(crc).to_vec()
    }

    #[test]
    fn slot_is_whole_lapped_or_torn() {
        let mut aligned = AlignedCopy::default();
        let mut found = |bytes: &[u8], wanted: u64, ours: bool| match ReadSlot::of(
            aligned.of(bytes),
            Sequence(wanted),
            |_| ours,
        ) {
            ReadSlot::Whole(datagram) => format!("whole {}", datagram.header().sequence),
            ReadSlot::Lapped(later) => format!("lapped {later}"),
            ReadSlot::Torn => "torn".to_owned(),
        };
        assert_eq!(found(&slot(7), 7, true), "whole 7");
        assert_eq!(found(&slot(23), 7, true), "lapped 23");
        assert_eq!(found(&slot(6), 7, true), "torn");
        assert_eq!(found(&slot(7), 7, false), "torn");
        let mut damaged = slot(7);
        damaged[20] ^= 1;
        assert_eq!(found(&damaged, 7, true), "torn");
        assert_eq!(found(&[0; 64], 7, true), "torn");
    }

    #[test]
    fn wait_for_room_or_tokens_ends_after_a_retry() {
        let mut readable = readable(1024);
        readable.used = 1024;
        let range = SequenceRange::one(Sequence(3));
        let mut wait = |now: u64, reads: u32| {
            let mut room = ReadRoom {
                reads,
                len_max: 4096,
                oldest_at: Some(Nanos(10)),
            };
            let waits_max = (Nanos(5), Nanos(7));
            match readable.plan_read(Nanos(now), waits_max, range, &mut room) {
                ReadPlan::Wait(until) => Some(until.0),
                ReadPlan::Nothing => None,
                ReadPlan::Slots(count) => panic!("{count} slots without tokens"),
            }
        };
        assert_eq!(
            [10, 14, 15].map(|now| wait(now, 0)),
            [Some(15), Some(15), None]
        );
        assert_eq!(
            [20, 26, 27].map(|now| wait(now, 1)),
            [Some(27), Some(27), None]
        );
    }
}
