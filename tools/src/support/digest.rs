//! The digest that publisher and subscribers compare: XXH3-128 over the bytes of every record of a
//! channel, in order, as hexadecimal text.

use tickcast_reliability::record::RecordRef;
use xxhash_rust::xxh3::Xxh3;

/// A digest in progress.
#[derive(Default)]
pub struct Digest(Box<Xxh3>);

impl Digest {
    /// Adds one record.
    pub fn add(&mut self, record: RecordRef<'_>) {
        self.0.update(record.as_ref());
    }

    /// Returns the digest of all records added so far.
    pub fn to_hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
