//! The publisher's WRITEs into the memory of its standbys, over verbs connections. Each standby grants
//! the right to one connection, and the right ends with it (docs/PROTOCOL.md §6.8).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::serve::MirrorWrite;

use super::share::ShareId;
use crate::control::carrier::Granted;
use crate::control::client::{ControlClient, State};
use crate::control::server::{ConnectionId, ControlServer};

/// A grant of an inbox to the publisher over one connection, bound or still being bound.
pub struct InboxGrant(Granted);

impl ControlClient {
    /// Registers a part of some memory with the connection's device, and starts to let the publisher
    /// write it over this connection alone. The grant ends with the connection.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] without a connection
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - otherwise the device's error
    pub fn grant_inbox(
        &mut self,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
    ) -> io::Result<InboxGrant> {
        match &mut self.state {
            State::Connected(carrier) => carrier.grant_inbox(memory, part).map(InboxGrant),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the memory that the publisher may write, once the device has bound it.
    #[must_use]
    pub fn granted_inbox(&self, inbox: &InboxGrant) -> Option<RemoteAccess> {
        match &self.state {
            State::Connected(carrier) => carrier.granted(&inbox.0),
            _ => None,
        }
    }
}

impl ControlServer {
    /// Starts to write a datagram from shared memory to a peer's inbox.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] if the peer is gone
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - otherwise the error of an invalid write, or the device's error
    pub fn write(
        &mut self,
        peer: ConnectionId,
        share: ShareId,
        write: &MirrorWrite,
    ) -> io::Result<()> {
        let memory = self.shares.get(share.0).ok_or(io::ErrorKind::NotFound)?;
        let to = self.peers.get_mut(&peer);
        let to = to.ok_or(io::ErrorKind::NotConnected)?;
        let written = to.carrier.write_from(memory, write);
        self.revisit(peer);
        written?;
        self.mirrored.insert(peer);
        Ok(())
    }

    /// Returns the peers whose WRITEs completed since the last call, and how many of each.
    pub fn written(&mut self) -> impl Iterator<Item = (ConnectionId, u32)> {
        let peers = &mut self.peers;
        self.mirrored.iter().filter_map(move |id| {
            let count = peers.get_mut(id)?.carrier.take_written();
            (count > 0).then_some((*id, count))
        })
    }
}
