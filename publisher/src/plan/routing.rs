//! Selects the channels of a message by the symbol of its instrument. Announcing records give the
//! symbol, so every record of an instrument goes to the same channels.
//!
//! An unannounced instrument goes to the channels for unclaimed symbols. A message of instrument 0
//! (the whole venue) goes to all channels. Routing a message costs one table look-up.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_char;

use thiserror::Error;
use tickcast_feeds::instruments::text;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::record::{
    InstrumentDefMsg, RType, RecordHeader, RecordRef, RecordSlice, SType, SymbolMappingMsg,
    WireRecord,
};
use tickcast_reliability::types::SourceId;

/// Maximum number of channels of a publisher.
pub(crate) const CHANNELS_MAX: usize = 64;

/// Number of instrument ids held in a table; others are hashed.
const TABLE_LEN_MAX: usize = 1 << 20;
/// Maximum number of hashed ids and directory entries; further ids count as unannounced.
const INSTRUMENTS_MAX: usize = 1 << 20;

/// A rule that takes symbols into a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymbolRule {
    /// This symbol.
    Exact(String),
    /// Symbols with this prefix.
    Prefix(String),
    /// Symbols whose first letter lies in this range, both ends included.
    Letters(u8, u8),
    /// Symbols that no other rule takes.
    Rest,
}

/// The reason why a text is no valid rule. The author of the config must fix it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SymbolRuleError {
    /// Characters that no symbol has.
    #[error("a symbol is 1 to 70 printable ASCII characters without spaces")]
    Characters,
    /// A range that ends before it begins.
    #[error("a range of first letters must rise, as in A-M")]
    Falling,
    /// A star before the end of the rule.
    #[error("a star is allowed only at the end, as in A*")]
    Star,
    /// A range of first letters with a star, which could also be a prefix with a hyphen.
    #[error(
        "write {range} for all symbols whose first letter lies in this range; if symbols really begin with \"{range}\", name each"
    )]
    RangeWithStar {
        /// The range without the star.
        range: String,
    },
}

impl SymbolRule {
    /// Parses a rule from a config.
    ///
    /// # Errors
    /// Returns [`SymbolRuleError`] with the cause and a valid form.
    pub fn parse(text: &str) -> Result<Self, SymbolRuleError> {
        let bytes = text.as_bytes();
        if bytes.is_empty() || bytes.len() > 70 || !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(SymbolRuleError::Characters);
        }
        match *bytes {
            [b'*'] => return Ok(Self::Rest),
            [from, b'-', to] if from.is_ascii_alphanumeric() && to.is_ascii_alphanumeric() => {
                return if from <= to {
                    Ok(Self::Letters(from, to))
                } else {
                    Err(SymbolRuleError::Falling)
                };
            }
            [from, b'-', to, b'*']
                if from.is_ascii_alphanumeric() && to.is_ascii_alphanumeric() =>
            {
                let range = text.trim_end_matches('*').to_owned();
                return Err(SymbolRuleError::RangeWithStar { range });
            }
            _ => {}
        }
        match text.split_once('*') {
            None => Ok(Self::Exact(text.into())),
            Some((prefix, "")) => Ok(Self::Prefix(prefix.into())),
            Some(_) => Err(SymbolRuleError::Star),
        }
    }

    /// Returns whether the rule matches a symbol; [`SymbolRule::Rest`] matches none by itself.
    pub(crate) fn takes(&self, symbol: &str) -> bool {
        match self {
            Self::Exact(exact) => symbol == exact,
            Self::Prefix(prefix) => symbol.starts_with(prefix.as_str()),
            Self::Letters(from, to) => {
                (symbol.bytes().next()).is_some_and(|first| (*from..=*to).contains(&first))
            }
            Self::Rest => false,
        }
    }
}

/// A set of channels, by their index in the config.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSet(u64);

impl ChannelSet {
    /// Returns the channels that another set lacks.
    #[must_use]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set of the first `count` channels.
    #[must_use]
    pub const fn first(count: usize) -> Self {
        Self(if count >= CHANNELS_MAX {
            u64::MAX
        } else {
            (1 << count) - 1
        })
    }

    /// Returns the set with this channel added.
    #[must_use]
    pub const fn with(self, index: usize) -> Self {
        Self(self.0 | 1 << index)
    }

    /// Returns the union with another set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the channel, if the set has exactly one.
    #[must_use]
    pub const fn only(self) -> Option<usize> {
        if self.0.is_power_of_two() {
            Some(self.0.trailing_zeros() as usize)
        } else {
            None
        }
    }

    /// Returns the channels' indices, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let index = left.trailing_zeros() as usize;
                left &= left - 1;
                index
            })
        })
    }
}

/// The rules of all channels.
#[derive(Clone, Debug, Default)]
pub struct SymbolRules {
    channels: Vec<Vec<SymbolRule>>,
}

impl SymbolRules {
    /// Creates the rules from those of each channel, in the order of the config.
    #[must_use]
    pub const fn new(channels: Vec<Vec<SymbolRule>>) -> Self {
        Self { channels }
    }

    /// Returns the channels that carry a symbol: empty if no rule matches and no channel carries the
    /// rest.
    #[must_use]
    pub fn of(&self, symbol: &str) -> ChannelSet {
        let mut set = ChannelSet::default();
        for (index, rules) in self.channels.iter().enumerate() {
            if rules.iter().any(|rule| rule.takes(symbol)) {
                set = set.with(index);
            }
        }
        if set.is_empty() { self.rest() } else { set }
    }

    /// Returns the channels that carry the symbols without a matching rule.
    #[must_use]
    pub fn rest(&self) -> ChannelSet {
        let mut set = ChannelSet::default();
        for (index, rules) in self.channels.iter().enumerate() {
            if rules.contains(&SymbolRule::Rest) {
                set = set.with(index);
            }
        }
        set
    }

    /// Returns all channels.
    #[must_use]
    pub const fn all(&self) -> ChannelSet {
        ChannelSet::first(self.channels.len())
    }
}

/// An announced instrument, and the channels of its later messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Id and symbol.
    pub instrument: Instrument,
    /// Channels of the instrument.
    pub channels: ChannelSet,
}

/// The routes of one source's messages.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    rules: SymbolRules,
    /// Channels by id − `base`, for announced ids.
    table: Vec<Option<ChannelSet>>,
    others: HashMap<u32, ChannelSet>,
    /// Symbols of the announced ids, for other rules.
    symbols: BTreeMap<u32, String>,
    base: u32,
    unknown: ChannelSet,
    all: ChannelSet,
    /// The channel of every message, if there is only one.
    only: Option<usize>,
    /// Whether symbols matter not at all.
    is_fixed: bool,
}

impl Router {
    /// Creates a router without instruments. Most ids of the source are expected from `base` on.
    #[must_use]
    pub(crate) fn new(rules: SymbolRules, base: u32) -> Self {
        let (rest, all) = (rules.rest(), rules.all());
        Self {
            rules,
            table: Vec::new(),
            others: HashMap::new(),
            symbols: BTreeMap::new(),
            base,
            unknown: if rest.is_empty() { all } else { rest },
            all,
            // Symbols that no rule matches go to the same channel.
            only: (rest == all).then_some(all).and_then(ChannelSet::only),
            is_fixed: false,
        }
    }

    /// Routes everything to one channel, whatever its symbol.
    #[must_use]
    pub(crate) fn to(channel: usize) -> Self {
        let mut rules = vec![Vec::new(); channel + 1];
        rules[channel].push(SymbolRule::Rest);
        let only = ChannelSet::default().with(channel);
        Self {
            unknown: only,
            all: only,
            only: Some(channel),
            is_fixed: true,
            ..Self::new(SymbolRules::new(rules), 1)
        }
    }

    /// Routes by other rules from now on. Passes the channels that each announced instrument comes to to
    /// `on`. Messages that all go to one channel whatever their symbols still do.
    pub(crate) fn reroute(&mut self, rules: &SymbolRules, mut on: impl FnMut(Announced)) {
        if self.is_fixed {
            return;
        }
        let mut before = std::mem::replace(self, Self::new(rules.clone(), self.base));
        for (id, symbol) in std::mem::take(&mut before.symbols) {
            let had = before.of(id).unwrap_or_default();
            self.learn(Instrument { id, symbol }, &mut |now| {
                let channels = now.channels.without(had);
                if !channels.is_empty() {
                    on(Announced { channels, ..now });
                }
            });
        }
    }

    /// Returns the channels of a message, by its first record. Instruments that the message announces
    /// are learned first and passed to `on`.
    #[inline]
    pub(crate) fn route(
        &mut self,
        message: RecordSlice<'_>,
        on: impl FnMut(Announced),
    ) -> ChannelSet {
        if message.names_instruments() {
            self.learn_all(message, on);
        }
        let first = message.records().next();
        match first.map(|record| record.header().instrument_id) {
            None | Some(0) => self.all,
            Some(id) => self.of(id).unwrap_or(self.unknown),
        }
    }

    /// Returns the only channel of all messages, whatever is announced later; `None` if there are more.
    #[must_use]
    #[inline]
    pub(crate) const fn only(&self) -> Option<usize> {
        self.only
    }

    #[cold]
    fn learn_all(&mut self, message: RecordSlice<'_>, mut on: impl FnMut(Announced)) {
        for named in message.records().filter_map(instrument_named) {
            self.learn(named, &mut on);
        }
    }

    /// Returns the channels of an instrument; `None` if it was never announced.
    #[inline]
    #[must_use]
    pub(crate) fn of(&self, instrument: u32) -> Option<ChannelSet> {
        let index = instrument.wrapping_sub(self.base) as usize;
        match self.table.get(index) {
            Some(known) => *known,
            None if self.others.is_empty() => None,
            None => self.others.get(&instrument).copied(),
        }
    }

    /// Returns the union of these instruments' channels; all channels if none is named.
    #[must_use]
    pub(crate) fn of_all(&self, instruments: &[u32]) -> ChannelSet {
        if instruments.is_empty() || instruments.contains(&0) {
            return self.all;
        }
        let sets = instruments
            .iter()
            .map(|id| self.of(*id).unwrap_or(self.unknown));
        sets.fold(ChannelSet::default(), ChannelSet::union)
    }

    /// Learns the channels of an instrument, and passes them to `on`.
    #[cold]
    pub(crate) fn learn(&mut self, instrument: Instrument, on: &mut impl FnMut(Announced)) {
        let Instrument { id, symbol } = instrument;
        if id == 0 {
            return; // the whole venue has no symbol
        }
        let channels = self.rules.of(&symbol);
        let index = id.wrapping_sub(self.base) as usize;
        if index < TABLE_LEN_MAX {
            if self.table.len() <= index {
                self.table.resize((index + 1).next_power_of_two(), None);
            }
            self.table[index] = Some(channels);
        } else if self.others.len() < INSTRUMENTS_MAX || self.others.contains_key(&id) {
            self.others.insert(id, channels);
        }
        let has_room = self.symbols.len() < INSTRUMENTS_MAX || self.symbols.contains_key(&id);
        if has_room && !self.is_fixed {
            self.symbols.insert(id, symbol.clone());
        }
        on(Announced {
            instrument: Instrument { id, symbol },
            channels,
        });
    }
}

/// Returns the instrument that a record gives its symbol.
pub(crate) fn instrument_named(record: RecordRef<'_>) -> Option<Instrument> {
    let header = record.header();
    let symbol = match header.rtype {
        <SymbolMappingMsg as WireRecord>::RTYPE => record
            .get::<SymbolMappingMsg>()
            .filter(|m| m.stype_in == SType::RawSymbol as u8)
            .map(|m| text_of(&m.stype_in_symbol)),
        <InstrumentDefMsg as WireRecord>::RTYPE => record
            .get::<InstrumentDefMsg>()
            .map(|d| text_of(&d.raw_symbol)),
        _ => None,
    };
    let id = header.instrument_id;
    let symbol = symbol.filter(|symbol| !symbol.is_empty())?;
    Some(Instrument { id, symbol })
}

/// Returns the record that maps an id of a source to its symbol.
pub(crate) fn mapping(instrument: &Instrument, source: SourceId) -> SymbolMappingMsg {
    let Instrument { id, symbol } = instrument;
    SymbolMappingMsg {
        hd: RecordHeader::new::<SymbolMappingMsg>(RType::SymbolMapping as u8, source.0, *id, 0),
        stype_in: SType::RawSymbol as u8,
        stype_in_symbol: text(symbol.as_bytes()),
        stype_out: SType::InstrumentId as u8,
        stype_out_symbol: text(id.to_string().as_bytes()),
        ..SymbolMappingMsg::default()
    }
}

/// Returns the text of a record's zero-terminated field, without padding and without characters
/// other than printable ASCII.
fn text_of(field: &[c_char]) -> String {
    let bytes = field.iter().map(|&c| c as u8).take_while(|&b| b != 0);
    bytes.filter(u8::is_ascii_graphic).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::record::RecordBatch;

    use super::*;
    use tickcast_feeds::instruments::{Symbol, mapping};
    use tickcast_reliability::record::{MboMsg, RType, RecordHeader};

    fn rules(channels: &[&[&str]]) -> SymbolRules {
        let parse = |text: &&str| SymbolRule::parse(text).unwrap();
        let channels = channels.iter().map(|c| c.iter().map(parse).collect());
        SymbolRules::new(channels.collect())
    }

    fn of(rules: &SymbolRules, symbol: &str) -> Vec<usize> {
        rules.of(symbol).iter().collect()
    }

    #[test]
    fn symbol_goes_to_matching_channels_else_to_rest() {
        let rules = rules(&[&["A*", "MSFT"], &["A-M"], &["*"]]);
        assert_eq!(of(&rules, "AAPL"), [0, 1]);
        assert_eq!(of(&rules, "MSFT"), [0, 1]);
        assert_eq!(of(&rules, "GOOG"), [1]);
        assert_eq!(of(&rules, "ZVZZT"), [2]);
        assert_eq!(of(&rules, "MSFTX"), [1]);
    }

    #[test]
    fn meaningless_symbol_rule_is_refused() {
        for bad in ["", "A*B", "M-A", "A B", "*A", "A-M*", "0-9*"] {
            assert!(SymbolRule::parse(bad).is_err(), "{bad:?}");
        }
        let range = SymbolRule::parse("A-M*").unwrap_err().to_string();
        assert!(range.starts_with("write A-M for all symbols"), "{range}");
        assert_eq!(
            SymbolRule::parse("AB-M*"),
            Ok(SymbolRule::Prefix("AB-M".into()))
        );
        assert_eq!(
            SymbolRule::parse("BRK-B"),
            Ok(SymbolRule::Exact("BRK-B".into()))
        );
    }

    #[test]
    fn source_with_own_channel_goes_there_whole() {
        let mut router = Router::to(2);
        let mut message = RecordBatch::default();
        message.put(&mapping(Symbol(*b"AAPL    "), 7, 2, 0));
        let mut announced = Vec::new();
        let to = router.route((&message).into(), |a| announced.push(a.channels));
        let only = ChannelSet::default().with(2);
        assert_eq!((to, &announced[..]), (only, &[only][..]));
        assert_eq!(router.of_all(&[]), only);
        assert_eq!(router.of_all(&[7, 9]), only);
    }

    #[test]
    fn rerouted_instrument_is_passed_with_its_new_channels() {
        let mut router = Router::new(rules(&[&["A*"], &["*"]]), 1);
        for (id, symbol) in [(1, "AA"), (2, "B"), (1 << 30, "C")] {
            let instrument = Instrument {
                id,
                symbol: symbol.into(),
            };
            router.learn(instrument, &mut |_| ());
        }
        let mut fixed = Router::to(0);
        fixed.learn(
            Instrument {
                id: 1,
                symbol: "B".into(),
            },
            &mut |_| (),
        );
        let rules = rules(&[&["B", "C"], &["A*", "B"]]);
        let mut moved = Vec::new();
        router.reroute(&rules, |it| {
            moved.push((it.instrument.id, it.channels.iter().collect::<Vec<_>>()));
        });
        assert_eq!(moved, [(1, vec![1]), (2, vec![0]), (1 << 30, vec![0])]);
        let of = |id| router.of(id).unwrap().iter().collect::<Vec<_>>();
        assert_eq!([of(1), of(2), of(1 << 30)], [vec![1], vec![0, 1], vec![0]]);
        // It is known for the next change.
        moved = Vec::new();
        router.reroute(&self::rules(&[&["*"], &["Z"]]), |it| {
            moved.push((it.instrument.id, it.channels.iter().collect()));
        });
        assert_eq!(moved, [(1, vec![0])]);
        fixed.reroute(&rules, |it| panic!("{it:?}"));
        assert_eq!(fixed.only(), Some(0));
    }

    #[test]
    fn sole_channel_takes_everything_as_rest() {
        let only = |channels: &[&[&str]]| Router::new(rules(channels), 1).only();
        assert_eq!(only(&[&["*"]]), Some(0));
        assert_eq!(only(&[&["A*", "*"]]), Some(0));
        assert_eq!(
            only(&[&["A*"]]),
            None,
            "others go nowhere once they have a symbol"
        );
        assert_eq!(only(&[&["*"], &["A*"]]), None);
        assert_eq!(Router::to(3).only(), Some(3));
    }

    #[test]
    fn records_follow_announced_symbol() {
        let mut router = Router::new(rules(&[&["A*"], &["*"]]), 1);
        let mut announced = Vec::new();
        let mut message = RecordBatch::default();
        message.put(&mapping(Symbol(*b"AAPL    "), 7, 2, 0));
        let to = router.route((&message).into(), |a| announced.push(a.instrument));
        assert_eq!(to.iter().collect::<Vec<_>>(), [0]);
        assert_eq!(announced[0].symbol, "AAPL");
        let mut route = |instrument: u32| {
            let mut message = RecordBatch::default();
            message.put(&MboMsg {
                hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, instrument, 0),
                ..MboMsg::default()
            });
            let to = router.route((&message).into(), |_| panic!("announces nothing"));
            to.iter().collect::<Vec<_>>()
        };
        assert_eq!(route(7), [0]);
        assert_eq!(route(8), [1], "never announced");
        assert_eq!(route(u32::MAX), [1]);
        assert_eq!(route(0), [0, 1], "the whole venue");
    }
}
