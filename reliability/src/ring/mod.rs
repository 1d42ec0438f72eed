//! The ring: any reader can copy sealed datagrams at any time. A copy is exactly what was sealed, or an
//! error; never a mixture. The writer never waits.
//!
//! One [`RingWriter`] seals datagrams into slots; any number of [`RingReader`]s copy them, in this
//! process or another. The memory comes from outside ([`RingMemory`]). The layout is in
//! `ring::layout` (docs/PROTOCOL.md §9).
//!
//! Each slot is a sequence lock whose version is the datagram's own sequence word. The word is 0 while
//! the slot is written and takes each value once. A reader that finds the wanted sequence before and
//! after its copy has therefore copied that datagram.

mod atomics;
mod from_journal;
mod inbox_slot;
mod layout;
mod mirror;
mod reader;
mod recovery;
pub mod slot;
mod writer;

pub(crate) use self::layout::slots_of;
pub use self::layout::{
    CHECKPOINTS_MAX, CONTROL_PAGE_LEN, Checkpoint, CopyError, FAN_OUTS_MAX, Geometry,
    GeometryError, LAYOUT_VERSION, RING_ALIGN, RING_MAGIC, RingError, RingIdentity, offset,
};

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) use self::from_journal::RingState;
pub use self::inbox_slot::WrittenSlots;
pub use self::reader::RingReader;
pub use self::writer::{RingWriter, Seal};

use crate::ring::atomics::AtomicU64;
use crate::ring::atomics::Ordering::{Acquire, Relaxed, Release};
use crate::ring::layout::CHECKPOINT_LEN;
use crate::types::{Epoch, FanOutId, RecordNumber, SEQUENCE_LAST, Sequence};
use crate::wire::{HEADER_LEN, SEQUENCE_OFFSET};

/// Bytes in a word; all shared fields are words.
const WORD: usize = 8;
/// Bytes of a cache line.
const LINE_LEN: usize = 64;
const SEQUENCE_WORD: usize = SEQUENCE_OFFSET / WORD;
const _: () = assert!(SEQUENCE_WORD == slot::VERSION);
const HEADER_WORDS: usize = HEADER_LEN / WORD;

/// Memory for a ring: mapped, or on the heap.
///
/// # Safety
/// `as_ptr` returns the same address at every call, aligned to [`RING_ALIGN`]. Its `len` bytes are
/// initialised and stay valid and mapped for as long as the value lives. Only the one [`RingWriter`], in
/// whichever process, writes them. Only this module makes references to them. The same holds for the
/// [`tail`](RingMemory::tail) bytes behind them, except that this module never touches them: they belong
/// to the fan-outs.
#[expect(clippy::len_without_is_empty, reason = "empty memory is no ring")]
pub unsafe trait RingMemory: Send + Sync {
    /// Returns the address of the first byte.
    fn as_ptr(&self) -> *mut u8;
    /// Returns the length in bytes.
    fn len(&self) -> usize;
    /// Returns the number of bytes behind the ring, in which a shared-memory fan-out keeps its state.
    fn tail(&self) -> usize {
        0
    }
    /// Returns a hook that is called when a reader has copied one half of a slot. A simulation lets the
    /// writer run there. The hook is constant for the value's life.
    fn half_copied(&self) -> Option<fn()> {
        None
    }
}

impl fmt::Debug for dyn RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[repr(C, align(64))]
struct Line([AtomicU64; RING_ALIGN / WORD]);

/// Memory of one process, for tests and simulation.
pub struct HeapMemory {
    lines: Box<[Line]>,
    half_copied: Option<fn()>,
}

impl HeapMemory {
    /// Returns zeroed memory for a ring of this geometry.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self::of(geometry, None)
    }

    /// Returns zeroed memory for a ring of this geometry. `half_copied` is called in the middle of every copy
    /// of a slot.
    #[must_use]
    pub fn interrupted(geometry: Geometry, half_copied: fn()) -> Self {
        Self::of(geometry, Some(half_copied))
    }

    fn of(geometry: Geometry, half_copied: Option<fn()>) -> Self {
        let line = || Line([const { AtomicU64::new(0) }; RING_ALIGN / WORD]);
        let lines = geometry.bytes().div_ceil(RING_ALIGN);
        Self {
            lines: (0..lines).map(|_| line()).collect(),
            half_copied,
        }
    }

    /// Returns memory with these bytes, like a mapping whose writer was killed.
    #[must_use]
    pub fn left_behind(bytes: &[u8], half_copied: fn()) -> Self {
        let words = |line: &[u8]| {
            let mut words = words_of(line);
            Line([(); RING_ALIGN / WORD].map(|()| AtomicU64::new(words.next().unwrap_or(0))))
        };
        Self {
            lines: bytes.chunks(RING_ALIGN).map(words).collect(),
            half_copied: Some(half_copied),
        }
    }
}

// SAFETY: the box is never reallocated, its elements are aligned to 64 and made of atomics, so
// shared writes through the pointer are allowed. Exercised by every test here.
unsafe impl RingMemory for HeapMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.lines.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.lines.len() * RING_ALIGN
    }

    fn half_copied(&self) -> Option<fn()> {
        self.half_copied
    }
}

/// The words of a ring, and its fixed properties.
#[derive(Clone)]
struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
    geometry: Geometry,
    half_copied: Option<fn()>,
    memory: Arc<dyn RingMemory>,
}

// SAFETY: the words are atomics in memory that `memory` keeps valid, and it is `Send + Sync`.
// Exercised by `tests::lapped_reader_never_copies_torn_slot`.
unsafe impl Send for Words {}
// SAFETY: as for `Send`.
unsafe impl Sync for Words {}

impl Words {
    fn new(memory: Arc<dyn RingMemory>, geometry: Geometry) -> Result<Self, RingError> {
        let (needed, len) = (geometry.bytes(), memory.len());
        if len < needed {
            return Err(RingError::TooSmall { needed, len });
        }
        match NonNull::new(memory.as_ptr().cast::<AtomicU64>()) {
            Some(base) if base.addr().get().is_multiple_of(RING_ALIGN) => Ok(Self {
                base,
                count: needed / WORD,
                geometry,
                half_copied: memory.half_copied(),
                memory,
            }),
            _ => Err(RingError::Misaligned),
        }
    }

    #[inline]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: `new` checked alignment and length; the implementor of `RingMemory` promised
        // initialised memory that outlives `memory`, and that only this module refers to it.
        // Exercised by `tests::memory_that_is_no_ring_is_refused` and the torture test.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }

    #[inline]
    fn field(&self, offset: usize) -> &AtomicU64 {
        &self.all()[offset / WORD]
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        u64::from_le(self.field(offset).load(Acquire))
    }

    #[inline]
    fn slot(&self, sequence: Sequence) -> &[AtomicU64] {
        let first = self.geometry.slot_offset(sequence) / WORD;
        &self.all()[first..first + self.geometry.slot_len() / WORD]
    }
}

/// The words of a ring as owned by its only writer. They change through `&mut self` alone, so data borrowed
/// from `&self` cannot change.
struct OwnWords(Words);

impl OwnWords {
    #[inline]
    fn store(&mut self, offset: usize, value: u64) {
        self.0.field(offset).store(value.to_le(), Release);
    }

    /// Returns the words of a slot, for stores.
    #[inline]
    fn slot_mut(&mut self, sequence: Sequence) -> &[AtomicU64] {
        self.0.slot(sequence)
    }

    /// Returns `len` words of the ring from word `at` on, for stores.
    #[inline]
    fn at_mut(&mut self, at: usize, len: usize) -> &[AtomicU64] {
        &self.0.all()[at..at + len]
    }

    /// Returns the header of the slot that begins at word `at`.
    #[inline]
    fn header_at(&self, at: usize) -> &[AtomicU64; HEADER_WORDS] {
        let header = self.0.all()[at..].first_chunk();
        // invariant: a slot is longer than a header, and lies entirely in the ring.
        header.unwrap_or_else(|| unreachable!("word {at} begins no slot"))
    }

    /// Returns `len` bytes of the ring from word `at` on.
    #[inline]
    fn bytes_at(&self, at: usize, len: usize) -> &[u8] {
        self.bytes(&self.0.all()[at..at + len.div_ceil(WORD)], len)
    }

    /// Returns the bytes of a slot. `len` computes their number from its words, at most the whole slot.
    #[inline]
    fn bytes_of(&self, sequence: Sequence, len: impl FnOnce(&[AtomicU64]) -> usize) -> &[u8] {
        let slot = self.0.slot(sequence);
        self.bytes(slot, len(slot))
    }

    /// Returns the first `len` bytes of these words of the ring, at most all.
    #[inline]
    fn bytes<'a>(&'a self, words: &'a [AtomicU64], len: usize) -> &'a [u8] {
        let len = len.min(size_of_val(words));
        // SAFETY: `len` is at most the length of the words, which belong to the ring. Only the ring's one
        // writer stores to them, and only through `&mut self`, which the borrow excludes; others only load
        // them. Exercised by `tests::sealed_slot_is_readable_by_writer_and_reader`.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), len) }
    }
}

const fn fan_out_offset(fan_out: FanOutId) -> usize {
    offset::SENT + (fan_out.0 as usize % FAN_OUTS_MAX) * WORD
}

const fn checkpoint_offset(index: usize) -> usize {
    offset::CHECKPOINTS + index * CHECKPOINT_LEN
}

/// Returns the check word of a checkpoint, which detects an overwritten checkpoint.
const fn checkpoint_check([source, position, low, high]: [u64; 4]) -> u64 {
    !(source ^ position ^ low ^ high)
}

/// Returns first record, count and length of a sealed slot, read like [`RingReader::copy`] does.
fn numbers_of(words: &Words, sequence: Sequence) -> Option<(RecordNumber, u16, usize)> {
    let slot = words.slot(sequence);
    if sequence == Sequence::NONE || slot::version_before(slot) != sequence.0 {
        return None;
    }
    let count = u64::from_le(slot[0].load(Relaxed)) >> 48;
    let first = u64::from_le(slot[3].load(Relaxed));
    let len = datagram_len(
        u64::from_le(slot[6].load(Relaxed)),
        u64::from_le(slot[7].load(Relaxed)),
    );
    (slot::version_after(slot) == sequence.0).then_some((RecordNumber(first), count as u16, len))
}

fn next_record_after(
    words: &Words,
    identity: &RingIdentity,
    sequence: Sequence,
) -> Option<RecordNumber> {
    if sequence.next() == identity.first_sequence {
        return Some(identity.first_record);
    }
    let (first, count, _) = numbers_of(words, sequence)?;
    Some(first.plus(count.into()))
}

/// Returns the length of a datagram from the words of its header that hold `payload_len` and `header_len`.
const fn datagram_len(word_6: u64, word_7: u64) -> usize {
    (word_6 >> 48) as usize + ((word_7 >> 16) & 0xff) as usize * WORD
}

/// Returns bytes as words of a slot, the last one padded with zeros.
#[inline]
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = bytes.as_chunks();
    let last = (!rest.is_empty()).then(|| {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        last
    });
    (whole.iter().copied().chain(last)).map(u64::from_ne_bytes)
}

fn split(bytes: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(bytes);
    (whole as u64, (whole >> 64) as u64)
}

fn check_identity(identity: &RingIdentity) -> Result<(), RingError> {
    let possible = identity.epoch != Epoch::NONE
        && identity.first_sequence != Sequence::NONE
        && identity.first_sequence <= SEQUENCE_LAST
        && usize::from(identity.fan_outs) <= FAN_OUTS_MAX;
    if possible {
        return Ok(());
    }
    Err(RingError::Identity {
        epoch: identity.epoch.0,
        first_sequence: identity.first_sequence.0,
        fan_outs: identity.fan_outs.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{words_as_bytes, words_as_bytes_mut};
    use crate::ring::layout::{Checkpoint, CopyError};
    use crate::types::{ChannelId, ConfigHash, Nanos, SequenceRange, SourceId, SourcePosition};
    use crate::wire::{CrcVerdict, Datagram, Kind, PublisherState};

    fn geometry() -> Geometry {
        Geometry::new(1024, 16).unwrap()
    }

    fn identity(first: u64) -> RingIdentity {
        RingIdentity {
            channel: ChannelId(3),
            epoch: Epoch(5),
            config_hash: ConfigHash(7),
            boot_id: *b"0123456789abcdef",
            fan_outs: 2,
            first_sequence: Sequence(first),
            first_record: RecordNumber(1),
        }
    }

    fn ring(first: u64) -> (RingWriter, Arc<HeapMemory>) {
        let memory = Arc::new(HeapMemory::new(geometry()));
        let writer = RingWriter::create_in(memory.clone(), geometry(), identity(first)).unwrap();
        (writer, memory)
    }

    fn write(writer: &mut RingWriter, payload: &[u8], count: u16) -> Sequence {
        writer.open().unwrap();
        writer.append(payload).unwrap();
        let seal = Seal {
            kind: Kind::Data,
            count,
            source: SourceId(1),
            source_position: SourcePosition(9),
            sent_at: Nanos(11),
            flags: 0,
        };
        writer.seal(seal).unwrap()
    }

    #[test]
    fn sealed_slot_is_readable_by_writer_and_reader() {
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.identity(), &identity(1));
        assert_eq!(reader.state(), Some(PublisherState::Live));
        assert_eq!(reader.verify(), Ok(None));
        let sealed = Sequence(0);
        let nothing = reader.copy(Sequence(1), &mut [0; 128]);
        assert_eq!(nothing, Err(CopyError::NotSealed { sealed }));
        assert_eq!(reader.first_record_of(Sequence::NONE), None);
        assert_eq!(reader.len_of(Sequence::NONE), None);
        let payload: Vec<u8> = (0..56).collect();
        assert_eq!(write(&mut writer, &payload, 2), Sequence(1));
        let last = write(&mut writer, &[0xff; 960], 3);
        let mut buffer = [0; 128];
        let len = reader.copy(Sequence(1), &mut buffer).unwrap();
        let bytes = &words_as_bytes(&buffer)[..len];
        assert_eq!(writer.slot(Sequence(1)), Some(bytes));
        let datagram = Datagram::parse(bytes).unwrap();
        assert_eq!(datagram.verdict(), CrcVerdict::Good);
        assert_eq!(datagram.payload(), payload);
        let header = datagram.header();
        assert_eq!((header.epoch, header.channel), (Epoch(5), ChannelId(3)));
        assert_eq!((header.retained, header.count), (1, 2));
        assert_eq!(reader.first_record_of(last), Some(RecordNumber(3)));
        assert_eq!(reader.next_record_after(last), Some(RecordNumber(6)));
        assert_eq!(reader.next_record_after(Sequence(0)), Some(RecordNumber(1)));
        assert_eq!(reader.len_of(last), Some(1024));
        assert_eq!(reader.sealed(), last);
        let held = SequenceRange::new(Sequence(1), last);
        assert_eq!(reader.verify(), Ok(held));
        // SAFETY: the slot is sealed and the writer lives.
        let pinned = unsafe { std::slice::from_raw_parts(writer.slot_ptr(Sequence(1)), len) };
        assert_eq!(pinned, bytes);
    }

    #[test]
    fn ring_open_laps_oldest_slot_before_write() {
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory).unwrap();
        let mut buffer = [0; 128];
        for _ in 0..16 {
            write(&mut writer, &[1; 8], 1);
        }
        assert_eq!(reader.oldest(), Sequence(1));
        assert!(reader.copy(Sequence(1), &mut buffer).is_ok());
        let not_sealed = CopyError::NotSealed {
            sealed: Sequence(16),
        };
        assert_eq!(reader.copy(Sequence(17), &mut buffer), Err(not_sealed));
        assert_eq!(writer.open(), Ok(Sequence(17)));
        assert_eq!(writer.open(), Ok(Sequence(17)), "opening twice is once");
        let lapped = CopyError::Lapped {
            oldest: Sequence(2),
        };
        assert_eq!(reader.copy(Sequence(1), &mut buffer), Err(lapped));
        assert_eq!(writer.slot(Sequence(1)), None);
        assert_eq!(reader.copy(Sequence(17), &mut buffer), Err(not_sealed));
        assert_eq!(reader.verify().unwrap().unwrap().first, Sequence(2));
        assert_eq!(reader.first_record_of(Sequence(1)), None);
        assert!(reader.copy(Sequence(0), &mut buffer).is_err());
        assert!(matches!(
            reader.copy(Sequence(2), &mut buffer[..127]),
            Err(CopyError::Buffer { needed: 1024, .. })
        ));
    }

    #[test]
    fn adjacent_slots_are_one_piece_padded_with_zeros() {
        let (mut writer, _) = ring(1);
        // The second lap leaves its bytes behind shorter datagrams of the third.
        for _ in 0..32 {
            write(&mut writer, &[7; 960], 1);
        }
        for len in [904, 8, 897, 960, 912, 952, 896, 512] {
            write(&mut writer, &vec![5; len], 1);
        }
        let range = |first, last| SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
        let (first, last) = (33, 40);
        let bytes = writer.adjacent(range(first, last)).unwrap();
        for n in first..=last {
            let (_, from) = bytes.split_at((n - first) as usize * 1024);
            let datagram = writer.slot(Sequence(n)).unwrap();
            let (own, behind) = from.split_at(datagram.len());
            assert_eq!(own, datagram);
            assert_eq!(behind.is_empty(), n == last);
            let rest = 1024 - datagram.len();
            if rest < 64 && n < last {
                assert!(behind[..rest].iter().all(|byte| *byte == 0), "behind {n}");
            }
        }
        assert_eq!(writer.adjacent(range(40, 40)), writer.slot(Sequence(40)));
        // 31 and 32 lie at the two ends of the ring; 24 is overwritten, and 41 not sealed.
        assert_eq!(writer.adjacent(range(31, 32)), None);
        assert!(writer.adjacent(range(25, 31)).is_some());
        assert_eq!(writer.adjacent(range(24, 26)), None);
        assert_eq!(writer.adjacent(range(40, 41)), None);
        assert_eq!(writer.adjacent(range(1, 33)), None);
    }

    #[test]
    fn slot_append_beyond_room_is_refused() {
        let (mut writer, _) = ring(1);
        assert_eq!(writer.append(&[0; 8]), Err(RingError::NotOpen));
        writer.open().unwrap();
        assert_eq!(writer.room(), 960);
        writer.append(&[1; 955]).unwrap();
        assert_eq!(writer.room(), 0);
        let full = RingError::SlotFull { len: 8, room: 0 };
        assert_eq!(writer.append(&[0; 1]), Err(full));
    }

    #[test]
    fn sequences_go_on_past_32_bits_and_stop_before_they_wrap() {
        let start = (1 << 32) - 3;
        let (mut writer, memory) = ring(start);
        let reader = RingReader::attach(memory).unwrap();
        for n in 0..40 {
            assert_eq!(write(&mut writer, &[1; 8], 1), Sequence(start + n));
        }
        assert_eq!(reader.verify().unwrap().unwrap().len(), 16);
        let (mut writer, memory) = ring(u64::MAX - 2);
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(write(&mut writer, &[1; 8], 1), Sequence(u64::MAX - 2));
        assert_eq!(write(&mut writer, &[1; 8], 1), SEQUENCE_LAST);
        assert_eq!(writer.open(), Err(RingError::Exhausted));
        assert_eq!(reader.verify().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn memory_that_somebody_else_holds_gets_no_writer() {
        let memory = Arc::new(HeapMemory::new(geometry()));
        let made = |memory: &Arc<HeapMemory>| {
            RingWriter::create(memory.clone(), geometry(), identity(1)).err()
        };
        assert_eq!(made(&memory), Some(RingError::Shared));
        assert!(RingWriter::create(memory, geometry(), identity(1)).is_ok());
    }

    #[test]
    fn memory_that_is_no_ring_is_refused() {
        let attach = |memory: &Arc<HeapMemory>| RingReader::attach(memory.clone()).err();
        let empty = Arc::new(HeapMemory::new(geometry()));
        assert_eq!(attach(&empty), Some(RingError::Magic { magic: 0 }));
        let larger = Geometry::new(1024, 32).unwrap();
        let small = RingWriter::create_in(empty.clone(), larger, identity(1)).err();
        assert!(matches!(small, Some(RingError::TooSmall { .. })));
        for wrong in [
            identity(0),
            identity(u64::MAX),
            RingIdentity {
                epoch: Epoch(0),
                ..identity(1)
            },
            RingIdentity {
                fan_outs: 9,
                ..identity(1)
            },
        ] {
            let error = RingWriter::create_in(empty.clone(), geometry(), wrong).err();
            assert!(matches!(error, Some(RingError::Identity { .. })));
        }
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory.clone()).unwrap();
        let config = RingError::Config {
            found: 7,
            expected: 8,
        };
        assert_eq!(reader.expecting(ConfigHash(8)).err(), Some(config));
        for (offset, value, error) in [
            (offset::LAYOUT, 2, RingError::Layout { layout: 2 }),
            (
                offset::SLOTS,
                17,
                RingError::Geometry(Geometry::new(1024, 17).unwrap_err()),
            ),
            (
                offset::SLOT_LEN,
                1 << 40,
                RingError::Geometry(Geometry::new(u32::MAX, 16).unwrap_err()),
            ),
        ] {
            let before = writer.words_mut().0.load(offset);
            writer.words_mut().store(offset, value);
            assert_eq!(attach(&memory), Some(error));
            writer.words_mut().store(offset, before);
        }
        assert_eq!(attach(&memory), None);
    }

    #[test]
    fn damage_in_a_sealed_slot_is_found() {
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory).unwrap();
        let sequence = write(&mut writer, &[1; 64], 1);
        let lens = writer.words_mut().slot_mut(sequence)[6].load(Relaxed);
        writer.words_mut().slot_mut(sequence)[6].store(u64::MAX, Relaxed);
        assert!(matches!(
            reader.copy(sequence, &mut [0; 128]),
            Err(CopyError::Damaged { .. })
        ));
        assert!(writer.slot(sequence).unwrap().len() <= 1024);
        writer.words_mut().slot_mut(sequence)[6].store(lens, Relaxed);
        writer.words_mut().slot_mut(sequence)[9].store(0, Relaxed);
        assert_eq!(reader.verify(), Err(RingError::Slot { sequence: 1 }));
    }

    #[test]
    fn control_page_reflects_writer_state() {
        let (mut writer, memory) = ring(10);
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.sent_by_all(), Sequence(9));
        assert_eq!(reader.oldest(), Sequence(10));
        writer.set_sent(FanOutId(0), Sequence(12));
        writer.set_sent(FanOutId(1), Sequence(11));
        assert_eq!(reader.sent_by_all(), Sequence(11));
        assert_eq!(reader.sent_by_any(), Sequence(12));
        writer.set_state(PublisherState::Ended);
        writer.set_heartbeat_at(Nanos(77));
        assert_eq!(reader.state(), Some(PublisherState::Ended));
        assert_eq!(reader.heartbeat_at(), Nanos(77));
        let checkpoint = |source| Checkpoint {
            source: SourceId(source),
            position: SourcePosition::new(1, u64::from(source)),
            session: *b"SESSION 01\0\0\0\0\0\0",
        };
        for source in 0..16 {
            assert!(writer.set_checkpoint(checkpoint(source)));
        }
        assert!(
            !writer.set_checkpoint(checkpoint(16)),
            "there is no more room"
        );
        assert!(writer.set_checkpoint(checkpoint(15)));
        assert_eq!(reader.checkpoint(SourceId(15)), Some(checkpoint(15)));
        assert_eq!(reader.checkpoint(SourceId(16)), None);
    }

    #[test]
    fn slot_copy_lapped_midway_is_detected() {
        thread_local! {
            /// The writer that runs while a slot is half copied.
            static WRITER: std::cell::RefCell<Option<RingWriter>> = const {
                std::cell::RefCell::new(None)
            };
        }
        let half_copied = || {
            WRITER.with_borrow_mut(|writer| {
                for writer in writer.iter_mut() {
                    for _ in 0..16 {
                        write(writer, &[2; 64], 1);
                    }
                }
            });
        };
        let memory = Arc::new(HeapMemory::interrupted(geometry(), half_copied));
        let mut writer = RingWriter::create_in(memory, geometry(), identity(1)).unwrap();
        let reader = writer.reader();
        let mut buffer = [0; 128];
        write(&mut writer, &[1; 64], 1);
        assert!(reader.copy(Sequence(1), &mut buffer).is_ok());
        WRITER.set(Some(writer));
        let oldest = Sequence(2);
        let lapped = reader.copy(Sequence(1), &mut buffer);
        assert_eq!(lapped, Err(CopyError::Lapped { oldest }));
        WRITER.set(None);
        assert!(reader.copy(Sequence(17), &mut buffer).is_ok());
        // The later datagram is complete, but is not mistaken for the wanted one.
        let lapped = reader.copy(Sequence(1), &mut buffer);
        assert_eq!(lapped, Err(CopyError::Lapped { oldest }));
    }

    #[test]
    fn device_reads_bytes_in_place_and_none_beyond_ring() {
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory).unwrap();
        let sequence = write(&mut writer, &[7; 64], 1);
        let at = geometry().slot_offset(sequence);
        let mut bytes = [0; 128];
        reader.raw(at, &mut bytes);
        assert_eq!(Some(&bytes[..]), writer.slot(sequence));
        reader.raw(offset::SEALED, &mut bytes[..8]);
        assert_eq!(bytes[..8], sequence.0.to_le_bytes());
        let mut end = [9; 24];
        reader.raw(geometry().bytes() - 8, &mut end);
        assert_eq!((&end[..8], &end[8..]), (&[0; 8][..], &[9; 16][..]));
    }

    #[test]
    fn lapped_reader_never_copies_torn_slot() {
        // Every word of the payload of sequence s is s, and its length depends on s. Slots are long, so
        // that a copy takes long enough to be overtaken. Without the second check of the sequence word,
        // this fails.
        const COPIES: u64 = 100_000;
        let geometry = Geometry::new(8960, 16).unwrap();
        let memory = Arc::new(HeapMemory::new(geometry));
        let mut writer = RingWriter::create_in(memory.clone(), geometry, identity(1)).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let reader = RingReader::attach(memory).unwrap();
                let mut buffer = [0; 1120];
                let (mut attempts, mut good, mut lapped) = (0, 0, 0);
                while good < COPIES || lapped == 0 {
                    // Alternate between the newest one and the one to be overwritten next.
                    attempts += 1;
                    let wanted = reader.sealed().minus(15 * (attempts % 2));
                    match reader.copy(wanted, &mut buffer) {
                        Ok(len) => {
                            let bytes = &words_as_bytes_mut(&mut buffer)[..len];
                            let datagram = Datagram::parse(bytes).unwrap();
                            assert_eq!(datagram.verdict(), CrcVerdict::Good);
                            assert_eq!(datagram.header().sequence, wanted);
                            let word = wanted.0.to_ne_bytes();
                            assert!(datagram.payload().chunks(8).all(|c| c == word));
                            good += 1;
                        }
                        Err(CopyError::Lapped { .. }) => lapped += 1,
                        Err(CopyError::NotSealed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                stop.store(true, Relaxed);
            });
            while !stop.load(Relaxed) && !reading.is_finished() {
                let next = writer.sealed().next();
                let words = [next.0; 1112];
                let len = 8 * (1000 + next.0 as usize % 113);
                write(&mut writer, &words_as_bytes(&words)[..len], 1);
            }
            reading.join().unwrap();
        });
    }

    #[test]
    fn ring_writer_reports_room_and_retained_slots() {
        let (mut writer, memory) = ring(1);
        assert_eq!(memory.len(), 4096 + 16 * 1024);
        assert_eq!((writer.room(), writer.payload_max()), (960, 960));
        assert_eq!((writer.is_open(), writer.sealed()), (false, Sequence(0)));
        writer.open().unwrap();
        writer.append(&[1; 9]).unwrap();
        assert_eq!((writer.is_open(), writer.room()), (true, 944));
        write(&mut writer, &[2; 8], 5);
        assert!(!writer.is_open() && writer.room() == 960);
        assert_eq!(writer.slot(Sequence(1)).unwrap().len(), 64 + 16 + 8);
        assert_eq!(writer.slot(Sequence(1)).unwrap()[64..80], {
            let mut padded = [1; 16];
            padded[9..].fill(0);
            padded
        });
        assert_eq!(
            (writer.slot(Sequence(0)), writer.slot(Sequence(2))),
            (None, None)
        );
        assert_eq!(writer.next_record(), RecordNumber(6));
        assert_eq!(writer.next_record_after(Sequence(1)), Some(RecordNumber(6)));
        assert_eq!(writer.next_record_after(Sequence(2)), None);
        for _ in 0..20 {
            write(&mut writer, &[2; 8], 1);
        }
        assert_eq!(
            (writer.oldest(), writer.sealed()),
            (Sequence(6), Sequence(21))
        );
        assert_eq!(writer.retained(Sequence(21)), 16);
        assert_eq!(writer.retained(Sequence(5)), 0);
        assert_eq!(writer.next_record_after(Sequence(0)), Some(RecordNumber(1)));
        assert_eq!(
            (writer.identity(), writer.geometry()),
            (&identity(1), geometry())
        );
        let reader = writer.reader();
        assert_eq!(
            (reader.oldest(), reader.geometry()),
            (Sequence(6), geometry())
        );
        assert_eq!(reader.first_record_of(Sequence(0)), None);
        assert_eq!(reader.len_of(Sequence(5)), None);
        assert_eq!(reader.len_of(Sequence(6)), Some(72));
    }

    #[test]
    fn source_checkpoints_are_separate_and_torn_is_none() {
        let (mut writer, memory) = ring(1);
        let checkpoint = |source: u16, position| Checkpoint {
            source: SourceId(source),
            position: SourcePosition(position),
            session: (u128::from(source) << 64 | 7).to_le_bytes(),
        };
        for round in 1..3 {
            for source in 0..16 {
                assert!(writer.set_checkpoint(checkpoint(source, round)));
            }
            let reader = RingReader::attach(memory.clone()).unwrap();
            for source in 0..16 {
                let kept = reader.checkpoint(SourceId(source));
                assert_eq!(kept, Some(checkpoint(source, round)));
            }
        }
        let version = writer.words_mut().0.load(checkpoint_offset(3));
        writer.words_mut().store(checkpoint_offset(3), version + 1);
        let reader = writer.reader();
        assert_eq!(reader.checkpoint(SourceId(3)), None, "it is being written");
        assert!(writer.set_checkpoint(checkpoint(3, 9)));
        assert_eq!(reader.checkpoint(SourceId(3)), Some(checkpoint(3, 9)));
        assert_eq!(write(&mut writer, &[1; 8], 1), Sequence(1));
        assert!(reader.verify().is_ok());
    }

    #[test]
    fn sent_sequence_is_tracked_per_fan_out() {
        let memory = Arc::new(HeapMemory::new(geometry()));
        let eight = RingIdentity {
            fan_outs: 8,
            ..identity(1)
        };
        let mut writer = RingWriter::create(memory, geometry(), eight).unwrap();
        for fan_out in 0..8 {
            writer.set_sent(FanOutId(fan_out), Sequence(100 + u64::from(fan_out)));
        }
        let reader = writer.reader();
        let sent: Vec<u64> = (0..8).map(|f| reader.sent(FanOutId(f)).0).collect();
        assert_eq!(sent, (100..108).collect::<Vec<_>>());
        assert_eq!(
            (reader.sent_by_all(), reader.sent_by_any()),
            (Sequence(100), Sequence(107))
        );
        // Without a fan-out, every sealed datagram counts as sent.
        let memory = Arc::new(HeapMemory::new(geometry()));
        let none = RingIdentity {
            fan_outs: 0,
            ..identity(1)
        };
        let mut writer = RingWriter::create(memory, geometry(), none).unwrap();
        write(&mut writer, &[1; 8], 1);
        let reader = writer.reader();
        assert_eq!(
            (reader.sent_by_all(), reader.sent_by_any()),
            (Sequence(1), Sequence(1))
        );
    }

    #[test]
    fn slot_of_bad_length_or_epoch_is_unverified() {
        let (mut writer, memory) = ring(1);
        let reader = RingReader::attach(memory.clone()).unwrap();
        let sequence = write(&mut writer, &[1; 64], 1);
        let damaged = Err(RingError::Slot { sequence: 1 });
        let lens = writer.words_mut().slot_mut(sequence)[6].load(Relaxed);
        let head = writer.words_mut().slot_mut(sequence)[7].load(Relaxed);
        for (word, value) in [
            (6, (961 << 48) | (lens & 0xffff_ffff_ffff)),
            (7, head & !0xff_0000),
        ] {
            writer.words_mut().slot_mut(sequence)[word].store(value, Relaxed);
            let copied = reader.copy(sequence, &mut [0; 128]);
            if word == 6 {
                assert_eq!(copied, Err(CopyError::Damaged { len: 1025 }));
            } else {
                assert_eq!(copied, Ok(64), "a header of none and 64 bytes of payload");
            }
            assert_eq!(reader.verify(), damaged);
            writer.words_mut().slot_mut(sequence)[6].store(lens, Relaxed);
            writer.words_mut().slot_mut(sequence)[7].store(head, Relaxed);
        }
        assert_eq!(reader.verify(), Ok(Some(SequenceRange::one(sequence))));
        let short = CopyError::Buffer {
            len: 1016,
            needed: 1024,
        };
        assert_eq!(reader.copy(sequence, &mut [0; 127]), Err(short));
        writer.words_mut().store(offset::SEALED, 17);
        let too_many = RingError::Control {
            word: "oldest",
            value: 1,
        };
        assert_eq!(reader.verify(), Err(too_many), "more than there are slots");
        writer.words_mut().store(offset::SEALED, 1);
        writer.words_mut().store(offset::EPOCH, 6);
        let attached = RingReader::attach(memory).unwrap();
        assert_eq!(attached.verify(), damaged, "sealed in another epoch");
        writer.words_mut().store(offset::STATE, 9);
        assert_eq!(attached.state(), None);
        writer.set_state(PublisherState::Standby);
        assert_eq!(attached.state(), Some(PublisherState::Standby));
        assert!(attached.expecting(ConfigHash(7)).is_ok());
    }

    #[test]
    fn memory_that_is_not_aligned_is_refused() {
        struct Shifted(HeapMemory, usize);
        // SAFETY: as for `HeapMemory`, because this is its memory without the first bytes. Exercised here.
        unsafe impl RingMemory for Shifted {
            fn as_ptr(&self) -> *mut u8 {
                self.0.as_ptr().wrapping_add(self.1)
            }
            fn len(&self) -> usize {
                self.0.len() - self.1
            }
        }
        let large = Geometry::new(1024, 32).unwrap();
        let made = |shift| {
            let memory = Arc::new(Shifted(HeapMemory::new(large), shift));
            RingWriter::create(memory, geometry(), identity(1)).err()
        };
        assert_eq!((made(64), made(8)), (None, Some(RingError::Misaligned)));
        let exact = Arc::new(HeapMemory::new(geometry()));
        assert!(RingWriter::create(exact, geometry(), identity(1)).is_ok());
        let memory = Arc::new(Shifted(HeapMemory::new(geometry()), 64));
        let needed = geometry().bytes();
        let small = RingError::TooSmall {
            needed,
            len: needed - 64,
        };
        assert_eq!(
            RingWriter::create(memory, geometry(), identity(1)).err(),
            Some(small)
        );
    }

    #[test]
    fn control_page_layout_matches_protocol() {
        let (mut writer, memory) = ring(10);
        write(&mut writer, &[1; 8], 3);
        writer.set_sent(FanOutId(1), Sequence(10));
        writer.set_heartbeat_at(Nanos(77));
        for source in [4, 9] {
            writer.set_checkpoint(Checkpoint {
                source: SourceId(source),
                position: SourcePosition(u64::from(source) << 8),
                session: *b"abcdefghijklmnop",
            });
        }
        let word = |offset: usize| {
            // SAFETY: an aligned word of memory that `memory` keeps; no thread writes it now.
            unsafe { memory.as_ptr().add(offset).cast::<u64>().read() }
        };
        for (offset, value) in [
            (0, u64::from_le_bytes(*b"TKRING\0\0")),
            (8, 1),
            (16, 1024),
            (24, 16),
            (32, 3),
            (40, 7),
            (48, 5),
            (56, u64::from_le_bytes(*b"01234567")),
            (64, u64::from_le_bytes(*b"89abcdef")),
            (72, 2),
            (80, 10),
            (88, 1),
            (128, 10),
            (136, 10),
            (144, 4),
            (152, 1),
            (192, 77),
            (256, 9),
            (264, 10),
            (272, 9),
            (1024, 2),
            (1032, 5),
            (1040, 4 << 8),
            (1048, u64::from_le_bytes(*b"abcdefgh")),
            (1056, u64::from_le_bytes(*b"ijklmnop")),
            (1088, 2),
            (1096, 10),
            (1152, 0),
            (4096 + 10 * 1024 + 16, 10),
        ] {
            assert_eq!(word(offset), value, "at {offset}");
        }
    }
}
