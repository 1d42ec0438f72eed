//! One cell as threads share it: a sequence lock. The first word is its version, odd while it is
//! written, and half of it is how often it was. The writer is never held up; a reader that is
//! disturbed leaves the cell for later, because who disturbed it will say so.
//! (`interleavings.rs` of the workspace's tests runs this very file through all control of memory
//! that the language allows.)

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicU64, fence};

/// Writes values behind the version. For one writer.
#[inline]
pub(crate) fn write(cell: &[AtomicU64], values: impl Iterator<Item = u64>) {
    let version = cell[0].load(Relaxed);
    cell[0].store(version + 1, Relaxed);
    // Who reads any of the words written from here on finds the version odd.
    fence(Release);
    for (word, value) in cell[1..].iter().zip(values) {
        word.store(value, Relaxed);
    }
    cell[0].store(version + 2, Release);
}

/// Copies what stands behind a version that is newer than `seen`; that version. `None` when it is
/// not newer, or is being written: then a word of it is still to come.
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
