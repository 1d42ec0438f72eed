//! Faults on purpose, seeded: the same seed does the same to the same datagrams, whatever carries
//! them.
//!
//! [`FaultInjector`] is the core: datagrams and `now` in, datagrams out; the relay `inject` and
//! simulations use it directly. [`FaultyReceiver`] puts it around any receiver. What is written down of
//! what was done is exact ([`FaultLog`]): a test compares it with what subscribers say they missed.

mod config;
mod injector;
mod log;
mod receiver;

pub use config::{Burst, Delay, FaultConfig, FaultConfigError, Reorder, Scripted};
pub use injector::FaultInjector;
pub use log::{Entry, FaultCounts, FaultKind, FaultLog};
pub use receiver::FaultyReceiver;
