//! Sequences that came with two contents: the publisher is asked for its own copy until that comes
//! or the window forgets the sequence (docs/PROTOCOL.md §5.2).
//!
//! The window marks the contested sequences, so its span bounds their number, however many somebody
//! forges. This type holds those of them that wait to be requested.

use serde::{Deserialize, Serialize};

use crate::receive::window::Window;
use crate::types::{Nanos, Sequence, SequenceRange};

/// Contested sequences that wait to be requested.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ContestedSequences {
    waiting: Vec<Sequence>,
    not_before: Nanos,
}

impl ContestedSequences {
    /// Returns whether no sequence waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns when the request is due; [`Nanos::MAX`] if no sequence waits.
    pub(crate) const fn due_at(&self) -> Nanos {
        if self.waiting.is_empty() {
            Nanos::MAX
        } else {
            self.not_before
        }
    }

    /// Adds a sequence that was not contested before.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// Requests every contested sequence of `range` again at this time.
    pub(crate) fn request_again(&mut self, window: &Window, range: SequenceRange, at: Nanos) {
        let contested = window.contested().filter(|it| range.contains(*it));
        let mut contested = contested.peekable();
        if contested.peek().is_some() {
            self.waiting.retain(|sequence| !range.contains(*sequence));
            self.waiting.extend(contested);
            self.not_before = at;
        }
    }

    /// Moves everything that is due to `requests`, in as few ranges as possible.
    pub(crate) fn take_due(&mut self, now: Nanos, requests: &mut Vec<SequenceRange>) {
        if self.due_at() > now {
            return;
        }
        self.waiting.sort_unstable();
        for sequence in self.waiting.drain(..) {
            match requests.last_mut() {
                Some(range) if range.last.next() == sequence => range.last = sequence,
                _ => requests.push(SequenceRange::one(sequence)),
            }
        }
        self.not_before = Nanos::ZERO;
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Via;
    use crate::receive::window::Held;
    use crate::types::RecordNumber;

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn taken(contested: &mut ContestedSequences, now: u64) -> Vec<SequenceRange> {
        let mut requests = Vec::new();
        contested.take_due(Nanos(now), &mut requests);
        requests
    }

    #[test]
    fn due_sequences_are_taken_once_as_ranges() {
        let mut contested = ContestedSequences::default();
        assert_eq!(
            (contested.is_empty(), contested.due_at()),
            (true, Nanos::MAX)
        );
        for sequence in [7, 3, 4] {
            contested.add(Sequence(sequence));
        }
        assert_eq!(
            (contested.is_empty(), contested.due_at()),
            (false, Nanos::ZERO)
        );
        assert_eq!(taken(&mut contested, 0), [range(3, 4), range(7, 7)]);
        assert_eq!(taken(&mut contested, 0), []);
        contested.add(Sequence(9));
        contested.clear();
        assert!(contested.is_empty());
    }

    #[test]
    fn contested_of_range_wait_until_requested_again() {
        let mut window = Window::new(8, 16);
        for sequence in 3..6 {
            window.delivered(Held {
                sequence: Sequence(sequence),
                first_record: RecordNumber(1),
                count: 1,
                crc: 1,
                via: Via::Repair,
                received_at: Nanos::ZERO,
                missing_for: Nanos::ZERO,
            });
        }
        assert!(window.contest(Sequence(3)) && window.contest(Sequence(5)));
        let mut contested = ContestedSequences::default();
        contested.request_again(&window, range(4, 4), Nanos(100));
        assert!(contested.is_empty(), "sequence 4 is not contested");
        contested.add(Sequence(3));
        contested.request_again(&window, range(3, 9), Nanos(100));
        assert_eq!(contested.due_at(), Nanos(100));
        assert_eq!(taken(&mut contested, 99), []);
        assert_eq!(taken(&mut contested, 100), [range(3, 3), range(5, 5)]);
        // The delay counts once.
        contested.add(Sequence(4));
        assert_eq!(contested.due_at(), Nanos::ZERO);
    }
}
