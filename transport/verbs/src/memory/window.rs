//! Memory windows of type 2: what lets one peer reach a part of some memory, through one queue pair,
//! until it is taken back.
//!
//! The memory's registration has no remote right of its own, so that nothing can be reached but
//! through a window. It is bound, and invalidated, by work requests of the peer's queue pair
//! (`Stream::grant`, `Stream::grant_cursor`, `Stream::revoke`).

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;

use crate::device::Device;
use crate::device::rc_queue_pair::ConnectedQueue;
use crate::device::region::Region;
use crate::device::sys;
use crate::error::{VerbsError, failed};

/// What is shared, as the audit trail names it.
const RING: &str = "ring";
pub(crate) const CURSOR: &str = "cursor";
const INBOX: &str = "inbox";

/// A registration that windows can be bound to.
pub(crate) struct Bindable(Region);

// SAFETY: what is in it does not change, and libibverbs may be called from any thread. Exercised by
// `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
unsafe impl Sync for Bindable {}

impl Bindable {
    /// `region` was registered to be bindable.
    pub(crate) fn new(region: Region) -> Arc<Self> {
        Arc::new(Self(region))
    }

    /// Bytes of it, to be sent from.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: (self.0.as_ptr().addr() + offset) as u64,
            length: len as u32,
            lkey: self.0.lkey(),
        }
    }

    /// The device, and the domain on it, whose queue pairs may have windows on it.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.0.device()
    }
}

/// Memory that peers may be let READ, each by a window of its own.
pub struct ReadableMemory(Arc<Bindable>);

impl ReadableMemory {
    /// Registers `memory` with a device. Nobody may read it before it is granted.
    ///
    /// # Errors
    /// [`VerbsError`], [`VerbsError::Memlock`] where no more may be pinned.
    pub fn register(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
    ) -> Result<Arc<Self>, VerbsError> {
        let region = Region::bindable(device, memory, RING)?;
        Ok(Arc::new(Self(Bindable::new(region))))
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.0.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) const fn bindable(&self) -> &Arc<Bindable> {
        &self.0
    }
}

/// Memory that one peer may be let WRITE, by a window: what it is sent unasked, and nobody announces.
pub struct InboxMemory(Arc<Bindable>);

impl InboxMemory {
    /// Registers a part of `memory` with a device. Nobody may write it before it is granted.
    ///
    /// # Errors
    /// [`VerbsError`], [`VerbsError::Memlock`] where no more may be pinned.
    pub fn register(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
    ) -> Result<Arc<Self>, VerbsError> {
        let region = Region::bindable_to_write(device, memory, part, INBOX)?;
        Ok(Arc::new(Self(Bindable::new(region))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.0.len()
    }

    pub(crate) const fn bindable(&self) -> &Arc<Bindable> {
        &self.0
    }
}

/// What a window lets its peer do with its part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// READ it.
    Read,
    /// READ it, WRITE it, and compare and swap in it.
    Cursor,
    /// WRITE it.
    Inbox,
}

impl Right {
    /// What kind of memory it is a right to, for the audit trail.
    pub(crate) const fn memory(self) -> &'static str {
        match self {
            Self::Read => RING,
            Self::Cursor => CURSOR,
            Self::Inbox => INBOX,
        }
    }

    /// `ibv_access_flags`, of the window and of its queue pair.
    pub(crate) const fn flags(self) -> u32 {
        let read = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let write = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        match self {
            Self::Read => read,
            Self::Cursor => read | write | sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
            Self::Inbox => write,
        }
    }
}

/// What a peer may reach: what it is told, over a way of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Where it begins, in the address space of who grants it.
    pub address: u64,
    /// The right to it, good for one connection.
    pub key: u32,
    /// Bytes of it.
    pub len: usize,
}

impl fmt::Debug for RemoteMemory {
    /// Without the key: what is logged is no right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut of = f.debug_struct("RemoteMemory");
        of.field("address", &self.address).field("len", &self.len);
        of.finish_non_exhaustive()
    }
}

/// A window. Its owner frees it before the queue pair that it is bound to.
pub(crate) struct Window {
    mw: NonNull<sys::ibv_mw>,
    /// Outlives the window: a registration with windows can't be given up.
    memory: Arc<Bindable>,
    /// The key of its next, or present, binding.
    key: u32,
}

// SAFETY: it has one owner, and libibverbs may be called from any thread. Exercised by
// `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
unsafe impl Send for Window {}

impl Window {
    /// One that is bound to nothing.
    pub(crate) fn new(memory: &Arc<Bindable>) -> Result<Self, VerbsError> {
        // SAFETY: the memory keeps the device, and this value the memory. Exercised by
        // `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
        let (mw, errno) = unsafe {
            let mw = sys::ibv_alloc_mw(memory.device().pd(), sys::ibv_mw_type::IBV_MW_TYPE_2);
            (mw, sys::errno())
        };
        let mw = mw.and_then(NonNull::new);
        let mw = mw.ok_or_else(|| failed("ibv_alloc_mw", errno))?;
        // SAFETY: the call above made it.
        // Exercised by `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
        let key = next_key(unsafe { mw.as_ref().rkey });
        let memory = Arc::clone(memory);
        Ok(Self { mw, memory, key })
    }

    /// What its peer is to be told, of a part of the memory.
    pub(crate) fn remote(&self, offset: usize, len: usize) -> RemoteMemory {
        RemoteMemory {
            address: self.memory.0.as_ptr().addr() as u64 + offset as u64,
            key: self.key,
            len,
        }
    }

    /// Posts the request that binds it to a part of the memory, to be reached through this queue
    /// alone.
    pub(crate) fn bind(
        &mut self,
        queue: &mut ConnectedQueue,
        number: u64,
        part: RemoteMemory,
        right: Right,
    ) -> Result<(), VerbsError> {
        let bind = sys::bind_mw_t {
            mw: self.mw.as_ptr(),
            rkey: part.key,
            bind_info: sys::ibv_mw_bind_info {
                mr: self.memory.0.as_mr(),
                addr: part.address,
                length: part.len as u64,
                mw_access_flags: right.flags(),
            },
        };
        // SAFETY: zero is a value of every field; window and registration outlive the request, which
        // names no other memory. Exercised by
        // `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
        unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = number;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.bind_mw_tso_union.bind_mw = bind;
            queue.post_send(&raw mut request)
        }
    }

    /// Posts the request that takes the right back. Once it completes nobody gets there any more.
    pub(crate) fn invalidate(
        &mut self,
        queue: &mut ConnectedQueue,
        number: u64,
    ) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of every field; the request names no memory. Exercised by
        // `verbs::window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
        unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = number;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_LOCAL_INV;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.imm_data_invalidated_rkey_union.invalidated_rkey = self.key;
            queue.post_send(&raw mut request)
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: it is this value's alone, and its memory is still registered. Exercised by
        // `verbs::window::what_was_granted_is_gone_with_its_connection`.
        let result = unsafe { sys::ibv_dealloc_mw(self.mw.as_ptr()) };
        if result != 0 {
            let device = self.memory.device().name();
            tracing::error!(device, errno = result, "ibv_dealloc_mw failed");
        }
    }
}

/// A window's keys differ in the lowest byte, which whoever binds it chooses: another one each time.
const fn next_key(key: u32) -> u32 {
    key & !0xff | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_differs_in_the_lowest_byte_alone() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
