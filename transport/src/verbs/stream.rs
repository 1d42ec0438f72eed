//! A reliable connection as a stream of bytes: what one side writes the other reads, in order, or
//! both learn that it is over. Nothing blocks; connecting goes on in the background.
//!
//! Every SEND takes one buffer of the connection's own pool at either end. Nothing is sent that the
//! other side has no buffer for: each SEND tells how many it has read since (credit). A peer that
//! does not read stops its own stream; one that breaks the rule is cut off by its device.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cm::{CmEvent, CmId, PortSpace};
use super::connected::ConnectedQueue;
use super::device::Device;
use super::error::VerbsError;
use super::memory::Region;
use super::queue::{Completions, TAKEN_MAX, no_completion};
use super::sys;
use crate::mapping::SharedMapping;

/// How connections are made. Defaults are for a rack, where rdma_cm's own mean seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// Bytes of a buffer: the largest SEND.
    pub buffer_len: usize,
    /// Buffers to receive into, and as many to send from.
    pub buffers: u32,
    /// A packet counts as lost after 4.096 us × 2^n; 14 is 67 ms.
    pub ack_timeout: u8,
    /// How often a packet is sent again before the connection is given up, 0 to 7.
    pub retries: u8,
    /// How long a peer without a free buffer is given, as a code of the device: 12 is 0.64 ms.
    pub rnr_timer: u8,
    /// Goes into every packet; the upper six bits are the DSCP.
    pub traffic_class: u8,
    /// How long looking for a peer may take.
    pub resolve_ms: i32,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            buffer_len: 4096,
            buffers: 128,
            ack_timeout: 14,
            retries: 4,
            rnr_timer: 12,
            traffic_class: 0,
            resolve_ms: 2_000,
        }
    }
}

impl StreamConfig {
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        for (name, value, min, max) in [
            ("buffer_len", self.buffer_len as u64, 256, 1 << 20),
            ("buffers", self.buffers.into(), 8, CREDIT_MAX.into()),
            ("ack_timeout", self.ack_timeout.into(), 1, 31),
            ("retries", self.retries.into(), 0, 7),
            ("rnr_timer", self.rnr_timer.into(), 1, 31),
            ("resolve_ms", self.resolve_ms.max(0) as u64, 1, 60_000),
        ] {
            if !(min..=max).contains(&value) {
                return Err(VerbsError::Range {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Looking for the peer, then for the way to it.
    Resolving,
    /// Asked, or accepted; the other side has the word.
    Connecting,
    Up,
    /// It ended as connections do.
    Closed,
    /// It broke, with an event or a completion of this number.
    Broken(u32),
}

/// A connection to one peer.
pub struct Stream {
    config: StreamConfig,
    state: State,
    /// Until the way to the peer is known there is only an id. Before the id, so that it goes
    /// first.
    link: Option<Link>,
    id: CmId,
    device: Arc<Device>,
}

/// Fields go in this order: the queue before its buffers.
struct Link {
    queue: ConnectedQueue,
    completions: Completions,
    sending: Region,
    receiving: Region,
    /// Send buffers that are free.
    free: Vec<u32>,
    /// What arrived and was not read yet: buffer, from where, up to where.
    arrived: VecDeque<(u32, usize, usize)>,
    /// Sends that the other side has buffers for, and buffers here that it was not told of.
    credit: u32,
    owed: u32,
    taken: [sys::ibv_wc; TAKEN_MAX],
}

/// In the number of a work request: it is a send.
const SEND: u64 = 1 << 32;
/// The number of a send that carries nothing but credit.
const CREDIT: u64 = 2 << 32;
/// Receives kept for those: each side may owe a word at most twice before the other must have read.
const CREDIT_RECEIVES: u32 = 2;
/// More than this no side may have.
const CREDIT_MAX: u32 = 16_384;

impl Stream {
    /// Begins to connect to a listener, from a device.
    ///
    /// # Errors
    /// [`VerbsError`] for what can't be begun; what fails later, reading and writing tell.
    pub fn connect(
        device: &Arc<Device>,
        to: SocketAddrV4,
        config: &StreamConfig,
    ) -> Result<Self, VerbsError> {
        config.check()?;
        let id = CmId::new(PortSpace::Tcp)?;
        id.resolve(device.address(), to, config.resolve_ms)?;
        Ok(Self {
            config: config.clone(),
            state: State::Resolving,
            link: None,
            id,
            device: Arc::clone(device),
        })
    }

    pub(super) fn accept(
        device: &Arc<Device>,
        id: CmId,
        word: Option<u32>,
        config: &StreamConfig,
    ) -> Result<Self, VerbsError> {
        let mut stream = Self {
            config: config.clone(),
            state: State::Connecting,
            link: None,
            id,
            device: Arc::clone(device),
        };
        stream.open_link(true)?;
        stream.told_of(word);
        Ok(stream)
    }

    /// Whether bytes can pass.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Brings it forward: call it when one of its descriptors is readable, or often. Whether it is
    /// still, or not yet, usable.
    pub fn advance(&mut self) -> bool {
        // A connection that is up is asked as well: that its peer is gone, only the manager tells.
        self.manage();
        self.collect();
        !matches!(self.state, State::Closed | State::Broken(_))
    }

    /// Descriptors that become readable when there is something to do.
    #[must_use]
    pub fn raw_fds(&self) -> [RawFd; 2] {
        let completions = self.link.as_ref().map_or(-1, |link| link.completions.fd());
        [self.id.as_raw_fd(), completions]
    }

    /// Takes the connection manager's events.
    fn manage(&mut self) {
        while let Some(event) = self.id.event() {
            if let Err(error) = self.managed(&event) {
                tracing::debug!(device = self.device.name(), "a connection failed: {error}");
                self.state = State::Broken(event.kind);
            }
        }
    }

    fn managed(&mut self, event: &CmEvent) -> Result<(), VerbsError> {
        use sys::rdma_cm_event_type as kind;
        match (self.state, event.kind) {
            (State::Resolving, kind::RDMA_CM_EVENT_ADDR_RESOLVED) => {
                let class = self.config.traffic_class;
                self.id.set_option(sys::RDMA_OPTION_ID_TOS, class)?;
                self.id.resolve_route(self.config.resolve_ms)
            }
            (State::Resolving, kind::RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                self.state = State::Connecting;
                self.open_link(false)
            }
            (State::Connecting, kind::RDMA_CM_EVENT_ESTABLISHED) => {
                self.told_of(event.word);
                if let Some(link) = &mut self.link {
                    link.queue.set_rnr_timer(self.config.rnr_timer)?;
                }
                self.state = State::Up;
                Ok(())
            }
            (_, kind::RDMA_CM_EVENT_DISCONNECTED) => {
                self.id.disconnect();
                self.state = State::Closed;
                Ok(())
            }
            (_, kind::RDMA_CM_EVENT_TIMEWAIT_EXIT | kind::RDMA_CM_EVENT_ADDR_CHANGE) => Ok(()),
            (State::Closed | State::Broken(_), _) => Ok(()),
            (_, kind) => {
                self.state = State::Broken(kind);
                Ok(())
            }
        }
    }

    /// The other side said how many buffers it has.
    fn told_of(&mut self, buffers: Option<u32>) {
        if let (Some(link), Some(buffers)) = (&mut self.link, buffers) {
            link.credit = buffers.min(CREDIT_MAX).saturating_sub(CREDIT_RECEIVES);
        }
    }

    /// Makes the queue and its buffers, and asks or accepts.
    fn open_link(&mut self, accept: bool) -> Result<(), VerbsError> {
        let config = &self.config;
        self.id
            .set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, config.ack_timeout)?;
        let completions =
            Completions::new(&self.device, (config.buffers + CREDIT_RECEIVES) * 2, true)?;
        let queue = ConnectedQueue::new(
            &self.device,
            &self.id,
            &completions,
            config.buffers + CREDIT_RECEIVES,
        )?;
        let pool = |name| {
            let memory = SharedMapping::memfd(name, config.buffer_len * config.buffers as usize);
            memory.map(Arc::new).map_err(|error| VerbsError::Call {
                what: "allocate buffers for a connection",
                source: io::Error::other(error),
            })
        };
        let mut link = Link {
            queue,
            completions,
            sending: Region::readable(&self.device, pool("send")?)?,
            receiving: Region::writable(&self.device, pool("receive")?)?,
            free: (0..config.buffers).collect(),
            arrived: VecDeque::with_capacity(config.buffers as usize),
            credit: 0,
            owed: 0,
            taken: std::array::from_fn(|_| no_completion()),
        };
        for buffer in 0..config.buffers {
            link.post_receive(buffer, config.buffer_len)?;
        }
        self.link = Some(link);
        self.id
            .connect(accept, self.config.retries, self.config.buffers)
    }

    /// Takes what the device has done.
    fn collect(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut stirred = false;
        loop {
            let taken = link.completions.take(&mut link.taken, TAKEN_MAX).len();
            for at in 0..taken {
                let completion = &link.taken[at];
                if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    // Flushed receives are how the other side's end may be seen first.
                    if matches!(self.state, State::Up | State::Connecting) {
                        self.state = State::Broken(completion.status);
                    }
                    continue;
                }
                let buffer = completion.wr_id as u32;
                match completion.wr_id & !u64::from(u32::MAX) {
                    SEND => link.free.push(buffer),
                    CREDIT => {}
                    // Data may overtake the word that the connection is up.
                    _ => {
                        // SAFETY: both fields are numbers; what a peer that sends no word leaves
                        // there means nothing, and is bounded.
                        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
                        let word = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
                        let credit = link.credit.saturating_add(u32::from_be(word));
                        link.credit = credit.min(CREDIT_MAX);
                        match completion.byte_len as usize {
                            0 if link.post_receive(buffer, self.config.buffer_len).is_err() => {
                                self.state = State::Broken(0);
                            }
                            0 => {}
                            len => link.arrived.push_back((buffer, 0, len)),
                        }
                    }
                }
            }
            if taken == 0 {
                if stirred {
                    return;
                }
                stirred = true;
                link.completions.rearm();
            }
        }
    }

    /// A buffer was read: it is posted again, and the other side is told, with the next data or,
    /// when it may be waiting for the word, at once.
    fn give_back(&mut self, buffer: u32) {
        let Some(link) = self.link.as_mut().filter(|_| self.state == State::Up) else {
            return;
        };
        let mut result = link.post_receive(buffer, self.config.buffer_len);
        link.owed += 1;
        if result.is_ok() && link.owed >= (self.config.buffers - CREDIT_RECEIVES) / 2 {
            result = link.post_send(CREDIT, 0, link.sending.as_ptr());
        }
        if result.is_err() {
            self.state = State::Broken(0);
        }
    }

    fn ended(&self) -> io::Error {
        match self.state {
            State::Resolving | State::Connecting | State::Up => io::ErrorKind::WouldBlock.into(),
            State::Closed => io::ErrorKind::ConnectionAborted.into(),
            State::Broken(number) => io::Error::other(format!(
                "the connection over {} broke (event or completion {number})",
                self.device.name()
            )),
        }
    }
}

impl Link {
    /// Whether there is a buffer here, and one at the other side.
    fn may_send(&self) -> bool {
        self.credit > 0 && !self.free.is_empty()
    }

    fn post_receive(&mut self, buffer: u32, len: usize) -> Result<(), VerbsError> {
        let mut piece = sys::ibv_sge {
            addr: self.receiving.as_ptr().addr() as u64 + u64::from(buffer) * len as u64,
            length: len as u32,
            lkey: self.receiving.lkey(),
        };
        let mut request = sys::ibv_recv_wr {
            wr_id: buffer.into(),
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
        };
        // SAFETY: the buffer is in the registered memory and is not read before it completes.
        // Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        unsafe { self.queue.post_receive(&raw mut request) }
    }

    fn post_send(&mut self, number: u64, len: usize, at: *const u8) -> Result<(), VerbsError> {
        let credit = std::mem::take(&mut self.owed);
        let mut piece = sys::ibv_sge {
            addr: at.addr() as u64,
            length: len as u32,
            lkey: self.sending.lkey(),
        };
        // SAFETY: zero is a value of every field; the buffer is in the registered memory and is
        // not written before it completes. Exercised by `verbs_stream::a_stream_carries_bytes_both_ways`.
        unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = number;
            request.sg_list = &raw mut piece;
            request.num_sge = i32::from(len > 0);
            request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            request.imm_data_invalidated_rkey_union.imm_data = credit.to_be();
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            self.queue.post_send(&raw mut request)
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self
            .link
            .as_ref()
            .is_none_or(|link| link.arrived.is_empty())
        {
            self.advance();
        }
        let len = self.config.buffer_len;
        let Some((link, (buffer, from, to))) = self
            .link
            .as_mut()
            .and_then(|link| link.arrived.front().copied().map(|arrived| (link, arrived)))
        else {
            return match self.state {
                State::Closed => Ok(0),
                _ => Err(self.ended()),
            };
        };
        let count = (to - from).min(into.len());
        link.receiving
            .read(buffer as usize * len + from, &mut into[..count]);
        link.arrived.pop_front();
        if from + count < to {
            link.arrived.push_front((buffer, from + count, to));
        } else {
            self.give_back(buffer);
        }
        Ok(count)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.link.as_ref().is_some_and(Link::may_send) || !self.is_up() {
            self.advance();
        }
        if !self.is_up() {
            return Err(self.ended());
        }
        let len = self.config.buffer_len;
        let Some(link) = self.link.as_mut().filter(|link| link.may_send()) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let Some(buffer) = link.free.pop() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        link.credit -= 1;
        let count = bytes.len().min(len);
        let at = link.sending.fill(buffer as usize * len, &bytes[..count]);
        if let Err(error) = link.post_send(SEND | u64::from(buffer), count, at) {
            self.state = State::Broken(0);
            return Err(io::Error::other(error));
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.id.disconnect();
    }
}
