//! What the bindings leave out: constants of rdma-core's headers that are no functions or types,
//! and calls whose result must not be trusted as it comes.
//!
//! Layouts of everything that is passed are held against the C headers by
//! `tests/verbs_layout.rs`.

use std::io;
use std::mem;

pub(crate) use rdma_sys::*;

/// Level of [`RDMA_OPTION_ID_ACK_TIMEOUT`] and its like (rdma/rdma_cma.h).
pub(crate) const RDMA_OPTION_ID: i32 = 0;
/// Traffic class of a connection, one byte.
pub(crate) const RDMA_OPTION_ID_TOS: i32 = 0;
/// Time until a packet counts as lost: 4.096 us × 2^n, one byte.
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: i32 = 3;
/// Who joins gets what others send.
pub(crate) const JOIN_FULL_MEMBER: u32 = 0;
/// Who joins only sends.
pub(crate) const JOIN_SEND_ONLY: u32 = 1;
/// Both fields of a join are given (`rdma_cm_join_mc_attr_mask`); the kernel wants no less.
pub(crate) const JOIN_ADDRESS_AND_FLAGS: u32 = 1 | 2;
/// Destination of every datagram to a group.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// What the device puts before a UD datagram: a global route header, always.
pub(crate) const GRH_LEN: usize = 40;

/// A device failed (`ibv_event_type`).
pub(crate) const EVENT_DEVICE_FATAL: u32 = 8;

/// An asynchronous event. The bindings' own has an enumeration in it, which a newer library may fill
/// with a value that it does not have.
#[repr(C)]
pub(crate) struct AsyncEvent {
    /// What it is about: a pointer, or the number of a port.
    pub(crate) element: *mut std::ffi::c_void,
    pub(crate) event_type: u32,
}

impl Default for AsyncEvent {
    fn default() -> Self {
        Self {
            element: std::ptr::null_mut(),
            event_type: 0,
        }
    }
}

unsafe extern "C" {
    pub(crate) fn ibv_get_async_event(context: *mut ibv_context, event: *mut AsyncEvent) -> i32;
    pub(crate) fn ibv_ack_async_event(event: *mut AsyncEvent);
}

/// The error number of the last call of librdmacm that failed.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The attributes of a port. Zeroed first: the bindings take an old path that fills only a part.
///
/// # Safety
/// `context` is a device that is open.
pub(crate) unsafe fn query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, i32> {
    // SAFETY: zero is a value of every field, they are numbers; the context is open, says the
    // caller. Exercised by `verbs::datagrams::device_tells_what_its_port_is`.
    unsafe {
        let mut attributes: ibv_port_attr = mem::zeroed();
        match ___ibv_query_port(context, port, &raw mut attributes) {
            0 => Ok(attributes),
            error => Err(error),
        }
    }
}
