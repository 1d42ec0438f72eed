//! Accepts connections without blocking.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crate::audit::{self, AuditEvent};
use crate::connection::{Stream, StreamConfig};
use crate::device::Device;
use crate::device::cm::{CmEvent, CmId, PortSpace};
use crate::error::VerbsError;

/// Accepts connections of peers.
pub struct Listener {
    id: CmId,
    device: Arc<Device>,
    config: StreamConfig,
    /// Every connection that is not up yet holds a clone.
    half_open: Arc<()>,
}

/// Limit of connections that are not up yet. Each has already pinned its buffers, for an unknown peer.
const HALF_OPEN_MAX: usize = 64;

impl Listener {
    /// Listens on a device. With port 0 the system chooses the port.
    ///
    /// # Errors
    /// [`VerbsError`] if the config is invalid, the device can't be opened or the port can't be bound.
    pub fn bind(address: Ipv4Addr, port: u16, config: &StreamConfig) -> Result<Self, VerbsError> {
        config.check()?;
        Self::on(Device::open(address)?, port, config)
    }

    /// Listens on an open device.
    pub(crate) fn on(
        device: Arc<Device>,
        port: u16,
        config: &StreamConfig,
    ) -> Result<Self, VerbsError> {
        let id = CmId::new(PortSpace::Tcp)?;
        id.bind(device.address(), port)?;
        id.listen(128)?;
        Ok(Self {
            id,
            device,
            config: config.clone(),
            half_open: Arc::new(()),
        })
    }

    /// Returns the address that peers connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.device.address(), self.id.listening_port())
    }

    /// Returns the device that this listens on.
    #[must_use]
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Refuses the next request to connect, before anything is allocated for it. Returns whether there
    /// was a request.
    pub fn turn_away(&mut self) -> bool {
        while let Some(event) = self.id.event() {
            // Dropping an id without an answer refuses its request.
            if let Some(id) = CmId::adopt(&event) {
                let peer = id.ok().map(|id| id.peer_address());
                self.refused(peer, &"too many connections");
                return true;
            }
        }
        false
    }

    /// Accepts or refuses the next request to connect. `None` if there is none. A connection is up once
    /// [`Stream::is_up`] returns true. A request is refused with
    ///
    /// - [`VerbsError::Crowded`] if too many connections are not up yet
    /// - [`VerbsError::Stranger`] if the peer does not speak this protocol
    /// - [`VerbsError::GaveUp`] if the peer does not wait any more
    pub fn accept(&mut self) -> Option<Result<Stream, VerbsError>> {
        while let Some(event) = self.id.event() {
            if let Some(id) = CmId::adopt(&event) {
                return Some(id.and_then(|id| self.answer(id, &event)));
            }
        }
        None
    }
}

impl Listener {
    /// Accepts or refuses a request. Dropping an id without an answer refuses it.
    fn answer(&self, id: CmId, request: &CmEvent) -> Result<Stream, VerbsError> {
        let peer = id.peer_address();
        let accepted = if Arc::strong_count(&self.half_open) > HALF_OPEN_MAX {
            Err(VerbsError::Crowded)
        } else if !id.is_awaited() {
            // Checked before anything is allocated: when many peers connect at once and retry, the peers
            // that still wait are served.
            Err(VerbsError::GaveUp)
        } else {
            let half_open = Arc::clone(&self.half_open);
            Stream::accept(&self.device, id, request, &self.config, half_open)
        };
        if let Err(why) = &accepted {
            self.refused(Some(peer), why);
        }
        accepted
    }

    fn refused(&self, peer: Option<SocketAddrV4>, why: &dyn fmt::Display) {
        let of = audit::Of {
            device: self.device.name(),
            peer,
            why: Some(why),
            ..audit::Of::default()
        };
        audit::write_entry(AuditEvent::PeerRefused, of);
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.id.as_raw_fd()
    }
}
