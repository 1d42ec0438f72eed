//! The verbs fan-out: sends every slot to the group of every line, directly from the ring, by chains of
//! work requests. Each n-th request reports its completion.
//!
//! A slot that was not sent inline stays pinned until the device has read it. The last completion of a
//! chain may be reported only with a later chain, so up to `signal_every` slots stay pinned while
//! nothing follows.
//!
//! A line whose membership ends sends to its old address until the membership is renewed. On InfiniBand any
//! event of the subnet manager ends a membership, while the route to the group usually still works.
//!
//! A line whose queue breaks continues with a spare one. A line whose device or address is gone opens it
//! again; the slots that it misses meanwhile are counted as refused. All of this happens in a helper thread
//! of the line: no call here waits for a device, and the other line is not concerned.

mod line;
mod membership;
mod queue;
mod renewal;
mod upkeep;

use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Sequence, SequenceRange};

use self::line::{Line, check_len};
use crate::config::VerbsFanOutConfig;
use crate::device::Device;
use crate::error::VerbsError;
use crate::multicast::send_queue::Chain;
use tickcast_transport_base::{FanOut, FanOutError, Posted, SendStats, Slots};

/// Sends a channel by RDMA multicast.
pub struct VerbsFanOut {
    lines: Vec<Line>,
    stats: Vec<SendStats>,
    chain: Chain,
    /// The sequence before the first of the stream.
    begun_after: Sequence,
    datagram_len_max: usize,
}

impl VerbsFanOut {
    /// Opens two queues per line, registers `ring` with each device, and joins the groups, as a sender only
    /// if the port supports it. Blocks until all of this is done.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub fn open(
        config: &VerbsFanOutConfig,
        ring: &Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        Self::open_all(config, Some(ring))
    }

    /// Opens a fan-out for copies alone. Without a ring, every post returns
    /// [`FanOutError::NotRegistered`].
    ///
    /// # Errors
    /// As for [`VerbsFanOut::open`].
    pub fn for_copies(config: &VerbsFanOutConfig) -> Result<Self, VerbsError> {
        Self::open_all(config, None)
    }

    fn open_all(
        config: &VerbsFanOutConfig,
        ring: Option<&Arc<dyn RingMemory>>,
    ) -> Result<Self, VerbsError> {
        config.check()?;
        let lines = config
            .lines
            .iter()
            .map(|line| Line::open(config, line, ring));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            stats: vec![SendStats::default(); lines.len()],
            lines,
            chain: Chain::new(),
            begun_after: Sequence::NONE,
            datagram_len_max: config.datagram_len_max,
        })
    }

    /// Restarts all lines behind `sequence`.
    #[cold]
    fn begin_after(&mut self, sequence: Sequence) {
        self.begun_after = sequence;
        for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
            line.begin_after(sequence, stats);
        }
    }

    /// Returns the devices of the lines that have a queue.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.lines
            .iter()
            .filter_map(Line::device)
            .cloned()
            .collect()
    }
}

impl FanOut for VerbsFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let taken_by_all = |lines: &[Line]| lines.iter().map(Line::taken).min();
        if taken_by_all(&self.lines) != Some(range.first.previous()) {
            self.begin_after(range.first.previous());
        }
        let mut stalled = false;
        for (i, line) in self.lines.iter_mut().enumerate() {
            line.make_room(&mut self.stats[i]);
            stalled |= line.post(slots, range.last, &mut self.chain, &mut self.stats[i])?;
        }
        let last = taken_by_all(&self.lines).filter(|last| *last >= range.first);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
            line.collect(stats);
        }
        let completed = self.lines.iter().map(Line::completed).min();
        // A line between two queues has taken nothing of the stream yet.
        completed.filter(|sequence| *sequence > self.begun_after)
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        check_len(bytes, self.datagram_len_max)?;
        let mut everywhere = true;
        for (i, line) in self.lines.iter_mut().enumerate() {
            everywhere &= line.send_copy(bytes, &mut self.chain, &mut self.stats[i]);
        }
        Ok(everywhere)
    }

    fn reset(&mut self) {
        self.begin_after(Sequence::NONE);
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}
