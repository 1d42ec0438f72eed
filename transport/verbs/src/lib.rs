//! RDMA: multicast by unreliable datagrams, and repair over reliable connections.
//!
//! This crate holds the only code that calls libibverbs and librdmacm. Handles free what they hold,
//! in order, and every return code is checked. Code that calls these libraries is behind the feature
//! `rdma` (docs/RDMA.md lists its prerequisites). Without the feature, configs are still checked and
//! opening anything returns [`VerbsError::NotBuilt`].
//!
//! Order of folders, top to bottom; each imports only those below it:
//!
//! 1. `probe`: the probe of a device before memory is offered
//! 2. `connection`: `Listener` and `Stream`, reliable connections with READs and WRITEs
//! 3. `multicast`: [`VerbsFanOut`] and [`VerbsReceiver`], which send from the ring and receive in place
//! 4. `memory`: `ReadableMemory`, `InboxMemory` and `CursorTable`, the memory that a peer may reach
//! 5. `device`: [`Device`] with its queues, regions, events and connection manager ids
//! 6. `audit`: the events that report which peer reached which memory
//! 7. `disabled`: [`Device`] and the rest in a build without `rdma`
//! 8. `port_events`: counts of congestion, discards and damage, as the operating system reports them
//! 9. `ports`: the devices that the operating system reports, without opening any
//! 10. `config`: plain values, with or without `rdma`
//! 11. `error`: [`VerbsError`]
//! 12. `access`: [`AccessProof`], the decision from a probe

mod access;
#[cfg(feature = "rdma")]
pub mod audit;
mod config;
#[cfg(feature = "rdma")]
mod connection;
#[cfg(feature = "rdma")]
mod device;
#[cfg(not(feature = "rdma"))]
mod disabled;
mod error;
#[cfg(feature = "rdma")]
mod memory;
#[cfg(feature = "rdma")]
mod multicast;
pub mod port_events;
pub mod ports;
#[cfg(feature = "rdma")]
mod probe;

pub use access::{AccessDefect, AccessProof, AccessStep, Observed};
pub use config::{
    RateLimit, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiverConfig, VerbsSendLine,
    VerbsSender, inline_default, send_depth_default, signal_every_default,
};
#[cfg(feature = "rdma")]
pub use connection::{
    Completed, GRANTS_MAX, GrantId, Listener, Stream, StreamConfig, StreamEnd, WRITE_LEN_MAX,
    WRITES_MAX,
};
#[cfg(feature = "rdma")]
pub use device::Device;
#[cfg(not(feature = "rdma"))]
pub use disabled::{Device, VerbsFanOut, VerbsReceiver};
pub use error::VerbsError;
#[cfg(feature = "rdma")]
pub use memory::{
    CURSOR_LEN, CURSOR_WORDS, CursorEntry, CursorTable, InboxMemory, ReadableMemory, RemoteMemory,
};
#[cfg(feature = "rdma")]
pub use multicast::{VerbsFanOut, VerbsReceiver};
/// The bindings, for tests that drive a device directly.
#[cfg(feature = "rdma")]
#[doc(hidden)]
pub use rdma_sys;

use std::sync::Arc;

use tickcast_transport_base::host::interface::Interface;

/// Whether this build supports RDMA.
pub const IS_BUILT: bool = cfg!(feature = "rdma");

impl Device {
    /// Opens the device of an interface and checks that one packet carries `datagram_len_max` bytes.
    ///
    /// # Errors
    /// - the errors of [`Device::open`]
    /// - [`VerbsError::Mtu`] with both lengths, if a datagram does not fit into one packet
    /// - [`VerbsError::Interface`] if there is no such interface
    pub fn of(interface: &Interface, datagram_len_max: usize) -> Result<Arc<Self>, VerbsError> {
        let resolved = interface
            .resolve()
            .map_err(|source| VerbsError::Interface { source })?;
        let device = Self::open(resolved.address)?;
        device.check_len(datagram_len_max)?;
        Ok(device)
    }
}
