//! RDMA: multicast by unreliable datagrams, and repair over reliable connections.
//!
//! The only code that calls libibverbs and librdmacm. Handles free what they hold, in order, and
//! every return code is looked at. Behind the feature `rdma`; docs/RDMA.md says what it needs.
//!
//! | module | is |
//! |---|---|
//! | [`Device`] | a port of a device, found by its interface's address |
//! | [`VerbsFanOut`] | sends slots straight from the ring |
//! | [`VerbsReceiver`] | receives into posted buffers and lends them |
//! | [`Listener`], [`Stream`] | reliable connections, as streams of bytes |

mod cm;
mod connected;
mod device;
mod error;
mod fan_out;
mod listener;
mod memory;
mod queue;
mod receive;
mod sending;
mod stream;
mod sys;

pub use device::Device;
pub use error::VerbsError;
pub use fan_out::{Pace, VerbsFanOut, VerbsFanOutConfig, VerbsSendLine};
pub use listener::Listener;
pub use receive::{VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig};
pub use stream::{Stream, StreamConfig};
