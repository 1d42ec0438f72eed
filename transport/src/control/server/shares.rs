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

/// Number of a listener over verbs. Each opens its device for itself, so a peer reaches only memory that is
/// registered for the listener that accepted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListenerNumber(pub(super) usize);

/// The memory that peers may be allowed to reach, and the cursors that they hold.
#[derive(Default)]
pub(super) struct Shares {
    /// The memory of each share, as it is registered for each listener.
    memories: Vec<Vec<Option<Shared>>>,
    /// The cursors of each listener.
    cursors: Vec<Option<CursorPool>>,
    /// The cursors of the peers that have some, each with its share.
    leases: BTreeMap<ConnectionId, Vec<(ShareId, Leased)>>,
}

/// The cursors of a listener.
struct CursorPool {
    cursors: Cursors,
    /// The peers that wait for a free cursor, in order of request, each with its share.
    waiting: VecDeque<(ConnectionId, ShareId)>,
}

impl Shares {
    /// Creates a share without memory.
    pub(super) fn create(&mut self) -> ShareId {
        self.memories.push(Vec::new());
        ShareId(self.memories.len() - 1)
    }

    /// Sets the memory of a share that this server created, as it is registered for a listener.
    pub(super) fn set(&mut self, share: ShareId, listener: ListenerNumber, memory: Shared) {
        if let Some(memories) = self.memories.get_mut(share.0) {
            *entry(memories, listener) = Some(memory);
        }
    }

    /// Sets the cursors that the peers of a listener can hold.
    pub(super) fn set_cursors(&mut self, listener: ListenerNumber, cursors: Cursors) {
        *entry(&mut self.cursors, listener) = Some(CursorPool {
            cursors,
            waiting: VecDeque::new(),
        });
    }

    /// Returns the memory of a share, as it is registered for a listener.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if this server has no such share, or the listener does not offer it.
    pub(super) fn memory(&self, share: ShareId, listener: ListenerNumber) -> io::Result<&Shared> {
        let memories = self.memories.get(share.0);
        let found = memories.and_then(|memories| memories.get(listener.0)?.as_ref());
        found.ok_or_else(|| {
            let text =
                "READ is not offered at this address: connect to one whose offer says `read`";
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }

    fn pool(&self, listener: ListenerNumber) -> Option<&CursorPool> {
        self.cursors.get(listener.0)?.as_ref()
    }

    fn pool_mut(&mut self, listener: ListenerNumber) -> Option<&mut CursorPool> {
        self.cursors.get_mut(listener.0)?.as_mut()
    }

    /// Returns the numbers of all listeners that may have cursors.
    pub(super) fn listeners(&self) -> impl Iterator<Item = ListenerNumber> + use<> {
        (0..self.cursors.len()).map(ListenerNumber)
    }

    /// Takes a free cursor of a listener; `None` if all are leased.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there are no cursors.
    pub(super) fn take_cursor(&self, listener: ListenerNumber) -> io::Result<Option<Leased>> {
        let pool = self.pool(listener).ok_or(io::ErrorKind::NotFound)?;
        Ok(pool.cursors.lease())
    }

    /// Keeps a cursor that a peer was granted until [`end_leases`](Self::end_leases).
    pub(super) fn keep_lease(&mut self, peer: ConnectionId, share: ShareId, cursor: Leased) {
        self.leases.entry(peer).or_default().push((share, cursor));
    }

    /// Lets a peer wait for a free cursor of a listener.
    pub(super) fn wait_for_cursor(
        &mut self,
        listener: ListenerNumber,
        peer: ConnectionId,
        share: ShareId,
    ) {
        if let Some(pool) = self.pool_mut(listener) {
            pool.waiting.push_back((peer, share));
        }
    }

    /// Returns the number of peers that wait for a cursor.
    pub(super) fn waiting(&self) -> usize {
        let pools = self.cursors.iter().flatten();
        pools.map(|pool| pool.waiting.len()).sum()
    }

    /// Returns the peer that has waited longest for a cursor of a listener, and its share.
    pub(super) fn first_waiting(
        &self,
        listener: ListenerNumber,
    ) -> Option<(ConnectionId, ShareId)> {
        self.pool(listener)?.waiting.front().copied()
    }

    /// Removes the peer that has waited longest for a cursor of a listener.
    pub(super) fn remove_first_waiting(&mut self, listener: ListenerNumber) {
        if let Some(pool) = self.pool_mut(listener) {
            pool.waiting.pop_front();
        }
    }

    /// Lets a peer wait for no cursor any more.
    pub(super) fn stop_waiting(&mut self, peer: ConnectionId) {
        for pool in self.cursors.iter_mut().flatten() {
            pool.waiting.retain(|(it, _)| *it != peer);
        }
    }

    /// Returns a peer's cursors for the next lease. Its device must not be able to write them any more.
    pub(super) fn end_leases(&mut self, peer: ConnectionId) {
        self.leases.remove(&peer);
    }

    /// Returns the cursors leased now, the leases so far, and those of them that ended; `None` without
    /// cursors.
    pub(super) fn cursor_counts(&self) -> Option<(u64, u64, u64)> {
        let pools = self.cursors.iter().flatten().map(|pool| &pool.cursors);
        let counts = pools.map(|it| (it.live() as u64, it.leases()));
        counts.fold(None, |sum, (live, (leased, returned))| {
            let (all_live, all_leased, all_returned) = sum.unwrap_or_default();
            Some((
                all_live + live,
                all_leased + leased,
                all_returned + returned,
            ))
        })
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

/// Returns the entry of a listener, which is empty at first.
fn entry<T>(entries: &mut Vec<Option<T>>, listener: ListenerNumber) -> &mut Option<T> {
    if entries.len() <= listener.0 {
        entries.resize_with(listener.0 + 1, || None);
    }
    &mut entries[listener.0]
}
