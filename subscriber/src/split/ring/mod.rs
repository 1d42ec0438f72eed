//! The local ring of a split subscriber. One writer never waits, and any number of readers read at
//! their own positions. A lapped reader learns exactly what it missed.
//!
//! The memory is [`Words`], all of them atomic. It contains entries of variable length at positions that
//! only grow.
//!
//! The ring is divided into segments, and no entry crosses their bounds. Each segment begins with a
//! checkpoint: the counts and the state of every channel at that point. A lapped reader continues at a
//! checkpoint. The difference between the checkpoint and the reader's own counts is its loss.

mod cursor;
#[cfg(test)]
mod tests;
mod words;
mod writer;

pub(crate) use cursor::{Cursor, Entry};
pub(crate) use writer::Writer;

use crate::sync::atomics;
use crate::sync::notify::Notifier;
use words::Words;

/// The smallest ring, in bytes.
pub(crate) const SIZE_MIN: usize = 1 << 20;
/// The largest ring, in bytes.
pub(crate) const SIZE_MAX: usize = 1 << 36;
/// The longest entry, in words. Longer runs of records are split into several entries.
const ENTRY_WORDS_MAX: usize = 1024;
const SEGMENT_WORDS_MIN: u64 = 8192;
/// Room for the longest entry, and for a checkpoint of the maximum number of channels.
const BUFFER_WORDS: usize = 4096;
const SEGMENTS: u64 = 16;
/// The distance, in segments, from the oldest segment at which a lapped reader continues.
const MARGIN: u64 = SEGMENTS / 4;

/// The kind of an entry, in the lowest byte of its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Filler up to the end of the segment.
    Padding = 1,
    Checkpoint = 2,
    Records = 3,
    Event = 4,
    /// A cell of a `latest` channel changed.
    Changed = 5,
}

/// The first word of an entry: kind (8 bits), channel index (16), count (16), length in words (24).
#[derive(Clone, Copy)]
struct Head {
    kind: u8,
    channel: u16,
    count: u16,
    words: u32,
}

impl Head {
    const fn pack(self) -> u64 {
        self.kind as u64
            | (self.channel as u64) << 8
            | (self.count as u64) << 24
            | (self.words as u64) << 40
    }

    const fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            channel: (word >> 8) as u16,
            count: (word >> 24) as u16,
            words: (word >> 40) as u32,
        }
    }
}

/// The state that writer and readers share.
#[derive(Debug)]
pub(crate) struct LocalRing {
    words: Words,
    segment_words: u64,
    pub(crate) notifier: Notifier,
}

impl LocalRing {
    /// Creates a ring, or returns `None` when there is no memory for it.
    fn new(size_bytes: usize) -> Option<Self> {
        let bytes = size_bytes.clamp(SIZE_MIN, SIZE_MAX).next_power_of_two();
        let words = bytes / size_of::<u64>();
        Some(Self {
            words: Words::new(words)?,
            segment_words: (words as u64 / SEGMENTS).max(SEGMENT_WORDS_MIN),
            notifier: Notifier::new(),
        })
    }

    /// Returns the number of words from `at` to the end of its segment.
    const fn left(&self, at: u64) -> u64 {
        self.segment_words - at % self.segment_words
    }

    /// Returns whether the writer has left and committed everything.
    pub(crate) fn is_closed(&self) -> bool {
        self.words.is_closed()
    }
}
