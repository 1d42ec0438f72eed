//! The memory that the writer of a local ring shares with its readers, and the order in which they
//! touch it. What the words mean is not known here.
//!
//! The writer *claims* up to where it is going to write, writes, and *commits*; a reader copies
//! what was committed and then looks whether a claim has reached it meanwhile. A claim that a reader
//! sees late is ordered by the two fences: who read a word that was written after a claim sees
//! that claim. (`interleavings.rs` of the workspace's tests runs this very file through all
//! control of memory that the language allows.)

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicBool, AtomicU64, fence};

/// A power of two of words, at positions that only grow.
#[derive(Debug)]
pub(crate) struct Words {
    words: Box<[AtomicU64]>,
    /// Everything below may be written at any time, but for what the ring holds.
    claimed: AtomicU64,
    /// Everything below has been written.
    committed: AtomicU64,
    closed: AtomicBool,
}

impl Words {
    /// `len` is a power of two. `None` when there is no memory for so many.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(len).ok()?;
        words.resize_with(len, || AtomicU64::new(0));
        Some(Self {
            words: words.into(),
            claimed: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) const fn len(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[at as usize & (self.words.len() - 1)]
    }

    /// Tells readers that the words below `to` are being written: what they held is gone. The
    /// writer's only.
    #[inline]
    pub(crate) fn claim(&self, to: u64) {
        self.claimed.store(to, Relaxed);
        // Who reads any word written from here on finds the claim.
        fence(Release);
    }

    /// Writes words that were claimed.
    #[inline]
    pub(crate) fn put(&self, at: u64, words: &[u64]) {
        for (word, at) in words.iter().zip(at..) {
            self.word(at).store(*word, Relaxed);
        }
    }

    /// Lets readers have everything below `to`.
    #[inline]
    pub(crate) fn commit(&self, to: u64) {
        self.committed.store(to, Release);
    }

    /// Says that nothing follows.
    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
    }

    /// Whether the writer has left, and committed all it had to.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Up to where there is something to read.
    #[inline]
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Acquire)
    }

    /// Copies the committed words from `at` on; `None` when any of them may have been overwritten,
    /// or is being: then `to` holds nothing of use.
    #[inline]
    pub(crate) fn copy(&self, at: u64, to: &mut [u64]) -> Option<()> {
        for (word, at) in to.iter_mut().zip(at..) {
            *word = self.word(at).load(Relaxed);
        }
        fence(Acquire);
        (self.claimed.load(Relaxed) <= at + self.len()).then_some(())
    }
}
