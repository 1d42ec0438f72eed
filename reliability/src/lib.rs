//! The protocol of tickcast, without I/O, clock or threads.
pub mod control;
pub mod counters;
pub mod delivery;
pub mod loss;
pub mod record;
pub mod units;
pub mod wire;
