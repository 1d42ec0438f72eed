//! A slot is a sequence lock. A reader that finds its version before and after the copy has copied the
//! content of that version, and the writer never waits (docs/PROTOCOL.md §9).
//!
//! The version is 0 while the slot is written, and takes each other value once. The two fences order
//! the plain words: a reader that loads a word of a later content then sees a later version.
//! (`interleavings.rs` of the workspace's tests runs this very file through all memory orders that the
//! language allows.)

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicU64, fence};

/// Index of the word with the version, which is the sequence of a datagram's header.
pub const VERSION: usize = 2;

/// Marks the slot as empty. A reader that sees this also sees every earlier store, above all `oldest`.
#[inline]
pub fn open(slot: &[AtomicU64]) {
    slot[VERSION].store(0, Release);
    // A reader that loads any word written from here on finds the version changed.
    fence(Release);
}

/// Writes words of an open slot. All of them must lie behind the version.
#[inline]
pub fn put(to: &[AtomicU64], values: impl Iterator<Item = u64>) {
    for (word, value) in to.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

/// Writes words like [`put`], from a slice of equal length, several at a time.
#[inline]
pub fn put_words(to: &[AtomicU64], values: &[u64]) {
    let (chunks, rest) = to.as_chunks::<4>();
    let (from_chunks, from_rest) = values.as_chunks::<4>();
    for (to, from) in chunks.iter().zip(from_chunks) {
        for (word, value) in to.iter().zip(from) {
            word.store(*value, Relaxed);
        }
    }
    put(rest, from_rest.iter().copied());
}

/// Writes an open slot from its first word on, except the version.
#[inline]
pub fn put_around(slot: &[AtomicU64], header: impl IntoIterator<Item = u64>) {
    for (index, (word, value)) in slot.iter().zip(header).enumerate() {
        if index != VERSION {
            word.store(value, Relaxed);
        }
    }
}

/// Writes words like [`put_around`], for a header of known length.
#[inline]
pub fn put_header<const WORDS: usize>(head: &[AtomicU64; WORDS], header: [u64; WORDS]) {
    for (index, (word, value)) in head.iter().zip(header).enumerate() {
        if index != VERSION {
            word.store(value, Relaxed);
        }
    }
}

/// Stores the version: the slot is complete.
#[inline]
pub fn seal(slot: &[AtomicU64], version: u64) {
    slot[VERSION].store(version.to_le(), Release);
}

/// Returns the version of the slot before any of it is copied.
#[inline]
pub fn version_before(slot: &[AtomicU64]) -> u64 {
    u64::from_le(slot[VERSION].load(Acquire))
}

/// Copies words that may be written at the same time, from word `at` on.
#[inline]
pub fn copy(slot: &[AtomicU64], at: usize, into: &mut [u64]) {
    let from = &slot[at..at + into.len()];
    // Large steps make the cost of the loops themselves negligible.
    let (into, from) = copy_by::<16>(into, from);
    let (into, from) = copy_by::<4>(into, from);
    copy_by::<1>(into, from);
}

/// Copies `WORDS` words at a time, and returns the rest of both slices.
#[inline]
fn copy_by<'a, const WORDS: usize>(
    into: &'a mut [u64],
    from: &'a [AtomicU64],
) -> (&'a mut [u64], &'a [AtomicU64]) {
    let (chunks, rest) = into.as_chunks_mut::<WORDS>();
    let (from_chunks, from_rest) = from.as_chunks::<WORDS>();
    for (to, from) in chunks.iter_mut().zip(from_chunks) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Relaxed);
        }
    }
    (rest, from_rest)
}

/// Returns the version after the copy. If it is unchanged, the copy is complete.
#[inline]
pub fn version_after(slot: &[AtomicU64]) -> u64 {
    // Without this fence, a copy of later content could go with an old version.
    fence(Acquire);
    u64::from_le(slot[VERSION].load(Relaxed))
}
