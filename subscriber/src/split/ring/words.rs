//! The memory that the writer of a local ring shares with its readers, and the order of their accesses.
//! This module does not know the meaning of the words.
//!
//! The writer *claims* the words up to the end of its write, writes them, and *commits*. A reader copies
//! committed words, and then checks whether a claim has reached them in the meantime. Two fences order a
//! late view of a claim: a reader that read a word written after a claim also reads that claim.
//! `interleavings.rs` of the workspace's tests runs this file through all interleavings that the memory
//! model of the language allows.

use super::atomics::Ordering::{Acquire, Relaxed, Release};
use super::atomics::{AtomicBool, AtomicU64, fence};

/// A power of two of words, at positions that only grow.
#[derive(Debug)]
pub(crate) struct Words {
    words: Box<[AtomicU64]>,
    /// The writer may be writing words below this position. Older words than the ring holds are gone.
    claimed: AtomicU64,
    /// All words below this position have been written.
    committed: AtomicU64,
    closed: AtomicBool,
}

impl Words {
    /// Creates `len` words, which must be a power of two. Returns `None` when there is no memory for them.
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

    /// Announces to readers that the words below `to` are being written, so their old content is gone. For
    /// the writer only.
    #[inline]
    pub(crate) fn claim(&self, to: u64) {
        self.claimed.store(to, Relaxed);
        // A reader that reads any word written from here on also reads the claim.
        fence(Release);
    }

    /// Writes claimed words.
    #[inline]
    pub(crate) fn put(&self, at: u64, words: &[u64]) {
        for (word, at) in words.iter().zip(at..) {
            self.word(at).store(*word, Relaxed);
        }
    }

    /// Releases all words below `to` to readers.
    #[inline]
    pub(crate) fn commit(&self, to: u64) {
        self.committed.store(to, Release);
    }

    /// Marks the end: no more words follow.
    pub(crate) fn close(&self) {
        self.closed.store(true, Release);
    }

    /// Returns whether the writer has left and committed everything.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Returns the position up to which words can be read.
    #[inline]
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Acquire)
    }

    /// Copies the committed words from `at` on. Returns `None` when any of them may have been
    /// overwritten or is being overwritten. The content of `to` is then unusable.
    #[inline]
    pub(crate) fn copy(&self, at: u64, to: &mut [u64]) -> Option<()> {
        for (word, at) in to.iter_mut().zip(at..) {
            *word = self.word(at).load(Relaxed);
        }
        fence(Acquire);
        (self.claimed.load(Relaxed) <= at + self.len()).then_some(())
    }
}
