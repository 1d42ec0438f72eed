//! Round-trip times and back-off.

mod backoff;

pub(crate) use self::backoff::NackTimer;
#[cfg(test)]
pub(crate) use self::backoff::split_mix;
