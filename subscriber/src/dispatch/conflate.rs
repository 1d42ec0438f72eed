//! Delivery `latest`: keeps the newest record of each kind and instrument in its own cell, which newer
//! records overwrite. A slow application skips to the present, and no loss occurs.
//!
//! | record | cell |
//! |---|---|
//! | `Mbp1Msg` | the instrument's quote; a record with action trade has a separate cell |
//! | `TradeMsg` | its last trade; a cancelled trade (action other than trade) is not conflated |
//! | `StatusMsg` | one cell each: trading status, short-sale restriction, operational halt, any other content |
//! | `InstrumentDefMsg`, `SymbolMappingMsg` | its definition; its name |
//!
//! All other items are *not* conflated: each one is delivered on arrival. These are events, `StatMsg`,
//! `ImbalanceMsg` and `MboMsg` (an order, or one level of a book, depends on the records before it).
//!
//! [`seqlock`] describes how threads share a cell.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use tickcast_reliability::delivery::Position;
use tickcast_reliability::record::{
    Action, InstrumentDefMsg, Mbp1Msg, RECORD_LEN_MAX, RecordRef, Records, StatusAction, StatusMsg,
    StatusReason, SymbolMappingMsg, TradeMsg, WireRecord, words_as_bytes,
};
use tickcast_reliability::types::Epoch;

use crate::sync::position_words::{EPOCH_WORD, POSITION_WORDS, RECORD_WORD, pack, unpack};
use crate::sync::seqlock;

/// The number of a cell. The highest bit marks a large cell.
pub(crate) type Cell = u32;

const LARGE: u32 = 1 << 31;
const WORD: usize = size_of::<u64>();
/// Words of a small cell: version, position, and its longest record. Definitions and names use large cells.
const SMALL_WORDS: usize = 1 + POSITION_WORDS + Mbp1Msg::LEN / WORD;
const LARGE_WORDS: usize = 1 + POSITION_WORDS + RECORD_LEN_MAX / WORD;
const CHUNK_CELLS: usize = 1024;
/// The maximum number of chunks. A record that finds no free cell is delivered on arrival.
const SMALL_CHUNKS: usize = 1024;
const LARGE_CHUNKS: usize = 512;

/// The number of record kinds of an instrument that have a cell.
const KINDS: usize = 9;

/// Returns the cell kind of a record, or `None` if the record can't be conflated.
#[inline]
fn kind_of(record: &RecordRef<'_>) -> Option<usize> {
    match record.header().rtype {
        Mbp1Msg::RTYPE => {
            let is_trade = record.get::<Mbp1Msg>()?.action == Action::Trade as c_char;
            Some(usize::from(is_trade))
        }
        TradeMsg::RTYPE => {
            let is_trade = record.get::<TradeMsg>()?.action == Action::Trade as c_char;
            is_trade.then_some(2)
        }
        StatusMsg::RTYPE => {
            // A status record sets one of these properties and leaves the others undefined.
            let status = record.get::<StatusMsg>()?;
            Some(if status.action == StatusAction::SsrChange as u16 {
                4
            } else if status.reason == StatusReason::Operational as u16 {
                5
            } else if status.action == StatusAction::None as u16 {
                6
            } else {
                3
            })
        }
        InstrumentDefMsg::RTYPE => Some(7),
        SymbolMappingMsg::RTYPE => Some(8),
        _ => None,
    }
}

const fn is_large(kind: usize) -> bool {
    kind >= 7
}

/// Cells of one size. Memory comes in chunks that never move.
#[derive(Debug)]
struct Arena {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    stride: usize,
    used: AtomicU32,
}

impl Arena {
    fn new(chunks: usize, stride: usize) -> Self {
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            stride,
            used: AtomicU32::new(0),
        }
    }

    /// Adds one cell and returns its number, or `None` when the arena is full.
    fn add(&self) -> Option<u32> {
        let cell = self.used.load(Relaxed);
        let chunk = self.chunks.get(cell as usize / CHUNK_CELLS)?;
        chunk.get_or_init(|| {
            let words = CHUNK_CELLS * self.stride;
            (0..words).map(|_| AtomicU64::new(0)).collect()
        });
        self.used.store(cell + 1, Release);
        Some(cell)
    }

    #[inline]
    fn cell(&self, number: u32) -> Option<&[AtomicU64]> {
        let number = number as usize;
        let chunk = self.chunks.get(number / CHUNK_CELLS)?.get()?;
        let at = number % CHUNK_CELLS * self.stride;
        Some(&chunk[at..at + self.stride])
    }
}

/// All cells of a channel, shared by writer and readers.
#[derive(Debug)]
pub(crate) struct Cells {
    small: Arena,
    large: Arena,
}

impl Cells {
    #[inline]
    fn cell(&self, cell: Cell) -> Option<&[AtomicU64]> {
        if cell & LARGE != 0 {
            self.large.cell(cell & !LARGE)
        } else {
            self.small.cell(cell)
        }
    }
}

/// Writes the cells of a channel.
#[derive(Debug)]
pub(crate) struct CellWriter {
    cells: Arc<Cells>,
    /// Cells by instrument and kind; [`NONE`] where no cell exists yet.
    table: Vec<[Cell; KINDS]>,
    others: HashMap<u32, [Cell; KINDS]>,
}

const NONE: Cell = u32::MAX;
/// An upper bound of all epochs.
pub(crate) const ANY_EPOCH: Epoch = Epoch(u64::MAX);
/// Instrument ids below this limit are looked up in a table.
const TABLE_LEN: usize = 1 << 18;

impl CellWriter {
    pub(crate) fn new() -> Self {
        let cells = Cells {
            small: Arena::new(SMALL_CHUNKS, SMALL_WORDS),
            large: Arena::new(LARGE_CHUNKS, LARGE_WORDS),
        };
        Self {
            cells: Arc::new(cells),
            table: Vec::new(),
            others: HashMap::new(),
        }
    }

    pub(crate) fn reader(&self) -> LatestReader {
        LatestReader {
            cells: Arc::clone(&self.cells),
            seen: [Vec::new(), Vec::new()],
            dirty: Vec::new(),
            buffer: vec![0; LARGE_WORDS],
            conflated: 0,
        }
    }

    /// Writes a record to its cell. Returns `None` when it has no cell and must be delivered directly.
    #[inline]
    pub(crate) fn write(&mut self, position: &Position, record: RecordRef<'_>) -> Option<Cell> {
        let kind = kind_of(&record)?;
        let cell = self.find(record.header().instrument_id, kind)?;
        let bytes: &[u8] = record.as_ref();
        let words = bytes.chunks_exact(WORD).map(|chunk| {
            let mut word = [0; WORD];
            word.copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        let values = pack(position).into_iter().chain(words);
        seqlock::write(self.cells.cell(cell)?, values);
        Some(cell)
    }

    #[inline]
    fn find(&mut self, instrument: u32, kind: usize) -> Option<Cell> {
        let at = instrument as usize;
        let known = match self.table.get(at) {
            Some(kinds) => kinds[kind],
            None => self
                .others
                .get(&instrument)
                .map_or(NONE, |kinds| kinds[kind]),
        };
        if known == NONE {
            self.add(instrument, kind)
        } else {
            Some(known)
        }
    }

    #[cold]
    fn add(&mut self, instrument: u32, kind: usize) -> Option<Cell> {
        let cell = if is_large(kind) {
            self.cells.large.add()? | LARGE
        } else {
            self.cells.small.add()?
        };
        let at = instrument as usize;
        let kinds = if at < TABLE_LEN {
            if self.table.len() <= at {
                self.table
                    .resize((at + 1).next_power_of_two(), [NONE; KINDS]);
            }
            &mut self.table[at]
        } else {
            self.others.entry(instrument).or_insert([NONE; KINDS])
        };
        kinds[kind] = cell;
        Some(cell)
    }
}

/// Delivers the changed cells. Each reader has its own state.
#[derive(Clone, Debug)]
pub(crate) struct LatestReader {
    cells: Arc<Cells>,
    /// The version last delivered of each cell, small and large. An odd version marks a cell in `dirty`.
    seen: [Vec<u64>; 2],
    /// The changed cells, each with the position of its newest record at the last check.
    dirty: Vec<((u64, u64), Cell)>,
    buffer: Vec<u64>,
    /// The number of records that newer ones replaced.
    conflated: u64,
}

impl LatestReader {
    /// Marks one cell as changed.
    #[inline]
    pub(crate) fn mark(&mut self, cell: Cell) {
        let seen = &mut self.seen[usize::from(cell & LARGE != 0)];
        let at = (cell & !LARGE) as usize;
        if seen.len() <= at {
            seen.resize((at + 1).next_power_of_two().max(CHUNK_CELLS), 0);
        }
        if seen[at] & 1 == 0 {
            seen[at] |= 1;
            self.dirty.push(((0, 0), cell));
        }
    }

    /// Marks every cell as changed, because the ring overwrote the entries that name the changed ones.
    pub(crate) fn mark_all(&mut self) {
        for cell in 0..self.cells.small.used.load(Acquire) {
            self.mark(cell);
        }
        for cell in 0..self.cells.large.used.load(Acquire) {
            self.mark(cell | LARGE);
        }
    }

    /// Returns whether any cell has changed.
    #[inline]
    pub(crate) const fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the number of records replaced since the last call.
    pub(crate) const fn take_conflated(&mut self) -> u64 {
        std::mem::replace(&mut self.conflated, 0)
    }

    /// Delivers the newest record of every changed cell, in stream order. After a panic of `on`, the next
    /// call delivers the remaining cells.
    pub(crate) fn flush(&mut self, on: impl FnMut(Position, RecordRef<'_>)) {
        self.flush_to(ANY_EPOCH, on);
    }

    /// Delivers as [`LatestReader::flush`] does, but only records of the epoch `last` or earlier ones.
    pub(crate) fn flush_to(&mut self, last: Epoch, mut on: impl FnMut(Position, RecordRef<'_>)) {
        if self.dirty.len() > 1 || last != ANY_EPOCH {
            for (place, cell) in &mut self.dirty {
                if let Some(words) = self.cells.cell(*cell) {
                    let word = |at: usize| words[1 + at].load(Relaxed);
                    *place = (word(EPOCH_WORD), word(RECORD_WORD));
                }
            }
            // Sort in descending order, so that delivered cells can be popped off the end.
            self.dirty.sort_unstable_by(|a, b| b.cmp(a));
        }
        while let Some((_, cell)) = self.dirty.pop_if(|((epoch, _), _)| *epoch <= last.0) {
            let seen = &mut self.seen[usize::from(cell & LARGE != 0)][(cell & !LARGE) as usize];
            *seen &= !1;
            let words = self.cells.cell(cell);
            let version = words.and_then(|words| seqlock::copy(words, &mut self.buffer, *seen));
            let Some(version) = version else {
                continue;
            };
            let skipped = (version - *seen) / 2 - 1;
            *seen = version;
            self.conflated += skipped;
            let mut words = [0; POSITION_WORDS];
            words.copy_from_slice(&self.buffer[..POSITION_WORDS]);
            let mut position = unpack(&words);
            position.quality.conflated = u32::try_from(skipped).unwrap_or(u32::MAX);
            // The first byte of a record is its length in words of 4 bytes.
            let record = &self.buffer[POSITION_WORDS..];
            let len = usize::from(words_as_bytes(&record[..1])[0]) * 4;
            if let Some(bytes) = words_as_bytes(record).get(..len)
                && let Ok(mut records) = Records::check(bytes, 1)
                && let Some(record) = records.next()
            {
                on(position, record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::{Quality, Via};
    use tickcast_reliability::record::{
        BidAskPair, HasRType, ImbalanceMsg, MboMsg, RecordHeader, StatMsg, StatusReason,
    };
    use tickcast_reliability::types::{
        ChannelId, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
    };

    fn position(record: u64) -> Position {
        Position {
            channel: ChannelId(1),
            epoch: Epoch(1),
            sequence: Sequence(record),
            record: RecordNumber(record),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(1),
            source_position: SourcePosition(0),
            sent_at: Nanos(0),
            received_at: Nanos(0),
            missing_for: Nanos(0),
        }
    }

    fn header<R: WireRecord + HasRType>(instrument: u32) -> RecordHeader {
        RecordHeader::new::<R>(R::RTYPE, 1, instrument, 0)
    }

    fn quote(instrument: u32, size: u32) -> Mbp1Msg {
        Mbp1Msg {
            hd: header::<Mbp1Msg>(instrument),
            price: size.into(),
            action: Action::Modify as _,
            levels: [BidAskPair {
                bid_sz: size,
                ask_sz: size,
                ..BidAskPair::default()
            }],
            ..Mbp1Msg::default()
        }
    }

    fn flushed(reader: &mut LatestReader) -> Vec<(u64, u32, u32)> {
        let mut all = Vec::new();
        reader.flush(|position, record| {
            let instrument = record.header().instrument_id;
            all.push((position.record.0, instrument, position.quality.conflated));
        });
        all
    }

    #[test]
    fn newest_of_kind_and_instrument_keep_stream_order() {
        let mut writer = CellWriter::new();
        let (mut reader, mut late) = (writer.reader(), writer.reader());
        // Ids inside and outside the table.
        let ids = [5, TABLE_LEN as u32 + 9, u32::MAX];
        for record in 1..=9u32 {
            let quote = quote(ids[record as usize % 3], record);
            let cell = writer
                .write(&position(record.into()), RecordRef::from(&quote))
                .unwrap();
            reader.mark(cell);
        }
        let expected = [(7, ids[1], 2), (8, ids[2], 2), (9, ids[0], 2)];
        assert_eq!(flushed(&mut reader), expected);
        assert_eq!((reader.take_conflated(), reader.take_conflated()), (6, 0));
        assert!(flushed(&mut reader).is_empty(), "each once");
        let again = quote(5, 10);
        let cell = writer
            .write(&position(10), RecordRef::from(&again))
            .unwrap();
        reader.mark(cell);
        assert_eq!(flushed(&mut reader), [(10, 5, 0)]);
        // A lapped reader checks all cells.
        late.mark_all();
        assert_eq!(
            flushed(&mut late),
            [(7, ids[1], 2), (8, ids[2], 2), (10, 5, 3)]
        );
    }

    #[test]
    fn unconflatable_has_no_cell_and_kinds_have_several() {
        let mut writer = CellWriter::new();
        let mut write = |record: RecordRef<'_>| writer.write(&position(1), record);
        assert_eq!(write(RecordRef::from(&MboMsg::default())), None);
        assert_eq!(write(RecordRef::from(&StatMsg::default())), None);
        assert_eq!(write(RecordRef::from(&ImbalanceMsg::default())), None);
        let mut trade = TradeMsg {
            hd: header::<TradeMsg>(1),
            action: Action::Cancel as _,
            ..TradeMsg::default()
        };
        assert_eq!(
            write(RecordRef::from(&trade)),
            None,
            "it takes back a certain trade"
        );
        trade.action = Action::Trade as _;
        let mut cells = vec![write(RecordRef::from(&trade))];
        let mut quote = quote(1, 1);
        cells.push(write(RecordRef::from(&quote)));
        quote.action = Action::Trade as _;
        cells.push(write(RecordRef::from(&quote)));
        let mut status = StatusMsg {
            hd: header::<StatusMsg>(1),
            ..StatusMsg::default()
        };
        for (action, reason) in [
            (StatusAction::Halt, StatusReason::None),
            (StatusAction::SsrChange, StatusReason::None),
            (StatusAction::Halt, StatusReason::Operational),
            (StatusAction::None, StatusReason::None),
        ] {
            (status.action, status.reason) = (action as u16, reason as u16);
            cells.push(write(RecordRef::from(&status)));
        }
        let definition = InstrumentDefMsg {
            hd: header::<InstrumentDefMsg>(1),
            ..InstrumentDefMsg::default()
        };
        cells.push(write(RecordRef::from(&definition)));
        let mapping = SymbolMappingMsg {
            hd: header::<SymbolMappingMsg>(1),
            ..SymbolMappingMsg::default()
        };
        cells.push(write(RecordRef::from(&mapping)));
        assert!(cells.iter().all(Option::is_some), "{cells:?}");
        cells.sort();
        cells.dedup();
        assert_eq!(cells.len(), KINDS);
        (status.action, status.reason) = (StatusAction::Trading as u16, 0);
        let trading = write(RecordRef::from(&status));
        assert!(cells.contains(&trading), "trading replaces a halt");
    }

    #[test]
    fn conflating_reader_sees_no_torn_record() {
        const WRITES: u32 = 4_000_000;
        let mut writer = CellWriter::new();
        let mut reader = writer.reader();
        let cell = writer
            .write(&position(1), RecordRef::from(&quote(1, 1)))
            .unwrap();
        let thread = std::thread::spawn(move || {
            for n in 2..=WRITES {
                writer.write(&position(n.into()), RecordRef::from(&quote(1, n)));
            }
        });
        let (mut last, mut given) = (0, 0);
        while last < u64::from(WRITES) {
            reader.mark(cell);
            reader.flush(|position, record| {
                let quote = record.get::<Mbp1Msg>().unwrap();
                let level = &quote.levels[0];
                let size = position.record.0 as u32;
                assert_eq!(
                    (level.bid_sz, level.ask_sz, quote.price),
                    (size, size, size.into())
                );
                assert!(position.record.0 > last);
                last = position.record.0;
                given += 1 + u64::from(position.quality.conflated);
            });
        }
        thread.join().unwrap();
        assert_eq!(given, u64::from(WRITES), "given and conflated add up");
    }

    #[test]
    fn writing_and_reading_a_known_instrument_allocate_nothing() {
        let mut writer = CellWriter::new();
        let mut reader = writer.reader();
        let mut run = |from: u64| {
            for record in from..from + 5_000 {
                let quote = quote(1 + (record % 100) as u32, 1);
                let cell = writer.write(&position(record), RecordRef::from(&quote));
                reader.mark(cell.unwrap());
                if record % 64 == 0 {
                    reader.flush(|_, _| {});
                }
            }
        };
        run(0);
        let counted = allocation_counter::measure(|| run(5_000));
        assert_eq!(counted.count_total, 0, "{counted:?}");
    }
}
