//! Additions to the bindings: constants of rdma-core's headers that are no functions or types, and
//! calls whose result needs a check.
//!
//! `transport/tests/verbs/layout.rs` compares the layouts of everything that is passed with the C headers.

use std::io;
use std::mem;

pub(crate) use rdma_sys::*;

/// Level of [`RDMA_OPTION_ID_ACK_TIMEOUT`] and related options (rdma/rdma_cma.h).
pub(crate) const RDMA_OPTION_ID: i32 = 0;
/// Traffic class of a connection, one byte.
pub(crate) const RDMA_OPTION_ID_TOS: i32 = 0;
/// Time until a packet counts as lost: 4.096 us × 2^n, one byte.
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: i32 = 3;
/// Joins as a member that also receives.
pub(crate) const JOIN_FULL_MEMBER: u32 = 0;
/// Joins as a sender only.
pub(crate) const JOIN_SEND_ONLY: u32 = 1;
/// Both fields of a join are set (`rdma_cm_join_mc_attr_mask`). The kernel requires both.
pub(crate) const JOIN_ADDRESS_AND_FLAGS: u32 = 1 | 2;
/// Destination queue pair number of every datagram to a group.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// Length of the global route header that the device always puts before a UD datagram, in bytes.
pub(crate) const GRH_LEN: usize = 40;

/// The port's link is Ethernet (`IBV_LINK_LAYER_ETHERNET`).
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

/// Asynchronous events (`ibv_event_type`): a completion queue or a queue pair failed.
pub(crate) const EVENT_CQ_ERR: u32 = 0;
pub(crate) const EVENT_QP_FATAL: u32 = 1;
/// The device failed.
pub(crate) const EVENT_DEVICE_FATAL: u32 = 8;
/// The port went up or down.
pub(crate) const EVENT_PORT_ACTIVE: u32 = 9;
pub(crate) const EVENT_PORT_ERR: u32 = 10;
/// The subnet manager changed the port's address, its partitions, or moved, or requests that all
/// memberships are requested again.
pub(crate) const EVENT_LID_CHANGE: u32 = 11;
pub(crate) const EVENT_PKEY_CHANGE: u32 = 12;
pub(crate) const EVENT_SM_CHANGE: u32 = 13;
pub(crate) const EVENT_CLIENT_REREGISTER: u32 = 17;
/// The port's identifiers changed.
pub(crate) const EVENT_GID_CHANGE: u32 = 18;

/// An asynchronous event. The bindings' own type contains an enumeration, which a newer library may fill
/// with an unknown value.
#[repr(C)]
pub(crate) struct AsyncEvent {
    /// The object of the event: a pointer, or the number of a port.
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

/// Returns the error number of the last failed call of librdmacm.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the attributes of a port. They are zeroed first, because the bindings use an old call that
/// fills only a part.
///
/// # Safety
/// `context` is an open device.
pub(crate) unsafe fn query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, i32> {
    // SAFETY: zero is a value of every field, they are numbers; the caller keeps the context open.
    // Exercised by `verbs::datagrams::rdma_device_reports_its_port_attributes`.
    unsafe {
        let mut attributes: ibv_port_attr = mem::zeroed();
        match ___ibv_query_port(context, port, &raw mut attributes) {
            0 => Ok(attributes),
            error => Err(error),
        }
    }
}
