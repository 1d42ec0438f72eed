//! UDP: a channel's multicast on one line or two, and the live input of an exchange feed.
//!
//! Both directions move whole batches per system call, straight from the slots and into buffers
//! that exist from the start. Nothing here blocks.

mod batch;
mod fan_out;
mod interface;
mod receiver;
mod socket;

pub use batch::BATCH_MAX;
pub use fan_out::{UdpFanOut, UdpFanOutConfig, UdpSendLine};
pub use interface::{Interface, InterfaceError, ResolvedInterface};
pub use receiver::{
    FeedDatagram, FeedReceiver, FeedReceiverConfig, UdpReceiveLine, UdpReceiver, UdpReceiverConfig,
};
pub use socket::{BufferGrant, UdpError, UdpWarning};

/// The longest UDP datagram that IPv4 carries, in bytes.
pub const UDP_LEN_MAX: usize = 65_507;
