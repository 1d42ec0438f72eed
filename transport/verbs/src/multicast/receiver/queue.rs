//! The queue of a receiving line: everything that a device writes or reads for it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;

use crate::config::{VerbsReceiveLine, VerbsReceiverConfig};
use crate::device::Device;
use crate::device::cm::{CmEvent, CmId, PortSpace};
use crate::device::queue::{Completions, DatagramQueue, Depths, TAKEN_MAX, no_completion};
use crate::device::region::Region;
use crate::device::sys::{self, GRH_LEN};
use crate::error::{VerbsError, failed};
use tickcast_transport_base::host::private_memory::PrivateMemory;

/// Length of the longest possible datagram, in bytes: the largest MTU of InfiniBand.
const PACKET_MAX: usize = 4096;
/// Padding before the header, so that the payload after it begins on a cache line.
const LEAD: usize = 64 - GRH_LEN;

/// A queue with posted buffers. Drop order: the queue before its buffers.
pub(super) struct ReceiveQueue {
    queue: DatagramQueue,
    buffers: Region,
    arrived: Completions,
    _sent: Completions,
    device: Arc<Device>,
    stride: usize,
    /// Whether packets have an IPv4 header, according to the port's own identifier.
    over_ipv4: bool,
    requests: Requests,
    taken: [sys::ibv_wc; TAKEN_MAX],
}

/// Receives to be posted together.
struct Requests {
    requests: Box<[sys::ibv_recv_wr]>,
    pieces: Box<[sys::ibv_sge]>,
    len: usize,
}

// SAFETY: the pointers inside are set when requests are posted and mean nothing afterwards.
// Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for Requests {}

impl ReceiveQueue {
    /// Opens the device and a queue, and posts all buffers.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub(super) fn open(
        config: &VerbsReceiverConfig,
        line: &VerbsReceiveLine,
    ) -> Result<Self, VerbsError> {
        let device = Device::of(&line.interface, config.datagram_len_max)?;
        let id = CmId::new(PortSpace::Udp)?;
        id.bind(device.address(), 0)?;
        let arrived = Completions::new(&device, config.depth, config.waitable)?;
        let sent = Completions::new(&device, 1, false)?;
        let depths = Depths {
            send: 1,
            receive: config.depth,
            inline_bytes: 0,
        };
        let queue = DatagramQueue::new(&device, id, &sent, &arrived, &depths, config.q_key)?;
        let stride = (64 + PACKET_MAX).next_multiple_of(64);
        let memory = PrivateMemory::new(stride * config.depth as usize);
        let memory = memory.map_err(|source| VerbsError::Call {
            what: "allocate receive buffers",
            source,
        })?;
        let mut opened = Self {
            buffers: Region::writable(&device, Arc::new(memory), "datagrams received")?,
            queue,
            arrived,
            _sent: sent,
            stride,
            over_ipv4: device.gid().to_ipv4_mapped().is_some(),
            requests: Requests::new(),
            taken: std::array::from_fn(|_| no_completion()),
            device,
        };
        let refused = |errno| failed("ibv_post_recv", errno);
        // Post all buffers before joining, so that no datagram finds the queue empty.
        for buffer in 0..u64::from(config.depth) {
            opened.post_again(buffer).map_err(refused)?;
        }
        opened.post_all().map_err(refused)?;
        Ok(opened)
    }

    /// Returns the device that it belongs to.
    pub(super) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the descriptors of arrivals, if they can be waited for, and of memberships.
    pub(super) fn fds(&self) -> [RawFd; 2] {
        [self.arrived.fd(), self.queue.id().as_raw_fd()]
    }

    /// Requests to join a group as a full member. An event reports the result.
    pub(super) fn join(&mut self, group: Ipv4Addr) -> Result<(), i32> {
        self.queue.join(group, sys::JOIN_FULL_MEMBER)
    }

    /// Leaves the group, if any.
    pub(super) fn leave(&mut self) -> Result<(), i32> {
        self.queue.leave()
    }

    /// Returns the next event of the membership.
    pub(super) fn event(&mut self) -> Option<CmEvent> {
        self.queue.id_mut().event()
    }

    /// Takes up to `max` completions. Returns their number, or an error number if the queue failed for good.
    #[inline]
    pub(super) fn take(&mut self, max: usize) -> Result<usize, i32> {
        self.arrived.take(&mut self.taken, max).map(<[_]>::len)
    }

    /// Returns the n-th completion taken last.
    #[inline]
    pub(super) const fn completion(&self, at: usize) -> &sys::ibv_wc {
        &self.taken[at]
    }

    /// Arms the descriptor of arrivals. Poll once more afterwards.
    pub(super) fn rearm(&mut self) {
        self.arrived.rearm();
    }

    /// Returns the sender's identifier and the bytes of the datagram in a buffer.
    pub(super) fn datagram(&self, buffer: u64, len: usize) -> (Option<Ipv6Addr>, &[u8]) {
        let len = len.min(self.stride - 64);
        // SAFETY: the buffer is one of ours and completed, so the device does not write it until
        // it is posted again, for which `&mut self` is needed; all of it was written or zeroed.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let (header, bytes) = unsafe {
            let start = self.buffers.as_ptr().add(buffer as usize * self.stride);
            let header = std::slice::from_raw_parts(start.add(LEAD), GRH_LEN);
            (header, std::slice::from_raw_parts(start.add(64), len))
        };
        (sender_of(header, self.over_ipv4), bytes)
    }

    /// Queues a buffer to be posted, and posts the queued buffers once there are many.
    pub(super) fn post_again(&mut self, buffer: u64) -> Result<(), i32> {
        let at = self.requests.len;
        self.requests.pieces[at] = sys::ibv_sge {
            addr: self.buffers.as_ptr().addr() as u64 + buffer * self.stride as u64 + LEAD as u64,
            length: (self.stride - LEAD) as u32,
            lkey: self.buffers.lkey(),
        };
        self.requests.requests[at].wr_id = buffer;
        self.requests.len += 1;
        if self.requests.len == TAKEN_MAX {
            return self.post_all();
        }
        Ok(())
    }

    pub(super) fn post_all(&mut self) -> Result<(), i32> {
        let len = std::mem::take(&mut self.requests.len);
        if len == 0 {
            return Ok(());
        }
        let requests = self.requests.requests.as_mut_ptr();
        let pieces = self.requests.pieces.as_mut_ptr();
        // SAFETY: all indices are below `len`, at most the length of both arrays; every piece is
        // within the registered buffers, of which each is posted once. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let error = unsafe {
            for i in 0..len {
                let request = requests.add(i);
                (*request).sg_list = pieces.add(i);
                (*request).next = requests.add(i + 1);
            }
            (*requests.add(len - 1)).next = ptr::null_mut();
            self.queue.post_receive(requests, &mut ptr::null_mut())
        };
        match error {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

impl Requests {
    fn new() -> Self {
        // SAFETY: zero is a value of every field: numbers and null pointers.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let zeroed = || unsafe { std::mem::zeroed::<sys::ibv_recv_wr>() };
        let request = || sys::ibv_recv_wr {
            num_sge: 1,
            ..zeroed()
        };
        let piece = sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            requests: (0..TAKEN_MAX).map(|_| request()).collect(),
            pieces: vec![piece; TAKEN_MAX].into_boxed_slice(),
            len: 0,
        }
    }
}

/// Returns the sender's identifier from the 40 bytes before a packet's payload. Over IPv4 (RoCEv2) the
/// header is in the last 20 of them; otherwise all 40 are a global route header or an IPv6 header. `None`
/// if the header is not of the kind that this port has.
#[inline]
fn sender_of(header: &[u8], over_ipv4: bool) -> Option<Ipv6Addr> {
    if over_ipv4 {
        let of: [u8; 4] = std::array::from_fn(|i| header[32 + i]);
        return (header[20] >> 4 == 4).then(|| Ipv4Addr::from(of).to_ipv6_mapped());
    }
    let of = std::array::from_fn::<u8, 16, _>(|i| header[8 + i]);
    (header[0] >> 4 == 6).then(|| Ipv6Addr::from(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_address_is_parsed_by_port_header_kind() {
        let mut header: [u8; GRH_LEN] = std::array::from_fn(|i| i as u8);
        assert_eq!(sender_of(&header, true), None, "version 1");
        assert_eq!(sender_of(&header, false), None, "version 0");
        header[20] = 0x45;
        let over_ipv4: Ipv6Addr = "::ffff:32.33.34.35".parse().unwrap();
        assert_eq!(sender_of(&header, true), Some(over_ipv4));
        assert_eq!(sender_of(&header, false), None);
        header[20] = 20;
        header[0] = 0x60;
        let global: Ipv6Addr = "809:a0b:c0d:e0f:1011:1213:1415:1617".parse().unwrap();
        assert_eq!(sender_of(&header, false), Some(global));
        assert_eq!(sender_of(&header, true), None);
    }
}
