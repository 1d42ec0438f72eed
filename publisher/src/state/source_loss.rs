//! Source messages that will never be published, as the stream reports them.

pub use tickcast_journal::Unread;
use tickcast_reliability::types::SourcePosition;
pub use tickcast_reliability::wire::SourceLossReason;
use tickcast_reliability::wire::StreamEvent;

/// Messages that the publisher never had, or could not publish: subscribers' books may be wrong
/// for the instruments named (docs/PROTOCOL.md §4.2).
///
/// ```
/// use tickcast_publisher::{SourceLoss, SourcePosition};
///
/// // The venue's messages 17 to 19 never came.
/// let loss = SourceLoss::gap(SourcePosition::new(0, 17), 3);
/// assert!(loss.instruments.is_empty(), "it may concern any of them");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLoss {
    /// Reason of the loss.
    pub reason: SourceLossReason,
    /// Position of the first message lost.
    pub from: SourcePosition,
    /// Number of messages; `u64::MAX` if unknown.
    pub messages: u64,
    /// The instruments concerned; empty: all of the source. More than 128 are reported as all.
    pub instruments: Vec<u32>,
    /// Packets dropped unread on this host at that time, which may be the lost ones; `None` if none
    /// are known. For the log and the journal only; the stream does not report it.
    pub unread: Option<Unread>,
}

impl SourceLoss {
    /// Returns a gap of `messages` messages of any instrument in the venue's stream (`u64::MAX`:
    /// unknown).
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourceLoss, SourcePosition, WriteError};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// // Messages 8 to 10 of the venue never came.
    /// channel.source_lost(SourceLoss::gap(SourcePosition::new(0, 8), 3))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn gap(from: SourcePosition, messages: u64) -> Self {
        Self {
            reason: SourceLossReason::Gap,
            from,
            messages,
            instruments: Vec::new(),
            unread: None,
        }
    }

    /// Returns a loss of unreadable messages, of any instrument.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourceLoss, SourcePosition, WriteError};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// channel.source_lost(SourceLoss::malformed(SourcePosition::new(0, 8), 1))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn malformed(from: SourcePosition, messages: u64) -> Self {
        Self {
            reason: SourceLossReason::Malformed,
            from,
            messages,
            instruments: Vec::new(),
            unread: None,
        }
    }

    /// Adds the packets that this host dropped unread.
    pub(crate) fn unread(self, unread: Option<Unread>) -> Self {
        Self { unread, ..self }
    }

    /// Returns the loss of `messages` of these instruments; instrument 0 concerns the whole source.
    pub(crate) fn of(
        reason: SourceLossReason,
        from: SourcePosition,
        messages: u64,
        instruments: &[u32],
    ) -> Self {
        let all = instruments.contains(&0) || instruments.len() > StreamEvent::INSTRUMENTS_MAX;
        Self {
            reason,
            from,
            messages,
            instruments: if all { &[] } else { instruments }.to_vec(),
            unread: None,
        }
    }

    /// Returns the number of messages to count: a loss of unknown size counts too.
    pub(crate) const fn known_messages(&self) -> u64 {
        if self.messages == u64::MAX {
            1
        } else {
            self.messages
        }
    }

    /// Returns the position of the last message lost, as far as known.
    pub(crate) const fn last(&self) -> SourcePosition {
        match self.messages {
            0 | u64::MAX => self.from,
            messages => SourcePosition(self.from.0.saturating_add(messages - 1)),
        }
    }

    /// Returns whether both can be reported as one: a venue gap and a drop on this host can't.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.reason, self.unread.is_some()) == (other.reason, other.unread.is_some())
    }

    /// Adds a loss that [is like](Self::is_like) this one.
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages = self.messages.saturating_add(other.messages);
        if let (Some(unread), Some(more)) = (&mut self.unread, other.unread) {
            unread.packets = unread.packets.saturating_add(more.packets);
            unread.paused = unread.paused.max(more.paused);
        }
        let instruments = &other.instruments;
        if self.instruments.is_empty() || instruments.is_empty() || instruments.contains(&0) {
            return self.instruments.clear();
        }
        for id in instruments {
            if !self.instruments.contains(id) {
                self.instruments.push(*id);
            }
        }
        if self.instruments.len() > StreamEvent::INSTRUMENTS_MAX {
            self.instruments.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_add_up_and_too_many_instruments_are_all() {
        let at = SourcePosition::new(0, 5);
        let of =
            |messages, ids: &[u32]| SourceLoss::of(SourceLossReason::Overflow, at, messages, ids);
        let mut loss = of(1, &[7]);
        for id in [8, 7, 9] {
            loss.add(&of(1, &[id]));
        }
        assert_eq!((loss.messages, &loss.instruments[..]), (4, &[7, 8, 9][..]));
        let mut whole = loss.clone();
        whole.add(&of(1, &[0]));
        assert!(whole.instruments.is_empty());
        whole.add(&of(1, &[7]));
        assert!(whole.instruments.is_empty(), "all stays all");
        for id in 100..300 {
            loss.add(&of(1, &[id]));
        }
        assert!(loss.instruments.is_empty(), "too many to name");
        loss.add(&of(u64::MAX, &[1]));
        assert_eq!(loss.messages, u64::MAX, "unknown stays unknown");
    }
}
