//! Which path a datagram arrived on, and how we detect that the retry timeout of a path is too short.

use serde::{Deserialize, Serialize};

use crate::delivery::Via;
use crate::types::{Nanos, ReceiverCounters};

/// The path that a datagram of [`Via::Repair`] arrived on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ArrivalPath {
    /// Any path but those below.
    Other,
    /// The NACK connection, as an answer.
    Nack,
    /// A READ of the publisher's ring.
    Read,
    /// The publisher's WRITE to our inbox, which nobody requested.
    Written,
}

/// How a datagram arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The line, or repair.
    pub via: Via,
    /// The path of a repair.
    pub path: ArrivalPath,
}

impl Arrival {
    /// Returns whether the datagram answers a request of ours.
    pub(crate) fn is_answer(self) -> bool {
        self.via == Via::Repair && self.path != ArrivalPath::Written
    }

    /// Counts a datagram that has a sequence by the path that it arrived on. `is_repair_copy`: the
    /// datagram is marked as sent again.
    pub(crate) fn count(self, is_repair_copy: bool, counters: &ReceiverCounters) {
        if self.is_answer() {
            counters.repairs_received.increment();
            match self.path {
                ArrivalPath::Nack => counters.nack_link_repairs_received.increment(),
                ArrivalPath::Read => counters.read_repairs_received.increment(),
                ArrivalPath::Other | ArrivalPath::Written => {}
            }
        } else if self.via == Via::Repair {
            counters.inbox_received.increment();
        } else if is_repair_copy {
            counters.multicast_repairs_received.increment();
        }
    }

    /// Counts a datagram of the inbox that arrived on no other path before.
    #[inline]
    pub(crate) fn count_first(self, counters: &ReceiverCounters) {
        if self.path == ArrivalPath::Written {
            counters.inbox_first.increment();
        }
    }
}

/// Detects that the retry timeout of one path is too short, because an answer came late.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lateness {
    /// When a request on the path was last given up.
    fallback_at: Nanos,
    /// When an answer was last found late.
    late_at: Nanos,
}

impl Lateness {
    /// Notes that a request on the path was given up.
    pub(crate) const fn note_fallback(&mut self, now: Nanos) {
        self.fallback_at = now;
    }

    /// Notes a late answer. Returns whether it is the first one since a request was given up: all
    /// requests given up before count as late together.
    pub(crate) fn is_first_late_reply(&mut self, now: Nanos) -> bool {
        let is_first = self.fallback_at > self.late_at;
        if is_first {
            self.late_at = now;
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::LineId;

    #[test]
    fn late_replies_count_once_per_fallback() {
        let mut lateness = Lateness::default();
        assert!(
            !lateness.is_first_late_reply(Nanos(5)),
            "nothing was given up"
        );
        lateness.note_fallback(Nanos(10));
        assert!(lateness.is_first_late_reply(Nanos(20)));
        assert!(!lateness.is_first_late_reply(Nanos(21)));
        lateness.note_fallback(Nanos(15));
        assert!(!lateness.is_first_late_reply(Nanos(22)), "given up before");
        lateness.note_fallback(Nanos(30));
        assert!(lateness.is_first_late_reply(Nanos(31)));
    }

    #[test]
    fn requested_repair_is_answer_but_inbox_write_is_not() {
        let is_answer = |via, path| Arrival { via, path }.is_answer();
        assert!(is_answer(Via::Repair, ArrivalPath::Other));
        assert!(is_answer(Via::Repair, ArrivalPath::Read));
        assert!(!is_answer(Via::Repair, ArrivalPath::Written));
        assert!(!is_answer(Via::Line(LineId(0)), ArrivalPath::Other));
    }
}
