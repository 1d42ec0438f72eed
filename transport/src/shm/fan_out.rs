//! The publisher's side: sealed slots are already in shared memory, so a send only publishes `sent`.

use std::sync::Arc;

use tickcast_reliability::ring::{Geometry, RingMemory};
use tickcast_reliability::types::{Sequence, SequenceRange};

use super::ShmError;
use super::side_ring::{CopyWriter, SideRingWriter};
use tickcast_transport_base::{FanOut, FanOutError, Posted, SendStats, Slots};

/// Shares a channel's ring with the subscribers in this host.
///
/// Readers follow the ring's `sent` of this fan-out, which moves when a posted slot counts as sent.
/// Nothing is ever pinned: a reader detects by itself that a slot was overwritten during the read.
pub struct ShmFanOut {
    side_ring: SideRingWriter,
    completed: Option<Sequence>,
    datagram_len_max: usize,
    stats: [SendStats; 1],
}

impl ShmFanOut {
    /// Opens the fan-out for the ring of this geometry in `memory`, which has room for copies behind
    /// it. Each side may be open only once at a time.
    ///
    /// # Errors
    /// [`ShmError::NoTail`] if there is no room for the copies.
    pub fn open(
        memory: &Arc<dyn RingMemory>,
        geometry: Geometry,
        side: CopyWriter,
    ) -> Result<Self, ShmError> {
        Ok(Self {
            side_ring: SideRingWriter::open(memory, geometry, side)?,
            completed: None,
            datagram_len_max: geometry.slot_len(),
            stats: [SendStats::default()],
        })
    }

    const fn check_len(&self, len: usize) -> Result<(), FanOutError> {
        let max = self.datagram_len_max;
        if len > max {
            return Err(FanOutError::TooLong { len, max });
        }
        Ok(())
    }
}

impl FanOut for ShmFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        for sequence in range.iter() {
            let slot = slots.slot(sequence);
            let len = slot.ok_or(FanOutError::NotSealed { sequence })?.len();
            self.check_len(len)?;
            self.stats[0].datagrams += 1;
            self.stats[0].bytes += len as u64;
        }
        self.completed = Some(range.last);
        Ok(Posted {
            last: Some(range.last),
            stalled: false,
        })
    }

    fn completed(&mut self) -> Option<Sequence> {
        self.completed
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        self.check_len(bytes.len())?;
        self.side_ring.write(bytes);
        self.stats[0].datagrams += 1;
        self.stats[0].bytes += bytes.len() as u64;
        Ok(true)
    }

    fn reset(&mut self) {
        self.completed = None;
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}
