//! UDP: a channel's multicast on one line or two, and the live input of an exchange feed.
//!
//! Both directions move whole batches per system call, directly from the slots and into preallocated
//! buffers. If the kernel supports it, runs of datagrams pass through it as one buffer (GSO, GRO).
//! Nothing here blocks.

mod busy_poll;
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

/// Largest number of datagrams in one system call.
pub const BATCH_MAX: usize = 64;

/// Length of the longest UDP datagram over IPv4, in bytes.
pub const UDP_LEN_MAX: usize = 65_507;

/// Serde default of settings that are on unless a config turns them off.
const fn yes() -> bool {
    true
}
