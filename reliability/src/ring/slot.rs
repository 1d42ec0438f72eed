//! A slot is a sequence lock. A reader that finds its version before and after the copy has copied the
//! content of that version, and the writer never waits (docs/PROTOCOL.md §9).
//!
//! The version is 0 while the slot is written, and takes each other value once. The two fences order
//! the plain words: a reader that loads a word of a later content then sees a later version.
//! (`interleavings.rs` of the workspace's tests runs this very file through all orders of memory
//! that the language allows.)

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicU64, fence};

/// Which word holds the version: where a datagram's header has its sequence.
pub const VERSION: usize = 2;

/// Marks the slot as empty. A reader that sees this also sees every earlier store, above all `oldest`.
#[inline]
pub fn open(slot: &[AtomicU64]) {
    slot[VERSION].store(0, Release);
    // A reader of any word written from here on finds the version changed.
    fence(Release);
}

/// Writes words of an open slot, all of which lie behind its version.
#[inline]
pub fn put(to: &[AtomicU64], values: impl Iterator<Item = u64>) {
    for (word, value) in to.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

/// As [`put`], from as many words as these, several at a time.
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

/// Writes an open slot from its first word on; the value for the version is left out.
#[inline]
pub fn put_around(slot: &[AtomicU64], header: impl IntoIterator<Item = u64>) {
    for (index, (word, value)) in slot.iter().zip(header).enumerate() {
        if index != VERSION {
            word.store(value, Relaxed);
        }
    }
}

/// As [`put_around`], for a header that is known to be as long as the slot's.
#[inline]
pub fn put_header<const WORDS: usize>(head: &[AtomicU64; WORDS], header: [u64; WORDS]) {
    for (index, (word, value)) in head.iter().zip(header).enumerate() {
        if index != VERSION {
            word.store(value, Relaxed);
        }
    }
}

/// The slot holds this version, whole.
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

/// Copies so many words at a time; what is left of both, fewer than that.
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

/// Returns the version after the copy: if it is unchanged, the copy is whole.
#[inline]
pub fn version_after(slot: &[AtomicU64]) -> u64 {
    // Whatever was loaded of a later content makes this load see a later version.
    fence(Acquire);
    u64::from_le(slot[VERSION].load(Relaxed))
}
