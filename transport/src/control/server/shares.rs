//! Memory of a publisher that peers may reach over their verbs connections: rings to READ, and cursors to
//! write (docs/PROTOCOL.md §6.6, §6.7). Each right belongs to one peer and ends with its connection.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use tickcast_reliability::control::CURSOR_WORDS;

use super::ConnectionId;
use crate::control::carrier::{Cursors, Leased, Shared};

/// Identifies memory that a server can let its peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShareId(usize);

/// The memory that peers may be allowed to reach, and the cursors that they hold.
#[derive(Default)]
pub(super) struct Shares {
    memories: Vec<Shared>,
    cursors: Option<Cursors>,
    /// The peers that wait for a free cursor, in order of request, each with its share.
    waiting: VecDeque<(ConnectionId, ShareId)>,
    /// The cursors of the peers that have some, each with its share.
    leases: BTreeMap<ConnectionId, Vec<(ShareId, Leased)>>,
}

impl Shares {
    /// Adds registered memory.
    pub(super) fn add(&mut self, memory: Shared) -> ShareId {
        self.memories.push(memory);
        ShareId(self.memories.len() - 1)
    }

    /// Replaces the cursors that peers can hold.
    pub(super) fn set_cursors(&mut self, cursors: Cursors) {
        self.cursors = Some(cursors);
    }

    /// Returns a share's memory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if this server has no such share.
    pub(super) fn memory(&self, share: ShareId) -> io::Result<&Shared> {
        let found = self.memories.get(share.0);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Takes a free cursor; `None` if all are leased.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there are no cursors.
    pub(super) fn take_cursor(&self) -> io::Result<Option<Leased>> {
        let cursors = self.cursors.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(cursors.lease())
    }

    /// Keeps a cursor that a peer was granted until [`end_leases`](Self::end_leases).
    pub(super) fn keep_lease(&mut self, peer: ConnectionId, share: ShareId, cursor: Leased) {
        self.leases.entry(peer).or_default().push((share, cursor));
    }

    /// Lets a peer wait for a free cursor.
    pub(super) fn wait_for_cursor(&mut self, peer: ConnectionId, share: ShareId) {
        self.waiting.push_back((peer, share));
    }

    /// Returns the number of peers that wait for a cursor.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the peer that has waited longest, and its share.
    pub(super) fn first_waiting(&self) -> Option<(ConnectionId, ShareId)> {
        self.waiting.front().copied()
    }

    /// Removes the peer that has waited longest.
    pub(super) fn remove_first_waiting(&mut self) {
        self.waiting.pop_front();
    }

    /// Lets a peer wait for no cursor any more.
    pub(super) fn stop_waiting(&mut self, peer: ConnectionId) {
        self.waiting.retain(|(it, _)| *it != peer);
    }

    /// Returns a peer's cursors for the next lease. Its device must not be able to write them any more.
    pub(super) fn end_leases(&mut self, peer: ConnectionId) {
        self.leases.remove(&peer);
    }

    /// Returns the cursors leased now, the leases so far, and those of them that ended; `None` without
    /// cursors.
    pub(super) fn cursor_counts(&self) -> Option<(u64, u64, u64)> {
        let cursors = self.cursors.as_ref()?;
        let (leased, returned) = cursors.leases();
        Some((cursors.live() as u64, leased, returned))
    }

    /// Returns all leased cursors, with their present words.
    pub(super) fn cursors(
        &self,
    ) -> impl Iterator<Item = (ConnectionId, ShareId, [u64; CURSOR_WORDS])> {
        self.leases.iter().flat_map(|(id, theirs)| {
            let theirs = theirs.iter();
            theirs.map(|(share, cursor)| (*id, *share, cursor.load_all()))
        })
    }
}
