//! Instrument filters. Filtering happens in the subscriber, after repair, so it saves work of the
//! application but no network bandwidth.

use std::collections::{BTreeSet, HashSet};

use crate::observe::directory::InstrumentNames;

/// The instruments of a channel whose records are delivered. Events and records of instrument 0 (the
/// whole venue) are always delivered. Filtered records are counted
/// ([`HandedCounters`](crate::HandedCounters)), and their record numbers are skipped.
///
/// ```
/// use tickcast_subscriber::{ChannelBuilder, InstrumentFilter};
///
/// let two = InstrumentFilter::symbols(["AAPL", "MSFT"]);
/// let channel = ChannelBuilder::new("equities").filter(two);
/// assert!(InstrumentFilter::all().is_all());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstrumentFilter {
    /// The wanted instruments; `None` for all of them.
    wanted: Option<Wanted>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    symbols: BTreeSet<String>,
    ids: BTreeSet<u32>,
}

impl InstrumentFilter {
    /// Creates a filter that passes every instrument; the default.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentFilter;
    /// assert_eq!(InstrumentFilter::all(), InstrumentFilter::default());
    /// ```
    #[must_use]
    pub const fn all() -> Self {
        Self { wanted: None }
    }

    /// Creates a filter of symbols, as the venue spells them. A symbol that is announced later passes from
    /// then on.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentFilter;
    /// assert!(!InstrumentFilter::symbols(["AAPL", "MSFT"]).is_all());
    /// ```
    #[must_use]
    pub fn symbols<S: Into<String>>(symbols: impl IntoIterator<Item = S>) -> Self {
        let symbols = symbols.into_iter().map(Into::into).collect();
        let ids = BTreeSet::new();
        Self {
            wanted: Some(Wanted { symbols, ids }),
        }
    }

    /// Creates a filter of ids, as in the records' headers. Ids are valid for one epoch of the publisher, so
    /// symbols are the safer choice.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentFilter;
    /// assert!(!InstrumentFilter::ids(1..=20).is_all());
    /// ```
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = u32>) -> Self {
        let symbols = BTreeSet::new();
        Self {
            wanted: Some(Wanted {
                symbols,
                ids: ids.into_iter().collect(),
            }),
        }
    }

    /// Returns whether the filter passes every instrument.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentFilter;
    /// assert!(InstrumentFilter::all().is_all());
    /// ```
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.wanted.is_none()
    }

    /// Returns whether the filter names this symbol.
    pub(crate) fn names(&self, symbol: &str) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_some_and(|wanted| wanted.symbols.contains(symbol))
    }

    /// Returns the symbols of the filter that `instruments` does not contain.
    pub(crate) fn unknown(&self, instruments: &InstrumentNames) -> Vec<String> {
        let symbols = self.wanted.iter().flat_map(|wanted| &wanted.symbols);
        let unknown = symbols.filter(|symbol| instruments.id(symbol).is_none());
        unknown.cloned().collect()
    }
}

/// A filter with its symbols resolved to ids. The check of a record is one table lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterIndex {
    filter: InstrumentFilter,
    /// One bit for each id below [`TABLE_LEN`].
    table: Vec<u64>,
    others: HashSet<u32>,
}

const TABLE_LEN: u32 = 1 << 20;

impl FilterIndex {
    pub(crate) fn new(filter: InstrumentFilter, instruments: &InstrumentNames) -> Self {
        let mut filter_index = Self {
            filter,
            table: Vec::new(),
            others: HashSet::new(),
        };
        filter_index.resolve(instruments);
        filter_index
    }

    pub(crate) const fn filter(&self) -> &InstrumentFilter {
        &self.filter
    }

    /// Resolves all symbols again, because the directory has been replaced.
    pub(crate) fn resolve(&mut self, instruments: &InstrumentNames) {
        let Some(wanted) = &self.filter.wanted else {
            return;
        };
        let ids = wanted.symbols.iter().filter_map(|s| instruments.id(s));
        let ids: Vec<u32> = ids.chain(wanted.ids.iter().copied()).collect();
        self.table.clear();
        self.others.clear();
        for id in ids {
            self.let_pass(id);
        }
    }

    #[inline]
    pub(crate) fn passes(&self, id: u32) -> bool {
        if self.filter.is_all() || id == 0 {
            return true;
        }
        if id < TABLE_LEN {
            let word = self.table.get(id as usize / 64);
            return word.is_some_and(|word| word & (1 << (id % 64)) != 0);
        }
        self.others.contains(&id)
    }

    fn let_pass(&mut self, id: u32) {
        if id >= TABLE_LEN {
            self.others.insert(id);
            return;
        }
        let word = id as usize / 64;
        if self.table.len() <= word {
            self.table.resize(word + 1, 0);
        }
        self.table[word] |= 1 << (id % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_and_ids_pass_and_the_whole_venue_always_does() {
        let mut instruments = InstrumentNames::default();
        instruments.learn(5, "AAPL");
        let everything = FilterIndex::new(InstrumentFilter::all(), &instruments);
        assert!([0, 1, u32::MAX].iter().all(|id| everything.passes(*id)));
        let filter = InstrumentFilter::ids([64, TABLE_LEN, u32::MAX]);
        let filter_index = FilterIndex::new(filter, &instruments);
        for (id, passes) in [(0, true), (5, false), (63, false), (64, true), (65, false)] {
            assert_eq!(filter_index.passes(id), passes, "{id}");
        }
        assert!(filter_index.passes(TABLE_LEN) && filter_index.passes(u32::MAX));
        assert!(!filter_index.passes(TABLE_LEN - 1) && !filter_index.passes(TABLE_LEN + 1));
        let mut filter_index =
            FilterIndex::new(InstrumentFilter::symbols(["AAPL", "MSFT"]), &instruments);
        assert!(filter_index.passes(5) && !filter_index.passes(6));
        assert_eq!(filter_index.filter().unknown(&instruments), ["MSFT"]);
        instruments.learn(6, "MSFT");
        instruments.learn(5, "GONE");
        filter_index.resolve(&instruments);
        assert!(filter_index.passes(6) && !filter_index.passes(5));
    }
}
