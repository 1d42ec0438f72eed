//! The output of a connection that its peer has not read, as far as known.

use crate::control::Message;
use crate::serve::in_flight::InFlight;
use crate::serve::outbox::Outbox;
use crate::types::{ChannelId, Sequence, SequenceRange};

/// The unread output of a connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Answers that cost no budget: WELCOME, REFUSED, GRANT, REJECTED.
    answers: Outbox,
    /// Bytes that the driver has not sent yet.
    backlog: usize,
    /// Whether the connection gets nothing until it or its origin has read more.
    is_paused: bool,
    /// Repairs that have not arrived yet.
    in_flight: InFlight,
}

impl Output {
    /// Returns the bytes that the peer has not read, as far as known: those in the core and in the driver.
    pub(crate) const fn unread(&self) -> usize {
        self.answers.len().saturating_add(self.backlog)
    }

    /// Returns whether answers wait.
    pub(crate) const fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Adds an answer, and returns its length in bytes.
    pub(crate) fn push(&mut self, channel: ChannelId, message: &Message<'_>) -> usize {
        self.answers.push(channel, message)
    }

    /// Removes the last answer, which has this length.
    pub(crate) fn undo(&mut self, len: usize) {
        self.answers.undo(len);
    }

    /// Moves answers to `out`, as [`Outbox::take`].
    pub(crate) fn take(&mut self, most: usize, out: &mut Vec<u8>) {
        let taken = self.answers.take(most, out);
        self.in_flight.give(taken, None);
    }

    /// Records bytes that went past the waiting answers, as [`InFlight::give`].
    pub(crate) fn give(&mut self, bytes: usize, answer: Option<(usize, Sequence)>) {
        self.in_flight.give(bytes, answer);
    }

    /// Returns the part of a NACK's range that no answer in flight covers, as [`InFlight::rest_of`].
    pub(crate) fn rest_of(&self, at: usize, range: SequenceRange) -> Option<SequenceRange> {
        self.in_flight.rest_of(at, range)
    }

    /// Records how many of the bytes have not arrived yet.
    pub(crate) fn has_left(&mut self, bytes: usize) {
        self.in_flight.has_left(bytes);
    }

    /// Returns the bytes that the driver has not sent yet.
    pub(crate) const fn backlog(&self) -> usize {
        self.backlog
    }

    /// Records the bytes that the driver has not sent yet.
    pub(crate) const fn set_backlog(&mut self, bytes: usize) {
        self.backlog = bytes;
    }

    /// Returns whether the connection gets nothing until it or its origin has read more.
    pub(crate) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Records whether the connection gets nothing until it or its origin has read more.
    pub(crate) const fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_output_is_in_the_core_and_in_the_driver() {
        let mut output = Output::default();
        assert_eq!((output.unread(), output.has_answers()), (0, false));
        let len = output.push(ChannelId(1), &Message::Leave);
        output.set_backlog(100);
        assert_eq!((output.unread(), output.has_answers()), (100 + len, true));
        output.take(len, &mut Vec::new());
        assert_eq!((output.unread(), output.has_answers()), (100, false));
        output.set_backlog(usize::MAX);
        output.push(ChannelId(1), &Message::Leave);
        assert_eq!(output.unread(), usize::MAX);
    }
}
