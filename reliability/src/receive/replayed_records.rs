//! Records that the abandoned end of an epoch delivered. The epoch that continues it publishes them
//! again with the same numbers, and they are not delivered again (docs/PROTOCOL.md §5.7).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::types::RecordNumber;

/// Runs of record numbers, ascending and apart from each other; nearly always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AlreadyDelivered {
    runs: Vec<Range<u64>>,
}

impl AlreadyDelivered {
    /// Returns whether there are none.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Notes that the records from `from` up to the one before `to` were delivered.
    pub(crate) fn add(&mut self, from: RecordNumber, to: RecordNumber) {
        let mut run = from.0..to.0;
        if run.is_empty() {
            return;
        }
        // Runs that overlap or touch the new one become part of it.
        let first = (self.runs).partition_point(|known| known.end < run.start);
        let behind = (self.runs).partition_point(|known| known.start <= run.end);
        if first < behind {
            run.start = run.start.min(self.runs[first].start);
            run.end = run.end.max(self.runs[behind - 1].end);
        }
        self.runs.splice(first..behind, [run]);
    }

    /// Returns whether this record was delivered.
    pub(crate) fn has(&self, record: RecordNumber) -> bool {
        let at = self.runs.partition_point(|run| run.end <= record.0);
        self.runs.get(at).is_some_and(|run| run.start <= record.0)
    }

    /// Returns how many records there are.
    pub(crate) fn count(&self) -> u64 {
        self.within(RecordNumber(0), RecordNumber(u64::MAX))
    }

    /// Returns how many of the records from `from` up to the one before `to` were delivered.
    pub(crate) fn within(&self, from: RecordNumber, to: RecordNumber) -> u64 {
        let parts = self.runs.iter();
        let parts = parts.map(|run| run.end.min(to.0).saturating_sub(run.start.max(from.0)));
        parts.sum()
    }

    /// Forgets all records before `next`, which the stream has passed.
    pub(crate) fn pass(&mut self, next: RecordNumber) {
        let passed = self.runs.partition_point(|run| run.end <= next.0);
        self.runs.drain(..passed);
    }

    /// Forgets all records, because the next epoch has other numbers.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn already_delivered_set_agrees_with_model(
            added in proptest::collection::vec((1u64..60, 0u64..9), 0..20),
            next in 1u64..70,
            (from, len) in (1u64..70, 0u64..20),
        ) {
            let (mut it, mut model) = (AlreadyDelivered::default(), BTreeSet::new());
            for (from, len) in added {
                it.add(RecordNumber(from), RecordNumber(from + len));
                model.extend(from..from + len);
                let mut runs = it.runs.windows(2);
                prop_assert!(runs.all(|two| two[0].end < two[1].start), "{:?}", it);
            }
            let within = model.range(from..from + len).count() as u64;
            prop_assert_eq!(it.within(RecordNumber(from), RecordNumber(from + len)), within);
            it.pass(RecordNumber(next));
            for number in next..80 {
                prop_assert_eq!(it.has(RecordNumber(number)), model.contains(&number));
            }
            prop_assert_eq!(it.is_empty(), !model.iter().any(|number| *number >= next));
        }
    }
}
