//! What the dead ends of a stream delivered: an epoch that continues another publishes it once more,
//! and nobody may be told it twice.

use std::collections::BTreeSet;

use tickcast_reliability::types::{ChannelId, Epoch, Sequence};
use tickcast_reliability::wire::Kind;

use crate::truth::Truth;

/// Records by their number, since the stream was first continued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Whether it was.
    continued: bool,
    /// These were delivered.
    delivered: BTreeSet<u64>,
    /// These were declared lost, or came before the beginning: whether they come again is not said.
    passed: BTreeSet<u64>,
}

impl Told {
    /// The stream goes on elsewhere; numbers mean the same.
    pub(crate) fn continues(&mut self) {
        self.continued = true;
    }

    /// Another stream: numbers mean something else.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Notes that these were delivered; gives how many of them are news.
    pub(crate) fn deliver(&mut self, numbers: std::ops::Range<u64>) -> u64 {
        let new = numbers.filter(|number| self.delivered.insert(*number));
        new.count() as u64
    }

    /// Notes that these were passed without being delivered, for certain; gives their number.
    pub(crate) fn pass(&mut self, numbers: std::ops::Range<u64>) -> u64 {
        let new = numbers.filter(|number| self.passed.insert(*number));
        new.count() as u64
    }

    /// A record is told.
    ///
    /// # Errors
    /// That it was told before.
    pub(crate) fn record(&mut self, number: u64) -> Result<(), String> {
        if self.continued && !self.delivered.insert(number) {
            return Err(format!("record {number} a second time, in another epoch"));
        }
        Ok(())
    }

    /// Whether this record need not be told.
    pub(crate) fn may_skip(&self, number: u64) -> bool {
        self.continued && (self.delivered.contains(&number) || self.passed.contains(&number))
    }

    /// How many of these records were told: at least, and at most.
    pub(crate) fn within(&self, numbers: &std::ops::Range<u64>) -> (u64, u64) {
        let count = |of: &BTreeSet<u64>| of.range(numbers.clone()).count() as u64;
        let (least, more) = (count(&self.delivered), count(&self.passed));
        (least, least + more)
    }

    /// Whether nothing was told of any dead end.
    pub(crate) fn is_empty(&self) -> bool {
        self.delivered.is_empty() && self.passed.is_empty()
    }

    /// Whether this datagram holds nothing more that must be told, the first `part` records of it
    /// having been.
    pub(crate) fn may_skip_all(
        &self,
        truth: &Truth,
        (channel, epoch): (ChannelId, Epoch),
        (sequence, part): (Sequence, u64),
    ) -> bool {
        let sealed = truth.sealed_at(channel, epoch, sequence);
        let data = sealed.filter(|sealed| self.continued && sealed.kind == Kind::Data);
        data.is_some_and(|of| {
            let mut rest = of.first_record + part..of.first_record + of.count;
            rest.all(|number| self.may_skip(number))
        })
    }
}
