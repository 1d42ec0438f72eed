//! The requests that a receiver makes at a time (docs/PROTOCOL.md §5.4).

use crate::receive::rdma_read::ReadRoom;
use crate::types::{Nanos, ReceiverCounters, SequenceRange};

/// The requests of one pass over the gaps, and what the caller knows of the paths for them.
#[derive(Clone, Debug, Default)]
pub struct RepairRequests {
    /// Gaps of the live stream for the repair connection, ascending.
    pub repair: Vec<SequenceRange>,
    /// Gaps of the live stream for the NACK connection, ascending.
    pub nack: Vec<SequenceRange>,
    /// Gaps of the live stream to READ, each by one READ, ascending.
    pub read: Vec<SequenceRange>,
    /// History, ascending; on the joiners' budget.
    pub replay: Vec<SequenceRange>,
    /// Whether replay is wanted and the path for it is not open.
    pub replay_wanted: bool,
    /// Whether the NACK connection takes requests; set by the caller.
    pub nack_open: bool,
    /// When the latest request was sent that the NACK connection did not answer in time.
    pub nack_overdue: Option<Nanos>,
    /// How much can be READ now; set by the caller, `None` where nothing can.
    pub room: Option<ReadRoom>,
    /// When the latest READ began that was not done in time.
    pub read_overdue: Option<Nanos>,
}

impl RepairRequests {
    /// Forgets the requests of the pass before. `nack_open`: the NACK connection takes requests;
    /// `room`: how much can be READ.
    pub fn begin(&mut self, nack_open: bool, room: Option<ReadRoom>) {
        self.repair.clear();
        self.nack.clear();
        self.read.clear();
        self.replay.clear();
        (self.replay_wanted, self.nack_open) = (false, nack_open);
        (self.nack_overdue, self.read_overdue) = (None, None);
        self.room = room;
    }

    /// Counts the requests.
    pub(crate) fn count(&self, counters: &ReceiverCounters) {
        let count = |ranges: &[SequenceRange]| ranges.iter().map(|range| range.len()).sum::<u64>();
        let over_nack = count(&self.nack);
        let nacked = count(&self.repair) + over_nack + count(&self.replay);
        counters.nacked_sequences.add(nacked);
        counters.nack_link_nacked_sequences.add(over_nack);
        counters.reads.add(self.read.len() as u64);
        counters.read_sequences.add(count(&self.read));
    }
}

/// Whether the repair path still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathHealth {
    /// The path answers, as far as is known.
    Answers,
    /// A gap was requested as often as allowed without an answer: build the path anew.
    Exhausted,
}
