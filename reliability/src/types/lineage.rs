//! The lineage of an epoch: the earlier epochs that it continues, and where each of them ended
//! (docs/PROTOCOL.md §5.7).
//!
//! A promoted standby continues behind the last datagram that it mirrored. Sequences and record numbers
//! continue, and datagrams sealed under the earlier epochs are still served. The epoch of a datagram
//! therefore follows from its sequence.

use serde::{Deserialize, Serialize};

use crate::types::{Epoch, RecordNumber, SEQUENCE_LAST, Sequence};

/// The end of an earlier epoch in the epoch that continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continued {
    /// The earlier epoch.
    pub epoch: Epoch,
    /// Its last valid sequence; the next one belongs to the epoch that continues it.
    pub last: Sequence,
    /// Number of the first record after that sequence.
    pub next_record: RecordNumber,
    /// Whether the epoch's publisher is known to have sealed nothing beyond, because it handed over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
}

/// The epochs that one epoch continues, newest first, at most [`Lineage::MAX`]. Empty for an epoch that
/// continues none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Continued>", into = "Vec<Continued>")]
pub struct Lineage(Vec<Continued>);

impl From<Vec<Continued>> for Lineage {
    /// Keeps the newest [`Lineage::MAX`] epochs.
    fn from(mut all: Vec<Continued>) -> Self {
        all.truncate(Self::MAX);
        Self(all)
    }
}

impl From<Lineage> for Vec<Continued> {
    fn from(lineage: Lineage) -> Self {
        lineage.0
    }
}

impl Lineage {
    /// Maximum number of earlier epochs.
    pub const MAX: usize = 16;

    /// Returns the earlier epochs, newest first.
    #[must_use]
    pub fn epochs(&self) -> &[Continued] {
        &self.0
    }

    /// Returns whether the epoch continues none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the end of `epoch`; `None` when it is not one of those continued.
    #[must_use]
    pub fn of(&self, epoch: Epoch) -> Option<Continued> {
        self.0.iter().copied().find(|it| it.epoch == epoch)
    }

    /// Returns the first sequence of the epoch with this lineage, and the number of its first record.
    #[must_use]
    pub fn begins(&self) -> (Sequence, RecordNumber) {
        match self.0.first() {
            Some(before) => (before.last.next(), before.next_record),
            None => (Sequence::FIRST, RecordNumber::FIRST),
        }
    }

    /// Returns the epoch that sealed this sequence, for an `epoch` with this lineage.
    #[must_use]
    #[inline]
    pub fn epoch_of(&self, epoch: Epoch, sequence: Sequence) -> Epoch {
        let earlier = self.0.iter().take_while(|it| sequence <= it.last);
        earlier.last().map_or(epoch, |it| it.epoch)
    }

    /// Returns the lineage of an epoch that continues the one with this lineage. Also returns the oldest
    /// epoch if it was dropped for lack of room. Earlier epochs end at `before.last` at the latest.
    #[must_use]
    pub fn continued(&self, before: Continued) -> (Self, Option<Continued>) {
        let dropped = (self.0.len() == Self::MAX).then(|| self.0.last().copied());
        let ended = |it: &Continued| Continued {
            epoch: it.epoch,
            last: it.last.min(before.last),
            next_record: it.next_record.min(before.next_record),
            complete: it.complete && it.last <= before.last,
        };
        let all = std::iter::once(before).chain(self.0.iter().map(ended));
        (Self(all.take(Self::MAX).collect()), dropped.flatten())
    }

    /// Returns whether `epoch` can have this lineage: epochs, sequences and record numbers only rise.
    #[must_use]
    pub fn is_possible(&self, epoch: Epoch) -> bool {
        let mut after = Continued {
            epoch,
            last: SEQUENCE_LAST,
            next_record: RecordNumber(u64::MAX),
            complete: false,
        };
        self.0.iter().all(|it| {
            let rises = it.epoch < after.epoch
                && it.last <= after.last
                && it.next_record <= after.next_record;
            after = *it;
            rises && it.epoch != Epoch::NONE && it.next_record != RecordNumber(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continued(epoch: u64, last: u64, next_record: u64) -> Continued {
        Continued {
            epoch: Epoch(epoch),
            last: Sequence(last),
            next_record: RecordNumber(next_record),
            complete: false,
        }
    }

    fn lineage(all: &[(u64, u64, u64)]) -> Lineage {
        let all = all.iter().map(|(e, l, r)| continued(*e, *l, *r));
        Lineage::from(all.collect::<Vec<_>>())
    }

    #[test]
    fn lineage_maps_sequence_to_oldest_epoch_reaching_it() {
        let of = lineage(&[(5, 20, 70), (3, 20, 70), (2, 10, 31)]);
        let epochs = [1, 10, 11, 20, 21].map(|s| of.epoch_of(Epoch(9), Sequence(s)).0);
        assert_eq!(epochs, [2, 2, 3, 3, 9], "of epoch 5 nothing was mirrored");
        assert_eq!(of.begins(), (Sequence(21), RecordNumber(70)));
        assert_eq!(of.of(Epoch(3)), Some(continued(3, 20, 70)));
        assert_eq!(of.of(Epoch(9)), None);
        let none = Lineage::default();
        assert_eq!(none.epoch_of(Epoch(9), Sequence(1)), Epoch(9));
        assert_eq!(none.begins(), (Sequence(1), RecordNumber(1)));
    }

    #[test]
    fn lineage_with_unordered_or_zero_entries_is_invalid() {
        assert!(Lineage::default().is_possible(Epoch(1)));
        assert!(lineage(&[(5, 20, 70), (3, 20, 70), (2, 0, 1)]).is_possible(Epoch(6)));
        for wrong in [
            lineage(&[(6, 20, 70)]),
            lineage(&[(5, 20, 70), (5, 10, 7)]),
            lineage(&[(5, 20, 70), (3, 21, 70)]),
            lineage(&[(5, 20, 70), (3, 20, 71)]),
            lineage(&[(0, 20, 70)]),
            lineage(&[(5, 20, 0)]),
            lineage(&[(5, u64::MAX, 7)]),
        ] {
            assert!(!wrong.is_possible(Epoch(6)), "{wrong:?}");
        }
    }

    #[test]
    fn continuing_before_epoch_start_ends_predecessors() {
        let of = lineage(&[(5, 20, 70), (3, 12, 33), (2, 10, 31)]);
        let (grown, _) = of.continued(continued(6, 11, 32));
        let expected = lineage(&[(6, 11, 32), (5, 11, 32), (3, 11, 32), (2, 10, 31)]);
        assert_eq!(grown, expected);
        assert!(grown.is_possible(Epoch(7)));
        assert_eq!(grown.epoch_of(Epoch(7), Sequence(11)), Epoch(3));
        assert_eq!(grown.epoch_of(Epoch(7), Sequence(12)), Epoch(7));
    }

    #[test]
    fn lineage_prepends_new_epoch_and_drops_the_oldest() {
        let mut of = Lineage::default();
        for n in 1..=Lineage::MAX as u64 {
            let (grown, dropped) = of.continued(continued(n, n * 10, n * 10 + 1));
            assert_eq!(dropped, None);
            of = grown;
        }
        let (grown, dropped) = of.continued(continued(99, 1_000, 1_001));
        assert_eq!(dropped, Some(continued(1, 10, 11)));
        assert_eq!(grown.epochs().len(), Lineage::MAX);
        assert_eq!(grown.epochs()[0], continued(99, 1_000, 1_001));
        let json = serde_json::to_string(&grown).unwrap();
        assert!(json.starts_with(r#"[{"epoch":99,"last":1000,"next_record":1001},"#));
        assert_eq!(serde_json::from_str::<Lineage>(&json).unwrap(), grown);
    }
}
