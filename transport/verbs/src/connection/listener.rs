//! Waits for peers to connect, without blocking.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crate::audit::{self, AuditEvent};
use crate::connection::{Stream, StreamConfig};
use crate::device::Device;
use crate::device::cm::{CmEvent, CmId, PortSpace};
use crate::error::VerbsError;

/// Waits for peers to connect.
pub struct Listener {
    id: CmId,
    device: Arc<Device>,
    config: StreamConfig,
    /// Everyone that is not up yet has one.
    half_open: Arc<()>,
}

/// Connections that are not up yet: each has pinned its buffers already, for somebody unknown.
const HALF_OPEN_MAX: usize = 64;

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
            half_open: Arc::new(()),
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

    /// Turns the next peer away that wants to connect, before anything is made for it. Whether there
    /// was one.
    pub fn turn_away(&mut self) -> bool {
        while let Some(event) = self.id.event() {
            // An id that goes without an answer is one that was refused.
            if let Some(id) = CmId::adopt(&event) {
                let peer = id.ok().map(|id| id.peer_address());
                self.refused(peer, &"more than are wanted");
                return true;
            }
        }
        false
    }

    /// The next peer that wants to connect, if any. It is up once its stream says so. One too many
    /// of those that are not up yet is turned away, with [`VerbsError::Crowded`]; so is a stranger,
    /// with [`VerbsError::Stranger`], and who has given up meanwhile, with [`VerbsError::GaveUp`].
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
    /// Accepts, or refuses: an id that goes without an answer is refused.
    fn answer(&self, id: CmId, request: &CmEvent) -> Result<Stream, VerbsError> {
        let peer = id.peer_address();
        let accepted = if Arc::strong_count(&self.half_open) > HALF_OPEN_MAX {
            Err(VerbsError::Crowded)
        } else if !id.is_awaited() {
            // Before anything is made for it: of a crowd that comes at once, and again and again, those
            // who still wait have their turn.
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
        audit::say(AuditEvent::PeerRefused, of);
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.id.as_raw_fd()
    }
}
