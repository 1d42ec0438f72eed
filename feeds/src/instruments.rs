//! A bounded table from symbols to instrument ids: dense, in order of first appearance, so that the
//! same input always gives the same ids.
//!
//! Only the first sight of a symbol may allocate.

use std::{
    ffi::c_char,
    fmt,
    hash::{BuildHasher, RandomState},
};

use tickcast_reliability::record::{RType, RecordHeader, SType, SymbolMappingMsg};

/// A venue's symbol of at most 8 ASCII characters, left-justified, padded with spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(pub [u8; 8]);

impl Symbol {
    /// Returns the symbol's characters without padding (spaces or zeros at its end).
    #[must_use]
    pub fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|&b| b != b' ' && b != 0);
        &self.0[..end.map_or(0, |last| last + 1)]
    }
}

impl Symbol {
    /// Returns the symbol that is displayed as this text; `None` for a text that is too long, or that
    /// holds other than plain characters.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut padded = [b' '; 8];
        let is_plain = !text.is_empty() && text.bytes().all(|byte| is_plain(&byte));
        let field = padded.get_mut(..text.len()).filter(|_| is_plain)?;
        field.copy_from_slice(text.as_bytes());
        Some(Self(padded))
    }
}

impl fmt::Display for Symbol {
    /// Writes the symbol as the venue wrote it, with bytes other than printable ASCII escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.trimmed().escape_ascii(), f)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symbol({self})")
    }
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The instrument's id, at least 1 (0 means the whole venue).
    pub id: u32,
    /// Whether this is the first sight of the symbol, so that its mapping must be published.
    pub is_new: bool,
}

/// The table of symbols. Two sources that publish together need disjoint ids, so give their tables
/// different first ids.
#[derive(Clone, Debug)]
pub struct Instruments {
    /// Symbol and id, at or soon after the symbol's home slot; id 0 is free. At most half are used.
    slots: Vec<(u64, u32)>,
    /// Random key mixed with each symbol, so that no input can force collisions.
    key: u64,
    shift: u32,
    /// Symbols with their ids, ascending.
    symbols: Vec<(Symbol, u32)>,
    next_id: u32,
    limit: usize,
}

impl Default for Instruments {
    /// Creates a table with ids from 1 and room for [`Instruments::DEFAULT_LIMIT`] symbols.
    fn default() -> Self {
        Self::new(1, Self::DEFAULT_LIMIT)
    }
}

impl Instruments {
    /// Several times the symbols of any US equities venue.
    pub const DEFAULT_LIMIT: usize = 1 << 16;

    /// Creates an empty table that assigns ids from `first_id` (at least 1) to at most `limit` symbols.
    #[must_use]
    pub fn new(first_id: u32, limit: usize) -> Self {
        let first_id = first_id.max(1);
        let room = usize::try_from(u32::MAX - first_id).unwrap_or(usize::MAX);
        Self {
            slots: vec![(0, 0); SLOTS_FIRST],
            key: RandomState::new().hash_one(0),
            shift: u64::BITS - SLOTS_FIRST.trailing_zeros(),
            symbols: Vec::new(),
            next_id: first_id,
            limit: limit.min(room),
        }
    }

    /// Adds the symbols of an earlier table, and assigns further ids from `next_id` on. A symbol beyond
    /// the limit, or whose id is in use or not below `next_id`, is left out.
    pub fn resume(&mut self, known: &[(u32, Symbol)], next_id: u32) {
        let mut known = known.to_vec();
        known.sort_unstable_by_key(|(id, _)| *id);
        for (id, symbol) in known {
            let is_free = (self.next_id..next_id).contains(&id);
            if is_free && self.symbols.len() < self.limit && self.id(symbol).is_none() {
                self.insert(symbol, id);
                self.next_id = id + 1;
            }
        }
        self.next_id = self.next_id.max(next_id);
    }

    /// Returns all ids and symbols, and the lowest id that none has: a later table [resumes](Self::resume)
    /// with them.
    #[must_use]
    pub fn known(&self) -> (Vec<(u32, Symbol)>, u32) {
        let known = self.symbols.iter().map(|(symbol, id)| (*id, *symbol));
        (known.collect(), self.next_id)
    }

    /// Returns the id of a symbol and assigns the next id to a new one; `None` if the table is full.
    #[inline]
    pub fn resolve(&mut self, symbol: Symbol) -> Option<Resolved> {
        match self.id(symbol) {
            Some(id) => Some(Resolved { id, is_new: false }),
            None => self.add(symbol),
        }
    }

    #[cold]
    fn add(&mut self, symbol: Symbol) -> Option<Resolved> {
        if self.symbols.len() >= self.limit {
            return None;
        }
        let id = self.next_id;
        self.next_id = id.checked_add(1)?;
        self.insert(symbol, id);
        Some(Resolved { id, is_new: true })
    }

    /// Adds a symbol with an id above all others.
    fn insert(&mut self, symbol: Symbol, id: u32) {
        self.symbols.push((symbol, id));
        if self.symbols.len() > self.slots.len() / 2 {
            self.shift -= 1;
            self.slots = vec![(0, 0); self.slots.len() * 2];
            for (symbol, id) in &self.symbols {
                put(
                    &mut self.slots,
                    home(*symbol, self.key, self.shift),
                    *symbol,
                    *id,
                );
            }
        } else {
            put(
                &mut self.slots,
                home(symbol, self.key, self.shift),
                symbol,
                id,
            );
        }
    }

    /// Returns the id of a known symbol.
    #[inline]
    #[must_use]
    pub fn id(&self, symbol: Symbol) -> Option<u32> {
        let wanted = u64::from_ne_bytes(symbol.0);
        let mut at = home(symbol, self.key, self.shift);
        // Half of the slots are free, so the search ends.
        loop {
            match *self.slots.get(at)? {
                (_, 0) => return None,
                (found, id) if found == wanted => return Some(id),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// Returns the symbol of an assigned id.
    #[must_use]
    pub fn symbol(&self, id: u32) -> Option<Symbol> {
        let found = self.symbols.binary_search_by_key(&id, |(_, id)| *id);
        found.ok().map(|index| self.symbols[index].0)
    }

    /// Returns all symbols with their ids, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = (Symbol, u32)> + '_ {
        self.symbols.iter().copied()
    }

    /// Returns the number of symbols that have an id.
    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Returns whether the table has no symbol.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

/// Returns the record that maps an id to its symbol: raw symbol in, decimal text of the id out,
/// valid from `ts_event` on.
#[must_use]
pub fn mapping(symbol: Symbol, id: u32, publisher_id: u16, ts_event: u64) -> SymbolMappingMsg {
    SymbolMappingMsg {
        hd: RecordHeader::new::<SymbolMappingMsg>(
            RType::SymbolMapping as u8,
            publisher_id,
            id,
            ts_event,
        ),
        stype_in: SType::RawSymbol as u8,
        stype_in_symbol: raw(symbol),
        stype_out: SType::InstrumentId as u8,
        stype_out_symbol: decimal(id),
        start_ts: ts_event,
        ..SymbolMappingMsg::default()
    }
}

/// Returns a symbol's text as [`Symbol`] displays it. A day begins with all symbols, so plain ones
/// bypass the formatter.
fn raw<const N: usize>(symbol: Symbol) -> [c_char; N] {
    let trimmed = symbol.trimmed();
    if trimmed.iter().all(is_plain) {
        return text(trimmed);
    }
    text(symbol.to_string().as_bytes())
}

/// Returns whether a character is displayed as it is.
const fn is_plain(byte: &u8) -> bool {
    byte.is_ascii_graphic() && !matches!(*byte, b'\\' | b'\'' | b'"')
}

fn decimal<const N: usize>(id: u32) -> [c_char; N] {
    let (mut digits, mut at, mut left) = ([0; 10], 10, id);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return text(&digits[at..]);
        }
    }
}

/// Writes text into a record's zero-terminated field and truncates text that does not fit.
#[must_use]
pub fn text<const N: usize>(bytes: &[u8]) -> [c_char; N] {
    let mut field = [0; N];
    for (to, &from) in field.iter_mut().take(N.saturating_sub(1)).zip(bytes) {
        *to = from as c_char;
    }
    field
}

const SLOTS_FIRST: usize = 1 << 10;

/// Returns a symbol's home slot, by one multiplication.
#[inline]
const fn home(symbol: Symbol, key: u64, shift: u32) -> usize {
    // The constant is 2^64 divided by the golden ratio. Folding moves the mixed high half to the bits
    // that select the slot.
    let product = (key ^ u64::from_ne_bytes(symbol.0)) as u128 * 0x9e37_79b9_7f4a_7c15;
    (((product >> 64) as u64 ^ product as u64) >> shift) as usize
}

fn put(slots: &mut [(u64, u32)], mut at: usize, symbol: Symbol, id: u32) {
    while slots[at].1 != 0 {
        at = (at + 1) & (slots.len() - 1);
    }
    slots[at] = (u64::from_ne_bytes(symbol.0), id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dense_and_in_order_of_first_appearance() {
        let mut table = Instruments::new(10, 3);
        let ids: Vec<_> = [b"ZVZZT   ", b"A       ", b"ZVZZT   ", b"AB      "]
            .map(|s| table.resolve(Symbol(*s)).unwrap())
            .map(|r| (r.id, r.is_new))
            .to_vec();
        assert_eq!(ids, [(10, true), (11, true), (10, false), (12, true)]);
        assert_eq!(table.symbol(11).unwrap().to_string(), "A");
        assert_eq!(table.symbol(9), None);
        assert_eq!(table.iter().last(), Some((Symbol(*b"AB      "), 12)));
    }

    #[test]
    fn full_instrument_table_still_resolves_known_symbols() {
        let mut table = Instruments::new(1, 1);
        assert!(table.resolve(Symbol(*b"A       ")).is_some());
        assert_eq!(table.resolve(Symbol(*b"B       ")), None);
        assert_eq!(table.len(), 1);
        assert_eq!(table.id(Symbol(*b"A       ")), Some(1));
    }

    fn symbol(n: u32) -> Symbol {
        Symbol(*format!("S{n:<7}").as_bytes().first_chunk().unwrap())
    }

    #[test]
    fn resumed_table_keeps_ids_and_assigns_only_free_ones() {
        let symbol = |text: &str| Symbol::from_text(text).unwrap();
        let mut table = Instruments::new(10, 5);
        let known = [
            (14, symbol("C")),
            (9, symbol("Z")),
            (10, symbol("A")),
            (15, symbol("A")),
            (u32::MAX, symbol("NEW")),
        ];
        table.resume(&known, 20);
        let ids = ["A", "C", "NEW", "Z"].map(|text| table.resolve(symbol(text)).unwrap().id);
        assert_eq!(
            ids,
            [10, 14, 20, 21],
            "9 and the last id are outside, and A has an id"
        );
        assert_eq!(
            (table.symbol(14), table.symbol(11)),
            (Some(symbol("C")), None)
        );
        assert!(table.resolve(symbol("E")).is_some());
        assert_eq!(table.resolve(symbol("F")), None, "the limit holds");
        let mut full = Instruments::new(1, 5);
        full.resume(&[], u32::MAX);
        assert_eq!(full.resolve(symbol("A")), None, "no id is left");
    }

    #[test]
    fn text_of_symbol_gives_symbol_only_if_plain() {
        assert_eq!(Symbol::from_text("BRK.B"), Some(Symbol(*b"BRK.B   ")));
        assert_eq!(Symbol::from_text("12345678"), Some(Symbol(*b"12345678")));
        for odd in ["", "123456789", "A B", "\\xff", "A'", "é"] {
            assert_eq!(Symbol::from_text(odd), None, "{odd}");
        }
    }

    #[test]
    fn instrument_id_is_stable_while_table_grows() {
        let mut table = Instruments::new(5, 20_000);
        for n in 0..20_000 {
            assert_eq!(table.id(symbol(n)), None);
            assert_eq!(table.resolve(symbol(n)).map(|r| r.id), Some(5 + n));
        }
        assert_eq!(table.resolve(symbol(20_000)), None);
        assert!((0..20_000).all(|n| table.id(symbol(n)) == Some(5 + n)));
    }

    #[test]
    fn instrument_table_doubles_beyond_half() {
        let mut table = Instruments::default();
        assert!(table.is_empty());
        for (symbols, slots) in [(1, 1_024), (512, 1_024), (513, 2_048), (1_024, 2_048)] {
            (0..symbols).for_each(|n| assert!(table.resolve(symbol(n)).is_some()));
            assert!(!table.is_empty());
            assert_eq!(table.len(), symbols as usize);
            assert_eq!(table.slots.len(), slots, "{symbols} symbols");
        }
    }

    #[test]
    fn symbols_stay_near_home_slots_at_half_load() {
        let mut table = Instruments {
            key: 0x0123_4567_89ab_cdef,
            ..Instruments::default()
        };
        for symbols in [512, 1_024, 2_048] {
            (0..symbols).for_each(|n| assert!(table.resolve(symbol(n)).is_some()));
            let slots = table.slots.iter().enumerate();
            let away = slots
                .filter(|(_, (_, id))| *id != 0)
                .map(|(at, (symbol, _))| {
                    let home = home(Symbol(symbol.to_ne_bytes()), table.key, table.shift);
                    at.wrapping_sub(home) & (table.slots.len() - 1)
                });
            // Half a slot is the mean of chance; poor mixing gives at least five.
            let away: usize = away.sum();
            assert!(away < 2 * symbols as usize, "{away} of {symbols}");
        }
    }

    #[test]
    fn symbol_mapping_carries_symbol_and_id_as_text() {
        let record = mapping(Symbol(*b"BRK.B   "), 4_294_967_295, 38, 7);
        assert_eq!(record.stype_in_symbol().unwrap(), "BRK.B");
        assert_eq!(record.stype_out_symbol().unwrap(), "4294967295");
        assert_eq!(record.hd.instrument_id, u32::MAX);
        let other = mapping(Symbol(*b"Q'\\ R   "), 10, 38, 7);
        assert_eq!(other.stype_in_symbol().unwrap(), r"Q\'\\ R");
        assert_eq!(other.stype_out_symbol().unwrap(), "10");
        let odd = mapping(Symbol([0xff, 0, b'A', b'\n', 1, 2, 3, 4]), 1, 38, 7);
        assert!(odd.stype_in_symbol().unwrap().is_ascii());
    }
}
