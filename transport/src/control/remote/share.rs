//! Memory of a publisher that peers may reach over their connections by verbs, each by a right of its
//! own that ends with its connection: rings, to be READ, and cursors, to be written
//! (docs/PROTOCOL.md §6.6, §6.7).

use std::io;
use std::sync::Arc;

use tickcast_reliability::control::{CURSOR_WORDS, RemoteAccess};
use tickcast_reliability::ring::RingMemory;

use crate::control::carrier::{Granted, Leased};
use crate::control::server::{ControlServer, Peer, PeerId, ServerEvent};

/// Memory that a server can let its peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareId(pub(in crate::control) usize);

/// Access in flight to a peer.
pub(in crate::control) enum Right {
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
    /// [`io::ErrorKind::WouldBlock`] for one that has as many rights as it can have, or whose connection
    /// the device has not told of yet; otherwise what the device said.
    pub fn grant(&mut self, peer: PeerId, share: ShareId) -> io::Result<()> {
        let shared = self.shares.get(share.0).ok_or(io::ErrorKind::NotFound)?;
        let peer = self
            .peers
            .get_mut(&peer)
            .ok_or(io::ErrorKind::NotConnected)?;
        let granted = peer.carrier.grant(shared)?;
        peer.granting.push((Right::Ring(share), granted));
        Ok(())
    }

    /// Begins to let a peer write a cursor of its own, beside some memory that it was let READ before;
    /// where none is free, once one comes back, in the order of asking.
    /// [`ServerEvent::CursorGranted`] tells where, or, where it came later,
    /// [`ServerEvent::CursorRefused`] why not; it is over with the connection.
    ///
    /// # Errors
    /// As for [`ControlServer::grant`]; [`io::ErrorKind::NotFound`] where there are no cursors.
    pub fn grant_cursor(&mut self, peer: PeerId, share: ShareId) -> io::Result<()> {
        let cursors = self.cursors.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let held = self.peers.get_mut(&peer);
        let held = held.ok_or(io::ErrorKind::NotConnected)?;
        match cursors.lease() {
            Some(entry) => held.let_write(share, entry)?,
            None => self.awaiting_cursors.push_back((peer, share)),
        }
        Ok(())
    }

    /// Peers that wait for a cursor.
    #[must_use]
    pub fn awaiting_cursors(&self) -> usize {
        self.awaiting_cursors.len()
    }

    /// Leases cursors that came back to whoever waits for one.
    pub(in crate::control) fn lease_returned(&mut self, on: &mut impl FnMut(ServerEvent<'_>)) {
        let Some(cursors) = &self.cursors else {
            return;
        };
        while let Some((first, share)) = self.awaiting_cursors.front() {
            if let Some(peer) = self.peers.get_mut(first) {
                let Some(entry) = cursors.lease() else {
                    return;
                };
                // Where its device refuses, the entry is the next one's.
                if let Err(error) = peer.let_write(*share, entry) {
                    on(ServerEvent::CursorRefused(*first, *share, error));
                }
            }
            self.awaiting_cursors.pop_front();
        }
    }

    pub(in crate::control) fn count_cursors(&mut self) {
        if let Some(cursors) = &self.cursors {
            let stats = &mut self.stats;
            stats.cursors_live = cursors.live() as u64;
            (stats.cursors_leased, stats.cursors_returned) = cursors.leases();
        }
    }

    /// Takes back all that a peer was let reach, as soon as its device does it, and grants it nothing
    /// more; the audit trail says why. Its connection stays; others' rights do.
    pub fn revoke(&mut self, peer: PeerId, why: &str) {
        let Some(held) = self.peers.get_mut(&peer) else {
            return;
        };
        held.granting.clear();
        self.awaiting_cursors.retain(|(it, _)| *it != peer);
        if !held.carrier.revoke_all(why) {
            self.close(peer, None);
        }
    }

    /// Whether a peer was let reach anything, or will be.
    #[must_use]
    pub fn holds_rights(&self, peer: PeerId) -> bool {
        let held = self.peers.get(&peer);
        held.is_some_and(|it| !it.granting.is_empty() || it.carrier.has_granted())
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
    fn let_write(&mut self, share: ShareId, entry: Leased) -> io::Result<()> {
        let granted = self.carrier.grant_cursor(&entry)?;
        self.granting.push((Right::Cursor(share), granted));
        self.cursors.push((share, entry));
        Ok(())
    }

    /// Tells what the device has bound since.
    pub(in crate::control) fn tell_granted(
        &mut self,
        id: PeerId,
        on: &mut impl FnMut(ServerEvent<'_>),
    ) {
        let carrier = &mut self.carrier;
        self.granting.retain(|(right, granted): &(Right, Granted)| {
            let bound: Option<RemoteAccess> = carrier.granted(granted);
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
