//! A standby's inbox: slots that the publisher's device writes in order of sequence, without an
//! announcement (docs/PROTOCOL.md §6.8).
//!
//! A poll finds the next sequence, or a later one, which proves that those between were skipped. A slot
//! is believed only if it holds a datagram of the right channel, epoch and sequence, and its CRC is right:
//! the publisher may seal the slot anew while its device reads it, and the device may place the bytes in
//! any order. A slot that is not whole counts as not written yet.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::MirrorRefusal;
use crate::planted::{Bug, planted};
use crate::record::words_as_bytes;
use crate::ring::{CONTROL_PAGE_LEN, Geometry, RingError, RingMemory, WrittenSlots};
use crate::types::{ReceiverCounters, Sequence};
use crate::wire::{CrcVerdict, Datagram};

/// The most slots of an inbox; fewer where the publisher's ring has fewer.
const SLOTS_MAX: u64 = 1024;

/// An inbox that the driver is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxWanted {
    /// The connection that the inbox is granted to.
    pub attempt: u64,
    /// The shape of the ring that the memory holds; the inbox begins behind its control page.
    pub geometry: Geometry,
}

impl InboxWanted {
    /// An inbox for this connection and ring; `None` where none fits.
    pub(crate) fn of(attempt: u64, ring: Geometry) -> Option<Self> {
        let slots = ring.slots().min(SLOTS_MAX);
        let geometry = Geometry::new(ring.slot_len() as u32, slots).ok()?;
        Some(Self { attempt, geometry })
    }

    /// Returns which bytes of the memory may be written.
    #[must_use]
    pub fn part(&self) -> std::ops::Range<usize> {
        CONTROL_PAGE_LEN..self.geometry.bytes()
    }
}

/// The state of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxState {
    /// The publisher was asked to write to it.
    Asked,
    /// The publisher writes to it.
    Written,
    /// The publisher refused, for this reason.
    Refused(MirrorRefusal),
}

/// The state of an inbox, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxView {
    /// The state.
    pub state: InboxState,
    /// The number of slots.
    pub slots: u64,
    /// The newest sequence found there; 0: none yet.
    pub newest: Sequence,
}

/// The content of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// This sequence or a later one, and its length in bytes.
    Whole(Sequence, usize),
    /// Bytes that claim this sequence and are not whole.
    Torn(Sequence),
    /// An older sequence, or nothing yet.
    Nothing,
}

/// A standby's inbox, and which sequence is expected there next.
pub(crate) struct Inbox {
    slots: WrittenSlots,
    state: InboxState,
    /// The sequence expected next.
    next: Sequence,
    /// Found further on: everything written up to it is there.
    until: Sequence,
    /// The newest sequence found whole.
    newest: Sequence,
    /// The last sequence that was found in its slot and was not whole.
    torn: Sequence,
    buffer: Box<[u64]>,
    /// The length of the datagram that was found last, which is in the buffer.
    found_len: usize,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("state", &self.state)
            .field("next", &self.next)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Poll {
    /// Whether a datagram was found.
    pub(crate) found: bool,
    /// Sequences that were skipped and will not be written any more.
    pub(crate) skipped: u64,
    /// Slots that hold the right sequence and are not whole, each counted once.
    pub(crate) torn: u64,
}

impl Poll {
    /// Counts the slots that brought nothing.
    #[inline]
    pub(crate) fn count(&self, counters: &ReceiverCounters) {
        if self.skipped > 0 {
            counters.inbox_skipped.add(self.skipped);
        }
        if self.torn > 0 {
            counters.inbox_torn.add(self.torn);
        }
    }
}

impl Inbox {
    /// An inbox in memory that was zero when it was granted, where `next` is expected first.
    ///
    /// # Errors
    /// [`RingError`] for memory of another size.
    pub(crate) fn new(
        memory: Arc<dyn RingMemory>,
        geometry: Geometry,
        next: Sequence,
    ) -> Result<Self, RingError> {
        Ok(Self {
            slots: WrittenSlots::new(memory, geometry)?,
            state: InboxState::Asked,
            next,
            until: Sequence::NONE,
            newest: Sequence::NONE,
            torn: Sequence::NONE,
            buffer: vec![0; geometry.slot_len() / size_of::<u64>()].into(),
            found_len: 0,
        })
    }

    /// The number of slots.
    pub(crate) const fn slots(&self) -> u64 {
        self.slots.geometry().slots()
    }

    /// The state, the size and the newest sequence.
    pub(crate) const fn view(&self) -> InboxView {
        InboxView {
            state: self.state,
            slots: self.slots(),
            newest: self.newest,
        }
    }

    /// The publisher refused to write to the inbox.
    pub(crate) const fn refuse(&mut self, reason: MirrorRefusal) {
        self.state = InboxState::Refused(reason);
    }

    /// The bytes of the datagram that was found last, until the next poll.
    pub(crate) fn found(&self) -> &[u8] {
        &words_as_bytes(&self.buffer)[..self.found_len]
    }

    /// Looks for the next datagram. `is_right` says whether a whole datagram belongs to the stream that is
    /// mirrored.
    pub(crate) fn poll(&mut self, is_right: impl Fn(&Datagram<'_>) -> bool) -> Poll {
        let mut polled = Poll::default();
        loop {
            match self.place_of(self.next, &is_right) {
                Place::Whole(found, len) if found == self.next => {
                    self.next = found.next();
                    (self.newest, self.state) = (found, InboxState::Written);
                    (self.found_len, polled.found) = (len, true);
                    return polled;
                }
                // A later sequence took the slot.
                Place::Whole(found, _) => polled.skipped += self.reaches(found),
                Place::Nothing | Place::Torn(_) if self.next < self.until => {
                    polled.skipped += 1;
                    self.next = self.next.next();
                }
                here => {
                    if let Place::Torn(torn) = here {
                        polled.torn += u64::from(std::mem::replace(&mut self.torn, torn) != torn);
                    }
                    match self.further_on(&is_right) {
                        Some(found) => polled.skipped += self.reaches(found),
                        None => return polled,
                    }
                }
            }
        }
    }

    /// Everything written up to `found` is there, except what lies a whole round before it. Returns how
    /// many sequences that skips.
    fn reaches(&mut self, found: Sequence) -> u64 {
        self.until = self.until.max(found);
        let first = found.minus(self.slots() - 1).max(self.next);
        first.since(std::mem::replace(&mut self.next, first))
    }

    /// Returns a sequence further on that stands in its own slot, so that those missing before it were
    /// skipped. Examines the slots 1, 2, 4, … ahead: a skip of n sequences is found after n more.
    fn further_on(&mut self, is_right: &impl Fn(&Datagram<'_>) -> bool) -> Option<Sequence> {
        let mut ahead = 1;
        while ahead < self.slots() {
            if let Place::Whole(found, _) = self.place_of(self.next.plus(ahead), is_right) {
                return Some(found);
            }
            ahead *= 2;
        }
        None
    }

    /// Returns what stands in the slot of a sequence.
    fn place_of(&mut self, wanted: Sequence, is_right: &impl Fn(&Datagram<'_>) -> bool) -> Place {
        let found = self.slots.found_at(wanted);
        let has_its_place = found.since(wanted).is_multiple_of(self.slots());
        if found < wanted || found == Sequence(u64::MAX) || !has_its_place {
            return Place::Nothing;
        }
        let len = self.slots.copy(wanted, &mut self.buffer);
        let whole = len.filter(|len| {
            let bytes = &words_as_bytes(&self.buffer)[..*len];
            Datagram::parse(bytes).is_ok_and(|datagram| {
                let good = datagram.verdict() == CrcVerdict::Good || planted(Bug::TornWriteTaken);
                good && datagram.header().sequence == found && is_right(&datagram)
            })
        });
        whole.map_or(Place::Torn(found), |len| Place::Whole(found, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::HeapMemory;
    use crate::types::{ChannelId, Epoch, Nanos, RecordNumber, SourceId, SourcePosition};
    use crate::wire::{HEADER_LEN, Header, Kind, crc_of};
    use std::cell::Cell;

    const SLOTS: u64 = 16;

    /// An inbox of which this sequence is wanted first, and its slots as the publisher writes them.
    fn inbox(next: u64) -> (Inbox, WrittenSlots) {
        let geometry = Geometry::new(1024, SLOTS).unwrap();
        let memory = Arc::new(HeapMemory::new(geometry));
        let inbox = Inbox::new(memory.clone(), geometry, Sequence(next)).unwrap();
        (inbox, WrittenSlots::new(memory, geometry).unwrap())
    }

    fn datagram(sequence: u64) -> Vec<u8> {
        let payload = [sequence as u8; 16];
        let header = Header {
            kind: Kind::Data,
            channel: ChannelId(4),
            count: 0,
            epoch: Epoch(5),
            sequence: Sequence(sequence),
            first_record: RecordNumber(1),
            source_position: SourcePosition(0),
            sent_at: Nanos(1),
            retained: 1,
            source: SourceId(1),
            payload_len: payload.len() as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        let crc = crc_of(&header.to_bytes(0), &payload);
        [&header.to_bytes(crc)[..], &payload].concat()
    }

    fn write(slots: &WrittenSlots, sequence: u64) {
        slots.place(Sequence(sequence), &datagram(sequence), |_| true);
    }

    /// All but the payload.
    fn tear(slots: &WrittenSlots, sequence: u64) {
        slots.place(Sequence(sequence), &datagram(sequence), |word| word < 8);
    }

    fn polled(found: bool, skipped: u64, torn: u64) -> Poll {
        Poll {
            found,
            skipped,
            torn,
        }
    }

    #[test]
    fn skipping_reader_is_found_power_of_two_ahead() {
        for sequence in 1..=SLOTS {
            let (mut inbox, slots) = inbox(1);
            write(&slots, sequence);
            let ahead = sequence - 1;
            let expected = match ahead == 0 || ahead.is_power_of_two() {
                true => polled(true, ahead, 0),
                false => polled(false, 0, 0),
            };
            assert_eq!(inbox.poll(|_| true), expected, "{sequence}");
            if expected.found {
                assert_eq!(inbox.found(), datagram(sequence));
            }
        }
    }

    #[test]
    fn lapped_slots_are_skipped_beside_empty_place() {
        let (mut inbox, slots) = inbox(1);
        write(&slots, SLOTS + 2);
        assert_eq!(inbox.poll(|_| true), polled(true, SLOTS + 1, 0));
        assert_eq!(inbox.newest, Sequence(SLOTS + 2));
    }

    #[test]
    fn damaged_inbox_slot_is_counted_once() {
        let (mut inbox, slots) = inbox(1);
        tear(&slots, 1);
        assert_eq!(inbox.poll(|_| true), polled(false, 0, 1));
        assert_eq!(inbox.poll(|_| true), polled(false, 0, 0));
        write(&slots, 1);
        assert_eq!(inbox.poll(|_| true), polled(true, 0, 0));
        tear(&slots, 2);
        assert_eq!(inbox.poll(|_| true), polled(false, 0, 1));
    }

    #[test]
    fn slot_seen_newer_while_overwritten_is_awaited() {
        let (mut inbox, slots) = inbox(1);
        write(&slots, 3);
        let overwritten = Cell::new(false);
        let overwrite = |_: &Datagram<'_>| {
            if !overwritten.replace(true) {
                tear(&slots, 3 + SLOTS);
            }
            true
        };
        assert_eq!(inbox.poll(overwrite), polled(false, 2, 1));
        assert_eq!(inbox.next, Sequence(3));
        write(&slots, 3 + SLOTS);
        assert_eq!(inbox.poll(|_| true), polled(true, SLOTS, 0));
    }

    #[test]
    fn foreign_or_impossible_slot_is_nothing() {
        let (mut inbox_1, slots) = inbox(1);
        slots.place(Sequence(1), &datagram(2), |_| true);
        assert_eq!(inbox_1.poll(|_| true), polled(false, 0, 0));
        let (mut inbox_15, slots) = inbox(SLOTS - 1);
        write(&slots, u64::MAX);
        assert_eq!(inbox_15.poll(|_| true), polled(false, 0, 0));
    }
}
