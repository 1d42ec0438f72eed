//! The directory of symbols and instrument ids, searchable in both directions. It holds the instruments
//! that WELCOME lists and those that the stream announces later.

use std::collections::HashMap;

use tickcast_reliability::control::Instrument;
use tickcast_reliability::record::{
    InstrumentDefMsg, RecordRef, Records, SymbolMappingMsg, WireRecord,
};
use tickcast_reliability::types::ChannelId;

/// The instruments of one channel in the followed epoch.
///
/// ```
/// # use tickcast_subscriber::InstrumentNames;
/// let none = InstrumentNames::default();
/// assert_eq!((none.id("AAPL"), none.symbol(1), none.len()), (None, None, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstrumentNames {
    symbols: HashMap<u32, Box<str>>,
    ids: HashMap<Box<str>, u32>,
}

/// The maximum number of names kept. Records of further instruments are still delivered.
const INSTRUMENTS_MAX: usize = 1 << 20;
/// The maximum number of similar symbols in an error text.
const LIKE_MAX: usize = 5;

impl InstrumentNames {
    /// Returns the id of a symbol, as the venue spells it.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentNames;
    /// # fn f(instruments: &InstrumentNames) {
    /// if let Some(id) = instruments.id("AAPL") {
    ///     println!("AAPL is {id}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self, symbol: &str) -> Option<u32> {
        self.ids.get(symbol).copied()
    }

    /// Returns the symbol of an id.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentNames;
    /// # fn f(instruments: &InstrumentNames) {
    /// println!("{}", instruments.symbol(7).unwrap_or("nobody has named it"));
    /// # }
    /// ```
    #[must_use]
    pub fn symbol(&self, id: u32) -> Option<&str> {
        self.symbols.get(&id).map(|symbol| &**symbol)
    }

    /// Returns every id with its symbol, in no particular order.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentNames;
    /// # fn f(instruments: &InstrumentNames) {
    /// for (id, symbol) in instruments.iter() {
    ///     println!("{id} {symbol}");
    /// }
    /// # }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.symbols.iter().map(|(id, symbol)| (*id, &**symbol))
    }

    /// Returns the number of instruments.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentNames;
    /// # fn f(instruments: &InstrumentNames) {
    /// println!("{} instruments are known", instruments.len());
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Returns whether no instrument is known.
    ///
    /// ```
    /// # use tickcast_subscriber::InstrumentNames;
    /// assert!(InstrumentNames::default().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Stores a name. Returns `false`, and allocates nothing, when it was already known.
    pub(crate) fn learn(&mut self, id: u32, symbol: &str) -> bool {
        let known = self.symbol(id);
        let full = known.is_none() && self.len() >= INSTRUMENTS_MAX;
        if known == Some(symbol) || symbol.is_empty() || id == 0 || full {
            return false;
        }
        // The previous symbol may belong to another id by now. In that case, leave its entry in place.
        if let Some(before) = self.symbols.insert(id, symbol.into())
            && self.ids.get(&before) == Some(&id)
        {
            self.ids.remove(&before);
        }
        if let Some(before) = self.ids.insert(symbol.into(), id)
            && before != id
        {
            self.symbols.remove(&before);
        }
        true
    }

    /// Returns a text for errors: the number of known instruments, and the symbols most similar to `symbol`.
    pub(crate) fn like(&self, symbol: &str) -> String {
        if self.is_empty() {
            return "the publisher has announced no instrument yet".into();
        }
        let alike = |known: &str| {
            let same = known
                .bytes()
                .zip(symbol.bytes())
                .take_while(|(a, b)| a == b);
            (
                usize::MAX - same.count(),
                known.len().abs_diff(symbol.len()),
            )
        };
        // Keep only the nearest, because a directory may hold a million symbols.
        let mut nearest = Vec::with_capacity(LIKE_MAX + 1);
        for known in self.ids.keys() {
            let known = (alike(known), &**known);
            let at = nearest.partition_point(|other| *other < known);
            if at < LIKE_MAX {
                nearest.insert(at, known);
                nearest.truncate(LIKE_MAX);
            }
        }
        let nearest: Vec<&str> = nearest.into_iter().map(|(_, known)| known).collect();
        format!(
            "{} are known, for example {}",
            self.len(),
            nearest.join(", ")
        )
    }
}

/// The instruments of all channels.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let directory = subscriber.directory();
/// // Nothing is known before the publisher's welcome.
/// assert_eq!((directory.id("AAPL"), directory.symbol(1)), (None, None));
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    channels: Vec<(ChannelId, InstrumentNames)>,
}

impl Directory {
    /// Returns the id of a symbol, from the first channel that carries it.
    ///
    /// ```
    /// # use tickcast_subscriber::Directory;
    /// # fn f(directory: &Directory) {
    /// if let Some(id) = directory.id("AAPL") {
    ///     println!("AAPL is {id}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self, symbol: &str) -> Option<u32> {
        let mut all = self.channels.iter();
        all.find_map(|(_, instruments)| instruments.id(symbol))
    }

    /// Returns the symbol of an id. A publisher gives an id to one instrument only.
    ///
    /// ```
    /// # use tickcast_subscriber::Directory;
    /// # fn f(directory: &Directory) {
    /// println!("{}", directory.symbol(7).unwrap_or("nobody has named it"));
    /// # }
    /// ```
    #[must_use]
    pub fn symbol(&self, id: u32) -> Option<&str> {
        let mut all = self.channels.iter();
        all.find_map(|(_, instruments)| instruments.symbol(id))
    }

    /// Returns the instruments of one channel, or `None` before its welcome.
    ///
    /// ```
    /// # use tickcast_subscriber::{Directory, ChannelId};
    /// # fn f(directory: &Directory) {
    /// let known = directory.channel(ChannelId(1)).map_or(0, |instruments| instruments.len());
    /// # }
    /// ```
    #[must_use]
    pub fn channel(&self, channel: ChannelId) -> Option<&InstrumentNames> {
        let mut all = self.channels.iter();
        all.find(|(id, _)| *id == channel)
            .map(|(_, instruments)| instruments)
    }

    pub(crate) fn channel_mut(&mut self, channel: ChannelId) -> &mut InstrumentNames {
        let known = self.channels.iter().position(|(id, _)| *id == channel);
        let at = known.unwrap_or_else(|| {
            self.channels.push((channel, InstrumentNames::default()));
            self.channels.len() - 1
        });
        &mut self.channels[at].1
    }

    /// Removes the channels whose numbers are not followed any more.
    pub(crate) fn keep(&mut self, is_followed: impl Fn(ChannelId) -> bool) {
        self.channels.retain(|(id, _)| is_followed(*id));
    }

    /// Adds the instruments that WELCOME lists. `anew` clears the previous ones, because another epoch has
    /// other ids.
    pub(crate) fn welcomed(&mut self, channel: ChannelId, list: &[Instrument], anew: bool) {
        let instruments = self.channel_mut(channel);
        if anew {
            *instruments = InstrumentNames::default();
        }
        for instrument in list {
            instruments.learn(instrument.id, &instrument.symbol);
        }
    }
}

/// Returns whether records of this type announce an instrument.
#[inline]
const fn announces_by(rtype: u8) -> bool {
    rtype == SymbolMappingMsg::RTYPE || rtype == InstrumentDefMsg::RTYPE
}

/// Returns whether one of these records is of a type that announces an instrument.
#[inline]
pub(crate) fn announces(mut records: Records<'_>) -> bool {
    match records.rtype() {
        Some(rtype) => announces_by(rtype),
        None => records.any(|record| announces_by(record.header().rtype)),
    }
}

/// Returns the instrument and symbol that a record announces, if it announces one.
#[inline]
pub(crate) fn announced<'a>(record: &'a RecordRef<'_>) -> Option<(u32, &'a str)> {
    if !announces_by(record.header().rtype) {
        return None;
    }
    // A symbol that is not valid text announces nothing.
    let symbol = match record.get::<SymbolMappingMsg>() {
        Some(mapping) => mapping.stype_in_symbol(),
        None => record.get::<InstrumentDefMsg>()?.raw_symbol(),
    };
    Some((record.header().instrument_id, symbol.ok()?.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_maps_both_ways_and_renamed_id_forgets() {
        let mut directory = Directory::default();
        let channel = ChannelId(3);
        let learn = |directory: &mut Directory, id, symbol: &str| {
            directory.channel_mut(channel).learn(id, symbol)
        };
        assert!(learn(&mut directory, 7, "AAPL"));
        assert!(!learn(&mut directory, 7, "AAPL"), "that is no news");
        assert!(!learn(&mut directory, 0, "ALL") && !learn(&mut directory, 8, ""));
        assert_eq!(
            (directory.id("AAPL"), directory.symbol(7)),
            (Some(7), Some("AAPL"))
        );
        assert!(learn(&mut directory, 7, "MSFT"));
        assert_eq!(
            (directory.id("AAPL"), directory.id("MSFT")),
            (None, Some(7))
        );
        assert!(directory.channel(ChannelId(4)).is_none());
        let instrument = |id, symbol: &str| Instrument {
            id,
            symbol: symbol.into(),
        };
        directory.welcomed(channel, &[instrument(9, "ZVZZT")], false);
        assert_eq!(
            directory.symbol(7),
            Some("MSFT"),
            "the same epoch only adds"
        );
        directory.welcomed(channel, &[instrument(7, "ZVZZT")], true);
        assert_eq!(
            (directory.symbol(7), directory.id("MSFT")),
            (Some("ZVZZT"), None)
        );
        let known = directory
            .channel(channel)
            .map(|known| known.iter().collect::<Vec<_>>());
        assert_eq!(known, Some(vec![(7, "ZVZZT")]));
    }

    #[test]
    fn moved_symbol_is_found_under_new_id() {
        let mut instruments = InstrumentNames::default();
        assert!(instruments.learn(7, "FB") && instruments.learn(8, "FB"));
        assert_eq!(
            (instruments.symbol(7), instruments.id("FB")),
            (None, Some(8))
        );
        assert!(instruments.learn(7, "META"));
        assert_eq!(
            (instruments.id("FB"), instruments.id("META")),
            (Some(8), Some(7))
        );
        assert_eq!(
            (instruments.symbol(8), instruments.symbol(7)),
            (Some("FB"), Some("META"))
        );
        // The two symbols swap ids, and then swap back.
        assert!(instruments.learn(7, "FB") && instruments.learn(8, "META"));
        assert_eq!(
            (instruments.id("FB"), instruments.id("META")),
            (Some(7), Some(8))
        );
        assert_eq!(instruments.len(), 2);
    }

    #[test]
    fn misspelled_symbol_error_lists_similar_names() {
        let mut instruments = InstrumentNames::default();
        assert_eq!(
            instruments.like("A"),
            "the publisher has announced no instrument yet"
        );
        for (id, symbol) in (1..).zip(["MSFT", "AAPL", "AAP", "ZZZ", "AA", "A", "B"]) {
            instruments.learn(id, symbol);
        }
        assert_eq!(
            instruments.like("AAPX"),
            "7 are known, for example AAPL, AAP, AA, A, MSFT"
        );
    }
}
