//! What came under one number with two contents: the publisher is asked for its own copy, until it
//! comes or is forgotten (docs/PROTOCOL.md §5.2).
//!
//! The window remembers what is in doubt, so their number is bounded by its span however many
//! somebody forges; this file knows which of them wait to be asked about, and from when on.

use serde::{Deserialize, Serialize};

use crate::receive::Receiver;
use crate::receive::repair::RepairRequests;
use crate::receive::window::Window;
use crate::types::{Nanos, Sequence, SequenceRange};

/// Sequences in doubt that wait to be asked about.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ContestedSequences {
    to_ask: Vec<Sequence>,
    not_before: Nanos,
}

impl ContestedSequences {
    /// Whether nothing waits to be asked about.
    pub(crate) const fn is_empty(&self) -> bool {
        self.to_ask.is_empty()
    }

    /// When the question is due.
    pub(crate) const fn due_at(&self) -> Nanos {
        if self.to_ask.is_empty() {
            Nanos::MAX
        } else {
            self.not_before
        }
    }

    /// Everything that is in doubt within `range` is due at this time.
    fn request_again(&mut self, window: &Window, range: SequenceRange, at: Nanos) {
        let mut doubted = window.doubted().filter(|it| range.contains(*it)).peekable();
        if doubted.peek().is_some() {
            self.to_ask.retain(|sequence| !range.contains(*sequence));
            self.to_ask.extend(doubted);
            self.not_before = at;
        }
    }

    /// Forgets all, as at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.to_ask.clear();
    }
}

impl Receiver {
    /// Another content came under this number: asked about as soon as anybody can be.
    pub(crate) fn contest(&mut self, sequence: Sequence) {
        if self.reassembly.contest(sequence) && self.link_up && self.config.repair {
            self.contested.to_ask.push(sequence);
        }
    }

    /// What is in doubt within `range` was not answered: it is asked about again at this time.
    pub(crate) fn requery(&mut self, range: SequenceRange, at: Nanos) {
        if self.config.repair {
            self.contested
                .request_again(self.reassembly.window(), range, at);
        }
    }

    /// Asks about everything that is due, in as few ranges as can be.
    pub(crate) fn query_contested(&mut self, now: Nanos, asks: &mut RepairRequests) {
        if self.contested.due_at() > now {
            return;
        }
        let to_ask = &mut self.contested.to_ask;
        to_ask.sort_unstable();
        for sequence in to_ask.drain(..) {
            match asks.repair.last_mut() {
                Some(range) if range.last.next() == sequence => range.last = sequence,
                _ => asks.repair.push(SequenceRange::one(sequence)),
            }
        }
        self.contested.not_before = Nanos::ZERO;
    }
}
