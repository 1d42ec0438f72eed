//! Slots that a publisher's device writes from afar: those of an inbox (docs/PROTOCOL.md §6.8). They
//! are laid out as a ring's, whose control page stays empty, and nothing says when one is whole but
//! its CRC.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::{HEADER_WORDS, RingMemory, SEQUENCE_WORD, WORD, Words, datagram_len};
use crate::ring::layout::{Geometry, RingError};
use crate::types::Sequence;
use crate::wire::HEADER_LEN;

/// See the module.
pub struct WrittenSlots(Words);

impl WrittenSlots {
    /// The slots of memory that is zero, and that nobody writes but a device.
    ///
    /// # Errors
    /// [`RingError`] when it has not the size of a ring of this geometry, or is not aligned.
    pub fn new(memory: Arc<dyn RingMemory>, geometry: Geometry) -> Result<Self, RingError> {
        Words::new(memory, geometry).map(Self)
    }

    /// Size and number of the slots.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// The sequence that stands in the place of this one; 0 where nothing was written yet.
    #[inline]
    #[must_use]
    pub fn found_at(&self, sequence: Sequence) -> Sequence {
        Sequence(u64::from_le(
            self.0.slot(sequence)[SEQUENCE_WORD].load(Acquire),
        ))
    }

    /// Copies what stands in the place of `sequence` to the start of `buffer`, which has room for a
    /// slot: as many bytes as its header says it has, or `None` where that is not possible. It may be
    /// of several moments.
    pub fn copy(&self, sequence: Sequence, buffer: &mut [u64]) -> Option<usize> {
        let slot = self.0.slot(sequence);
        for (to, from) in buffer.iter_mut().zip(&slot[..HEADER_WORDS]) {
            *to = from.load(Relaxed);
        }
        let (word_6, word_7) = (buffer.get(6)?, buffer.get(7)?);
        let len = datagram_len(u64::from_le(*word_6), u64::from_le(*word_7));
        if !(HEADER_LEN..=self.0.geometry.slot_len()).contains(&len) {
            return None;
        }
        let words = buffer.get_mut(..len.div_ceil(WORD))?;
        for (to, from) in words.iter_mut().zip(slot).skip(HEADER_WORDS) {
            *to = from.load(Relaxed);
        }
        // What is looked at next is not older than this.
        fence(Acquire);
        Some(len)
    }

    /// Puts words there as a device would, for a test or a simulation: those of which `is_written` says
    /// so, at most as many as a slot has.
    pub fn place(
        &self,
        sequence: Sequence,
        bytes: &[u8],
        mut is_written: impl FnMut(usize) -> bool,
    ) {
        let words = bytes.chunks(WORD).zip(self.0.slot(sequence)).enumerate();
        for (index, (chunk, word)) in words {
            if is_written(index) {
                let mut value = word.load(Relaxed).to_ne_bytes();
                value[..chunk.len()].copy_from_slice(chunk);
                word.store(u64::from_ne_bytes(value), Relaxed);
            }
        }
    }
}
