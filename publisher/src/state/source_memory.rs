//! The facts of a live source that a later publisher needs to continue it: the venue's session, and
//! the instruments named so far. A thread of its own keeps them on disk, so that neither the feed
//! nor the publish thread writes a file.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tickcast_feeds::source::FeedSession;
use tickcast_feeds::venues::Format;
use tickcast_reliability::control::Instrument;

/// Maximum number of names of a source: twice as many as ITCH can number.
pub(crate) const NAMES_MAX: usize = 131_072;

/// The facts of one source, shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct SourceMemory(Mutex<SourceFacts>);

/// The facts of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceFacts {
    /// The format of the packets and their session; `None` before the first, and without numbers.
    pub(crate) session: Option<(Format, FeedSession)>,
    /// The instruments in the order of their naming. A later name of an id replaces an earlier one.
    pub(crate) names: Vec<Instrument>,
    /// Place of each id's last name.
    places: HashMap<u32, usize>,
    /// Messages lost in the queue. Each may have named an instrument.
    pub(crate) unnamed: u64,
    /// Whether more was named than is remembered.
    pub(crate) is_full: bool,
}

impl SourceFacts {
    /// Adds the name of an instrument, if it is news.
    pub(crate) fn name(&mut self, instrument: &Instrument) {
        let known = self.places.get(&instrument.id);
        if known.is_some_and(|at| self.names[*at] == *instrument) {
            return;
        }
        if self.names.len() >= NAMES_MAX {
            self.is_full = true;
            return;
        }
        self.places.insert(instrument.id, self.names.len());
        self.names.push(instrument.clone());
    }

    /// Returns each instrument with its last name, in the order of naming.
    pub(crate) fn instruments(&self) -> impl Iterator<Item = &Instrument> {
        let all = self.names.iter().enumerate();
        let is_last = |at, id: &u32| self.places.get(id) == Some(&at);
        all.filter(move |(at, it)| is_last(*at, &it.id))
            .map(|(_, it)| it)
    }
}

impl SourceMemory {
    /// Creates a memory of these facts.
    pub(crate) const fn new(facts: SourceFacts) -> Self {
        Self(Mutex::new(facts))
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
    pub(crate) fn lose(&self, messages: u64) {
        // locks: only when something was lost.
        let mut facts = self.facts();
        facts.unnamed = facts.unnamed.saturating_add(messages);
    }

    /// Copies what has changed since the last call to `into`, and returns whether anything has.
    pub(crate) fn update(&self, into: &mut SourceFacts) -> bool {
        let facts = self.facts();
        let is_same = facts.names.len() == into.names.len()
            && (facts.session, facts.unnamed, facts.is_full)
                == (into.session, into.unnamed, into.is_full);
        if is_same {
            return false;
        }
        for instrument in facts.names.iter().skip(into.names.len()) {
            into.name(instrument);
        }
        (into.session, into.unnamed, into.is_full) = (facts.session, facts.unnamed, facts.is_full);
        true
    }

    fn facts(&self) -> MutexGuard<'_, SourceFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        memory.lose(3);
        let session = FeedSession { id: 1, ordinal: 2 };
        memory.follow(Format::IexTp, Some(session));
        assert!(memory.update(&mut copy));
        assert_eq!(
            (copy.unnamed, copy.session),
            (3, Some((Format::IexTp, session)))
        );
        assert!(!memory.update(&mut copy));
    }

    #[test]
    fn names_beyond_limit_are_not_kept_and_say_so() {
        let mut facts = SourceFacts::default();
        (0..NAMES_MAX as u32).for_each(|id| facts.name(&named(id, "A")));
        assert!(!facts.is_full);
        facts.name(&named(0, "B"));
        assert!(facts.is_full);
        assert_eq!(facts.names.len(), NAMES_MAX);
    }
}
