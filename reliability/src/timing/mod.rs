//! Round-trip times, back-off and the retries of a connection.

mod backoff;
mod link;

pub(crate) use self::backoff::NackTimer;
#[cfg(test)]
pub(crate) use self::backoff::split_mix;
pub(crate) use self::link::Link;
pub use self::link::LinkTimers;
