//! Multicast by unreliable datagrams.

mod fan_out;
mod receiver;
mod send_queue;

pub use fan_out::VerbsFanOut;
pub use receiver::VerbsReceiver;
