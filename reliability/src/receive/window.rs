//! The window holds datagrams that came early, and remembers those delivered, so that duplicates
//! and forged copies are recognized.
//!
//! The window has a fixed size and is allocated once. Sequence s has the slot `s & mask`, so a window
//! of W sequences holds any run of W in flight. The caller drops datagrams beyond it, to be repaired
//! later.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::delivery::Via;
use crate::record::{words_as_bytes, words_as_bytes_mut};
use crate::types::{Nanos, RecordNumber, Sequence};
use crate::wire::{Datagram, headers_only};

/// A datagram as the window remembers it, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Its sequence.
    pub sequence: Sequence,
    /// The number of its first record.
    pub first_record: RecordNumber,
    /// The number of its records.
    pub count: u16,
    /// Its CRC, the identity of its content.
    pub crc: u32,
    /// How it arrived.
    pub via: Via,
    /// When it arrived.
    pub received_at: Nanos,
    /// How long it had been missing; zero if it never was.
    pub missing_for: Nanos,
}

impl Held {
    /// A datagram that arrives now and was not missing.
    #[inline]
    pub(crate) const fn of(now: Nanos, via: Via, datagram: &Datagram<'_>) -> Self {
        let header = datagram.header();
        Self {
            sequence: header.sequence,
            first_record: header.first_record,
            count: header.count,
            crc: datagram.crc(),
            via,
            received_at: now,
            missing_for: Nanos::ZERO,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    held: Held,
    len: u32,
    state: State,
    contest: Contest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Empty,
    /// The bytes wait for their turn.
    Waiting,
    /// Delivered to the application; only the identity is kept.
    Delivered,
}

/// Whether another content came with the same sequence, and whether the publisher's copy is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Contest {
    None,
    Open,
    /// The publisher's own copy came.
    Decided,
}

const EMPTY: Entry = Entry {
    held: Held {
        sequence: Sequence::NONE,
        first_record: RecordNumber(0),
        count: 0,
        crc: 0,
        via: Via::Repair,
        received_at: Nanos::ZERO,
        missing_for: Nanos::ZERO,
    },
    len: 0,
    state: State::Empty,
    contest: Contest::None,
};

/// A window of datagrams, by sequence.
pub(crate) struct Window {
    entries: Box<[Entry]>,
    words: Box<[u64]>,
    slot_words: usize,
    waiting: usize,
}

impl fmt::Debug for Window {
    /// Prints all entries. The bytes are left out, because each CRC stands for its content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.entries.iter().filter(|e| e.state != State::Empty);
        f.debug_list().entries(known).finish()
    }
}

impl Serialize for Window {
    /// Writes the size and all entries, in the order of the slots.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let known = |entry: &Entry| entry.state != State::Empty;
        let entries = self.entries.iter().enumerate();
        let known = entries.filter(|(_, entry)| known(entry));
        let mut all = to.serialize_seq(Some(2 + known.clone().count()))?;
        all.serialize_element(&self.entries.len())?;
        all.serialize_element(&self.slot_words)?;
        for (at, entry) in known {
            let words = &self.words[at * self.slot_words..(at + 1) * self.slot_words];
            let held = match entry.state {
                State::Waiting => headers_only::kept(&words_as_bytes(words)[..entry.len as usize]),
                State::Empty | State::Delivered => &[],
            };
            all.serialize_element(&(
                entry.held,
                entry.state,
                entry.contest,
                entry.len,
                Bytes(held),
            ))?;
        }
        all.end()
    }
}

/// Bytes that serialize as such.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Rebuilding)
    }
}

/// Rebuilds a window from its serialized form.
struct Rebuilding;

/// The most words of a window that is rebuilt; more cannot be a window of ours.
const WORDS_MAX: usize = 1 << 28;

impl<'de> Visitor<'de> for Rebuilding {
    type Value = Window;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a window")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Window, A::Error> {
        let short = || serde::de::Error::custom("a truncated window");
        let slots: usize = from.next_element()?.ok_or_else(short)?;
        let slot_words: usize = from.next_element()?.ok_or_else(short)?;
        let words = slots.checked_mul(slot_words);
        if !slots.is_power_of_two() || words.is_none_or(|words| words > WORDS_MAX) {
            return Err(serde::de::Error::custom("a window with an impossible size"));
        }
        let mut window = Window::new(slots, slot_words * 8);
        while let Some((held, state, contest, len, kept)) = from.next_element()? {
            let (held, kept): (Held, Vec<u8>) = (held, kept);
            if state == State::Waiting {
                window.hold(held, &headers_only::whole(&kept));
            } else {
                window.delivered(held);
            }
            let at = window.index(held.sequence);
            let entry = &mut window.entries[at];
            (entry.state, entry.contest, entry.len) = (state, contest, len);
        }
        Ok(window)
    }
}

impl Window {
    /// A window of `slots` (a power of two) datagrams of at most `slot_len` bytes each.
    #[must_use]
    pub(crate) fn new(slots: usize, slot_len: usize) -> Self {
        let slots = slots.next_power_of_two();
        let slot_words = slot_len.div_ceil(8);
        Self {
            entries: vec![EMPTY; slots].into(),
            words: vec![0; slots * slot_words].into(),
            slot_words,
            waiting: 0,
        }
    }

    /// The number of sequences that the window spans.
    #[must_use]
    pub(crate) const fn span(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The longest datagram that the window can hold, in bytes.
    #[must_use]
    pub(crate) const fn slot_len(&self) -> usize {
        self.slot_words * 8
    }

    /// The number of datagrams that wait for their turn.
    #[must_use]
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Keeps a copy of a datagram until its turn. It must fit a slot, and its sequence must lie
    /// within one span of the next one to deliver.
    pub(crate) fn hold(&mut self, held: Held, bytes: &[u8]) {
        let at = self.index(held.sequence);
        let slot = &mut self.words[at * self.slot_words..(at + 1) * self.slot_words];
        let slot = words_as_bytes_mut(slot);
        let len = bytes.len().min(slot.len());
        slot[..len].copy_from_slice(&bytes[..len]);
        self.waiting += usize::from(self.entries[at].state != State::Waiting);
        self.entries[at] = Entry {
            held,
            len: len as u32,
            state: State::Waiting,
            contest: Contest::None,
        };
    }

    /// Remembers a datagram that was delivered at once.
    #[inline]
    pub(crate) fn delivered(&mut self, held: Held) {
        let at = self.index(held.sequence);
        self.entries[at] = Entry {
            held,
            len: 0,
            state: State::Delivered,
            contest: Contest::None,
        };
    }

    /// Returns the datagram that waits with this sequence.
    #[must_use]
    pub(crate) fn waiting_at(&self, sequence: Sequence) -> Option<(&Held, &[u8])> {
        let at = self.index(sequence);
        let entry = &self.entries[at];
        if entry.state != State::Waiting || entry.held.sequence != sequence {
            return None;
        }
        let words = &self.words[at * self.slot_words..(at + 1) * self.slot_words];
        Some((&entry.held, &words_as_bytes(words)[..entry.len as usize]))
    }

    /// Marks the datagram that waits with this sequence as delivered; its bytes are free.
    pub(crate) fn release(&mut self, sequence: Sequence) {
        let at = self.index(sequence);
        let entry = &mut self.entries[at];
        if entry.state == State::Waiting && entry.held.sequence == sequence {
            entry.state = State::Delivered;
            self.waiting -= 1;
        }
    }

    /// Forgets the datagram that waits with this sequence.
    pub(crate) fn forget(&mut self, sequence: Sequence) {
        let at = self.index(sequence);
        let entry = &mut self.entries[at];
        if entry.state == State::Waiting && entry.held.sequence == sequence {
            *entry = EMPTY;
            self.waiting -= 1;
        }
    }

    /// Forgets the datagrams that wait below this sequence: delivery has passed them.
    pub(crate) fn forget_below(&mut self, next: Sequence) {
        let waits = |e: &&mut Entry| e.state == State::Waiting && e.held.sequence < next;
        for entry in self.entries.iter_mut().filter(waits) {
            *entry = EMPTY;
            self.waiting -= 1;
        }
    }

    /// Returns the entry with this sequence, and whether it was delivered.
    #[must_use]
    pub(crate) fn seen(&self, sequence: Sequence) -> Option<(&Held, bool)> {
        let entry = &self.entries[self.index(sequence)];
        (entry.state != State::Empty && entry.held.sequence == sequence)
            .then_some((&entry.held, entry.state == State::Delivered))
    }

    /// Returns the delivered entries above this sequence, in no order.
    pub(crate) fn delivered_above(&self, last: Sequence) -> impl Iterator<Item = &Held> {
        let delivered = |entry: &&Entry| entry.state == State::Delivered;
        let all = self.entries.iter().filter(delivered);
        all.map(|entry| &entry.held)
            .filter(move |held| held.sequence > last)
    }

    /// Forgets everything above this sequence, and returns the number of datagrams that waited there.
    pub(crate) fn forget_above(&mut self, last: Sequence) -> u64 {
        let before = self.waiting;
        for entry in self.entries.iter_mut().filter(|e| e.held.sequence > last) {
            self.waiting -= usize::from(entry.state == State::Waiting);
            *entry = EMPTY;
        }
        (before - self.waiting) as u64
    }

    /// Makes room for datagrams of this length; held datagrams stay.
    pub(crate) fn fit_slots(&mut self, slot_len: usize) {
        let words = slot_len.div_ceil(8);
        if words <= self.slot_words {
            return;
        }
        let mut wider = vec![0; self.entries.len() * words];
        let slots = self.words.chunks_exact(self.slot_words.max(1));
        for (to, from) in wider.chunks_exact_mut(words).zip(slots) {
            to[..from.len()].copy_from_slice(from);
        }
        (self.words, self.slot_words) = (wider.into(), words);
    }

    /// Contests the entry with this sequence. Returns whether it was not contested before.
    pub(crate) fn contest(&mut self, sequence: Sequence) -> bool {
        let at = self.index(sequence);
        let entry = &mut self.entries[at];
        let is_news = entry.held.sequence == sequence && entry.contest == Contest::None;
        if is_news {
            entry.contest = Contest::Open;
        }
        is_news
    }

    /// Notes that the entry with this sequence is the publisher's own copy.
    pub(crate) fn confirm(&mut self, sequence: Sequence) {
        let at = self.index(sequence);
        let entry = &mut self.entries[at];
        if entry.held.sequence == sequence {
            entry.contest = Contest::Decided;
        }
    }

    /// Returns whether the entry with this sequence is contested and not decided.
    pub(crate) fn is_contested(&self, sequence: Sequence) -> bool {
        let entry = &self.entries[self.index(sequence)];
        entry.held.sequence == sequence && entry.contest == Contest::Open
    }

    /// Returns whether the entry with this sequence is the publisher's own copy, as far as anybody can
    /// tell.
    pub(crate) fn is_decided(&self, sequence: Sequence) -> bool {
        let entry = &self.entries[self.index(sequence)];
        entry.held.sequence == sequence && entry.contest == Contest::Decided
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.waiting = 0;
    }

    const fn index(&self, sequence: Sequence) -> usize {
        (sequence.0 as usize) & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contested(window: &Window) -> Vec<u64> {
        let all = 0..window.span() * 2;
        all.filter(|it| window.is_contested(Sequence(*it)))
            .collect()
    }

    fn held(sequence: u64, crc: u32) -> Held {
        Held {
            sequence: Sequence(sequence),
            crc,
            ..EMPTY.held
        }
    }

    #[test]
    fn window_slot_is_released_once_and_stays_seen() {
        let mut window = Window::new(8, 20);
        window.hold(held(u64::MAX, 7), &[1, 2, 3]);
        let (seen, bytes) = window.waiting_at(Sequence(u64::MAX)).unwrap();
        assert_eq!((seen.crc, bytes), (7, &[1, 2, 3][..]));
        assert_eq!(bytes.as_ptr().addr() % 8, 0);
        window.release(Sequence(u64::MAX));
        window.release(Sequence(u64::MAX));
        assert!(window.waiting_at(Sequence(u64::MAX)).is_none());
        assert_eq!(
            window
                .seen(Sequence(u64::MAX))
                .map(|(h, done)| (h.crc, done)),
            Some((7, true))
        );
        assert_eq!(window.waiting(), 0);
    }

    #[test]
    fn datagrams_that_wait_below_a_sequence_are_forgotten() {
        let mut window = Window::new(8, 16);
        window.delivered(held(3, 1));
        (4..7).for_each(|sequence| window.hold(held(sequence, 1), &[1]));
        window.forget_below(Sequence(6));
        assert_eq!(window.waiting(), 1);
        assert!(window.seen(Sequence(3)).is_some() && window.seen(Sequence(5)).is_none());
        assert!(window.waiting_at(Sequence(6)).is_some());
    }

    #[test]
    fn number_one_span_away_is_not_confused() {
        let mut window = Window::new(8, 16);
        window.delivered(held(3, 1));
        assert!(window.seen(Sequence(11)).is_none());
        window.hold(held(11, 2), &[9; 16]);
        assert!(window.seen(Sequence(3)).is_none());
        assert!(window.waiting_at(Sequence(3)).is_none());
        assert_eq!(window.waiting_at(Sequence(11)).unwrap().1, &[9; 16]);
        window.clear();
        assert!(window.seen(Sequence(11)).is_none());
        assert_eq!(window.waiting(), 0);
    }

    #[test]
    fn window_contest_is_new_once_until_confirmed() {
        let mut window = Window::new(8, 16);
        window.delivered(held(3, 1));
        window.hold(held(4, 1), &[4]);
        assert!(window.contest(Sequence(3)) && !window.contest(Sequence(3)));
        assert!(window.contest(Sequence(4)));
        assert!(!window.contest(Sequence(11)), "that one is not here");
        window.release(Sequence(4));
        assert_eq!(contested(&window), [3, 4]);
        window.confirm(Sequence(11));
        window.confirm(Sequence(3));
        window.delivered(held(4, 2));
        window.confirm(Sequence(4));
        assert!(contested(&window).is_empty());
        assert!(!window.contest(Sequence(3)) && !window.contest(Sequence(4)));
        // Another datagram in the same place begins anew.
        window.delivered(held(11, 1));
        assert!(window.contest(Sequence(11)));
        window.clear();
        assert!(contested(&window).is_empty());
    }

    #[test]
    fn holding_a_sequence_again_replaces_its_content() {
        let mut window = Window::new(4, 16);
        window.hold(held(1, 1), &[1]);
        window.hold(held(1, 2), &[2, 2]);
        assert_eq!(window.waiting(), 1);
        assert_eq!(window.waiting_at(Sequence(1)).unwrap().1, &[2, 2]);
    }

    #[test]
    fn window_span_is_power_of_two_and_slot_len_whole_words() {
        let window = Window::new(5, 17);
        assert_eq!((window.span(), window.slot_len()), (8, 24));
        assert!(window.seen(Sequence::NONE).is_none(), "nothing was held");
        let mut window = Window::new(8, 16);
        window.hold(held(1, 1), &[1; 20]);
        assert_eq!(window.waiting_at(Sequence(1)).unwrap().1, &[1; 16]);
        window.hold(held(2, 2), &[2; 3]);
        assert_eq!(window.waiting(), 2);
        assert_eq!(window.waiting_at(Sequence(1)).unwrap().1, &[1; 16]);
        window.release(Sequence(9));
        assert_eq!(window.waiting(), 2, "not the one that waits there");
        window.release(Sequence(1));
        assert_eq!(window.waiting(), 1);
        assert!(!window.seen(Sequence(2)).unwrap().1);
        window.delivered(held(5, 5));
        window.release(Sequence(5));
        assert_eq!(window.waiting(), 1);
    }

    #[test]
    fn growing_slots_forget_above_and_keep_below() {
        let held = |sequence| Held {
            sequence: Sequence(sequence),
            ..EMPTY.held
        };
        let mut window = Window::new(8, 16);
        window.hold(held(4), &[4; 16]);
        window.delivered(held(3));
        window.hold(held(5), &[5; 16]);
        window.delivered(held(6));
        window.hold(held(7), &[7; 9]);
        let above: Vec<u64> = window
            .delivered_above(Sequence(3))
            .map(|it| it.sequence.0)
            .collect();
        assert_eq!(above, [6]);
        assert_eq!(window.forget_above(Sequence(4)), 2);
        assert_eq!((window.waiting(), window.seen(Sequence(6))), (1, None));
        window.fit_slots(8);
        assert_eq!(window.slot_len(), 16, "it never shrinks");
        window.fit_slots(33);
        assert_eq!(window.slot_len(), 40);
        assert_eq!(window.waiting_at(Sequence(4)).unwrap().1, [4; 16]);
        assert_eq!(window.seen(Sequence(3)), Some((&held(3), true)));
    }
}
