//! The facts of a live source that a later publisher needs to continue it: the venue's session, the
//! instruments named so far, and how far its messages are settled. A thread of its own keeps them on
//! disk, so that neither the feed nor the publish thread writes a file.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tickcast_feeds::source::FeedSession;
use tickcast_feeds::venues::Format;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::types::SourcePosition;

/// Maximum number of instruments of a source: twice as many as ITCH can number.
pub(crate) const NAMES_MAX: usize = 131_072;

/// The facts of one source, shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct SourceMemory {
    facts: Mutex<SourceFacts>,
    /// As [`SourceFacts::settled`].
    settled: AtomicU64,
    /// As [`SourceFacts::sent_at`].
    sent_at: AtomicU64,
}

/// The facts of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceFacts {
    /// The format of the packets and their session; `None` before the first, and without numbers.
    pub(crate) session: Option<(Format, FeedSession)>,
    /// The instruments in the order of their naming, replaced names among them.
    names: Vec<Instrument>,
    /// Place of each id's last name.
    places: HashMap<u32, usize>,
    /// How often replaced names were removed.
    removals: u64,
    /// No id from here on was assigned when the publisher started.
    pub(crate) next_id: u32,
    /// Messages lost in the queue since. Each may have named an instrument.
    pub(crate) unnamed: u64,
    /// The first message of the last such loss.
    pub(crate) lost_at: SourcePosition,
    /// Each message up to here is sealed, or was for no channel.
    pub(crate) settled: SourcePosition,
    /// The latest time at which the venue sent a packet of the session; 0 if it stamps none.
    pub(crate) sent_at: u64,
    /// Whether more instruments were named than are remembered.
    pub(crate) is_full: bool,
}

impl SourceFacts {
    /// Adds the name of an instrument, if it is news. It replaces an earlier name of the id.
    pub(crate) fn name(&mut self, instrument: &Instrument) {
        let known = self.places.get(&instrument.id);
        if known.is_some_and(|at| self.names[*at] == *instrument) {
            return;
        }
        if known.is_none() && self.places.len() >= NAMES_MAX {
            self.is_full = true;
            return;
        }
        self.places.insert(instrument.id, self.names.len());
        self.names.push(instrument.clone());
        if self.names.len() > 2 * self.places.len() {
            self.remove_replaced();
        }
    }

    /// Removes the names that later ones have replaced.
    fn remove_replaced(&mut self) {
        self.names = self.instruments().cloned().collect();
        let ids = self.names.iter().map(|it| it.id);
        self.places = ids.zip(0..).collect();
        self.removals += 1;
    }

    /// Adds messages from this one on that were lost in the queue, unless they were added before.
    pub(crate) fn lose(&mut self, from: SourcePosition, messages: u64) {
        if from > self.lost_at {
            self.lost_at = from;
            self.unnamed = self.unnamed.saturating_add(messages);
        }
    }

    /// Returns each instrument with its last name, in the order of naming.
    pub(crate) fn instruments(&self) -> impl Iterator<Item = &Instrument> {
        let all = self.names.iter().enumerate();
        let is_last = |at, id: &u32| self.places.get(id) == Some(&at);
        all.filter(move |(at, it)| is_last(*at, &it.id))
            .map(|(_, it)| it)
    }

    /// Takes over what has changed in `from`, and returns whether anything has. The position up to which
    /// messages are settled is no change.
    fn update(&mut self, from: &Self) -> bool {
        let is_same = self.session == from.session
            && (self.removals, self.names.len()) == (from.removals, from.names.len())
            && (self.unnamed, self.is_full) == (from.unnamed, from.is_full)
            && self.next_id == from.next_id;
        if is_same {
            return false;
        }
        if self.removals != from.removals {
            self.names.clear();
            self.removals = from.removals;
        }
        let (new, known) = (from.names.iter().skip(self.names.len()), self.names.len());
        self.places.extend(new.clone().map(|it| it.id).zip(known..));
        self.names.extend(new.cloned());
        (self.session, self.is_full) = (from.session, from.is_full);
        (self.unnamed, self.lost_at) = (from.unnamed, from.lost_at);
        self.next_id = from.next_id;
        true
    }
}

impl SourceMemory {
    /// Creates a memory of these facts.
    pub(crate) const fn new(facts: SourceFacts) -> Self {
        let settled = AtomicU64::new(facts.settled.0);
        let sent_at = AtomicU64::new(facts.sent_at);
        Self {
            facts: Mutex::new(facts),
            settled,
            sent_at,
        }
    }

    /// Sets the session that the decoder follows.
    #[cold]
    pub(crate) fn follow(&self, format: Format, session: Option<FeedSession>) {
        // locks: when the venue's session changes.
        self.facts().session = session.map(|session| (format, session));
    }

    /// Adds the name of an instrument. Call it before the naming record is sealed.
    #[cold]
    pub(crate) fn name(&self, instrument: &Instrument) {
        // locks: where an instrument is named, which no tick does.
        self.facts().name(instrument);
    }

    /// Adds messages lost in the queue. Call it before their event is sealed.
    #[cold]
    pub(crate) fn lose(&self, from: SourcePosition, messages: u64) {
        // locks: only when something was lost.
        self.facts().lose(from, messages);
    }

    /// Records that every message up to this one is sealed, or was for no channel.
    #[inline]
    pub(crate) fn settle(&self, at: SourcePosition) {
        self.settled.store(at.0, Release);
    }

    /// Records the latest time at which the venue sent a packet of the session.
    #[inline]
    pub(crate) fn send(&self, at: u64) {
        self.sent_at.store(at, Relaxed);
    }

    /// Copies what has changed since the last call to `into`, and returns whether anything has, apart
    /// from the position up to which messages are settled, and the venue's time.
    pub(crate) fn update(&self, into: &mut SourceFacts) -> bool {
        // Read first: whatever it covers was named before.
        into.settled = SourcePosition(self.settled.load(Acquire));
        into.sent_at = self.sent_at.load(Relaxed);
        into.update(&self.facts())
    }

    fn facts(&self) -> MutexGuard<'_, SourceFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: u32, symbol: &str) -> Instrument {
        Instrument {
            id,
            symbol: symbol.into(),
        }
    }

    #[test]
    fn last_name_of_instrument_counts_and_repeats_cost_nothing() {
        let memory = SourceMemory::default();
        let mut copy = SourceFacts::default();
        assert!(!memory.update(&mut copy), "nothing has changed");
        for (id, symbol) in [(7, "A"), (8, "B"), (7, "A"), (7, "C"), (8, "B")] {
            memory.name(&named(id, symbol));
            memory.update(&mut copy);
        }
        assert_eq!(copy.names.len(), 3, "{copy:?}");
        let last: Vec<_> = copy.instruments().cloned().collect();
        assert_eq!(last, [named(8, "B"), named(7, "C")]);
        memory.lose(SourcePosition::new(0, 4), 3);
        let session = FeedSession {
            id: 1,
            ordinal: 2,
            end_at: None,
        };
        memory.follow(Format::IexTp, Some(session));
        assert!(memory.update(&mut copy));
        assert_eq!(
            (copy.unnamed, copy.session),
            (3, Some((Format::IexTp, session)))
        );
        assert!(!memory.update(&mut copy));
        memory.settle(SourcePosition::new(2, 9));
        assert!(!memory.update(&mut copy), "that alone is no change");
        assert_eq!(copy.settled, SourcePosition::new(2, 9));
    }

    #[test]
    fn names_of_many_sessions_take_no_more_room_than_last() {
        let (memory, mut copy) = (SourceMemory::default(), SourceFacts::default());
        for session in 0..2 * NAMES_MAX / 1_000 {
            for id in 1..=1_000 {
                memory.name(&named(id, &format!("S{session}")));
                if id % 300 == 0 {
                    memory.update(&mut copy);
                }
            }
            memory.update(&mut copy);
            let last = format!("S{session}");
            assert_eq!(copy.instruments().count(), 1_000);
            assert!(copy.instruments().all(|it| it.symbol == last));
            assert!(copy.names.len() <= 2_000 && !copy.is_full);
        }
        assert_eq!(copy, *memory.facts());
    }

    #[test]
    fn loss_that_several_rings_hold_counts_once() {
        let mut facts = SourceFacts::default();
        let at = |sequence| SourcePosition::new(0, sequence);
        for (from, messages) in [(5, 10), (5, 10), (40, 2), (5, 10), (40, 2)] {
            facts.lose(at(from), messages);
        }
        assert_eq!(facts.unnamed, 12);
    }

    #[test]
    fn names_beyond_limit_are_not_kept_and_say_so() {
        let mut facts = SourceFacts::default();
        (0..NAMES_MAX as u32).for_each(|id| facts.name(&named(id, "A")));
        facts.name(&named(0, "B"));
        assert!(!facts.is_full, "a known id has another name");
        facts.name(&named(NAMES_MAX as u32, "C"));
        assert!(facts.is_full);
        assert_eq!(facts.instruments().count(), NAMES_MAX);
    }
}
