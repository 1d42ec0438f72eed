//! UDP: a channel's multicast on one line or two, and the live input of an exchange feed.
//!
//! Both directions move whole batches per system call, straight from the slots and into buffers
//! that exist from the start; where the kernel can, runs of datagrams go through it as one (GSO,
//! GRO). Nothing here blocks.

mod fan_out;
mod gso;
mod iovec;
#[doc(hidden)]
pub mod raw;
mod receiver;
mod recvmmsg;
mod sendmmsg;
mod socket;

pub use fan_out::{UdpFanOut, UdpFanOutConfig, UdpSendLine};
pub use receiver::{
    FeedDatagram, FeedReceiver, FeedReceiverConfig, UdpReceiveLine, UdpReceiver, UdpReceiverConfig,
};
pub use socket::{BufferGrant, UdpError, UdpWarning};

/// How many datagrams one system call carries at most.
pub const BATCH_MAX: usize = 64;

/// The longest UDP datagram that IPv4 carries, in bytes.
pub const UDP_LEN_MAX: usize = 65_507;

/// The default of what is on unless a config says otherwise.
const fn yes() -> bool {
    true
}
