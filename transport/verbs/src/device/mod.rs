//! A device, found by the address of its interface, with a protection domain of its own.
//!
//! librdmacm owns the device's context and shares it within the process. An id that stays bound to the
//! device keeps the context open for as long as anything here lives.

pub(crate) mod cm;
pub(crate) mod events;
pub(crate) mod limits;
pub(crate) mod private_data;
pub(crate) mod queue;
pub(crate) mod rc_queue_pair;
pub(crate) mod region;
pub(crate) mod sys;

use std::ffi::CStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::cm::{CmId, PortSpace};
use crate::device::events::{PortCounters, Watch};
use crate::device::limits::WindowLimits;
use crate::error::{VerbsError, failed, failed_to_pin};
use tickcast_transport_base::host::sched;

/// The device's counter of datagrams that arrived without a posted buffer. mlx5 has it, rxe does not.
const DROPPED: &str = "out_of_buffer";

/// A port of an RDMA device, and a protection domain on it. Everything made with the device keeps it
/// alive.
#[derive(Debug)]
pub struct Device {
    name: String,
    address: Ipv4Addr,
    gid: Ipv6Addr,
    port: u8,
    mtu: usize,
    is_ethernet: bool,
    /// The next completion vector, as a running number.
    vector: AtomicU32,
    /// READs and atomic operations in flight on one queue pair: those it answers, and those it issues.
    reads_max: u8,
    own_reads_max: u8,
    has_atomics: bool,
    windows: WindowLimits,
    requests_max: u32,
    pd: NonNull<sys::ibv_pd>,
    context: NonNull<sys::ibv_context>,
    counters: Arc<PortCounters>,
    /// Ends before the context is closed.
    watch: Arc<Watch>,
    /// Keeps the context open. Declared last, so it is dropped last.
    _id: CmId,
}

// SAFETY: verbs may be called from any thread; nothing in here changes after it was made.
// Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`, which opens on one thread and
// uses on another.
unsafe impl Send for Device {}
// SAFETY: as for `Send`: libibverbs locks inside, and shared use only reads these fields.
unsafe impl Sync for Device {}

impl Device {
    /// Finds the device whose interface has `address`. Its port may be down.
    ///
    /// # Errors
    /// [`VerbsError`] if the host has no RDMA, no device has this address, or permission is denied.
    pub fn open(address: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        let id = CmId::new(PortSpace::Tcp)?;
        id.bind(address, 0)?;
        let Some(context) = id.context() else {
            return Err(VerbsError::NoDevice {
                address,
                source: io::Error::from_raw_os_error(libc::ENODEV),
            });
        };
        let port = id.port();
        // SAFETY: the id is bound, so its context is open, and stays so with the id. Exercised by
        // `verbs::datagrams::rdma_device_reports_its_port_attributes`.
        let (name, attributes, limits) = unsafe {
            let name = sys::ibv_get_device_name(context.as_ref().device);
            let name = if name.is_null() {
                "?".to_owned()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            };
            let attributes = sys::query_port(context.as_ptr(), port)
                .map_err(|errno| failed("ibv_query_port", errno))?;
            let mut limits: sys::ibv_device_attr = std::mem::zeroed();
            let result = sys::ibv_query_device(context.as_ptr(), &raw mut limits);
            if result != 0 {
                return Err(failed("ibv_query_device", result));
            }
            (name, attributes, limits)
        };
        // SAFETY: the id keeps the context open, and is dropped after the watch.
        // Exercised by `verbs::datagrams::removed_interface_address_restarts_its_line`.
        let watch = unsafe { Watch::of(context.as_ptr()) }?;
        // SAFETY: as above.
        let pd = unsafe { sys::ibv_alloc_pd(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| failed_to_pin("ibv_alloc_pd", 0, sys::errno()))?;
        let device = Arc::new(Self {
            name,
            address,
            gid: id.gid(),
            port,
            mtu: mtu_bytes(attributes.active_mtu),
            is_ethernet: attributes.link_layer == sys::LINK_LAYER_ETHERNET,
            vector: AtomicU32::new(0),
            requests_max: u32::try_from(limits.max_qp_wr).unwrap_or(0),
            reads_max: at_once(limits.max_qp_rd_atom),
            own_reads_max: at_once(limits.max_qp_init_rd_atom),
            has_atomics: limits.atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE,
            windows: WindowLimits::of(&limits),
            pd,
            context,
            counters: Arc::new(PortCounters::default()),
            watch,
            _id: id,
        });
        let (name, at) = (device.name.clone(), context.as_ptr().expose_provenance());
        device.watch.count(&device.counters, move |counters| {
            let context = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: called by the watch alone, which ends before the context is closed.
            // Exercised by `verbs::datagrams::rdma_device_reports_its_port_attributes`.
            let attributes = unsafe { sys::query_port(context, port) };
            let (is_active, wrong) = attributes.map_or((false, 0), |attributes| {
                let is_active = attributes.state == sys::ibv_port_state::IBV_PORT_ACTIVE;
                (is_active, u64::from(attributes.qkey_viol_cntr))
            });
            counters.set(is_active, hardware_counter(&name, port, DROPPED), wrong);
        });
        Ok(device)
    }

    /// Finds the device like [`Device::open`], and checks that its port can send and receive.
    ///
    /// # Errors
    /// The errors of [`Device::open`], and [`VerbsError::PortDown`].
    pub fn open_active(address: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        let device = Self::open(address)?;
        device.check_active()?;
        Ok(device)
    }

    /// Returns the device's name, as `rdma link` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface's address, which is also the sender's.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the port's global identifier (GID) for this interface, which its packets carry. Over IPv4
    /// (RoCEv2) it is the mapped address.
    #[must_use]
    pub const fn gid(&self) -> Ipv6Addr {
        self.gid
    }

    /// Returns whether the port could send and receive at most about a second ago.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.counters.is_active()
    }

    /// Checks that the port can send and receive.
    ///
    /// # Errors
    /// [`VerbsError::PortDown`] if it can't.
    pub fn check_active(&self) -> Result<(), VerbsError> {
        if self.is_active() {
            return Ok(());
        }
        Err(VerbsError::PortDown {
            device: self.name.clone(),
            port: self.port,
        })
    }

    /// Checks that a datagram of this length, in bytes, fits into one packet. A port that is down has no
    /// MTU yet, so every length passes.
    ///
    /// # Errors
    /// [`VerbsError::Mtu`] with both lengths, if it does not fit.
    pub fn check_len(&self, datagram_len: usize) -> Result<(), VerbsError> {
        let mtu = self.mtu_now();
        if datagram_len <= mtu || !self.is_active() {
            return Ok(());
        }
        Err(VerbsError::Mtu {
            slot_len: datagram_len,
            mtu,
            device: self.name.clone(),
            port: self.port,
        })
    }

    /// Returns the bytes that one packet carries now. A port that went up may have another MTU.
    fn mtu_now(&self) -> usize {
        let attributes = self.port_attributes();
        attributes.map_or(self.mtu, |attributes| mtu_bytes(attributes.active_mtu))
    }

    fn port_attributes(&self) -> Result<sys::ibv_port_attr, i32> {
        // SAFETY: the id keeps the context open. Exercised by
        // `verbs::datagrams::rdma_device_reports_its_port_attributes`.
        unsafe { sys::query_port(self.context.as_ptr(), self.port) }
    }

    /// Returns the port's number.
    #[must_use]
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// Returns the bytes that one packet carried when the device was opened: the longest datagram.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the number of READs that a peer may have outstanding here.
    #[must_use]
    pub const fn reads_max(&self) -> u8 {
        self.reads_max
    }

    /// Returns the number of READs that a connection may have outstanding from here.
    #[must_use]
    pub const fn own_reads_max(&self) -> u8 {
        self.own_reads_max
    }

    /// Returns whether the port is on Ethernet (RoCE), else it is on InfiniBand.
    pub(crate) const fn is_ethernet(&self) -> bool {
        self.is_ethernet
    }

    /// Returns the completion vector of the next queue. Queues take the device's vectors in turn, so that
    /// one core does not serve the interrupts of all.
    pub(crate) fn next_vector(&self) -> i32 {
        // SAFETY: the id keeps the context open. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let vectors = unsafe { self.context.as_ref() }.num_comp_vectors;
        nth_vector(self.vector.fetch_add(1, Ordering::Relaxed), vectors)
    }

    /// Checks that the device can compare and swap.
    ///
    /// # Errors
    /// [`VerbsError::NoAtomics`] if it can't.
    pub fn check_atomics(&self) -> Result<(), VerbsError> {
        if self.has_atomics {
            return Ok(());
        }
        Err(VerbsError::NoAtomics {
            device: self.name.clone(),
        })
    }

    /// Checks that the device can bind a window of `len` bytes, by the limits that it reports.
    ///
    /// # Errors
    /// - [`VerbsError::NoWindows`] if the device has no windows of type 2
    /// - [`VerbsError::WindowTooLong`] if the window is too long for the device
    pub fn check_window(&self, len: usize) -> Result<(), VerbsError> {
        self.windows.check(&self.name, len)
    }

    /// Returns the error for a queue that could not be created.
    pub(crate) fn made_no_queue(
        &self,
        what: &'static str,
        requests: u32,
        inline_bytes: u32,
        errno: i32,
    ) -> VerbsError {
        match errno {
            libc::EINVAL => VerbsError::TooDeep {
                device: self.name.clone(),
                requests,
                inline_bytes,
                requests_max: self.requests_max,
            },
            _ => failed_to_pin(what, requests as usize * 64, errno),
        }
    }

    /// Returns the number of datagrams that the port refused because of their Q_Key. 0 if it does not
    /// count them.
    #[must_use]
    pub fn wrong_q_keys(&self) -> u64 {
        let attributes = self.port_attributes();
        attributes.map_or(0, |attributes| u64::from(attributes.qkey_viol_cntr))
    }

    /// Returns a counter of the device (`/sys/class/infiniband/…/hw_counters`), if it exists.
    #[must_use]
    pub fn hardware_counter(&self, name: &str) -> Option<u64> {
        hardware_counter(&self.name, self.port, name)
    }

    /// Returns one of the port's identifiers, if the index is valid.
    pub(crate) fn gid_at(&self, index: u8) -> Option<Ipv6Addr> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the id keeps the context open; all bytes are values. Exercised by
        // `verbs::datagrams::removed_interface_address_restarts_its_line`.
        unsafe {
            let result = sys::ibv_query_gid(self.context(), self.port, index.into(), &raw mut gid);
            (result == 0).then(|| Ipv6Addr::from(gid.raw))
        }
    }

    /// Returns the port's counters, at most about a second old.
    pub(crate) fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Returns the watch over the device's events.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) const fn pd(&self) -> *mut sys::ibv_pd {
        self.pd.as_ptr()
    }

    pub(crate) const fn context(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made with the domain holds this value, so nothing of it is
        // left. Exercised by `verbs::datagrams::dropped_fan_out_and_receiver_free_rdma_resources`.
        let result = unsafe { sys::ibv_dealloc_pd(self.pd.as_ptr()) };
        if result != 0 {
            tracing::error!(device = self.name, errno = result, "ibv_dealloc_pd failed");
        }
    }
}

/// Moves a helper thread away from the core of the thread that started it.
pub(crate) fn leave_pinned_core() {
    if let Err(error) = sched::leave_pinned_core() {
        tracing::warn!(
            "a helper thread of a line may delay the thread that polls or publishes: {error}"
        );
    }
}

fn hardware_counter(device: &str, port: u8, name: &str) -> Option<u64> {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/{name}");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Converts a number of READs to the connection manager's byte. The largest value is left out, because
/// it would mean any number.
fn at_once(reads: i32) -> u8 {
    reads.clamp(0, i32::from(u8::MAX) - 1) as u8
}

/// Returns the vector of the n-th queue. A device that reports no vectors has vector 0.
fn nth_vector(n: u32, vectors: i32) -> i32 {
    u32::try_from(vectors).map_or(0, |vectors| (n % vectors.max(1)) as i32)
}

/// Converts `enum ibv_mtu` to bytes: 1 is 256 bytes, and each next value is twice that.
const fn mtu_bytes(mtu: u32) -> usize {
    128 << mtu
}

#[cfg(test)]
mod tests {
    use super::nth_vector;

    #[test]
    fn queues_take_completion_vectors_in_turn() {
        let taken: Vec<_> = (0..5).map(|n| nth_vector(n, 3)).collect();
        assert_eq!(taken, [0, 1, 2, 0, 1]);
        for none in [0, -1, i32::MIN] {
            assert_eq!(nth_vector(7, none), 0);
        }
        assert_eq!(nth_vector(u32::MAX, i32::MAX), 1);
    }
}
