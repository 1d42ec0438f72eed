//! The transport for tests, within one process: as strict as a network card, and repeatable.
//!
//! It reads a posted slot when it *delivers* it, not when it is posted. A publisher that writes a
//! slot too early corrupts its own stream here, as it would with a card. Its receive buffers are
//! few and must be returned: when none is free, the datagram is lost and counted. It stalls on
//! request. [`link`] is the matching control connection.

mod network;
mod stream;

pub use network::{Completion, MemoryFanOut, MemoryNetwork, MemoryNetworkConfig, MemoryReceiver};
pub use stream::{Link, LinkEnd, LinkEvent, link};
