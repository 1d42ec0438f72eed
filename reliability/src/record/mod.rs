//! Ticks are DBN version 3 records. This file re-exports the supported ones and holds the one checked cast
//! from bytes to records.
//!
//! Guarantee: a [`Records`] is a run of whole records of known type and size, so iterating over it can
//! neither panic nor read past its end. The values inside are not checked.
//! Source: the `dbn` crate, pinned; docs/PROTOCOL.md §3.2 freezes these layouts as wire version 1.

mod slice;

use std::mem::size_of;

use thiserror::Error;

pub use self::slice::{RecordBatches, RecordSlice};

pub use dbn::{
    Action, BidAskPair, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RType,
    Record, RecordHeader, RecordRef, SType, SecurityUpdateAction, Side, StatMsg, StatType,
    StatusAction, StatusMsg, StatusReason, SymbolMappingMsg, TradeMsg, TradingEvent, TriState,
    UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_TIMESTAMP, flags,
};

/// Alignment of records in bytes. Their sizes are multiples of it.
pub const RECORD_ALIGN: usize = 8;

/// Size of the largest record, an instrument definition, in bytes.
pub const RECORD_LEN_MAX: usize = size_of::<InstrumentDefMsg>();

mod sealed {
    pub trait Sealed {}
}

/// A record type that may be put on the wire. Sealed: the set is frozen with the wire version.
pub trait WireRecord: HasRType<Header = RecordHeader> + AsRef<[u8]> + sealed::Sealed {
    /// The record's type tag, in byte 1 of its header.
    const RTYPE: u8;
    /// The record's size in bytes.
    const LEN: usize;
}

macro_rules! wire_records {
    ($($record:ty => $rtype:expr, $len:expr;)+) => {
        $(
            impl sealed::Sealed for $record {}
            impl WireRecord for $record {
                const RTYPE: u8 = $rtype as u8;
                const LEN: usize = $len;
            }
            const _: () = assert!(size_of::<$record>() == $len);
            const _: () = assert!(align_of::<$record>() == RECORD_ALIGN);
            const _: () = assert!($len <= RECORD_LEN_MAX && $len % RECORD_ALIGN == 0);
        )+

        /// Returns the size of a record by its type tag; `None` for a tag that wire version 1 does not carry.
        #[must_use]
        pub const fn record_len(rtype: u8) -> Option<usize> {
            $(if rtype == <$record as WireRecord>::RTYPE { return Some($len); })+
            None
        }

        /// Returns whether these bytes are exactly `count` records of this type.
        #[inline]
        fn are_alike(bytes: &[u8], rtype: u8, count: usize) -> bool {
            $(if rtype == <$record as WireRecord>::RTYPE {
                return are_alike_of::<{ $len }>(bytes, rtype, count);
            })+
            false
        }
    };
}

wire_records! {
    MboMsg => RType::Mbo, 56;
    TradeMsg => RType::Mbp0, 48;
    Mbp1Msg => RType::Mbp1, 80;
    StatusMsg => RType::Status, 40;
    InstrumentDefMsg => RType::InstrumentDef, 520;
    SymbolMappingMsg => RType::SymbolMapping, 176;
    ImbalanceMsg => RType::Imbalance, 112;
    StatMsg => RType::Statistics, 80;
}

/// Returns whether records of this type map an instrument to its symbol.
#[must_use]
pub const fn names_instruments(rtype: u8) -> bool {
    rtype == <SymbolMappingMsg as WireRecord>::RTYPE
        || rtype == <InstrumentDefMsg as WireRecord>::RTYPE
}

/// Why a payload is not a run of records. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes do not start at an aligned address (a caller's mistake, not a peer's).
    #[error("records must start at an 8-byte aligned address; copy them to an aligned buffer")]
    Misaligned,
    /// A record is truncated.
    #[error("record {index} at byte {offset} needs {needed} bytes but only {left} are left")]
    Truncated {
        /// Index of the record in the payload.
        index: usize,
        /// Offset of the record in the payload.
        offset: usize,
        /// Bytes that the record needs.
        needed: usize,
        /// Bytes left in the payload.
        left: usize,
    },
    /// A record's length byte does not match its type, or the type is unknown.
    #[error(
        "record {index} at byte {offset}: type {rtype:#04x} with length {len} is not in wire version 1"
    )]
    Unknown {
        /// Index of the record in the payload.
        index: usize,
        /// Offset of the record in the payload.
        offset: usize,
        /// Its type tag.
        rtype: u8,
        /// Its length in bytes, according to its header.
        len: usize,
    },
    /// A record's header has another type or length than the record (a caller's mistake).
    #[error(
        "record {index}: its header says type {rtype:#04x} and length {len}, but it is a record of type {own_rtype:#04x} and length {own_len}; make the header with RecordHeader::new of the record's own type and type tag"
    )]
    Header {
        /// Index of the record in the message.
        index: usize,
        /// The type tag in its header.
        rtype: u8,
        /// The length in its header, in bytes.
        len: usize,
        /// The correct type tag.
        own_rtype: u8,
        /// The correct length in bytes.
        own_len: usize,
    },
    /// The number of records differs from the one announced.
    #[error("the payload holds {found} records but its header announced {announced}")]
    Count {
        /// Records found.
        found: usize,
        /// Records announced.
        announced: usize,
    },
}

/// Returns whether these bytes are exactly `count` records of this type, each `LEN` bytes long.
#[inline]
fn are_alike_of<const LEN: usize>(bytes: &[u8], rtype: u8, count: usize) -> bool {
    if count.checked_mul(LEN) != Some(bytes.len()) {
        return false;
    }
    // SAFETY: arrays of bytes have the alignment of bytes and no padding, and `count` of them are exactly
    // these bytes (checked above). Exercised by `tests::bytes_that_are_not_records_are_refused`.
    let records: &[[u8; LEN]] = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), count) };
    let head = u16::from_ne_bytes([(LEN / RecordHeader::LENGTH_MULTIPLIER) as u8, rtype]);
    let is_alike = |record: &[u8; LEN]| u16::from_ne_bytes([record[0], record[1]]) == head;
    // Check four at a time, because the loop itself would cost as much as one comparison.
    let (fours, rest) = records.as_chunks::<4>();
    fours.iter().all(|four| four.iter().all(is_alike)) && rest.iter().all(is_alike)
}

/// A checked run of records in memory without another writer.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    /// Number of whole records in `bytes`.
    count: usize,
    /// The type of all records; `None` when it differs or is unknown.
    rtype: Option<u8>,
}

impl<'a> Records<'a> {
    /// Checks that `bytes` is exactly `count` whole records of known types, and borrows them.
    ///
    /// # Errors
    /// [`RecordError`] names the first invalid record and its offset.
    #[inline]
    pub fn check(bytes: &'a [u8], count: usize) -> Result<Self, RecordError> {
        if let [_, rtype, ..] = *bytes
            && bytes.as_ptr().addr().is_multiple_of(RECORD_ALIGN)
            && are_alike(bytes, rtype, count)
        {
            let rtype = Some(rtype);
            return Ok(Self {
                bytes,
                count,
                rtype,
            });
        }
        Self::check_each(bytes, count)
    }

    /// Checks records of several types like [`Records::check`], or finds the error.
    #[inline(never)]
    fn check_each(bytes: &'a [u8], count: usize) -> Result<Self, RecordError> {
        if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(RECORD_ALIGN) {
            return Err(RecordError::Misaligned);
        }
        let (mut rest, mut index) = (bytes, 0);
        // Fast path: most records have the type of the one before.
        let (mut known, mut len) = (None, 0);
        while let [words, rtype, ..] = *rest {
            if known != Some([words, rtype]) {
                len = Self::len_of(words, rtype, index, rest, bytes)?;
                known = Some([words, rtype]);
            }
            let Some((_, after)) = rest.split_at_checked(len) else {
                return Err(Self::cut_off(len, index, rest, bytes));
            };
            rest = after;
            index += 1;
        }
        if !rest.is_empty() {
            return Err(Self::cut_off(0, index, rest, bytes));
        }
        if index != count {
            return Err(RecordError::Count {
                found: index,
                announced: count,
            });
        }
        Ok(Self {
            bytes,
            count,
            rtype: None,
        })
    }

    /// Returns the length of a record with this type and length byte, if wire version 1 has it. `rest` is
    /// the unread part of `bytes`.
    fn len_of(
        words: u8,
        rtype: u8,
        index: usize,
        rest: &[u8],
        bytes: &[u8],
    ) -> Result<usize, RecordError> {
        if rest.len() < size_of::<RecordHeader>() {
            return Err(Self::cut_off(0, index, rest, bytes));
        }
        let len = usize::from(words) * RecordHeader::LENGTH_MULTIPLIER;
        if record_len(rtype) == Some(len) {
            return Ok(len);
        }
        Err(RecordError::Unknown {
            index,
            offset: bytes.len() - rest.len(),
            rtype,
            len,
        })
    }

    #[cold]
    fn cut_off(len: usize, index: usize, rest: &[u8], bytes: &[u8]) -> RecordError {
        let left = rest.len();
        RecordError::Truncated {
            index,
            offset: bytes.len() - left,
            // Without a whole header, the record's length is unknown.
            needed: if left < size_of::<RecordHeader>() {
                size_of::<RecordHeader>()
            } else {
                len
            },
            left,
        }
    }

    /// Returns the records' bytes, as on the wire.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the type tag of all records, where they are known to be of one type, as in most datagrams.
    #[must_use]
    #[inline]
    pub const fn rtype(self) -> Option<u8> {
        self.rtype
    }

    /// Returns all records as a slice, where all are known to be of this type.
    #[must_use]
    #[inline]
    pub fn all_of<R: WireRecord>(self) -> Option<&'a [R]> {
        // SAFETY: when `rtype` is known, `check` found `bytes` to be whole records of that type alone,
        // the first one aligned, and `next` removes whole ones: `count` are left, of `R::LEN` bytes
        // each, the size of `R`. Every bit pattern is a value of these types, and the borrow keeps the
        // bytes unchanged. Exercised by `tests::records_of_one_type_are_lent_as_a_slice_of_it`.
        (self.rtype == Some(R::RTYPE))
            .then(|| unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.count) })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecordRef<'a>> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: `check` established that `bytes` is `count` whole records of known type and size,
        // each of which begins with its length, the first one aligned and all sizes multiples of the
        // alignment; every bit pattern is a value of these types, and the borrow keeps the bytes
        // unchanged. Exercised by `tests::bytes_that_are_not_records_are_refused`.
        unsafe {
            let len = usize::from(*self.bytes.get_unchecked(0)) * RecordHeader::LENGTH_MULTIPLIER;
            let (record, rest) = self.bytes.split_at_unchecked(len);
            self.bytes = rest;
            Some(RecordRef::new(record))
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Records<'_> {}

/// An aligned, growing buffer of records: a decoder's output for one venue message. It keeps its memory
/// between messages, so that steady state allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct RecordBatch {
    words: Vec<u64>,
    count: usize,
    names: bool,
}

impl RecordBatch {
    /// Returns an empty batch with room for `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            words: Vec::with_capacity(bytes / RECORD_ALIGN),
            ..Self::default()
        }
    }

    /// Appends one record.
    ///
    /// # Errors
    /// [`RecordError::Header`], without effect, when its header does not have its own type and length.
    #[inline]
    pub fn push<R: WireRecord>(&mut self, record: &R) -> Result<(), RecordError> {
        // The headers of these types keep the type in one byte.
        let (rtype, len) = (record.raw_rtype() as u8, record.record_size());
        if rtype != R::RTYPE || len != R::LEN {
            return Err(RecordError::Header {
                index: self.count,
                rtype,
                len,
                own_rtype: R::RTYPE,
                own_len: R::LEN,
            });
        }
        self.put(record);
        Ok(())
    }

    /// Appends one record with the type and length of `R`, regardless of its header: for decoders, which
    /// build the headers themselves.
    #[inline]
    pub fn put<R: WireRecord>(&mut self, record: &R) {
        self.words.extend(headed::<R>(record_words(record)));
        self.count += 1;
        self.names |= const { names_instruments(R::RTYPE) };
    }

    /// Appends all records of a checked run.
    pub fn extend(&mut self, records: Records<'_>) {
        let (at, bytes) = (self.words.len(), records.bytes());
        self.words.resize(at + bytes.len() / RECORD_ALIGN, 0);
        words_as_bytes_mut(&mut self.words[at..]).copy_from_slice(bytes);
        self.count += records.len();
        for record in records {
            self.names |= names_instruments(record.header().rtype);
        }
    }

    /// Appends a record whose type is only known at run time, from its bytes in a datagram or a
    /// [`Records`]. For a typed record use [`push`](Self::push).
    ///
    /// # Errors
    /// [`RecordError`], without effect, when these bytes are not exactly one record of a type that wire
    /// version 1 carries.
    pub fn push_bytes(&mut self, record: &[u8]) -> Result<(), RecordError> {
        self.extend(Records::check(record, 1)?);
        Ok(())
    }

    /// Replaces the content by a copy of `other`. It keeps its memory, so that steady state allocates
    /// nothing.
    #[inline]
    pub fn copy_from<'a>(&mut self, other: impl Into<RecordSlice<'a>>) {
        let other = other.into();
        self.words.clear();
        self.words.extend_from_slice(other.words());
        (self.count, self.names) = (other.len(), other.names_instruments());
    }

    /// Removes the records and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.words.clear();
        (self.count, self.names) = (0, false);
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the batch is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a record maps an instrument to its symbol.
    #[must_use]
    pub const fn names_instruments(&self) -> bool {
        self.names
    }

    /// Returns the records as words: their bytes in memory order, eight each.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the records' bytes, aligned.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        words_as_bytes(&self.words)
    }

    /// Returns the records, in order.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        RecordSlice::from(self).records()
    }

    /// Appends one record like [`put`](Self::put), but in whole words from registers. For the most frequent
    /// types: a word written field by field would stall the next read of that word.
    #[inline]
    pub fn put_words<R: InWords<N>, const N: usize>(&mut self, record: &R) {
        self.words.extend_from_slice(&record.in_words());
        self.count += 1;
    }
}

/// A record that can be built word by word.
pub trait InWords<const N: usize>: WireRecord {
    /// Returns its words in memory order, with the type and length of `Self` regardless of its header.
    fn in_words(&self) -> [u64; N];
}

impl InWords<7> for MboMsg {
    #[inline]
    fn in_words(&self) -> [u64; 7] {
        let (action, side) = (self.action as u8, self.side as u8);
        [
            head_word::<Self>(&self.hd),
            self.hd.ts_event,
            self.order_id,
            self.price as u64,
            two(
                self.size,
                four(self.flags.raw(), self.channel_id, action, side),
            ),
            self.ts_recv,
            two(self.ts_in_delta as u32, self.sequence),
        ]
    }
}

impl InWords<6> for TradeMsg {
    #[inline]
    fn in_words(&self) -> [u64; 6] {
        let (action, side) = (self.action as u8, self.side as u8);
        [
            head_word::<Self>(&self.hd),
            self.hd.ts_event,
            self.price as u64,
            two(self.size, four(action, side, self.flags.raw(), self.depth)),
            self.ts_recv,
            two(self.ts_in_delta as u32, self.sequence),
        ]
    }
}

impl InWords<10> for Mbp1Msg {
    #[inline]
    fn in_words(&self) -> [u64; 10] {
        let (action, side) = (self.action as u8, self.side as u8);
        let [level] = &self.levels;
        [
            head_word::<Self>(&self.hd),
            self.hd.ts_event,
            self.price as u64,
            two(self.size, four(action, side, self.flags.raw(), self.depth)),
            self.ts_recv,
            two(self.ts_in_delta as u32, self.sequence),
            level.bid_px as u64,
            level.ask_px as u64,
            two(level.bid_sz, level.ask_sz),
            two(level.bid_ct, level.ask_ct),
        ]
    }
}

#[inline]
const fn head_word<R: WireRecord>(head: &RecordHeader) -> u64 {
    let len = (R::LEN / RecordHeader::LENGTH_MULTIPLIER) as u8;
    let [first, second] = head.publisher_id.to_ne_bytes();
    two(four(len, R::RTYPE, first, second), head.instrument_id)
}

/// Joins two halves of a word, in memory order.
#[inline]
const fn two(first: u32, second: u32) -> u64 {
    let (low, high) = if cfg!(target_endian = "little") {
        (first, second)
    } else {
        (second, first)
    };
    (high as u64) << 32 | low as u64
}

#[inline]
const fn four(a: u8, b: u8, c: u8, d: u8) -> u32 {
    u32::from_ne_bytes([a, b, c, d])
}

/// A buffer that copies bytes to an aligned address. It keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct AlignedCopy {
    words: Vec<u64>,
}

impl AlignedCopy {
    /// Copies the bytes to this buffer and returns them at an aligned address.
    pub fn of(&mut self, bytes: &[u8]) -> &[u8] {
        let words = bytes.len().div_ceil(RECORD_ALIGN);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        let copy = &mut words_as_bytes_mut(&mut self.words[..words])[..bytes.len()];
        copy.copy_from_slice(bytes);
        copy
    }
}

/// Returns a record's words: as many as its type has, regardless of its header.
#[inline]
pub(crate) const fn record_words<R: WireRecord>(record: &R) -> &[u64] {
    // SAFETY: the types of `wire_records!` are `repr(C)` of fields that leave no padding, of size
    // `R::LEN`, a multiple of 8, and aligned to 8 (asserted there); every bit pattern is a `u64`, and
    // the borrow passes on. Exercised by
    // `tests::false_header_is_refused_without_overread`.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), R::LEN / RECORD_ALIGN) }
}

/// Returns a record's words with the type and length of `R` in the header.
#[inline]
pub(crate) fn headed<R: WireRecord>(words: &[u64]) -> impl Iterator<Item = u64> {
    let head = |first: u64| {
        let mut head = first.to_ne_bytes();
        head[0] = (R::LEN / RecordHeader::LENGTH_MULTIPLIER) as u8;
        head[1] = R::RTYPE;
        u64::from_ne_bytes(head)
    };
    let each = words.iter().enumerate();
    each.map(move |(index, word)| if index == 0 { head(*word) } else { *word })
}

/// Returns the bytes of a slice of words, in memory order.
#[must_use]
pub fn words_as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: a `u64` slice is initialised memory without padding, `u8` needs no alignment, and
    // the length in bytes is that of the same allocation. Exercised by
    // `tests::record_batch_iterates_pushed_records`.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Returns the bytes of a slice of words, in memory order, writable: used to fill aligned buffers.
#[must_use]
pub fn words_as_bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as for `words_as_bytes`; the exclusive borrow passes on, and every bit pattern is a
    // `u64`. Exercised by `tests::bytes_that_are_not_records_are_refused`.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> RecordBatch {
        let mut batch = RecordBatch::default();
        batch.put(&MboMsg {
            order_id: 7,
            ..MboMsg::default()
        });
        batch.put(&InstrumentDefMsg::default());
        batch.put(&TradeMsg {
            price: 11,
            ..TradeMsg::default()
        });
        batch
    }

    #[test]
    fn record_in_words_has_its_bytes_and_type() {
        fn assert_same<R: InWords<N>, const N: usize>(record: &R) {
            let (mut words, mut fields) = (RecordBatch::default(), RecordBatch::default());
            words.put_words(record);
            fields.put(record);
            assert_eq!(words.bytes(), fields.bytes());
            assert_eq!(words.len(), 1);
        }
        // All bytes differ, so that no byte can stand in for another. Type and length are invalid.
        fn odd<R: WireRecord + Clone>() -> R {
            let mut words = [0_u64; 10];
            for (n, byte) in words_as_bytes_mut(&mut words).iter_mut().enumerate() {
                *byte = 100 + n as u8;
            }
            let (len, rtype) = ((R::LEN / RecordHeader::LENGTH_MULTIPLIER) as u8, R::RTYPE);
            words_as_bytes_mut(&mut words)[..2].copy_from_slice(&[len, rtype]);
            let bytes = &words_as_bytes(&words)[..R::LEN];
            let mut records = Records::check(bytes, 1).unwrap();
            records.next().unwrap().get::<R>().unwrap().clone()
        }
        let (mut mbo, trade, quote) = (odd::<MboMsg>(), odd::<TradeMsg>(), odd::<Mbp1Msg>());
        assert_same(&mbo);
        assert_same(&trade);
        assert_same(&quote);
        mbo.hd.rtype = 0xAB;
        assert_same(&mbo);
    }

    #[test]
    fn record_batch_iterates_pushed_records() {
        let batch = batch();
        assert_eq!(batch.bytes().len(), 56 + 520 + 48);
        let mut records = batch.records();
        assert_eq!(records.next().unwrap().get::<MboMsg>().unwrap().order_id, 7);
        assert!(records.next().unwrap().get::<InstrumentDefMsg>().is_some());
        assert_eq!(records.next().unwrap().get::<TradeMsg>().unwrap().price, 11);
        assert!(records.next().is_none());
    }

    #[test]
    fn false_header_is_refused_without_overread() {
        let quote = |hd| Mbp1Msg {
            hd,
            ..Mbp1Msg::default()
        };
        let longer = quote(RecordHeader::new::<InstrumentDefMsg>(1, 2, 3, 4));
        let other = quote(RecordHeader::new::<Mbp1Msg>(RType::Mbp0 as u8, 2, 3, 4));
        let mut batch = batch();
        let before = batch.bytes().to_vec();
        for (lie, rtype, len) in [(&longer, 1, 520), (&other, 0, 80)] {
            let refused = RecordError::Header {
                index: 3,
                rtype,
                len,
                own_rtype: 1,
                own_len: 80,
            };
            assert_eq!(batch.push(lie), Err(refused));
            assert!(refused.to_string().contains("RecordHeader::new"));
        }
        assert_eq!((batch.len(), batch.bytes()), (3, &before[..]));
        let honest = quote(RecordHeader::new::<Mbp1Msg>(RType::Mbp1 as u8, 2, 3, 4));
        batch.push(&honest).unwrap();
        for lie in [longer, other] {
            let mut put = RecordBatch::default();
            put.put(&lie);
            assert_eq!(put.bytes(), &batch.bytes()[before.len()..]);
        }
        assert_eq!(Records::check(batch.bytes(), 4).unwrap().count(), 4);
    }

    #[test]
    fn record_batch_extend_appends_all_records() {
        let (source, mut copy) = (batch(), batch());
        copy.extend(source.records());
        copy.extend(RecordBatch::default().records());
        assert_eq!(copy.len(), 6);
        assert_eq!(copy.bytes(), [source.bytes(), source.bytes()].concat());
    }

    #[test]
    fn records_check_accepts_batch_and_empty_input() {
        let batch = batch();
        let checked = Records::check(batch.bytes(), 3).unwrap();
        assert_eq!(checked.count(), 3);
        assert_eq!(
            Records::check(&[], 0).map(Iterator::count),
            Ok(0),
            "none is a run too"
        );
    }

    #[test]
    fn bytes_that_are_not_records_are_refused() {
        let batch = batch();
        let mut words: Vec<u64> = vec![0; batch.bytes().len() / 8];
        words_as_bytes_mut(&mut words).copy_from_slice(batch.bytes());
        let check = |words: &[u64], count| Records::check(words_as_bytes(words), count).err();
        assert_eq!(check(&words, 3), None);
        assert_eq!(
            check(&words, 2),
            Some(RecordError::Count {
                found: 3,
                announced: 2
            })
        );
        assert!(matches!(
            check(&words[..words.len() - 1], 3),
            Some(RecordError::Truncated {
                index: 2,
                needed: 48,
                left: 40,
                ..
            })
        ));
        assert!(matches!(
            check(&words[..words.len() - 5], 3),
            Some(RecordError::Truncated {
                index: 2,
                left: 8,
                ..
            })
        ));
        words_as_bytes_mut(&mut words)[56] = 1;
        assert!(matches!(
            check(&words, 3),
            Some(RecordError::Unknown {
                index: 1,
                len: 4,
                ..
            })
        ));
        words_as_bytes_mut(&mut words)[0] = 0;
        assert!(matches!(
            check(&words, 3),
            Some(RecordError::Unknown {
                index: 0,
                len: 0,
                ..
            })
        ));
        assert_eq!(
            Records::check(&words_as_bytes(&words)[1..], 3).err(),
            Some(RecordError::Misaligned)
        );
    }

    #[test]
    fn records_of_one_type_are_lent_as_a_slice_of_it() {
        for count in 0..10 {
            let mut batch = RecordBatch::default();
            for order_id in 0..count {
                batch.put(&MboMsg {
                    order_id,
                    ..MboMsg::default()
                });
            }
            let mut records = Records::check(batch.bytes(), count as usize).unwrap();
            assert_eq!(records.rtype(), (count > 0).then_some(MboMsg::RTYPE));
            assert!(records.all_of::<TradeMsg>().is_none());
            for taken in 0..count {
                let ids = records.all_of::<MboMsg>().unwrap().iter();
                assert!(ids.map(|it| it.order_id).eq(taken..count));
                let next = records.next().unwrap();
                assert_eq!(next.get::<MboMsg>().unwrap().order_id, taken);
            }
            assert!(records.next().is_none() && records.next().is_none());
        }
        let batch = batch();
        let records = Records::check(batch.bytes(), 3).unwrap();
        assert!(records.rtype().is_none() && records.all_of::<MboMsg>().is_none());
    }

    #[test]
    fn odd_record_in_run_is_found_anywhere() {
        let count = 11;
        for odd in 0..count {
            let mut batch = RecordBatch::default();
            (0..count).for_each(|_| batch.put(&MboMsg::default()));
            let mut words = batch.words().to_vec();
            let bytes = words_as_bytes_mut(&mut words);
            for (at, value) in [(0, 13), (1, MboMsg::RTYPE + 1)] {
                let at = odd * MboMsg::LEN + at;
                let whole = std::mem::replace(&mut bytes[at], value);
                let found = Records::check(bytes, count).unwrap_err();
                assert!(matches!(found, RecordError::Unknown { index, .. } if index == odd));
                bytes[at] = whole;
            }
            // With one record of another type, the check still succeeds.
            let at = odd * MboMsg::LEN;
            let mut trade = RecordBatch::default();
            trade.put(&TradeMsg::default());
            let mixed = [&bytes[..at], trade.bytes(), &bytes[at..]].concat();
            let mut aligned = AlignedCopy::default();
            let records = Records::check(aligned.of(&mixed), count + 1).unwrap();
            assert_eq!(records.rtype(), None);
            let trades = records.filter(|it| it.get::<TradeMsg>().is_some());
            assert_eq!(trades.count(), 1);
        }
    }

    #[test]
    fn wire_version_1_freezes_every_record_layout() {
        use std::mem::offset_of;
        assert_eq!(size_of::<RecordHeader>(), 16);
        assert_eq!(offset_of!(RecordHeader, rtype), 1);
        assert_eq!(offset_of!(RecordHeader, publisher_id), 2);
        assert_eq!(offset_of!(RecordHeader, instrument_id), 4);
        assert_eq!(offset_of!(RecordHeader, ts_event), 8);
        assert_eq!(offset_of!(MboMsg, order_id), 16);
        assert_eq!(offset_of!(MboMsg, price), 24);
        assert_eq!(offset_of!(MboMsg, size), 32);
        assert_eq!(offset_of!(MboMsg, flags), 36);
        assert_eq!(offset_of!(MboMsg, channel_id), 37);
        assert_eq!(offset_of!(MboMsg, action), 38);
        assert_eq!(offset_of!(MboMsg, side), 39);
        assert_eq!(offset_of!(MboMsg, ts_recv), 40);
        assert_eq!(offset_of!(MboMsg, ts_in_delta), 48);
        assert_eq!(offset_of!(MboMsg, sequence), 52);
        assert_eq!(offset_of!(TradeMsg, price), 16);
        assert_eq!(offset_of!(TradeMsg, size), 24);
        assert_eq!(offset_of!(TradeMsg, ts_recv), 32);
        assert_eq!(offset_of!(Mbp1Msg, levels), 48);
        assert_eq!(offset_of!(StatusMsg, ts_recv), 16);
        assert_eq!(offset_of!(StatusMsg, action), 24);
        assert_eq!(offset_of!(StatMsg, quantity), 40);
        assert_eq!(offset_of!(StatMsg, sequence), 48);
        assert_eq!(offset_of!(StatMsg, stat_type), 56);
        assert_eq!(offset_of!(ImbalanceMsg, ref_price), 24);
        assert_eq!(offset_of!(ImbalanceMsg, paired_qty), 88);
        assert_eq!(offset_of!(SymbolMappingMsg, stype_in_symbol), 17);
        assert_eq!(offset_of!(SymbolMappingMsg, stype_out_symbol), 89);
        assert_eq!(offset_of!(SymbolMappingMsg, start_ts), 160);
        assert_eq!(offset_of!(InstrumentDefMsg, raw_symbol), 238);
    }

    #[test]
    fn record_batch_push_bytes_accepts_exactly_one_record() {
        let source = batch();
        let mut copy = RecordBatch::with_capacity(1_000);
        assert!(copy.is_empty() && copy.words.capacity() >= 1_000 / RECORD_ALIGN);
        for record in source.records() {
            copy.push_bytes(record.as_ref()).unwrap();
        }
        assert_eq!((copy.len(), copy.is_empty()), (3, false));
        assert_eq!(copy.bytes(), source.bytes());
        assert_eq!(copy.records().bytes(), source.bytes());
        let words = [0u64; 7];
        let mut bytes = words_as_bytes(&words).to_vec();
        bytes[..2].copy_from_slice(&[14, 0x77]);
        let mut aligned = AlignedCopy::default();
        let bytes = aligned.of(&bytes);
        let refused = RecordError::Unknown {
            index: 0,
            offset: 0,
            rtype: 0x77,
            len: 56,
        };
        assert_eq!(copy.push_bytes(bytes), Err(refused));
        // A header with too large a length, one with too small a length, and two records.
        let of = source.bytes();
        let first = usize::from(of[0]) * 4;
        for (lie, wrong) in [
            (&of[..first - 8], "truncated"),
            (&of[..first + 8], "more"),
            (of, "three"),
        ] {
            assert!(copy.push_bytes(lie).is_err(), "{wrong}");
        }
        assert!(copy.push_bytes(&[]).is_err());
        assert_eq!(copy.bytes(), source.bytes(), "nothing was appended");
        let mut other = RecordBatch::default();
        other.copy_from(&copy);
        assert_eq!((other.len(), other.bytes()), (3, source.bytes()));
        other.clear();
        assert!(other.is_empty() && other.bytes().is_empty());
    }

    #[test]
    fn types_have_lengths_and_cut_off_names_need() {
        let lens = [160, 0, 1, 18, 19, 22, 20, 24].map(|rtype| record_len(rtype).unwrap());
        assert_eq!(lens, [56, 48, 80, 40, 520, 176, 112, 80]);
        let unknown = (0..=255).filter(|rtype| record_len(*rtype).is_none());
        assert_eq!(unknown.count(), 256 - 8);
        let batch = batch();
        let words: Vec<u64> = (batch.bytes().chunks(8))
            .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
            .collect();
        let needed = |words: &[u64]| match Records::check(words_as_bytes(words), 1) {
            Err(RecordError::Truncated { needed, left, .. }) => (needed, left),
            other => panic!("{other:?}"),
        };
        assert_eq!(needed(&words[..2]), (56, 16), "its header is there");
        assert_eq!(needed(&words[..1]), (16, 8));
    }

    #[test]
    fn aligned_copy_holds_exact_bytes() {
        let mut aligned = AlignedCopy::default();
        for len in [0, 1, 7, 8, 9, 100, 3] {
            let bytes: Vec<u8> = (0..len).collect();
            let copy = aligned.of(&bytes);
            assert_eq!(copy, bytes);
            assert!(copy.as_ptr().addr().is_multiple_of(RECORD_ALIGN));
        }
    }
}
