//! Memory of a publisher that peers may reach over their connections by verbs, each by a right of its
//! own that ends with its connection: rings, to be READ, and cursors, to be written
//! (docs/PROTOCOL.md §6.6, §6.7).

use std::io;
use std::sync::Arc;

use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::cursor::CURSOR_WORDS;
use tickcast_reliability::ring::RingMemory;

use super::conduit::Granted;
use super::server::{ControlServer, Peer, PeerId, ServerEvent};

/// Memory that a server can let its peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareId(usize);

/// What is on its way to a peer.
pub(super) enum Right {
    /// To READ this.
    Ring(ShareId),
    /// To write a cursor beside it.
    Cursor(ShareId),
}

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

    /// Registers so many cursors, 1 to 4096, with the device that is listened on over verbs.
    ///
    /// # Errors
    /// As for [`ControlServer::share`]; also where the device has no atomic operations.
    pub fn share_cursors(&mut self, entries: usize) -> io::Result<()> {
        self.cursors = Some(self.register_cursors(entries)?);
        Ok(())
    }

    /// Begins to let a peer READ all of some memory, over its connection alone.
    /// [`ServerEvent::Granted`] tells where; it is over with the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] for a peer that is gone; [`io::ErrorKind::Unsupported`] over TCP;
    /// [`io::ErrorKind::WouldBlock`] for one that has as many rights as it can have; otherwise what the
    /// device said.
    pub fn grant(&mut self, peer: PeerId, share: ShareId) -> io::Result<()> {
        let shared = self.shares.get(share.0).ok_or(io::ErrorKind::NotFound)?;
        let peer = self
            .peers
            .get_mut(&peer)
            .ok_or(io::ErrorKind::NotConnected)?;
        let granted = peer.conduit.grant(shared)?;
        peer.granting.push((Right::Ring(share), granted));
        Ok(())
    }

    /// Begins to let a peer write a cursor of its own, beside some memory that it was let READ before.
    /// [`ServerEvent::CursorGranted`] tells where; it is over with the connection.
    ///
    /// # Errors
    /// As for [`ControlServer::grant`]; [`io::ErrorKind::NotFound`] where no cursor is free.
    pub fn grant_cursor(&mut self, peer: PeerId, share: ShareId) -> io::Result<()> {
        let entry = self.cursors.as_ref().and_then(|all| all.lease());
        let entry = entry.ok_or(io::ErrorKind::NotFound)?;
        let peer = self
            .peers
            .get_mut(&peer)
            .ok_or(io::ErrorKind::NotConnected)?;
        let granted = peer.conduit.grant_cursor(&entry)?;
        peer.granting.push((Right::Cursor(share), granted));
        peer.cursors.push((share, entry));
        Ok(())
    }

    /// Takes back all that a peer was let reach, as soon as its device does it, and grants it nothing
    /// more. Its connection stays; others' rights do.
    pub fn revoke(&mut self, peer: PeerId) {
        let Some(held) = self.peers.get_mut(&peer) else {
            return;
        };
        held.granting.clear();
        if !held.conduit.revoke_all() {
            self.close(peer, None);
        }
    }

    /// All cursors that peers may write, and what stands there now.
    pub fn cursors(&self) -> impl Iterator<Item = (PeerId, ShareId, [u64; CURSOR_WORDS])> {
        let all = self.peers.iter();
        all.flat_map(|(id, peer)| {
            let theirs = peer.cursors.iter();
            theirs.map(|(share, entry)| (*id, *share, entry.load_all()))
        })
    }
}

impl Peer {
    /// Tells what the device has bound since.
    pub(super) fn tell_granted(&mut self, id: PeerId, on: &mut impl FnMut(ServerEvent<'_>)) {
        let conduit = &mut self.conduit;
        self.granting.retain(|(right, granted): &(Right, Granted)| {
            let bound: Option<RemoteAccess> = conduit.granted(granted);
            if let Some(access) = bound {
                on(match right {
                    Right::Ring(share) => ServerEvent::Granted(id, *share, access),
                    Right::Cursor(share) => ServerEvent::CursorGranted(id, *share, access),
                });
            }
            bound.is_none()
        });
    }
}
