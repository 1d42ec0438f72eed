//! Deliberate faults, seeded: the same seed has the same effect on the same datagrams, over any
//! transport.
//!
//! [`FaultInjector`] is the core: datagrams and `now` in, datagrams out. The relay `inject` and
//! simulations use it directly. [`FaultyReceiver`] puts it around any receiver. The log of faults is
//! exact ([`FaultLog`]), and tests compare it with the losses that subscribers report.

mod config;
mod injector;
mod log;
mod receiver;

pub use config::{Burst, Delay, FaultConfig, FaultConfigError, Reorder, Scripted};
pub use injector::FaultInjector;
pub use log::{Entry, FaultCounts, FaultKind, FaultLog};
pub use receiver::FaultyReceiver;
