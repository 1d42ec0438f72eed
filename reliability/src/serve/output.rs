//! The output of a connection that its peer has not read, as far as known.

use crate::serve::in_flight::InFlight;
use crate::serve::outbox::Outbox;

/// The unread output of a connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Answers that cost no budget: WELCOME, REFUSED, GRANT, REJECTED.
    pub(super) answers: Outbox,
    /// Bytes that the driver has not sent yet.
    backlog: usize,
    /// Whether the connection gets nothing until it or its origin has read more.
    is_paused: bool,
    /// Repairs that have not arrived yet.
    pub(super) in_flight: InFlight,
}

impl Output {
    /// Returns the bytes that the peer has not read, as far as known: those in the core and in the driver.
    pub(crate) const fn unread(&self) -> usize {
        self.answers.len().saturating_add(self.backlog)
    }

    /// Moves answers to `out`, as [`Outbox::take`].
    pub(crate) fn take(&mut self, most: usize, out: &mut Vec<u8>) {
        let taken = self.answers.take(most, out);
        self.in_flight.give(taken, None);
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
    use crate::control::Message;
    use crate::types::ChannelId;

    #[test]
    fn unread_output_is_in_the_core_and_in_the_driver() {
        let mut output = Output::default();
        assert_eq!((output.unread(), output.answers.is_empty()), (0, true));
        let len = output.answers.push(ChannelId(1), &Message::Leave);
        output.set_backlog(100);
        assert_eq!(
            (output.unread(), output.answers.is_empty()),
            (100 + len, false)
        );
        output.take(len, &mut Vec::new());
        assert_eq!((output.unread(), output.answers.is_empty()), (100, true));
        output.set_backlog(usize::MAX);
        output.answers.push(ChannelId(1), &Message::Leave);
        assert_eq!(output.unread(), usize::MAX);
    }
}
