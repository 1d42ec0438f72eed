//! The send queue of a line: everything that a device may access for the sends in flight. When a queue is
//! given up, all of it goes to the line's helper thread, which closes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::types::Sequence;

use crate::config::VerbsFanOutConfig;
use crate::device::cm::{CmId, PortSpace};
use crate::device::queue::{
    AddressHandle, Completions, DatagramQueue, Depths, MARKER, TAKEN_MAX, no_completion,
};
use crate::device::region::Region;
use crate::device::{Device, sys};
use crate::error::VerbsError;
use crate::multicast::send_queue::{Chain, Piece, Pins};
use tickcast_transport_base::FanOutError;
use tickcast_transport_base::host::mapping::SharedMapping;

/// Copies in flight per queue.
const COPIES: usize = 16;
/// Limit for a flushed queue to return all requests.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Interval between polls of a queue that is flushed.
const FLUSH_POLL: Duration = Duration::from_micros(100);

/// A queue to send with. Drop order: the queue before the objects that its work requests name.
pub(super) struct SendQueue {
    queue: DatagramQueue,
    /// The group's address. `None` until the line has joined.
    address: Option<Arc<AddressHandle>>,
    /// Earlier addresses, and for each the number of the first send that does not use it.
    retired: Vec<(Arc<AddressHandle>, u64)>,
    sent: Completions,
    _received: Completions,
    /// The registered ring. `None` if there are only copies to send.
    ring: Option<Arc<Region>>,
    copies: Region,
    /// Length of a copy buffer in bytes, the next buffer to use, and the last send of each.
    copy_len: usize,
    next_copy: usize,
    copied: [Option<u64>; COPIES],
    device: Arc<Device>,
    /// Space for completions.
    taken: [sys::ibv_wc; TAKEN_MAX],
}

impl SendQueue {
    /// Opens a queue that sends from the registered ring, and from copy buffers of its own.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub(super) fn open(
        device: &Arc<Device>,
        config: &VerbsFanOutConfig,
        ring: Option<&Arc<Region>>,
    ) -> Result<Self, VerbsError> {
        let id = CmId::new(PortSpace::Udp)?;
        id.bind(device.address(), 0)?;
        let sent = Completions::new(device, config.send_depth + 1, false)?;
        let received = Completions::new(device, 1, false)?;
        let depths = Depths {
            send: config.send_depth,
            receive: 1,
            inline_bytes: config.inline_bytes,
        };
        let queue = DatagramQueue::new(device, id, &sent, &received, &depths, config.q_key)?;
        let copy_len = config.datagram_len_max.next_multiple_of(64);
        let copies = SharedMapping::memfd("copies", copy_len * COPIES);
        let copies = copies.map_err(|error| VerbsError::Call {
            what: "allocate buffers for copies",
            source: std::io::Error::other(error),
        })?;
        Ok(Self {
            queue,
            address: None,
            retired: Vec::new(),
            sent,
            _received: received,
            ring: ring.cloned(),
            copies: Region::readable(device, Arc::new(copies), "datagrams sent")?,
            copy_len,
            next_copy: 0,
            copied: [None; COPIES],
            device: Arc::clone(device),
            taken: std::array::from_fn(|_| no_completion()),
        })
    }

    /// Returns the device that it belongs to.
    pub(super) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Sends to another address from now on. The device may use the old one for the sends in flight.
    pub(super) fn set_address(&mut self, address: &Arc<AddressHandle>, pins: &Pins) {
        self.retired
            .retain(|(_, first)| first.checked_sub(1).is_some_and(|it| !pins.is_done(it)));
        if let Some(old) = self.address.replace(Arc::clone(address)) {
            self.retired.push((old, pins.posted()));
        }
    }

    /// Takes completions, in order. Returns an error number if the queue failed for good.
    #[inline]
    pub(super) fn take(&mut self) -> Result<&[sys::ibv_wc], i32> {
        self.sent.take(&mut self.taken, TAKEN_MAX)
    }

    /// Adds the send of a slot to a chain.
    ///
    /// # Errors
    /// [`FanOutError::NotRegistered`] if the slot does not lie in the registered ring.
    #[inline]
    pub(super) fn add_slot(
        &self,
        chain: &mut Chain,
        (sequence, bytes): (Sequence, &[u8]),
        q_key: u32,
        (number, signalled): (u64, bool),
    ) -> Result<(), FanOutError> {
        let ring = self.ring.as_ref().filter(|ring| ring.holds(bytes));
        let (Some(ring), Some(address)) = (ring, &self.address) else {
            return Err(FanOutError::NotRegistered { sequence });
        };
        let piece = self.piece(bytes, ring.lkey());
        chain.push(piece, address, q_key, number, signalled);
        Ok(())
    }

    /// Adds the send of a copy to a chain. Returns `false` if there is no address or no free buffer.
    pub(super) fn add_copy(
        &mut self,
        chain: &mut Chain,
        bytes: &[u8],
        q_key: u32,
        pins: &Pins,
    ) -> bool {
        let Some(address) = &self.address else {
            return false;
        };
        let mut piece = self.piece(bytes, self.copies.lkey());
        let (number, signalled) = pins.number(0, !piece.inline);
        if !piece.inline {
            let at = self.next_copy;
            if self.copied[at].is_some_and(|number| !pins.is_done(number)) {
                return false;
            }
            piece.bytes = self.copies.fill(at * self.copy_len, bytes);
            self.copied[at] = Some(number);
            self.next_copy = (at + 1) % COPIES;
        }
        chain.push(piece, address, q_key, number, signalled);
        true
    }

    /// Posts a chain. Returns how many sends the device took, and its error number if not all.
    #[inline]
    pub(super) fn post(&mut self, chain: &mut Chain) -> (usize, i32) {
        // SAFETY: `add_slot` found every slot in the registered ring, which stays registered for as long as
        // this queue. The ring's writer does not touch a slot until the line's completed position covers it,
        // or the line is reset: then the device may read words of two datagrams, as of any shared memory, and
        // their CRC is wrong. Inline bytes are copied by the call. A copy buffer is in registered memory, and
        // is not written until its send is done. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`, which sends slots and heartbeats of both
        // sizes.
        unsafe { chain.post(&mut self.queue) }
    }

    /// Returns whether a datagram of this length is copied into its work request.
    #[inline]
    pub(super) const fn is_inline(&self, len: usize) -> bool {
        len <= self.queue.inline_bytes()
    }

    fn piece(&self, bytes: &[u8], lkey: u32) -> Piece {
        Piece {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u32,
            lkey,
            inline: self.is_inline(bytes.len()),
        }
    }

    /// Takes all requests back from the device and destroys the queue. Blocks for as long as the device
    /// takes. Returns the number of sends that came back unsent.
    pub(super) fn close(mut self) -> u64 {
        // Sends without completions report no flush either, so a marker ends the flush.
        let flushed = self.queue.flush();
        let address = self.address.clone();
        let mut is_waiting = match (flushed, address) {
            (Ok(()), Some(address)) => self.queue.post_marker(&address).is_ok(),
            _ => false,
        };
        let (mut unsent, until) = (0, Instant::now() + FLUSH_MAX);
        while let Ok(done) = self.take() {
            let mut is_marked = false;
            for completion in done {
                if completion.wr_id == MARKER {
                    is_marked = true;
                } else if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    unsent += 1;
                }
            }
            let is_empty = done.is_empty();
            is_waiting &= !is_marked;
            if is_empty {
                if !is_waiting || Instant::now() >= until {
                    break;
                }
                std::thread::sleep(FLUSH_POLL);
            }
        }
        unsent
    }
}
