//! The queue pair of a reliable connection.

use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::cm::CmId;
use super::device::Device;
use super::error::{VerbsError, done, failed};
use super::queue::Completions;
use super::sys;

/// A queue pair that its id connects. Its owner declares it before the id.
pub(super) struct ConnectedQueue {
    id: *mut sys::rdma_cm_id,
    qp: NonNull<sys::ibv_qp>,
}

// SAFETY: it has one owner, and libibverbs may be called from any thread. Exercised by
// `verbs_stream::a_stream_carries_bytes_both_ways`, which makes one and uses it on another thread.
unsafe impl Send for ConnectedQueue {}

impl ConnectedQueue {
    /// With room for as many sends as receives.
    pub(super) fn new(
        device: &Arc<Device>,
        id: &CmId,
        completions: &Completions,
        depth: u32,
    ) -> Result<Self, VerbsError> {
        // SAFETY: zero is a value of every field; id, domain and completions live, and outlive the
        // queue pair, as its owner's fields are ordered. Exercised by
        // `verbs_stream::a_stream_carries_bytes_both_ways`.
        let result = unsafe {
            let mut attributes: sys::ibv_qp_init_attr = mem::zeroed();
            attributes.send_cq = completions.as_ptr();
            attributes.recv_cq = completions.as_ptr();
            attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            attributes.cap.max_send_wr = depth;
            attributes.cap.max_recv_wr = depth;
            attributes.cap.max_send_sge = 1;
            attributes.cap.max_recv_sge = 1;
            sys::rdma_create_qp(id.as_ptr(), device.pd(), &raw mut attributes)
        };
        if result != 0 {
            return Err(device.made_no_queue("rdma_create_qp", depth, 0, sys::errno()));
        }
        // SAFETY: the call above made it.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        let qp = NonNull::new(unsafe { (*id.as_ptr()).qp });
        let qp = qp.ok_or_else(|| failed("rdma_create_qp", libc::EINVAL))?;
        Ok(Self {
            id: id.as_ptr(),
            qp,
        })
    }

    /// How long its peer waits when no receive is posted here; the manager's own is 655 ms.
    pub(super) fn set_rnr_timer(&mut self, code: u8) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of every field; pair and attributes live.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        let result = unsafe {
            let mut attributes: sys::ibv_qp_attr = mem::zeroed();
            attributes.min_rnr_timer = code;
            let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
            sys::ibv_modify_qp(self.qp.as_ptr(), &raw mut attributes, mask)
        };
        done("ibv_modify_qp", result)
    }

    /// Posts one send.
    ///
    /// # Safety
    /// What it points at stays valid, and its buffer unwritten, until it completes.
    pub(super) unsafe fn post_send(
        &mut self,
        request: *mut sys::ibv_send_wr,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives; the rest is the caller's word.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::ibv_post_send(self.qp.as_ptr(), request, &mut ptr::null_mut()) };
        done("ibv_post_send", result)
    }

    /// Posts one receive.
    ///
    /// # Safety
    /// What it points at stays valid, and nobody reads or writes its buffer, until it completes.
    pub(super) unsafe fn post_receive(
        &mut self,
        request: *mut sys::ibv_recv_wr,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives; the rest is the caller's word.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::ibv_post_recv(self.qp.as_ptr(), request, &mut ptr::null_mut()) };
        done("ibv_post_recv", result)
    }
}

impl Drop for ConnectedQueue {
    fn drop(&mut self) {
        // SAFETY: the id lives: its owner declares it behind. Exercised by
        // `verbs_stream::what_connections_hold_is_gone_with_them`.
        unsafe { sys::rdma_destroy_qp(self.id) };
    }
}
