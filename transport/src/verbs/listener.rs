//! Waits for peers to connect, without blocking.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::cm::{CmId, PortSpace};
use super::device::Device;
use super::error::VerbsError;
use super::stream::{Stream, StreamConfig};

/// Waits for peers to connect.
pub struct Listener {
    id: CmId,
    device: Arc<Device>,
    config: StreamConfig,
}

impl Listener {
    /// Listens on a device; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn bind(address: Ipv4Addr, port: u16, config: &StreamConfig) -> Result<Self, VerbsError> {
        config.check()?;
        let device = Device::open(address)?;
        let id = CmId::new(PortSpace::Tcp)?;
        id.bind(address, port)?;
        id.listen(128)?;
        Ok(Self {
            id,
            device,
            config: config.clone(),
        })
    }

    /// Where others connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.device.address(), self.id.listening_port())
    }

    /// The device that it listens on.
    #[must_use]
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The next peer that wants to connect, if any. It is up once its stream says so.
    pub fn accept(&mut self) -> Option<Result<Stream, VerbsError>> {
        while let Some(event) = self.id.event() {
            if let Some(id) = CmId::adopt(&event) {
                let accept = |id| Stream::accept(&self.device, id, event.word, &self.config);
                return Some(id.and_then(accept));
            }
        }
        None
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.id.as_raw_fd()
    }
}
