//! A sequence lock: one cell that threads share. The first word is its version, which is odd during a
//! write and counts two per write. The writer never waits. A reader that is disturbed by a write skips the
//! cell, because the write adds another notification of the cell.
//! `interleavings.rs` of the workspace's tests runs this file through all interleavings that the memory
//! model of the language allows.

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicU64, fence};

/// Writes values after the version. Only one thread may write.
#[inline]
pub(crate) fn write(cell: &[AtomicU64], values: impl Iterator<Item = u64>) {
    let version = cell[0].load(Relaxed);
    cell[0].store(version + 1, Relaxed);
    // A reader that reads any of the words written from here on finds an odd version.
    fence(Release);
    for (word, value) in cell[1..].iter().zip(values) {
        word.store(value, Relaxed);
    }
    cell[0].store(version + 2, Release);
}

/// Copies the values if their version is newer than `seen`, and returns that version. Returns `None` when
/// it is not newer, or during a write. In the latter case a notification of the cell follows.
#[inline]
pub(crate) fn copy(cell: &[AtomicU64], to: &mut [u64], seen: u64) -> Option<u64> {
    let version = cell[0].load(Acquire);
    if version & 1 != 0 || version <= seen {
        return None;
    }
    for (to, from) in to.iter_mut().zip(&cell[1..]) {
        *to = from.load(Relaxed);
    }
    fence(Acquire);
    (cell[0].load(Relaxed) == version).then_some(version)
}
