//! Round-trip times and back-off.

mod backoff;

pub(crate) use self::backoff::NackTimer;
