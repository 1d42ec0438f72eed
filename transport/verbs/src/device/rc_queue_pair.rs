//! The queue pair of a reliable connection.

use std::mem;
use std::net::SocketAddrV4;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::audit::{self, AuditEvent};
use crate::device::Device;
use crate::device::cm::CmId;
use crate::device::queue::{Completions, no_attributes};
use crate::device::sys;
use crate::error::{VerbsError, done, failed};

type Mask = sys::ibv_qp_attr_mask;

/// A queue pair that its id connects. Its owner declares it before the id, so that it is dropped first.
pub(crate) struct ConnectedQueue {
    id: *mut sys::rdma_cm_id,
    qp: NonNull<sys::ibv_qp>,
    /// Accesses of its peer that it allows, where a window allows them too: `ibv_access_flags`.
    access: u32,
    peer: SocketAddrV4,
    device: Arc<Device>,
}

// SAFETY: it has one owner, and libibverbs may be called from any thread. Exercised by
// `verbs::stream::verbs_stream_carries_bytes_both_ways`, which makes one and uses it on another thread.
unsafe impl Send for ConnectedQueue {}

impl ConnectedQueue {
    /// Creates a queue pair with room for as many sends as receives, and for `inline_bytes` without a
    /// registered buffer.
    pub(crate) fn new(
        device: &Arc<Device>,
        id: &CmId,
        completions: &Completions,
        depth: u32,
        inline_bytes: u32,
    ) -> Result<Self, VerbsError> {
        // SAFETY: zero is a value of every field; id, domain and completions live, and outlive the
        // queue pair, as its owner's fields are ordered. Exercised by
        // `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe {
            let mut attributes: sys::ibv_qp_init_attr = mem::zeroed();
            attributes.send_cq = completions.as_ptr();
            attributes.recv_cq = completions.as_ptr();
            attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            attributes.cap.max_send_wr = depth;
            attributes.cap.max_recv_wr = depth;
            attributes.cap.max_send_sge = 1;
            attributes.cap.max_recv_sge = 1;
            attributes.cap.max_inline_data = inline_bytes;
            sys::rdma_create_qp(id.as_ptr(), device.pd(), &raw mut attributes)
        };
        if result != 0 {
            let errno = sys::errno();
            return Err(device.made_no_queue("rdma_create_qp", depth, inline_bytes, errno));
        }
        // SAFETY: the call above made it.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let qp = NonNull::new(unsafe { (*id.as_ptr()).qp });
        let qp = qp.ok_or_else(|| failed("rdma_create_qp", libc::EINVAL))?;
        Ok(Self {
            id: id.as_ptr(),
            qp,
            access: 0,
            peer: id.peer_address(),
            device: Arc::clone(device),
        })
    }

    /// Sets up a queue pair that can send: takes away the peer's rights that the manager allowed, and sets
    /// its delay when no receive is posted, which is 655 ms by default.
    pub(crate) fn settle(&mut self, rnr_timer: u8) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.min_rnr_timer = rnr_timer;
        attributes.qp_access_flags = self.access;
        let mask = Mask::IBV_QP_MIN_RNR_TIMER.0 | Mask::IBV_QP_ACCESS_FLAGS.0;
        self.modify(&mut attributes, mask)
    }

    /// Allows the peer more accesses (`ibv_access_flags`), where a window allows them too.
    pub(crate) fn allow(&mut self, access: u32) -> Result<(), VerbsError> {
        let access = self.access | access;
        if access == self.access {
            return Ok(());
        }
        let mut attributes = no_attributes();
        attributes.qp_access_flags = access;
        self.modify(&mut attributes, Mask::IBV_QP_ACCESS_FLAGS.0)?;
        self.access = access;
        Ok(())
    }

    fn modify(&mut self, attributes: &mut sys::ibv_qp_attr, mask: u32) -> Result<(), VerbsError> {
        // SAFETY: pair and attributes live.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::ibv_modify_qp(self.qp.as_ptr(), attributes, mask as i32) };
        done("ibv_modify_qp", result)
    }

    /// Returns the accesses its peer may make through it, as the device reports them.
    pub(crate) fn access(&self) -> Result<u32, VerbsError> {
        let asked = self.query(Mask::IBV_QP_ACCESS_FLAGS);
        asked.map(|attributes| attributes.qp_access_flags)
    }

    /// Returns whether the queue pair carries nothing any more because it failed or was disconnected.
    pub(crate) fn is_stopped(&self) -> bool {
        let asked = self.query(Mask::IBV_QP_STATE);
        asked.is_ok_and(|attributes| attributes.qp_state == sys::ibv_qp_state::IBV_QPS_ERR)
    }

    /// Returns the traffic class of the packets that it sends, as the device reports it.
    pub(crate) fn traffic_class(&self) -> Result<u8, VerbsError> {
        let asked = self.query(Mask::IBV_QP_AV);
        asked.map(|attributes| attributes.ah_attr.grh.traffic_class)
    }

    fn query(&self, what: Mask) -> Result<sys::ibv_qp_attr, VerbsError> {
        let mut attributes = no_attributes();
        // SAFETY: zero is a value of every field that is written; pair and attributes live.
        // Exercised by `verbs::cursor::queue_pair_access_matches_grants`.
        let result = unsafe {
            let mut initial: sys::ibv_qp_init_attr = mem::zeroed();
            let (attributes, initial) = (&raw mut attributes, &raw mut initial);
            sys::ibv_query_qp(self.qp.as_ptr(), attributes, what.0 as i32, initial)
        };
        done("ibv_query_qp", result).map(|()| attributes)
    }

    /// Returns the queue pair's device.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the peer's address.
    pub(crate) const fn peer(&self) -> SocketAddrV4 {
        self.peer
    }

    /// Posts one send.
    ///
    /// # Safety
    /// The memory it points at stays valid, and its buffer unwritten, until it completes.
    pub(crate) unsafe fn post_send(
        &mut self,
        request: *mut sys::ibv_send_wr,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives; the caller guarantees the rest.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::ibv_post_send(self.qp.as_ptr(), request, &mut ptr::null_mut()) };
        done("ibv_post_send", result)
    }

    /// Posts one receive.
    ///
    /// # Safety
    /// The memory it points at stays valid, and nobody reads or writes its buffer, until it completes.
    pub(crate) unsafe fn post_receive(
        &mut self,
        request: *mut sys::ibv_recv_wr,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives; the caller guarantees the rest.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::ibv_post_recv(self.qp.as_ptr(), request, &mut ptr::null_mut()) };
        done("ibv_post_recv", result)
    }
}

impl Drop for ConnectedQueue {
    fn drop(&mut self) {
        // SAFETY: the id lives: its owner declares it behind. Exercised by
        // `verbs::stream::dropped_connections_free_rdma_resources`.
        unsafe { sys::rdma_destroy_qp(self.id) };
        let of = audit::Of {
            device: self.device.name(),
            peer: Some(self.peer),
            ..audit::Of::default()
        };
        audit::write_entry(AuditEvent::QueuePairDestroyed, of);
    }
}
