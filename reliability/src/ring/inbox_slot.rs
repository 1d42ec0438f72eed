//! Slots of an inbox, written remotely by a publisher's device (docs/PROTOCOL.md §6.8). They have the
//! layout of a ring whose control page stays empty. Only the CRC shows that a slot is complete.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::{HEADER_WORDS, RingMemory, SEQUENCE_WORD, WORD, Words, datagram_len};
use crate::ring::layout::{Geometry, RingError};
use crate::types::Sequence;
use crate::wire::HEADER_LEN;

/// The slots of an inbox.
pub struct WrittenSlots(Words);

impl WrittenSlots {
    /// Returns the slots of zeroed memory that only a device writes.
    ///
    /// # Errors
    /// [`RingError`] when its size is not that of a ring of this geometry, or it is not aligned.
    pub fn new(memory: Arc<dyn RingMemory>, geometry: Geometry) -> Result<Self, RingError> {
        Words::new(memory, geometry).map(Self)
    }

    /// Returns the size and number of the slots.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Returns the sequence in the slot of this sequence; 0 when the slot was never written.
    #[inline]
    #[must_use]
    pub fn found_at(&self, sequence: Sequence) -> Sequence {
        Sequence(u64::from_le(
            self.0.slot(sequence)[SEQUENCE_WORD].load(Acquire),
        ))
    }

    /// Copies the content of the slot of `sequence` to the start of `buffer`, which has room for a slot.
    /// Returns the length from its header, or `None` when that is impossible. The bytes may be a mixture
    /// of several writes.
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
        // The next load must not return anything older than this copy.
        fence(Acquire);
        Some(len)
    }

    /// Writes words as a device would, for a test or a simulation: those selected by `is_written`, at most
    /// one slot.
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
