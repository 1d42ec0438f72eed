//! A digest of a channel's records: XXH3-128 over their bytes in order, before packing. Subscribers
//! compute the digest over the records they receive. Equal digests mean that nothing was lost,
//! added, altered or reordered.

use tickcast_reliability::record::RecordSlice;
use xxhash_rust::xxh3::Xxh3;

/// A digest in progress.
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

    /// Returns the digest of everything added so far, as 32 hexadecimal digits.
    #[must_use]
    pub(crate) fn to_hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
