//! Registered memory that a device may read or write, and its lifetime.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;

use crate::audit::{self, AuditEvent};
use crate::device::Device;
use crate::device::sys;
use crate::error::{VerbsError, failed_to_pin};

/// Memory that a device may use. It has no remote right of its own. Remote rights come from windows
/// bound to one peer's queue pair.
pub(crate) struct Region {
    mr: NonNull<sys::ibv_mr>,
    /// The first byte, the length and the key. They do not change, and a hot path asks for them.
    start: NonNull<u8>,
    len: usize,
    lkey: u32,
    /// The memory, which outlives the registration.
    _memory: Arc<dyn RingMemory>,
    access: u32,
    /// The kind of memory, for the audit trail.
    what: &'static str,
    device: Arc<Device>,
}

// SAFETY: a registration may be used and given up from any thread; its memory is `Send + Sync`.
// Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for Region {}
// SAFETY: shared use reads fields that do not change, and writing needs `&mut`. Exercised by
// `verbs::datagrams::held_device_calls_stop_no_line`, whose queues share the ring's region.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `memory`, a ring or buffers to send from, for reading by the device.
    pub(crate) fn readable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        Self::whole(device, memory, sys::ibv_access_flags(0), what)
    }

    /// Registers `memory`, buffers to receive into, for writing by the device.
    pub(crate) fn writable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        Self::whole(device, memory, access, what)
    }

    /// Registers a part of `memory` for windows that peers read through. It has no remote right of its own.
    pub(crate) fn bindable(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        device.check_window(part.len())?;
        let access = sys::ibv_access_flags::IBV_ACCESS_MW_BIND;
        Self::register(device, memory, part, access, what)
    }

    /// Registers a part of `memory` for windows that peers also write through. It has no remote right of
    /// its own, but the local device needs the right to write.
    pub(crate) fn bindable_to_write(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        device.check_window(part.len())?;
        let access = sys::ibv_access_flags::IBV_ACCESS_MW_BIND
            | sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        Self::register(device, memory, part, access, what)
    }

    fn whole(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        access: sys::ibv_access_flags,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        let part = 0..memory.len();
        Self::register(device, memory, part, access, what)
    }

    fn register(
        device: &Arc<Device>,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
        access: sys::ibv_access_flags,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        assert!(part.end <= memory.len(), "a part lies within its memory");
        let len = part.len();
        // SAFETY: the memory is valid for its length for as long as this value keeps it
        // (`RingMemory`), the part is within, and the registration goes first. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let (start, mr) = unsafe {
            let at = memory.as_ptr().add(part.start);
            let mr = sys::ibv_reg_mr(device.pd(), at.cast(), len, access.0 as i32);
            (NonNull::new_unchecked(at), mr)
        };
        let mr = NonNull::new(mr).ok_or_else(|| failed_to_pin("ibv_reg_mr", len, sys::errno()))?;
        let region = Self {
            mr,
            start,
            len,
            // SAFETY: the registration lives, and nobody writes its fields.
            // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
            lkey: unsafe { mr.as_ref().lkey },
            _memory: memory,
            access: access.0,
            what,
            device: Arc::clone(device),
        };
        audit::write_entry(AuditEvent::MemoryRegistered, region.audited());
        Ok(region)
    }

    fn audited(&self) -> audit::Of<'_> {
        audit::Of {
            device: self.device.name(),
            memory: Some(self.what),
            bytes: Some(self.len()),
            access: Some(self.access),
            key: Some(self.lkey()),
            ..audit::Of::default()
        }
    }

    /// Returns the device that it is registered with.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the key that work requests name it by.
    pub(crate) const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns whether `bytes` lies within the region.
    #[inline]
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let from = self.as_ptr().addr();
        let at = bytes.as_ptr().addr();
        at >= from && at + bytes.len() <= from + self.len()
    }

    /// Copies `bytes` to `offset` of the memory and returns their address. The maker of the memory
    /// guarantees that they fit.
    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) -> *const u8 {
        assert!(
            offset + bytes.len() <= self.len(),
            "the bytes fit the buffer"
        );
        // SAFETY: within the memory, which is this value's alone and which no device reads at this
        // place, as the caller knows from its completions. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe {
            let to = self.as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            to
        }
    }

    /// Copies the bytes at `offset` of the memory to `into`.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset + into.len() <= self.len(),
            "the bytes lie within the memory"
        );
        // SAFETY: within the memory, which no device writes at this place, as the caller knows
        // from its completions. Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        unsafe {
            let from = self.as_ptr().add(offset);
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }

    /// Borrows bytes of the memory in place.
    ///
    /// # Safety
    /// No process and no device writes them while they are borrowed.
    pub(crate) unsafe fn lend(&self, offset: usize, len: usize) -> &[u8] {
        assert!(
            offset + len <= self.len(),
            "the bytes lie within the memory"
        );
        // SAFETY: within the memory, which outlives the loan; the caller guarantees the rest.
        // Exercised by `verbs::read::several_reads_at_once_bring_what_was_granted_in_order`.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(offset), len) }
    }

    /// Returns the region that windows are bound to.
    pub(crate) const fn as_mr(&self) -> *mut sys::ibv_mr {
        self.mr.as_ptr()
    }

    /// Returns the length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        audit::write_entry(AuditEvent::MemoryDeregistered, self.audited());
        // SAFETY: queue pairs that might use it are gone: their owners keep the region behind
        // them. Exercised by `verbs::datagrams::dropped_fan_out_and_receiver_free_rdma_resources`.
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
