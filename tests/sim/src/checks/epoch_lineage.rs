//! Records that the dead ends of a stream delivered. An epoch that continues another publishes them
//! again, and no application may receive them twice.

use std::collections::BTreeSet;

use tickcast_reliability::types::{ChannelId, Epoch, Sequence};
use tickcast_reliability::wire::Kind;

use crate::truth::Truth;

/// Numbers of the records delivered, or void, since the stream was first continued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    /// Whether the stream was continued.
    continued: bool,
    /// Delivered records.
    delivered: BTreeSet<u64>,
    /// Records that were delivered and are void: they may be delivered again or not.
    void: BTreeSet<u64>,
}

impl Reported {
    /// Records that the stream continues in another epoch with the same record numbers.
    pub(crate) fn continues(&mut self) {
        self.continued = true;
    }

    /// Forgets everything, because record numbers have another meaning in a new stream.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records that these were delivered. Returns how many of them are new.
    pub(crate) fn deliver(&mut self, numbers: std::ops::Range<u64>) -> u64 {
        let new = numbers.filter(|number| self.delivered.insert(*number));
        new.count() as u64
    }

    /// Records that deliveries from this record on are void: they may be delivered again or not.
    pub(crate) fn void(&mut self, from: u64) {
        let void = self.delivered.split_off(&from);
        self.void.extend(void);
    }

    /// Checks a delivered record.
    ///
    /// # Errors
    /// A record that was delivered before.
    pub(crate) fn record(&mut self, number: u64) -> Result<(), String> {
        if self.continued && !self.delivered.insert(number) {
            return Err(format!("record {number} a second time, in another epoch"));
        }
        Ok(())
    }

    /// Returns whether this record may be left out.
    pub(crate) fn may_skip(&self, number: u64) -> bool {
        self.continued && (self.delivered.contains(&number) || self.void.contains(&number))
    }

    /// Returns how many of these records were delivered: minimum and maximum.
    pub(crate) fn within(&self, numbers: &std::ops::Range<u64>) -> (u64, u64) {
        let count = |of: &BTreeSet<u64>| of.range(numbers.clone()).count() as u64;
        let (least, more) = (count(&self.delivered), count(&self.void));
        (least, least + more)
    }

    /// Returns whether no dead end delivered any record.
    pub(crate) fn is_empty(&self) -> bool {
        self.delivered.is_empty() && self.void.is_empty()
    }

    /// Returns whether all records of this datagram may be left out, apart from the first `part`,
    /// which were delivered.
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
