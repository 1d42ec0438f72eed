//! Broadcast datagrams outside the ring: the last copies of each of two writers. The fan-out writes
//! heartbeats, and the repair service writes repairs for many. Each has an area of its own behind the
//! ring (docs/PROTOCOL.md §9.1).
//!
//! An entry is a sequence lock like a slot of the ring; its version is the copy's number. A reader
//! that was away gets the newest copies, as from a socket whose buffer was full.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::ring::{Geometry, RING_ALIGN, RingMemory, slot};

use super::ShmError;

/// Number of copies in an area.
const ENTRIES: u64 = 64;
const WORD: usize = size_of::<u64>();
/// Bytes of an entry before the copy itself: its length and its number.
const HEAD_LEN: usize = RING_ALIGN;
const HEAD_WORDS: usize = HEAD_LEN / WORD;
/// Words of the area's head: the number of the last copy, and the area's layout.
const LAST: usize = 0;
const LAYOUT: usize = 1;

/// Returns the bytes of one area.
pub(super) const fn area_len(geometry: Geometry) -> usize {
    HEAD_LEN + ENTRIES as usize * (HEAD_LEN + geometry.slot_len())
}

/// The writer of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWriter {
    /// The fan-out.
    FanOut,
    /// The repair service.
    Repairs,
}

/// The area of one side.
struct Area {
    base: NonNull<AtomicU64>,
    count: usize,
    slot_len: usize,
    /// Keeps the memory.
    _memory: Arc<dyn RingMemory>,
}

// SAFETY: the words are atomics in memory that `_memory` keeps valid, and it is `Send + Sync`.
// Exercised by `tests/local/shm.rs::copies_reach_a_reader_on_another_thread_whole`.
unsafe impl Send for Area {}

impl Area {
    fn of(
        memory: &Arc<dyn RingMemory>,
        geometry: Geometry,
        side: CopyWriter,
    ) -> Result<Self, ShmError> {
        let (tail, needed) = (memory.tail(), super::tail_len(geometry));
        let at = memory.len() + side as usize * area_len(geometry);
        let base = NonNull::new(memory.as_ptr().wrapping_add(at).cast());
        match base.filter(|base: &NonNull<AtomicU64>| base.is_aligned() && tail >= needed) {
            Some(base) => Ok(Self {
                base,
                count: area_len(geometry) / WORD,
                slot_len: geometry.slot_len(),
                _memory: Arc::clone(memory),
            }),
            None => Err(ShmError::NoTail { tail, needed }),
        }
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: `of` checked alignment and length; the implementor of `RingMemory` promised
        // initialised memory behind the ring that outlives `_memory`. It is touched by these words
        // alone, and stored to by the one `SideRingWriter` of the side. Exercised by
        // `tests/local/shm.rs::copies_reach_a_reader_on_another_thread_whole`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }

    fn layout(&self) -> u64 {
        (ENTRIES << 32) | self.slot_len as u64
    }

    fn entry(&self, number: u64) -> &[AtomicU64] {
        let words = HEAD_WORDS + self.slot_len / WORD;
        let first = HEAD_WORDS + (number % ENTRIES) as usize * words;
        &self.all()[first..first + words]
    }
}

/// The only writer of the copies of a side.
pub(super) struct SideRingWriter {
    area: Area,
    last: u64,
}

impl SideRingWriter {
    pub(super) fn open(
        memory: &Arc<dyn RingMemory>,
        geometry: Geometry,
        side: CopyWriter,
    ) -> Result<Self, ShmError> {
        let area = Area::of(memory, geometry, side)?;
        // An earlier writer may have written here; its numbers continue.
        let last = u64::from_le(area.all()[LAST].load(Acquire));
        area.all()[LAYOUT].store(area.layout().to_le(), Release);
        Ok(Self { area, last })
    }

    /// Overwrites the oldest copy. `bytes` is no longer than a slot.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let number = self.last.wrapping_add(1);
        let entry = self.area.entry(number);
        slot::open(entry);
        slot::put_around(entry, std::iter::once((bytes.len() as u64).to_le()));
        let words = bytes.chunks(WORD).map(|chunk| {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        slot::put(&entry[HEAD_WORDS..], words);
        slot::seal(entry, number);
        self.area.all()[LAST].store(number.to_le(), Release);
        self.last = number;
    }
}

/// Reads the copies of a side, from the point where it was opened.
pub(super) struct SideRingReader {
    area: Area,
    next: u64,
}

impl SideRingReader {
    pub(super) fn open(
        memory: &Arc<dyn RingMemory>,
        geometry: Geometry,
        side: CopyWriter,
    ) -> Result<Self, ShmError> {
        let area = Area::of(memory, geometry, side)?;
        // A side that was never opened has no copies.
        let layout = u64::from_le(area.all()[LAYOUT].load(Acquire));
        if layout != 0 && layout != area.layout() {
            return Err(ShmError::Layout);
        }
        let mut reader = Self { area, next: 0 };
        reader.skip();
        Ok(reader)
    }

    /// Returns the number of the last copy. Every send before this copy is visible afterwards.
    pub(super) fn last(&self) -> u64 {
        u64::from_le(self.area.all()[LAST].load(Acquire))
    }

    /// Skips all copies present.
    pub(super) fn skip(&mut self) {
        self.next = self.last().saturating_add(1);
    }

    /// Passes the copies up to `last` to the caller through `buffer`, which has room for a slot. Returns
    /// their number.
    pub(super) fn read(
        &mut self,
        last: u64,
        buffer: &mut [u64],
        mut on: impl FnMut(&[u8]),
    ) -> usize {
        let mut count = 0;
        // Any process that may write the memory may write any number: at most one area is read.
        for number in self.next.max(last.saturating_sub(ENTRIES - 1))..=last {
            if let Some(len) = self.copy(number, buffer) {
                on(&words_as_bytes(buffer)[..len]);
                count += 1;
            }
        }
        // Numbers never fall, so a lower one ends a wrong one that was read before.
        self.next = last.saturating_add(1);
        count
    }

    /// Copies an entry. Returns its length in bytes if it was whole.
    fn copy(&self, number: u64, buffer: &mut [u64]) -> Option<usize> {
        let entry = self.area.entry(number);
        if slot::version_before(entry) != number {
            return None;
        }
        let len = u64::from_le(entry[0].load(Relaxed)) as usize;
        let words = len.min(self.area.slot_len).div_ceil(WORD);
        slot::copy(entry, HEAD_WORDS, &mut buffer[..words]);
        (slot::version_after(entry) == number && len <= self.area.slot_len).then_some(len)
    }
}
