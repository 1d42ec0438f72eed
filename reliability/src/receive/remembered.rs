//! How far delivery is, and the contents delivered last: twice as many as the publisher's ring has slots.
//! Their CRCs reveal a second content of a sequence as long as the publisher can say which one is its own,
//! even where delivery has run ahead of the publisher by half a ring (docs/PROTOCOL.md §5.2).
//!
//! Sequence s has the slot `s & mask`. A slot does not name its sequence, because every sequence below
//! the next one has been passed.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::receive::window::Held;
use crate::types::{Sequence, SequenceRange};

/// The most slots of a ring whose contents are remembered, however large the ring on offer claims to be.
/// That takes 8 MiB.
pub(crate) const RING_SLOTS_MAX: u64 = 1 << 19;
/// Number of contents in the serialized state, so that a journal stays small. A replay is inexact
/// where an older content is contradicted.
const SERIALIZED: u64 = 4096;

/// The fate of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A delivered content in one word, so that a delivery stores one word: the CRC, the number of records
/// and the state. Zero is the empty slot, so that fresh memory costs nothing until it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u64);

/// A delivered content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Its CRC, which identifies it.
    pub crc: u32,
    /// The number of its records.
    pub count: u16,
}

/// The contents delivered last.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// The next sequence to deliver or declare lost.
    next: Sequence,
    slots: Box<[u64]>,
    /// At least the number of contested sequences, so that a search for them is rare.
    contested: usize,
}

/// The serialized form: the newest contents, up to `next`.
#[derive(Serialize, Deserialize)]
struct Newest {
    span: u64,
    next: Sequence,
    slots: Vec<u64>,
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

impl Slot {
    const EMPTY: Self = Self(0);

    #[inline(always)]
    const fn new(content: Content, state: State) -> Self {
        Self(content.crc as u64 | (content.count as u64) << 32 | (state as u64) << 48)
    }

    const fn content(self) -> Content {
        Content {
            crc: self.0 as u32,
            count: (self.0 >> 32) as u16,
        }
    }

    const fn is(self, state: State) -> bool {
        self.0 >> 48 == state as u64
    }
}

impl Serialize for Remembered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let count = SERIALIZED.min(self.span());
        let newest = SequenceRange::new(self.next.minus(count), self.next.previous());
        let newest = newest.into_iter().flat_map(SequenceRange::iter);
        let slots = newest.map(|it| self.slots[self.index(it)]);
        Newest {
            span: self.span(),
            next: self.next,
            slots: slots
                .skip_while(|slot| Slot(*slot).is(State::Empty))
                .collect(),
        }
        .serialize(to)
    }
}

impl<'de> Deserialize<'de> for Remembered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Newest { span, next, slots } = Newest::deserialize(from)?;
        let mut remembered = Self::new(span / 2);
        if remembered.span() != span || slots.len() as u64 > span.min(next.0) {
            return Err(D::Error::custom("a memory with an impossible size"));
        }
        remembered.next = next.minus(slots.len() as u64);
        for slot in slots {
            let at = remembered.index(remembered.next);
            remembered.contested += usize::from(Slot(slot).is(State::Contested));
            remembered.slots[at] = slot;
            remembered.next = remembered.next.next();
        }
        Ok(remembered)
    }
}

impl Remembered {
    /// Nothing was delivered yet, of a ring of this many slots.
    #[must_use]
    pub(crate) fn new(ring_slots: u64) -> Self {
        let span = span_of(ring_slots);
        Self {
            next: Sequence::FIRST,
            // Zeroed, so that the system provides a page only once something on it is remembered.
            slots: vec![0; span as usize].into(),
            contested: 0,
        }
    }

    /// The number of sequences that are remembered.
    #[must_use]
    pub(crate) const fn span(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The next sequence to deliver or declare lost.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn next(&self) -> Sequence {
        self.next
    }

    /// The contents above this sequence are remembered, up to the last one delivered.
    #[must_use]
    pub(crate) const fn above(&self) -> Sequence {
        self.next.minus(self.span().saturating_add(1))
    }

    /// Remembers the content that was delivered with `sequence`, the next one, and moves past it.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, sequence: Sequence, content: Content) {
        let at = self.index(sequence);
        self.slots[at] = Slot::new(content, State::Delivered).0;
        self.next = sequence.next();
    }

    /// Moves past everything up to `last`, with which nothing was delivered.
    pub(crate) fn pass(&mut self, last: Sequence) {
        if let Some(range) = SequenceRange::new(self.next, last) {
            self.forget(range);
            self.next = last.next();
        }
    }

    /// Returns to the place behind `last`, and forgets what was delivered beyond.
    pub(crate) fn return_to(&mut self, last: Sequence) {
        if let Some(range) = SequenceRange::new(last.next(), self.next.previous()) {
            self.forget(range);
            self.next = last.next();
        }
    }

    /// Returns the content that was delivered with this sequence.
    #[must_use]
    pub(crate) fn get(&self, sequence: Sequence) -> Option<Content> {
        let slot = self.slot(sequence)?;
        (!slot.is(State::Empty)).then(|| slot.content())
    }

    /// Returns whether this sequence was passed within one span of the next one.
    #[must_use]
    pub(crate) fn is_within(&self, sequence: Sequence) -> bool {
        sequence < self.next && self.next.since(sequence) <= self.span()
    }

    /// Contests the content of a sequence. Returns whether there is one that was not contested before.
    pub(crate) fn contest(&mut self, sequence: Sequence) -> bool {
        let slot = self.slot(sequence);
        let delivered = slot.filter(|slot| slot.is(State::Delivered));
        if let Some(slot) = delivered {
            self.contested += 1;
            self.set(sequence, Slot::new(slot.content(), State::Contested));
        }
        delivered.is_some()
    }

    /// Returns whether the content of this sequence is contested and not decided.
    pub(crate) fn is_contested(&self, sequence: Sequence) -> bool {
        self.slot(sequence)
            .is_some_and(|it| it.is(State::Contested))
    }

    /// Nobody can tell any more whether the content of this contested sequence is the publisher's.
    pub(crate) fn leave(&mut self, sequence: Sequence) {
        if let Some(slot) = self.slot(sequence) {
            self.decide(sequence, slot.content());
        }
    }

    /// Notes that the content of a sequence that [`Remembered::get`] knows is the publisher's own.
    pub(crate) fn decide(&mut self, sequence: Sequence, content: Content) {
        self.contested -= usize::from(self.is_contested(sequence));
        self.set(sequence, Slot::new(content, State::Decided));
    }

    /// Returns the sequences of `range` that are contested and not decided, ascending.
    pub(crate) fn contested(&self, range: SequenceRange) -> impl Iterator<Item = Sequence> {
        let passed = self.passed(range).filter(|_| self.contested > 0);
        let all = passed.into_iter().flat_map(SequenceRange::iter);
        all.filter(|it| self.is_contested(*it))
    }

    /// Returns the part of `range` whose contents are remembered.
    pub(crate) fn passed(&self, range: SequenceRange) -> Option<SequenceRange> {
        let first = range.first.max(self.next.minus(self.span()));
        let last = (self.next > Sequence::FIRST).then(|| self.next.previous())?;
        SequenceRange::new(first, range.last.min(last))
    }

    /// Returns how many records were delivered with the sequences of `range` that are remembered.
    #[must_use]
    pub(crate) fn records_of(&self, range: SequenceRange) -> u64 {
        let passed = self.passed(range).into_iter();
        let slots = passed
            .flat_map(SequenceRange::iter)
            .map(|it| Slot(self.slots[self.index(it)]));
        slots.map(|slot| u64::from(slot.content().count)).sum()
    }

    /// Remembers a ring of this many slots from now on, and nothing of a ring of another size.
    pub(crate) fn fit(&mut self, ring_slots: u64) {
        if span_of(ring_slots) != self.span() {
            let next = self.next;
            *self = Self {
                next,
                ..Self::new(ring_slots)
            };
        }
    }

    /// Forgets everything, at a change of epoch, and begins with `next`.
    pub(crate) fn restart(&mut self, next: Sequence) {
        *self = Self {
            next,
            ..Self::new(self.span() / 2)
        };
    }

    /// Nothing was delivered with the sequences of `range`.
    fn forget(&mut self, range: SequenceRange) {
        let first = range.first.max(range.last.minus(self.span() - 1));
        for sequence in (SequenceRange { first, ..range }).iter() {
            let at = self.index(sequence);
            self.contested -=
                usize::from(Slot(self.slots[at]).is(State::Contested) && self.contested > 0);
            self.slots[at] = Slot::EMPTY.0;
        }
    }

    fn slot(&self, sequence: Sequence) -> Option<Slot> {
        self.is_within(sequence)
            .then(|| Slot(self.slots[self.index(sequence)]))
    }

    fn set(&mut self, sequence: Sequence, slot: Slot) {
        let at = self.index(sequence);
        self.slots[at] = slot.0;
    }

    const fn index(&self, sequence: Sequence) -> usize {
        (sequence.0 as usize) & (self.slots.len() - 1)
    }
}

/// Returns the number of contents that are remembered of a ring of this many slots.
fn span_of(ring_slots: u64) -> u64 {
    2 * ring_slots.clamp(1, RING_SLOTS_MAX).next_power_of_two()
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
        let mut all = Remembered::new(4);
        for sequence in 1..10 {
            match sequence {
                5 => all.pass(Sequence(5)),
                _ => all.deliver(Sequence(sequence), content(sequence as u32)),
            }
        }
        all
    }

    fn open(all: &Remembered) -> Vec<u64> {
        all.contested(range(1, 99)).map(|it| it.0).collect()
    }

    #[test]
    fn contents_within_one_span_are_remembered() {
        let all = remembered();
        let get = |sequence| all.get(Sequence(sequence)).map(|it| it.crc);
        assert_eq!(
            [1, 2, 4, 5, 9, 10].map(get),
            [None, Some(2), Some(4), None, Some(9), None]
        );
        assert!(all.is_within(Sequence(5)) && !all.is_within(Sequence(1)));
        assert_eq!((all.next(), all.above()), (Sequence(10), Sequence(1)));
        assert_eq!(all.records_of(range(4, 9)), 10);
    }

    #[test]
    fn contest_is_new_once_until_decided_or_left() {
        let mut all = remembered();
        assert!(all.contest(Sequence(3)) && !all.contest(Sequence(3)));
        assert!(all.contest(Sequence(7)) && all.contest(Sequence(8)));
        assert!(!all.contest(Sequence(5)), "nothing was delivered");
        assert_eq!(open(&all), [3, 7, 8]);
        all.decide(Sequence(3), content(77));
        all.leave(Sequence(7));
        assert_eq!(open(&all), [8]);
        assert!(!all.contest(Sequence(3)) && !all.contest(Sequence(7)));
        assert_eq!(all.get(Sequence(3)), Some(content(77)));
        all.restart(Sequence(10));
        assert_eq!((open(&all), all.get(Sequence(8))), (vec![], None));
    }

    #[test]
    fn contents_beyond_a_place_are_forgotten_on_return() {
        let mut all = remembered();
        all.contest(Sequence(8));
        all.return_to(Sequence(6));
        assert_eq!((all.next(), open(&all)), (Sequence(7), vec![]));
        all.return_to(Sequence(20));
        all.pass(Sequence(5));
        assert_eq!(all.next(), Sequence(7));
        all.pass(Sequence(8));
        assert_eq!(
            [6, 7, 8].map(|it| all.get(Sequence(it)).is_some()),
            [true, false, false]
        );
    }

    #[test]
    fn ring_of_another_size_is_remembered_anew() {
        let mut all = remembered();
        all.fit(3);
        assert_eq!(all.get(Sequence(9)), Some(content(9)));
        all.fit(5);
        assert_eq!((all.span(), all.get(Sequence(9))), (16, None));
        assert_eq!(all.next(), Sequence(10));
        assert_eq!(Remembered::new(u64::MAX).span(), 2 * RING_SLOTS_MAX);
    }

    #[test]
    fn serialized_state_is_bounded_and_restores_the_newest() {
        let mut all = Remembered::new(RING_SLOTS_MAX);
        all.restart(Sequence(1 << 40));
        let mut room = vec![0; 9 * SERIALIZED as usize];
        let small = postcard::to_slice(&all, &mut room[..20]);
        assert!(small.is_ok(), "nothing is known");
        (0..50_000).for_each(|n| all.deliver(all.next(), content(u32::MAX - n)));
        all.contest(all.next().minus(2));
        let bytes = postcard::to_slice(&all, &mut room).unwrap();
        let restored: Remembered = postcard::from_bytes(bytes).unwrap();
        assert_eq!((restored.next(), restored.span()), (all.next(), all.span()));
        let newest = SequenceRange::new(all.next().minus(SERIALIZED), all.next());
        for sequence in newest.unwrap().iter() {
            assert_eq!(restored.get(sequence), all.get(sequence));
        }
        let contested: Vec<_> = restored.contested(newest.unwrap()).collect();
        assert_eq!(contested, [all.next().minus(2)]);
    }
}
