//! The rings that a socket shares with the kernel. Each has one side that produces and one that consumes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

/// Words of eight bytes in an entry of a receive ring (`struct xdp_desc`), and in one of a fill ring.
const DESCRIPTOR_WORDS: usize = 2;
const ADDRESS_WORDS: usize = 1;

/// A received frame, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Place of the first byte in the memory of frames.
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// Not 0 if the frame continues in another one.
    pub(crate) options: u32,
}

/// A mapped ring: two counters, flags, and entries.
#[derive(Debug)]
struct Ring {
    map: MmapRaw,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    /// Number of entries, a power of two.
    len: u32,
    entry_words: usize,
}

impl Ring {
    fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: XdpRingOffset,
        len: u32,
        entry_words: usize,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + len as usize * entry_words * 8;
        let map = MmapOptions::new()
            .offset(page)
            .len(bytes)
            .populate()
            .map_raw(socket.as_raw_fd())?;
        let counters = [
            Some(offsets.producer),
            Some(offsets.consumer),
            offsets.flags,
        ];
        let is_within = |at: u64| at.is_multiple_of(4) && at + 4 <= bytes as u64;
        let is_valid = counters.into_iter().flatten().all(is_within);
        if !is_valid || !offsets.desc.is_multiple_of(8) || !len.is_power_of_two() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            map,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags.map(|at| at as usize),
            entries: offsets.desc as usize,
            len,
            entry_words,
        })
    }

    #[inline]
    fn counter(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is one of the places that `map` found aligned and within the mapping, which lives as
        // long as `self`. Both sides access it as an atomic number. Exercised by tests/veth/receiving.rs
        // `datagrams_arrive_once_in_order_and_whole`.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<AtomicU32>() }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.counter(self.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.counter(self.consumer)
    }

    /// Returns a word of the entry that a counter denotes.
    #[inline]
    fn word(&self, counter: u32, word: usize) -> &AtomicU64 {
        debug_assert!(word < self.entry_words);
        let entry = (counter & (self.len - 1)) as usize;
        let at = self.entries + (entry * self.entry_words + word) * 8;
        // SAFETY: `entry` is below `len` and `word` below `entry_words`, so that the place lies in the
        // mapping, aligned to 8. The kernel and this process take turns on an entry, by the counters.
        // Exercised by tests/veth/receiving.rs `datagrams_arrive_once_in_order_and_whole`.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<AtomicU64>() }
    }
}

/// The ring of received frames, whose producer is the kernel.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    ring: Ring,
    /// The next entry to take. Entries before it belong to the kernel once released.
    next: u32,
    /// The kernel's counter, as last read.
    end: u32,
}

impl ReceiveRing {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: XdpRingOffset,
        len: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(socket, page, offsets, len, DESCRIPTOR_WORDS)?;
        Ok(Self {
            next: ring.consumer().load(Ordering::Relaxed),
            end: ring.producer().load(Ordering::Acquire),
            ring,
        })
    }

    /// Takes the next frame, if one has arrived.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Descriptor> {
        if self.next == self.end {
            self.end = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.end {
                return None;
            }
        }
        let at = self.ring.word(self.next, 0).load(Ordering::Relaxed);
        let rest = self.ring.word(self.next, 1).load(Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        let [len, options] = halves(rest);
        Some(Descriptor { at, len, options })
    }

    /// Gives the entries of all taken frames back. Returns whether the ring was full before, so that the
    /// kernel may have dropped datagrams.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        let before = self.ring.consumer().load(Ordering::Relaxed);
        let end = self.ring.producer().load(Ordering::Relaxed);
        self.ring.consumer().store(self.next, Ordering::Release);
        end.wrapping_sub(before) >= self.ring.len
    }

    /// Returns the number of frames that were not taken.
    pub(crate) fn waiting(&self) -> u32 {
        let end = self.ring.producer().load(Ordering::Acquire);
        end.wrapping_sub(self.next)
    }
}

/// Returns the two numbers of four bytes in a word, in the order of memory.
#[inline]
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    ]
}

/// The ring that hands free frames to the kernel, its consumer. One thread at a time may produce.
#[derive(Debug)]
pub(crate) struct FillRing(Ring);

impl FillRing {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: XdpRingOffset,
        len: u32,
    ) -> io::Result<Self> {
        Ring::map(socket, page, offsets, len, ADDRESS_WORDS).map(Self)
    }

    /// Hands frames to the kernel. The ring has room for every frame there is, so none is left over.
    #[inline]
    pub(crate) fn put(&self, frames: &[u64]) {
        let first = self.0.producer().load(Ordering::Relaxed);
        let mut next = first;
        for frame in frames {
            self.0.word(next, 0).store(*frame, Ordering::Relaxed);
            next = next.wrapping_add(1);
        }
        self.0.producer().store(next, Ordering::Release);
    }

    /// Returns whether the kernel asks for a call because it found the ring empty.
    #[inline]
    pub(crate) fn needs_wake_up(&self) -> bool {
        let flags = self
            .0
            .flags
            .map_or(0, |at| self.0.counter(at).load(Ordering::Relaxed));
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    /// Returns the frames that the kernel has not taken yet.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        let end = self.0.producer().load(Ordering::Acquire);
        let first = self.0.consumer().load(Ordering::Acquire);
        (0..end.wrapping_sub(first))
            .map(|n| {
                self.0
                    .word(first.wrapping_add(n), 0)
                    .load(Ordering::Relaxed)
            })
            .collect()
    }
}
