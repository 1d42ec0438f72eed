//! Registered memory: what a device may read or write, and for how long.

use std::ptr::NonNull;
use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;

use super::device::Device;
use super::error::{VerbsError, failed_to_pin};
use super::sys;

/// Memory that a device may use. It has no remote right of its own: those come from windows bound
/// to one peer's queue pair.
pub(super) struct Region {
    mr: NonNull<sys::ibv_mr>,
    /// Outlives the registration.
    memory: Arc<dyn RingMemory>,
    device: Arc<Device>,
}

// SAFETY: a registration may be used and given up from any thread; its memory is `Send + Sync`.
// Exercised by `verbs::a_fan_out_reaches_every_receiver`.
unsafe impl Send for Region {}

impl Region {
    /// Lets the device read `memory`: a ring to send from.
    pub(super) fn readable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        Self::register(device, memory, sys::ibv_access_flags(0))
    }

    /// Lets the device write `memory`: buffers to receive into.
    pub(super) fn writable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        Self::register(
            device,
            memory,
            sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
        )
    }

    /// Lets windows be bound to `memory`; it has no remote right of its own.
    pub(super) fn bindable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        Self::register(device, memory, sys::ibv_access_flags::IBV_ACCESS_MW_BIND)
    }

    fn register(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        access: sys::ibv_access_flags,
    ) -> Result<Self, VerbsError> {
        let len = memory.len();
        // SAFETY: the memory is valid for `len` bytes for as long as this value keeps it
        // (`RingMemory`), and the registration goes first. Exercised by
        // `verbs::a_fan_out_reaches_every_receiver`.
        let mr =
            unsafe { sys::ibv_reg_mr(device.pd(), memory.as_ptr().cast(), len, access.0 as i32) };
        let mr = NonNull::new(mr).ok_or_else(|| failed_to_pin("ibv_reg_mr", len, sys::errno()))?;
        Ok(Self {
            mr,
            memory,
            device: Arc::clone(device),
        })
    }

    /// What work requests name it by.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the registration lives; its fields do not change.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        unsafe { self.mr.as_ref().lkey }
    }

    /// Whether all of `bytes` is in it.
    #[inline]
    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        let from = self.memory.as_ptr().addr();
        let at = bytes.as_ptr().addr();
        at >= from && at + bytes.len() <= from + self.memory.len()
    }

    /// Copies `bytes` to `offset` of the memory, and tells where that is. They fit: whoever
    /// made the memory saw to that.
    pub(super) fn fill(&mut self, offset: usize, bytes: &[u8]) -> *const u8 {
        assert!(
            offset + bytes.len() <= self.memory.len(),
            "buffers are as long as datagrams"
        );
        // SAFETY: within the memory, which is this value's alone and which no device reads at this
        // place, as the caller knows from its completions. Exercised by
        // `verbs::a_fan_out_reaches_every_receiver`.
        unsafe {
            let to = self.memory.as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            to
        }
    }

    /// Copies what is at `offset` of the memory.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset + into.len() <= self.memory.len(),
            "what arrived lies in a buffer"
        );
        // SAFETY: within the memory, which no device writes at this place, as the caller knows
        // from its completions. Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        unsafe {
            let from = self.memory.as_ptr().add(offset);
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }

    /// What windows are bound to.
    pub(super) const fn as_mr(&self) -> *mut sys::ibv_mr {
        self.mr.as_ptr()
    }

    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Its first byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: queue pairs that might use it are gone: their owners keep the region behind
        // them. Exercised by `verbs::what_was_opened_is_gone_when_it_is_dropped`.
        let result = unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) };
        if result != 0 {
            tracing::error!(
                device = self.device.name(),
                errno = result,
                "ibv_dereg_mr failed"
            );
        }
    }
}
