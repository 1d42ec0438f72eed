//! The contents delivered last, as many as the publisher's ring has slots: their CRCs, so that a second
//! content of a sequence is recognized as long as the publisher can say which one is its own
//! (docs/PROTOCOL.md §5.2).
//!
//! Sequence s has the slot `s & mask`. A slot does not name its sequence, so the caller passes each
//! sequence in order and asks only about those that it passed within one span.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::receive::window::Held;
use crate::types::{Sequence, SequenceRange};

/// The most slots that are remembered, however large the ring on offer claims to be.
const SLOTS_MAX: u64 = 1 << 24;

/// One delivered content: 8 bytes, so that a delivery stores one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    crc: u32,
    /// The number of its records.
    count: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u16)]
enum State {
    /// Nothing was delivered with this sequence.
    Empty,
    Delivered,
    /// Another content came with the same sequence.
    Contested,
    /// The publisher's own copy came.
    Decided,
}

const EMPTY: Slot = Slot {
    crc: 0,
    count: 0,
    state: State::Empty,
};

/// A delivered content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Its CRC, which identifies it.
    pub crc: u32,
    /// The number of its records.
    pub count: u16,
}

/// The contents delivered last.
pub(crate) struct Remembered {
    slots: Box<[Slot]>,
    /// At least the number of contested sequences, so that a search for them is rare.
    contested: usize,
}

impl Content {
    /// The content of this datagram.
    #[inline]
    pub(crate) const fn of(held: &Held) -> Self {
        Self {
            crc: held.crc,
            count: held.count,
        }
    }
}

impl fmt::Debug for Remembered {
    /// Prints the known slots, each with its place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.slots.iter().enumerate();
        f.debug_list()
            .entries(all.filter(|(_, slot)| slot.state != State::Empty))
            .finish()
    }
}

impl Serialize for Remembered {
    /// Writes the size and the known slots, each with its place.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let known = |(_, slot): &(usize, &Slot)| slot.state != State::Empty;
        let known = self.slots.iter().enumerate().filter(known);
        let mut all = to.serialize_seq(Some(1 + known.clone().count()))?;
        all.serialize_element(&(self.slots.len() as u64))?;
        known
            .into_iter()
            .try_for_each(|it| all.serialize_element(&it))?;
        all.end()
    }
}

impl<'de> Deserialize<'de> for Remembered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Rebuilding)
    }
}

/// Rebuilds the memory from its serialized form.
struct Rebuilding;

impl<'de> Visitor<'de> for Rebuilding {
    type Value = Remembered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("remembered contents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Remembered, A::Error> {
        let short = || serde::de::Error::custom("truncated contents");
        let slots: u64 = from.next_element()?.ok_or_else(short)?;
        if slots > SLOTS_MAX || !slots.is_power_of_two() {
            return Err(serde::de::Error::custom("a memory with an impossible size"));
        }
        let mut remembered = Remembered::new(slots);
        while let Some((at, slot)) = from.next_element::<(usize, Slot)>()? {
            let place = remembered.slots.get_mut(at);
            *place.ok_or_else(|| serde::de::Error::custom("a content without a place"))? = slot;
            remembered.contested += usize::from(slot.state == State::Contested);
        }
        Ok(remembered)
    }
}

impl Remembered {
    /// Nothing was delivered yet, of a ring of this many slots.
    #[must_use]
    pub(crate) fn new(ring_slots: u64) -> Self {
        let slots = ring_slots.clamp(1, SLOTS_MAX).next_power_of_two();
        Self {
            slots: vec![EMPTY; slots as usize].into(),
            contested: 0,
        }
    }

    /// The number of sequences that are remembered.
    #[must_use]
    pub(crate) const fn span(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Remembers a content that was delivered. The next sequence follows this one.
    #[inline(always)]
    pub(crate) fn note(&mut self, sequence: Sequence, content: Content) {
        let at = self.index(sequence);
        self.slots[at] = Slot {
            crc: content.crc,
            count: content.count,
            state: State::Delivered,
        };
    }

    /// Notes that these sequences were passed and nothing was delivered with them.
    pub(crate) fn pass(&mut self, range: SequenceRange) {
        let first = range.first.max(range.last.minus(self.span() - 1));
        let passed = SequenceRange { first, ..range };
        for sequence in passed.iter() {
            self.set(sequence, EMPTY);
        }
    }

    /// Returns the content that was delivered with this sequence. `next` is the next sequence to
    /// deliver.
    #[must_use]
    pub(crate) fn get(&self, sequence: Sequence, next: Sequence) -> Option<Content> {
        let slot = self.slots[self.index(sequence)];
        let known = self.is_within(sequence, next) && slot.state != State::Empty;
        known.then_some(Content {
            crc: slot.crc,
            count: slot.count,
        })
    }

    /// Returns whether this sequence was passed within one span of `next`.
    #[must_use]
    pub(crate) fn is_within(&self, sequence: Sequence, next: Sequence) -> bool {
        sequence < next && next.since(sequence) <= self.span()
    }

    /// Contests the content of a sequence that [`Remembered::get`] knows. Returns whether it was not
    /// contested before.
    pub(crate) fn contest(&mut self, sequence: Sequence) -> bool {
        let at = self.index(sequence);
        let is_news = self.slots[at].state == State::Delivered;
        if is_news {
            self.contested += 1;
            self.slots[at].state = State::Contested;
        }
        is_news
    }

    /// Nobody can tell any more whether the content of this sequence is the publisher's.
    pub(crate) fn leave(&mut self, sequence: Sequence) {
        let slot = self.slots[self.index(sequence)];
        let state = State::Decided;
        self.set(sequence, Slot { state, ..slot });
    }

    /// Notes that the content of a sequence that [`Remembered::get`] knows is the publisher's own.
    pub(crate) fn decide(&mut self, sequence: Sequence, content: Content) {
        self.set(
            sequence,
            Slot {
                crc: content.crc,
                count: content.count,
                state: State::Decided,
            },
        );
    }

    /// Returns the sequences of `range` that are contested and not decided, ascending.
    pub(crate) fn contested(
        &self,
        range: SequenceRange,
        next: Sequence,
    ) -> impl Iterator<Item = Sequence> {
        let first = range.first.max(next.minus(self.span()));
        let passed = SequenceRange::new(first, range.last.min(next.previous()));
        let passed = passed.filter(|_| self.contested > 0 && next > Sequence::FIRST);
        let all = passed.into_iter().flat_map(SequenceRange::iter);
        all.filter(|it| self.slots[self.index(*it)].state == State::Contested)
    }

    /// Returns how many records were delivered with the sequences of `range`, which lie within one span
    /// of the next one.
    #[must_use]
    pub(crate) fn records_of(&self, range: SequenceRange) -> u64 {
        let slots = range.iter().map(|it| self.slots[self.index(it)]);
        slots.map(|slot| u64::from(slot.count)).sum()
    }

    /// Remembers a ring of this many slots from now on, and nothing of a ring of another size.
    pub(crate) fn fit(&mut self, ring_slots: u64) {
        if ring_slots.clamp(1, SLOTS_MAX).next_power_of_two() != self.span() {
            *self = Self::new(ring_slots);
        }
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.contested = 0;
    }

    fn set(&mut self, sequence: Sequence, slot: Slot) {
        let at = self.index(sequence);
        self.contested -=
            usize::from(self.slots[at].state == State::Contested && self.contested > 0);
        self.slots[at] = slot;
    }

    const fn index(&self, sequence: Sequence) -> usize {
        (sequence.0 as usize) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(crc: u32) -> Content {
        Content { crc, count: 2 }
    }

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    /// Sequences 1 to 9 of a memory of 8, of which 5 was lost.
    fn remembered() -> Remembered {
        let mut all = Remembered::new(5);
        for sequence in 1..10 {
            match sequence {
                5 => all.pass(range(5, 5)),
                _ => all.note(Sequence(sequence), content(sequence as u32)),
            }
        }
        all
    }

    #[test]
    fn contents_within_one_span_are_remembered() {
        let (all, next) = (remembered(), Sequence(10));
        assert_eq!(size_of::<Slot>(), 8);
        let get = |sequence| all.get(Sequence(sequence), next).map(|it| it.crc);
        assert_eq!(
            [1, 2, 4, 5, 9, 10].map(get),
            [None, Some(2), Some(4), None, Some(9), None]
        );
        assert!(all.is_within(Sequence(5), next) && !all.is_within(Sequence(1), next));
        assert_eq!(all.records_of(range(4, 9)), 10);
    }

    #[test]
    fn contest_is_new_once_until_decided_or_left() {
        let (mut all, next) = (remembered(), Sequence(10));
        assert!(all.contest(Sequence(3)) && !all.contest(Sequence(3)));
        assert!(all.contest(Sequence(7)) && all.contest(Sequence(8)));
        let open = |all: &Remembered| all.contested(range(1, 99), next).map(|it| it.0).collect();
        let contested: Vec<u64> = open(&all);
        assert_eq!(contested, [3, 7, 8]);
        all.decide(Sequence(3), content(77));
        all.leave(Sequence(7));
        let contested: Vec<u64> = open(&all);
        assert_eq!(contested, [8]);
        assert!(!all.contest(Sequence(3)) && !all.contest(Sequence(7)));
        assert_eq!(all.get(Sequence(3), next), Some(content(77)));
        all.clear();
        assert_eq!(all.contested(range(1, 99), next).count(), 0);
        assert_eq!(all.get(Sequence(8), next), None);
    }

    #[test]
    fn ring_of_another_size_is_remembered_anew() {
        let mut all = remembered();
        all.fit(8);
        assert_eq!(all.get(Sequence(9), Sequence(10)), Some(content(9)));
        all.fit(9);
        assert_eq!((all.span(), all.get(Sequence(9), Sequence(10))), (16, None));
        assert_eq!(Remembered::new(u64::MAX).span(), SLOTS_MAX);
    }
}
