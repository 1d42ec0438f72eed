//! Memory of a publisher that peers may reach over their verbs connections: rings to READ, and cursors to
//! write (docs/PROTOCOL.md §6.6, §6.7). Each right belongs to one peer and ends with its connection.

use std::io;
use std::sync::Arc;

use tickcast_reliability::control::{CURSOR_WORDS, RemoteAccess};
use tickcast_reliability::ring::RingMemory;

use crate::control::carrier::{Granted, Leased};
use crate::control::server::{ConnectionId, ControlServer, Peer, ServerEvent};

/// Identifies memory that a server can let its peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShareId(pub(in crate::control) usize);

/// A right that is still being bound for a peer.
pub(in crate::control) enum Right {
    /// READ of this memory.
    Ring(ShareId),
    /// Write of a cursor for this memory.
    Cursor(ShareId),
}

impl ControlServer {
    /// Registers memory with the device of the verbs listener. No peer may READ it yet.
    ///
    /// # Errors
    /// - [`io::ErrorKind::Unsupported`] without a verbs listener, or in a build without the feature `rdma`
    /// - otherwise the device's error
    pub fn share(&mut self, memory: Arc<dyn RingMemory>) -> io::Result<ShareId> {
        let shared = self.register(memory)?;
        self.shares.push(shared);
        Ok(ShareId(self.shares.len() - 1))
    }

    /// Registers `entries` cursors, 1 to 4096, with the device of the verbs listener.
    ///
    /// # Errors
    /// As for [`ControlServer::share`], and if the device has no atomic operations.
    pub fn share_cursors(&mut self, entries: usize) -> io::Result<()> {
        self.cursors = Some(self.register_cursors(entries)?);
        Ok(())
    }

    /// Starts to let a peer READ all of some memory, over its connection alone. [`ServerEvent::Granted`]
    /// reports the location. The right ends with the connection.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] if the peer is gone
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - [`io::ErrorKind::WouldBlock`] if the peer has the maximum number of rights, or its device has not
    ///   reported the connection yet
    /// - otherwise the device's error
    pub fn grant(&mut self, id: ConnectionId, share: ShareId) -> io::Result<()> {
        let shared = self.shares.get(share.0).ok_or(io::ErrorKind::NotFound)?;
        let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        let granted = peer.carrier.grant(shared);
        let granted = granted.map(|it| peer.granting.push((Right::Ring(share), it)));
        self.revisit(id);
        granted
    }

    /// Starts to let a peer write a cursor of its own, for memory that it was allowed to READ before. If no
    /// cursor is free, the peer waits in order of request. [`ServerEvent::CursorGranted`] reports the
    /// location, and [`ServerEvent::CursorRefused`] a later failure. The right ends with the connection.
    ///
    /// # Errors
    /// As for [`ControlServer::grant`]; [`io::ErrorKind::NotFound`] if there are no cursors.
    pub fn grant_cursor(&mut self, peer: ConnectionId, share: ShareId) -> io::Result<()> {
        let cursors = self.cursors.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let held = self.peers.get_mut(&peer);
        let held = held.ok_or(io::ErrorKind::NotConnected)?;
        let Some(entry) = cursors.lease() else {
            self.awaiting_cursors.push_back((peer, share));
            return Ok(());
        };
        let granted = held.let_write(share, &entry);
        if granted.is_ok() {
            self.leases.entry(peer).or_default().push((share, entry));
        }
        self.revisit(peer);
        granted
    }

    /// Returns the number of peers that wait for a cursor.
    #[must_use]
    pub fn awaiting_cursors(&self) -> usize {
        self.awaiting_cursors.len()
    }

    /// Leases returned cursors to the waiting peers.
    pub(in crate::control) fn lease_returned(
        &mut self,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) {
        let Some(cursors) = &self.cursors else {
            return;
        };
        let mut asked = Vec::new();
        while let Some(&(first, share)) = self.awaiting_cursors.front() {
            if let Some(peer) = self.peers.get_mut(&first) {
                let Some(entry) = cursors.lease() else {
                    break;
                };
                match peer.let_write(share, &entry) {
                    Ok(()) => self.leases.entry(first).or_default().push((share, entry)),
                    // The next peer gets the entry.
                    Err(error) => {
                        on(ServerEvent::CursorRefused(first, share, error));
                    }
                }
                asked.push(first);
            }
            self.awaiting_cursors.pop_front();
        }
        for id in asked {
            self.revisit(id);
        }
    }

    pub(in crate::control) fn count_cursors(&mut self) {
        if let Some(cursors) = &self.cursors {
            let stats = &mut self.stats;
            stats.cursors_live = cursors.live() as u64;
            (stats.cursors_leased, stats.cursors_returned) = cursors.leases();
        }
    }

    /// Revokes all rights of a peer, as soon as its device does so, and refuses new ones. The audit trail
    /// records `why`. The connection and the rights of other peers stay.
    pub fn revoke(&mut self, peer: ConnectionId, why: &str) {
        let Some(held) = self.peers.get_mut(&peer) else {
            return;
        };
        held.granting.clear();
        self.awaiting_cursors.retain(|(it, _)| *it != peer);
        if !held.carrier.revoke_all(why) {
            self.close(peer, None);
        }
    }

    /// Returns whether a peer has a right, or will get one.
    #[must_use]
    pub fn holds_rights(&self, peer: ConnectionId) -> bool {
        let held = self.peers.get(&peer);
        held.is_some_and(|it| !it.granting.is_empty() || it.carrier.has_granted())
    }

    /// Returns all cursors that peers may write, with their present words.
    pub fn cursors(&self) -> impl Iterator<Item = (ConnectionId, ShareId, [u64; CURSOR_WORDS])> {
        let all = self.leases.iter();
        all.flat_map(|(id, theirs)| {
            let theirs = theirs.iter();
            theirs.map(|(share, entry)| (*id, *share, entry.load_all()))
        })
    }
}

impl Peer {
    fn let_write(&mut self, share: ShareId, entry: &Leased) -> io::Result<()> {
        let granted = self.carrier.grant_cursor(entry)?;
        self.granting.push((Right::Cursor(share), granted));
        Ok(())
    }

    /// Reports the rights that the device has bound since the last call.
    pub(in crate::control) fn report_granted(
        &mut self,
        id: ConnectionId,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
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
