//! Source messages that will never be published, as they are told in the stream.

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
    /// Why.
    pub reason: SourceLossReason,
    /// Position of the first message lost.
    pub from: SourcePosition,
    /// How many messages; `u64::MAX` when nobody knows.
    pub messages: u64,
    /// The instruments concerned; empty: all of the source. More than 128 are told as all.
    pub instruments: Vec<u32>,
    /// Packets that were dropped in this host just then, before they were read, and may be these; `None`
    /// where nobody knows of any. For the log and the flight record: the stream does not say it.
    pub unread: Option<Unread>,
}

impl SourceLoss {
    /// The venue's stream had a gap of so many messages (`u64::MAX`: nobody knows), of any
    /// instrument.
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

    /// Messages that could not be read, of any instrument.
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

    /// The same, of packets that came and were dropped before anybody read them.
    pub(crate) fn unread(self, unread: Option<Unread>) -> Self {
        Self { unread, ..self }
    }

    /// The loss of `messages` of these instruments; instrument 0 concerns the whole source.
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

    /// How many messages it counts as: one of unknown size must show.
    pub(crate) const fn known_messages(&self) -> u64 {
        if self.messages == u64::MAX {
            1
        } else {
            self.messages
        }
    }

    /// Position of the last message lost, as far as that is known.
    pub(crate) const fn last(&self) -> SourcePosition {
        match self.messages {
            0 | u64::MAX => self.from,
            messages => SourcePosition(self.from.0.saturating_add(messages - 1)),
        }
    }

    /// Whether both can be told as one: neither is the venue's where the other was dropped in this host.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.reason, self.unread.is_some()) == (other.reason, other.unread.is_some())
    }

    /// More was lost of what [is like](Self::is_like) it.
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
