//! RDMA: multicast by unreliable datagrams, and repair over reliable connections.
//!
//! The only code that calls libibverbs and librdmacm. Handles free what they hold, in order, and
//! every return code is looked at. All that calls them is behind the feature `rdma`
//! (docs/RDMA.md says what it needs); without it configs are checked all the same, and opening
//! anything is [`VerbsError::NotBuilt`].
//!
//! | module | is |
//! |---|---|
//! | [`Device`] | a port of a device, found by its interface's address |
//! | [`VerbsFanOut`] | sends slots straight from the ring |
//! | [`VerbsReceiver`] | receives into posted buffers and lends them |
//! | [`ports`] | what the operating system says of devices, without opening any |
//! | `Listener`, `Stream` | reliable connections, as streams of bytes (with `rdma` only) |
//! | `ReadableMemory` | what a peer may be let READ over one, by a memory window |
//! | `InboxMemory` | what a publisher may be let WRITE to one that stands by for it |
//! | `CursorTable` | 64 bytes for each peer, which it writes itself and the CPU here reads |
//! | `audit` | which events tell who was let at what |

#[cfg(not(feature = "rdma"))]
mod absent;
#[cfg(feature = "rdma")]
pub mod audit;
#[cfg(feature = "rdma")]
mod cm;
mod config;
#[cfg(feature = "rdma")]
mod connected;
#[cfg(feature = "rdma")]
mod cursor;
#[cfg(feature = "rdma")]
mod device;
mod error;
#[cfg(feature = "rdma")]
mod fan_out;
#[cfg(feature = "rdma")]
mod hello;
#[cfg(feature = "rdma")]
mod listener;
#[cfg(feature = "rdma")]
mod memory;
pub mod ports;
#[cfg(feature = "rdma")]
mod queue;
#[cfg(feature = "rdma")]
mod receive;
#[cfg(feature = "rdma")]
mod sending;
#[cfg(feature = "rdma")]
mod stream;
#[cfg(feature = "rdma")]
mod sys;
#[cfg(feature = "rdma")]
mod watch;
#[cfg(feature = "rdma")]
mod window;

#[cfg(not(feature = "rdma"))]
pub use absent::{Device, VerbsFanOut, VerbsReceiver};
pub use config::{
    Pace, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiverConfig, VerbsSendLine, VerbsSender,
    inline_default, send_depth_default, signal_every_default,
};
#[cfg(feature = "rdma")]
pub use cursor::{CURSOR_LEN, CURSOR_WORDS, CursorEntry, CursorTable};
#[cfg(feature = "rdma")]
pub use device::Device;
pub use error::VerbsError;
#[cfg(feature = "rdma")]
pub use fan_out::VerbsFanOut;
#[cfg(feature = "rdma")]
pub use listener::Listener;
#[cfg(feature = "rdma")]
pub use receive::VerbsReceiver;
#[cfg(feature = "rdma")]
pub use stream::{
    Completed, GRANTS_MAX, GrantId, Stream, StreamConfig, StreamEnd, WRITE_LEN_MAX, WRITES_MAX,
};
#[cfg(feature = "rdma")]
pub use window::{InboxMemory, ReadableMemory, RemoteMemory};

use std::sync::Arc;

/// Whether this build has RDMA.
pub const IS_BUILT: bool = cfg!(feature = "rdma");

impl Device {
    /// Opens the device that an interface belongs to, and checks that it carries datagrams of so
    /// many bytes.
    ///
    /// # Errors
    /// As [`Device::open`]; [`VerbsError::Mtu`] with both numbers, [`VerbsError::Interface`].
    pub fn of(
        interface: &crate::udp::Interface,
        datagram_len_max: usize,
    ) -> Result<Arc<Self>, VerbsError> {
        let resolved = interface
            .resolve()
            .map_err(|source| VerbsError::Interface { source })?;
        let device = Self::open(resolved.address)?;
        if datagram_len_max > device.mtu() {
            return Err(VerbsError::Mtu {
                slot_len: datagram_len_max,
                mtu: device.mtu(),
                device: device.name().to_owned(),
                port: device.port(),
            });
        }
        Ok(device)
    }
}
