//! Compares a standby's input with the publisher's stream, and relates their positions. Ordinals
//! count session changes since the process began, and a decoder started mid-session may number
//! instruments differently. So the last message of a mirrored datagram is compared with the local
//! message of the same venue sequence.

use tickcast_reliability::types::{SourceId, SourcePosition};

use crate::state::positions::{Positions, shifted};
use crate::state::standby_view::{Agreement, Head, Mark};

/// Number of differing comparisons, without an equal one between them, that prove a difference.
const DIFFERING_MAX: u32 = 8;

/// The local state of a venue sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// This message has it.
    There(SourcePosition, Head),
    /// It was not received yet.
    NotYet,
    /// It was received and is not kept, or was never received.
    Gone,
}

/// One source under comparison.
#[derive(Debug, Default)]
pub(crate) struct Comparing {
    /// The mark that waits for its local message.
    mark: Option<Mark>,
    differing: u32,
    agreement: Agreement,
}

impl Comparing {
    pub(crate) const fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Compares the mark that waits, or else the newest one, with the local message of its sequence. A
    /// mark of another session replaces the one that waits.
    pub(crate) fn compare(&mut self, newest: Option<Mark>, find: impl FnOnce(u64) -> Found) {
        let is_older = |mark: &Mark, newest: Mark| mark.at.ordinal() != newest.at.ordinal();
        if let Some(newest) = newest
            && self.mark.is_none_or(|mark| is_older(&mark, newest))
        {
            self.mark = Some(newest);
        }
        let Some(mark) = self.mark else {
            return;
        };
        match find(mark.at.sequence()) {
            Found::NotYet => return,
            Found::Gone => {}
            Found::There(at, head) if head == mark.head => {
                self.differing = 0;
                let ordinals = i32::from(mark.at.ordinal()) - i32::from(at.ordinal());
                self.agreement = Agreement::Agrees { ordinals };
            }
            Found::There(..) => {
                self.differing += 1;
                if self.differing >= DIFFERING_MAX {
                    self.agreement = Agreement::Differs;
                }
            }
        }
        self.mark = None;
    }
}

/// Converts a channel's positions to local ordinals; `ordinals` gives the difference. Positions
/// without a known difference are omitted.
pub(crate) fn as_heard(
    mirrored: &Positions,
    ordinals: impl Fn(SourceId) -> Option<i32>,
) -> Positions {
    let known = mirrored
        .iter()
        .filter_map(|(source, at)| Some((*source, shifted(*at, -ordinals(*source)?))));
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn head(ts_event: u64) -> Head {
        Head {
            rtype: 160,
            instrument: 7,
            ts_event,
        }
    }

    fn mark(ordinal: u16, sequence: u64) -> Mark {
        Mark {
            source: SourceId(1),
            at: SourcePosition::new(ordinal, sequence),
            head: head(sequence),
        }
    }

    /// Returns the local state with ordinals from 0 and every sequence up to this one.
    fn heard(up_to: u64) -> impl Fn(u64) -> Found {
        move |sequence| match sequence <= up_to {
            true => Found::There(SourcePosition::new(0, sequence), head(sequence)),
            false => Found::NotYet,
        }
    }

    #[test]
    fn same_message_under_other_ordinal_relates_positions() {
        let mut it = Comparing::default();
        it.compare(None, heard(9));
        assert_eq!(it.agreement(), Agreement::Unknown);
        it.compare(Some(mark(2, 5)), heard(9));
        assert_eq!(it.agreement(), Agreement::Agrees { ordinals: 2 });
        let mirrored = vec![
            (SourceId(1), SourcePosition::new(2, 5)),
            (SourceId(9), SourcePosition::new(0, 1)),
        ];
        let of = |source| match source {
            SourceId(1) => it.agreement().ordinals(),
            _ => None,
        };
        let expected = [(SourceId(1), SourcePosition::new(0, 5))];
        assert_eq!(as_heard(&mirrored, of), expected);
        let before = shifted(SourcePosition::new(1, 8), -2);
        assert_eq!(
            before,
            SourcePosition::new(0, 0),
            "before all that was heard"
        );
    }

    #[test]
    fn uncompared_or_differing_session_proves_nothing() {
        let at = |ordinal| SourcePosition::new(ordinal, 5);
        for (agreement, same, other) in [
            (Agreement::Agrees { ordinals: 1 }, true, true),
            (Agreement::Unknown, true, false),
            (Agreement::Differs, false, false),
        ] {
            let relates = [at(3), at(2)].map(|at| agreement.relates(at, 3));
            assert_eq!(relates, [same, other], "{agreement:?}");
        }
    }

    #[test]
    fn early_mark_waits_until_heard() {
        let mut it = Comparing::default();
        it.compare(Some(mark(0, 5)), heard(3));
        it.compare(Some(mark(0, 8)), heard(4));
        assert_eq!(it.agreement(), Agreement::Unknown);
        it.compare(Some(mark(0, 9)), heard(5));
        assert_eq!(it.agreement(), Agreement::Agrees { ordinals: 0 });
        // In another session sequences count anew, so the mark of the session before can't be matched.
        it.compare(Some(mark(0, 50)), heard(9));
        it.compare(Some(mark(1, 2)), |_| Found::Gone);
        assert!(it.mark.is_none());
    }

    #[test]
    fn differing_messages_settle_relation_same_one_reverts() {
        let mut it = Comparing::default();
        let other = |sequence| Found::There(SourcePosition::new(0, sequence), head(1_000));
        for sequence in 1..u64::from(DIFFERING_MAX) {
            it.compare(Some(mark(0, sequence)), other);
            assert_eq!(it.agreement(), Agreement::Unknown);
        }
        it.compare(Some(mark(0, 20)), other);
        assert_eq!(it.agreement(), Agreement::Differs);
        it.compare(Some(mark(0, 21)), heard(30));
        assert_eq!(it.agreement(), Agreement::Agrees { ordinals: 0 });
    }
}
