//! The end of the session: END alone ends nothing, the publisher must confirm it over the repair
//! connection (docs/PROTOCOL.md §5.6).

use serde::{Deserialize, Serialize};

use crate::types::Sequence;

/// How far the end of the session is known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct EndState {
    /// The sequence of END, once the publisher confirmed that it was sent.
    confirmed: Option<Sequence>,
    /// The sequence of an END that came by multicast.
    heard: Option<Sequence>,
    /// Whether the final progress was reported.
    reported: bool,
}

impl EndState {
    /// The publisher confirmed END with this sequence.
    pub(crate) const fn confirm(&mut self, sequence: Sequence) {
        self.confirmed = Some(sequence);
    }

    /// An END with this sequence came by multicast.
    pub(crate) const fn hear(&mut self, sequence: Sequence) {
        self.heard = Some(sequence);
    }

    /// Returns whether the publisher confirmed an END.
    #[must_use]
    #[inline]
    pub(crate) const fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// Returns whether this sequence lies beyond a confirmed END, where nothing follows.
    #[must_use]
    pub(crate) fn is_beyond(&self, sequence: Sequence) -> bool {
        self.confirmed.is_some_and(|end| sequence > end)
    }

    /// Returns the END that came by multicast, if nothing was sent beyond it.
    #[must_use]
    pub(crate) fn unconfirmed(&self, highest_seen: Sequence) -> Option<Sequence> {
        self.heard.filter(|end| *end == highest_seen)
    }

    /// The publisher is dead and confirms nothing more: accepts the END that came by multicast, if
    /// nothing was sent beyond it.
    pub(crate) fn accept_unconfirmed(&mut self, highest_seen: Sequence) {
        self.confirmed = self.confirmed.or(self.unconfirmed(highest_seen));
    }

    /// Returns whether everything up to a confirmed END lies before `next`.
    #[must_use]
    pub(crate) fn is_reached(&self, next: Sequence) -> bool {
        self.confirmed.is_some_and(|end| next > end)
    }

    /// Returns `true` once: the final progress is to be reported.
    pub(crate) const fn take_report(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }

    /// Forgets an END beyond `last`, which an impostor sent.
    pub(crate) fn forget_above(&mut self, last: Sequence) {
        self.heard.take_if(|end| *end > last);
    }

    /// Forgets everything: another epoch is followed.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_reached_only_when_confirmed() {
        let mut end = EndState::default();
        end.hear(Sequence(7));
        assert!(!end.is_reached(Sequence(8)) && !end.is_confirmed());
        end.confirm(Sequence(7));
        assert!(end.is_confirmed());
        assert!(!end.is_reached(Sequence(7)), "END itself is still missing");
        assert!(end.is_reached(Sequence(8)));
        assert!(end.is_beyond(Sequence(8)) && !end.is_beyond(Sequence(7)));
    }

    #[test]
    fn heard_end_counts_only_as_highest_sequence() {
        let mut end = EndState::default();
        assert_eq!(end.unconfirmed(Sequence(0)), None);
        end.hear(Sequence(7));
        assert_eq!(end.unconfirmed(Sequence(7)), Some(Sequence(7)));
        assert_eq!(end.unconfirmed(Sequence(8)), None);
        end.accept_unconfirmed(Sequence(8));
        assert!(!end.is_confirmed());
        end.accept_unconfirmed(Sequence(7));
        assert!(end.is_reached(Sequence(8)));
    }

    #[test]
    fn confirmed_end_outranks_heard_one() {
        let mut end = EndState::default();
        end.confirm(Sequence(5));
        end.hear(Sequence(7));
        end.accept_unconfirmed(Sequence(7));
        assert!(end.is_reached(Sequence(6)));
    }

    #[test]
    fn final_report_is_taken_once_per_epoch() {
        let mut end = EndState::default();
        end.confirm(Sequence(5));
        assert!(end.take_report() && !end.take_report());
        end.clear();
        assert!(end.take_report() && !end.is_confirmed());
    }
}
