//! Memory of a publisher that peers may READ over their connections by verbs, each by a right of its
//! own that ends with its connection (docs/PROTOCOL.md §6.6).

use std::io;
use std::sync::Arc;

use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::ring::RingMemory;

use super::conduit::Granted;
use super::server::{ControlServer, Peer, PeerId, ServerEvent};

/// Memory that a server can let its peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareId(usize);

impl ControlServer {
    /// Registers memory with the device that is listened on over verbs. Nobody may READ it yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where nothing is listened on, or the build is without the feature
    /// `rdma`; otherwise what the device said.
    pub fn share(&mut self, memory: Arc<dyn RingMemory>) -> io::Result<ShareId> {
        let shared = self.register(memory)?;
        self.shares.push(shared);
        Ok(ShareId(self.shares.len() - 1))
    }

    /// Begins to let a peer READ all of some memory, over its connection alone.
    /// [`ServerEvent::Granted`] tells where; it is over with the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] for a peer that is gone; [`io::ErrorKind::Unsupported`] over TCP;
    /// otherwise what the device said.
    pub fn grant(&mut self, peer: PeerId, share: ShareId) -> io::Result<()> {
        let shared = self.shares.get(share.0).ok_or(io::ErrorKind::NotFound)?;
        let peer = self
            .peers
            .get_mut(&peer)
            .ok_or(io::ErrorKind::NotConnected)?;
        let granted = peer.conduit.grant(shared)?;
        peer.granting.push((share, granted));
        Ok(())
    }
}

impl Peer {
    /// Tells what the device has bound since.
    pub(super) fn tell_granted(&mut self, id: PeerId, on: &mut impl FnMut(ServerEvent<'_>)) {
        let conduit = &mut self.conduit;
        self.granting
            .retain(|(share, granted): &(ShareId, Granted)| {
                let bound: Option<RemoteAccess> = conduit.granted(granted);
                if let Some(access) = bound {
                    on(ServerEvent::Granted(id, *share, access));
                }
                bound.is_none()
            });
    }
}
