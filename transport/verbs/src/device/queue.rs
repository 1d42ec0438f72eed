//! Work queues and completion queues.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::config::Priority;
use crate::device::Device;
use crate::device::cm::CmId;
use crate::device::sys;
use crate::error::{VerbsError, done, failed};

/// Largest number of completions taken at a time.
pub(crate) const TAKEN_MAX: usize = 32;

/// The number of the send that `DatagramQueue::post_marker` posts.
pub(crate) const MARKER: u64 = u64::MAX;

/// A completion queue, with a descriptor to wait on if one was requested.
pub(crate) struct Completions {
    cq: NonNull<sys::ibv_cq>,
    channel: Option<NonNull<sys::ibv_comp_channel>>,
    device: Arc<Device>,
}

// SAFETY: each has one owner, and libibverbs may be called from any thread. Exercised by
// `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for Completions {}

impl Completions {
    /// Creates a queue for `entries` completions. With `waitable` it has a descriptor, which is armed.
    pub(crate) fn new(
        device: &Arc<Device>,
        entries: u32,
        waitable: bool,
    ) -> Result<Self, VerbsError> {
        let channel = if waitable {
            // SAFETY: the device keeps its context open. Exercised by
            // `verbs::datagrams::sleeping_verbs_receiver_is_woken_by_datagram`.
            let channel = unsafe { sys::ibv_create_comp_channel(device.context()) };
            let channel = NonNull::new(channel)
                .ok_or_else(|| failed("ibv_create_comp_channel", sys::errno()))?;
            // SAFETY: the descriptor is the channel's.
            // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
            unsafe {
                let fd = channel.as_ref().fd;
                let flags = libc::fcntl(fd, libc::F_GETFL);
                libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            }
            Some(channel)
        } else {
            None
        };
        // SAFETY: as above; the channel, if any, outlives the queue (see `drop`).
        let cq = unsafe {
            let to = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
            let vector = device.next_vector();
            sys::ibv_create_cq(
                device.context(),
                entries as i32,
                ptr::null_mut(),
                to,
                vector,
            )
        };
        let Some(cq) = NonNull::new(cq) else {
            let errno = sys::errno();
            if let Some(channel) = channel {
                // SAFETY: made above, and no queue uses it.
                // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
                unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
            }
            return Err(device.made_no_queue("ibv_create_cq", entries, 0, errno));
        };
        let completions = Self {
            cq,
            channel,
            device: Arc::clone(device),
        };
        completions.arm();
        Ok(completions)
    }

    /// Takes up to `max` completions, in order. Returns an error number if the queue failed for good.
    #[inline]
    pub(crate) fn take<'a>(
        &mut self,
        into: &'a mut [sys::ibv_wc; TAKEN_MAX],
        max: usize,
    ) -> Result<&'a [sys::ibv_wc], i32> {
        let max = max.min(TAKEN_MAX) as i32;
        // SAFETY: `into` has room for as many as are asked for. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let taken = unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), max, into.as_mut_ptr()) };
        usize::try_from(taken)
            .map(|taken| &into[..taken])
            .map_err(|_| if taken == -1 { libc::EIO } else { -taken })
    }

    /// Returns the descriptor, readable when a completion arrived since it was armed. -1 if none was
    /// requested.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as this value.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        self.channel
            .map_or(-1, |channel| unsafe { channel.as_ref().fd })
    }

    /// Arms the descriptor for the next completion. Poll once more afterwards, because completions that
    /// arrived before do not make it readable.
    pub(crate) fn rearm(&mut self) {
        let Some(channel) = self.channel else { return };
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all three live; every event is acknowledged, so that the queue can be destroyed.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe {
            while sys::ibv_get_cq_event(channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                sys::ibv_ack_cq_events(cq, 1);
            }
        }
        self.arm();
    }

    fn arm(&self) {
        if self.channel.is_some() {
            // SAFETY: the queue lives.
            // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
            unsafe { sys::ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        }
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: queue pairs that complete here are gone (their owner declares them first), and
        // all events are acknowledged. Exercised by
        // `verbs::datagrams::dropped_fan_out_and_receiver_free_rdma_resources`.
        let result = unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
        if result != 0 {
            tracing::error!(
                device = self.device.name(),
                errno = result,
                "ibv_destroy_cq failed"
            );
        }
        if let Some(channel) = self.channel {
            // SAFETY: its only queue is gone.
            // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
        }
    }
}

/// Returns an empty completion, as space for [`Completions::take`].
pub(crate) fn no_completion() -> sys::ibv_wc {
    // SAFETY: zero is a value of every field, they are numbers.
    // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
    unsafe { mem::zeroed() }
}

/// The size of a datagram queue.
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    pub(crate) inline_bytes: u32,
}

/// A queue pair for datagrams, with an id to join groups. The order of the fields is the drop order.
pub(crate) struct DatagramQueue {
    qp: QueuePair,
    id: CmId,
    q_key: u32,
    inline_bytes: usize,
    /// The group that was requested. A device keeps a queue pair for as long as it is in a group.
    group: Option<Ipv4Addr>,
}

impl Drop for DatagramQueue {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

/// A queue pair, destroyed before its id.
struct QueuePair {
    id: *mut sys::rdma_cm_id,
    qp: NonNull<sys::ibv_qp>,
}

// SAFETY: as for `Completions`: one owner, callable from any thread.
unsafe impl Send for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the id is the one that made it, and is declared behind it. Exercised by
        // `verbs::datagrams::dropped_fan_out_and_receiver_free_rdma_resources`.
        unsafe { sys::rdma_destroy_qp(self.id) };
    }
}

impl DatagramQueue {
    /// Creates a queue pair that can send and receive at once. It accepts only datagrams with this Q_Key.
    pub(crate) fn new(
        device: &Arc<Device>,
        id: CmId,
        send: &Completions,
        receive: &Completions,
        depths: &Depths,
        q_key: u32,
    ) -> Result<Self, VerbsError> {
        // SAFETY: zero is a value of every field; id, domain and completions live; librdmacm
        // brings the pair to where it can send. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let (result, inline_bytes) = unsafe {
            let mut attributes: sys::ibv_qp_init_attr = mem::zeroed();
            attributes.send_cq = send.as_ptr();
            attributes.recv_cq = receive.as_ptr();
            attributes.qp_type = sys::ibv_qp_type::IBV_QPT_UD;
            // One more than the depth, for the marker that ends a flush.
            attributes.cap.max_send_wr = depths.send + 1;
            attributes.cap.max_recv_wr = depths.receive;
            attributes.cap.max_send_sge = 1;
            attributes.cap.max_recv_sge = 1;
            attributes.cap.max_inline_data = depths.inline_bytes;
            let result = sys::rdma_create_qp(id.as_ptr(), device.pd(), &raw mut attributes);
            // A device may grant more. Longer requests than requested can be slower than a read of memory.
            (
                result,
                attributes.cap.max_inline_data.min(depths.inline_bytes),
            )
        };
        if result != 0 {
            let requests = depths.send.max(depths.receive);
            let (inline, errno) = (depths.inline_bytes, sys::errno());
            return Err(device.made_no_queue("rdma_create_qp", requests, inline, errno));
        }
        // SAFETY: the call above made it.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let qp = NonNull::new(unsafe { (*id.as_ptr()).qp });
        let qp = qp.ok_or_else(|| failed("rdma_create_qp", libc::EINVAL))?;
        let mut queue = Self {
            qp: QueuePair {
                id: id.as_ptr(),
                qp,
            },
            id,
            q_key,
            inline_bytes: inline_bytes as usize,
            group: None,
        };
        let mut attributes = no_attributes();
        attributes.qkey = q_key;
        queue.modify(
            "set the Q_Key",
            &mut attributes,
            sys::ibv_qp_attr_mask::IBV_QP_QKEY,
        )?;
        Ok(queue)
    }

    /// Starts to join a group. An event of [`DatagramQueue::id_mut`] reports the result.
    pub(crate) fn join(&mut self, group: Ipv4Addr, flags: u32) -> Result<(), i32> {
        // The device would refuse to join a group a second time.
        let _ = self.leave();
        self.id.join(group, flags)?;
        self.group = Some(group);
        Ok(())
    }

    /// Leaves the group, if any.
    pub(crate) fn leave(&mut self) -> Result<(), i32> {
        self.group
            .take()
            .map_or(Ok(()), |group| self.id.leave(group))
    }

    pub(crate) const fn id(&self) -> &CmId {
        &self.id
    }

    pub(crate) const fn id_mut(&mut self) -> &mut CmId {
        &mut self.id
    }

    /// Returns the bytes that a send may carry without a registered buffer.
    pub(crate) const fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Posts a chain of sends. On failure `bad` points at the first request that was not taken; all
    /// requests before it were.
    ///
    /// # Safety
    /// `first` heads a chain of whole work requests. The memory they point at stays valid until they
    /// complete, or, for inline data, until this returns.
    #[inline]
    pub(crate) unsafe fn post_send(
        &mut self,
        first: *mut sys::ibv_send_wr,
        bad: &mut *mut sys::ibv_send_wr,
    ) -> i32 {
        // SAFETY: the pair lives; the caller guarantees the rest. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe { sys::ibv_post_send(self.qp.qp.as_ptr(), first, bad) }
    }

    /// Posts a chain of receives.
    ///
    /// # Safety
    /// As for `post_send`. The device writes the buffers until they complete.
    #[inline]
    pub(crate) unsafe fn post_receive(
        &mut self,
        first: *mut sys::ibv_recv_wr,
        bad: &mut *mut sys::ibv_recv_wr,
    ) -> i32 {
        // SAFETY: as for `post_send`.
        unsafe { sys::ibv_post_recv(self.qp.qp.as_ptr(), first, bad) }
    }

    /// Posts an empty send to a flushed queue. It completes as [`MARKER`], after everything posted before.
    pub(crate) fn post_marker(&mut self, to: &AddressHandle) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of every field; the request names no memory, and its address
        // handle lives through the call: a flushed request is never sent. Exercised by
        // `verbs::datagrams::reset_completes_with_unsignalled_tail_sends`.
        let error = unsafe {
            let mut request: sys::ibv_send_wr = mem::zeroed();
            request.wr_id = MARKER;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.wr.ud = sys::ud_t {
                ah: to.as_ptr(),
                remote_qpn: sys::MULTICAST_QPN,
                remote_qkey: self.q_key,
            };
            self.post_send(&raw mut request, &mut ptr::null_mut())
        };
        done("ibv_post_send", error)
    }

    /// Flushes the queue: everything posted completes as flushed, and nothing more is sent.
    pub(crate) fn flush(&mut self) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        self.modify(
            "flush",
            &mut attributes,
            sys::ibv_qp_attr_mask::IBV_QP_STATE,
        )
    }

    fn modify(
        &mut self,
        what: &'static str,
        attributes: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        // SAFETY: pair and attributes live. Exercised by
        // `verbs::datagrams::verbs_fan_out_restarts_after_reset_of_full_queue`.
        let result = unsafe { sys::ibv_modify_qp(self.qp.qp.as_ptr(), attributes, mask.0 as i32) };
        done(what, result)
    }
}

/// Returns empty attributes.
pub(crate) fn no_attributes() -> sys::ibv_qp_attr {
    // SAFETY: zero is a value of every field, they are numbers.
    // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
    unsafe { mem::zeroed() }
}

/// The address of a group, from a port.
pub(crate) struct AddressHandle {
    ah: NonNull<sys::ibv_ah>,
    /// Index and value of the port's identifier that it sends from.
    gid_index: u8,
    gid: Option<Ipv6Addr>,
    /// The device whose protection domain it belongs to.
    device: Arc<Device>,
}

// SAFETY: as for `Completions`.
unsafe impl Send for AddressHandle {}
// SAFETY: nothing in it changes after it was made, and its device may be called from any thread. Exercised by
// `verbs::datagrams::removed_interface_address_restarts_its_line`, whose lines share it with a helper thread.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Creates a handle from the manager's `route`. The priority is set here for every packet, because the
    /// manager's own option does not affect multicast.
    pub(crate) fn new(
        device: &Arc<Device>,
        mut route: sys::ibv_ah_attr,
        priority: Priority,
    ) -> Result<Self, VerbsError> {
        route.grh.traffic_class = priority.traffic_class();
        route.sl = priority.service_level(device.is_ethernet(), route.sl);
        // SAFETY: domain and attributes live. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let ah = unsafe { sys::ibv_create_ah(device.pd(), &raw mut route) };
        let ah = NonNull::new(ah).ok_or_else(|| failed("ibv_create_ah", sys::errno()))?;
        let gid_index = route.grh.sgid_index;
        Ok(Self {
            ah,
            gid_index,
            gid: device.gid_at(gid_index),
            device: Arc::clone(device),
        })
    }

    /// Returns whether the port still has the identifier that it sends from.
    pub(crate) fn is_current(&self) -> bool {
        self.gid.is_some() && self.gid == self.device.gid_at(self.gid_index)
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: no posted work names it: its owners destroy their queue pairs before.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe { sys::ibv_destroy_ah(self.ah.as_ptr()) };
    }
}
