//! The protocol of tickcast, without I/O, clock or threads.
pub mod record;
pub mod units;
