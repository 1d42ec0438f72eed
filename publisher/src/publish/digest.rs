//! A digest of a channel's records: XXH3-128 over their bytes in order, before they are packed.
//! Subscribers take the same over what they were given: equal digests mean that nothing was lost,
//! added, altered or put in another order.

use tickcast_reliability::record::RecordSlice;
use xxhash_rust::xxh3::Xxh3;

/// A digest being taken.
#[derive(Clone)]
pub(crate) struct Digest(Box<Xxh3>);

impl Default for Digest {
    fn default() -> Self {
        Self(Box::new(Xxh3::new()))
    }
}

impl Digest {
    /// Adds records.
    #[inline]
    pub(crate) fn add(&mut self, records: RecordSlice<'_>) {
        self.0.update(records.bytes());
    }

    /// The digest of everything added so far, as 32 hexadecimal digits.
    #[must_use]
    pub(crate) fn to_hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
