//! Memory windows of type 2: the right of one peer to a part of some memory, through one queue pair,
//! until it is revoked.
//!
//! The memory's registration has no remote right of its own, so a peer can reach it only through a
//! window. Work requests of the peer's queue pair bind and invalidate a window (`Stream::grant`,
//! `Stream::grant_cursor`, `Stream::revoke`).

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

/// Names of the kinds of memory in the audit trail.
const RING: &str = "ring";
pub(crate) const CURSOR: &str = "cursor";
const INBOX: &str = "inbox";

/// A registration that windows can be bound to.
pub(crate) struct Bindable(Region);

// SAFETY: its fields do not change, and libibverbs may be called from any thread. Exercised by
// `verbs::window::granted_memory_is_readable_until_revoked`.
unsafe impl Sync for Bindable {}

impl Bindable {
    /// Wraps a region that was registered to be bindable.
    pub(crate) fn new(region: Region) -> Arc<Self> {
        Arc::new(Self(region))
    }

    /// Returns the address, length and key of a part, to send from.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: (self.0.as_ptr().addr() + offset) as u64,
            length: len as u32,
            lkey: self.0.lkey(),
        }
    }

    /// Returns the device, whose protection domain must also be that of the queue pairs with windows here.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.0.device()
    }
}

/// Memory that peers may be allowed to READ, each by a window of its own.
pub struct ReadableMemory(Arc<Bindable>);

impl ReadableMemory {
    /// Registers `memory` with a device. No peer can read it before it is granted.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`] if no more memory can be pinned; otherwise the device's [`VerbsError`].
    pub fn register(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
    ) -> Result<Arc<Self>, VerbsError> {
        let part = 0..memory.len();
        Self::register_part(device, memory, part)
    }

    /// Registers a part of `memory` like [`ReadableMemory::register`].
    pub(crate) fn register_part(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
    ) -> Result<Arc<Self>, VerbsError> {
        let region = Region::bindable(device, memory, part, RING)?;
        Ok(Arc::new(Self(Bindable::new(region))))
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.0.len()
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) const fn bindable(&self) -> &Arc<Bindable> {
        &self.0
    }
}

/// Memory that one peer may be allowed to WRITE, by a window. The peer writes without a request and
/// without notice.
pub struct InboxMemory(Arc<Bindable>);

impl InboxMemory {
    /// Registers a part of `memory` with a device. No peer can write it before it is granted.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`] if no more memory can be pinned; otherwise the device's [`VerbsError`].
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

/// The right of a window's peer to its part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// The peer may READ.
    Read,
    /// The peer may READ, WRITE, and compare and swap.
    Cursor,
    /// The peer may WRITE.
    Inbox,
}

impl Right {
    /// Returns the kind of memory, for the audit trail.
    pub(crate) const fn memory(self) -> &'static str {
        match self {
            Self::Read => RING,
            Self::Cursor => CURSOR,
            Self::Inbox => INBOX,
        }
    }

    /// Returns the `ibv_access_flags` of the window and of its queue pair.
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

/// Granted memory, as the granting side describes it to the peer over another path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Start, in the address space of the granting side.
    pub address: u64,
    /// Remote key, valid for one connection.
    pub key: u32,
    /// Length in bytes.
    pub len: usize,
}

impl fmt::Debug for RemoteMemory {
    /// Omits the key, so that logs contain no usable key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut of = f.debug_struct("RemoteMemory");
        of.field("address", &self.address).field("len", &self.len);
        of.finish_non_exhaustive()
    }
}

/// A window. Its owner frees it before the queue pair that it is bound to.
pub(crate) struct Window {
    mw: NonNull<sys::ibv_mw>,
    /// Outlives the window, because a registration with windows can't be deregistered.
    memory: Arc<Bindable>,
    /// The key of its present or next binding.
    key: u32,
}

// SAFETY: it has one owner, and libibverbs may be called from any thread. Exercised by
// `verbs::window::granted_memory_is_readable_until_revoked`.
unsafe impl Send for Window {}

impl Window {
    /// Allocates a window that is not bound yet.
    pub(crate) fn new(memory: &Arc<Bindable>) -> Result<Self, VerbsError> {
        // SAFETY: the memory keeps the device, and this value the memory. Exercised by
        // `verbs::window::granted_memory_is_readable_until_revoked`.
        let (mw, errno) = unsafe {
            let mw = sys::ibv_alloc_mw(memory.device().pd(), sys::ibv_mw_type::IBV_MW_TYPE_2);
            (mw, sys::errno())
        };
        let mw = mw.and_then(NonNull::new);
        let mw = mw.ok_or_else(|| failed("ibv_alloc_mw", errno))?;
        // SAFETY: the call above made it.
        // Exercised by `verbs::window::granted_memory_is_readable_until_revoked`.
        let key = next_key(unsafe { mw.as_ref().rkey });
        let memory = Arc::clone(memory);
        Ok(Self { mw, memory, key })
    }

    /// Returns the description of a part of the memory for the peer.
    pub(crate) fn remote(&self, offset: usize, len: usize) -> RemoteMemory {
        RemoteMemory {
            address: self.memory.0.as_ptr().addr() as u64 + offset as u64,
            key: self.key,
            len,
        }
    }

    /// Posts the request that binds the window to a part of the memory. The peer can reach that part
    /// through this queue alone.
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
        // `verbs::window::granted_memory_is_readable_until_revoked`.
        unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = number;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.bind_mw_tso_union.bind_mw = bind;
            queue.post_send(&raw mut request)
        }
    }

    /// Posts the request that revokes the right. Once it completes, nobody can reach the memory.
    pub(crate) fn invalidate(
        &mut self,
        queue: &mut ConnectedQueue,
        number: u64,
    ) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of every field; the request names no memory. Exercised by
        // `verbs::window::granted_memory_is_readable_until_revoked`.
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
        // `verbs::window::grants_are_freed_with_their_connection`.
        let result = unsafe { sys::ibv_dealloc_mw(self.mw.as_ptr()) };
        if result != 0 {
            let device = self.memory.device().name();
            tracing::error!(device, errno = result, "ibv_dealloc_mw failed");
        }
    }
}

/// Returns the key of the next binding. The binder chooses its lowest byte, a new value each time.
const fn next_key(key: u32) -> u32 {
    key & !0xff | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_window_key_changes_only_lowest_byte() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
