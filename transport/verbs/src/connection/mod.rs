//! A reliable connection as a stream of bytes: one side reads what the other writes, in order, or both
//! learn that the connection ended. Nothing blocks; connecting continues in the background.
//!
//! Every SEND takes one buffer of the connection's own pool at either end. A side sends only while the
//! peer has a free buffer: each SEND carries the number of buffers read since the last one (credit). A
//! peer that does not read stops its own stream. The device cuts off a peer that exceeds its credit.
//!
//! Written bytes are in flight, and dropping a stream ends it at once. To have the last bytes
//! delivered, flush before, for as long as you are willing to wait.

mod close_reason;
mod config;
mod listener;
mod remote;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::close_reason::StreamEnd;
pub use self::config::StreamConfig;
pub use self::listener::Listener;
use self::remote::grant::Granting;
pub use self::remote::grant::{GRANTS_MAX, GrantId};
pub use self::remote::read::WRITE_LEN_MAX;
use self::remote::read_buffers::ReadBuffers;
pub use self::remote::read_buffers::{Completed, WRITES_MAX};
use self::remote::write::Writing;
use crate::audit::{self, AuditEvent};
use crate::device::Device;
use crate::device::cm::{CmEvent, CmId, PortSpace, Reads};
use crate::device::private_data::{CREDIT_MAX, PrivateData};
use crate::device::queue::{Completions, TAKEN_MAX, no_completion};
use crate::device::rc_queue_pair::ConnectedQueue;
use crate::device::region::Region;
use crate::device::sys;
use crate::error::VerbsError;
use crate::memory::cursor::Lease;
use crate::memory::window::InboxMemory;
use tickcast_transport_base::host::mapping::SharedMapping;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Resolving the peer's address, then the route to it.
    Resolving,
    /// Asked or accepted; waiting for the peer.
    Connecting,
    Up,
    Over(StreamEnd),
}

/// A connection to one peer.
pub struct Stream {
    config: StreamConfig,
    state: State,
    /// Deadline for coming up.
    limit: Instant,
    /// Counts, at the listener, the connections that are not up yet.
    half_open: Option<Arc<()>>,
    /// READs in flight in each direction: this side's limits first, then the agreed ones.
    reads: Reads,
    /// `None` until the route to the peer is known; before that there is only an id. Declared before the
    /// id so that it is dropped first.
    link: Option<Link>,
    id: CmId,
    device: Arc<Device>,
}

/// Drop order: windows before the queue that they are bound to, the queue before its buffers, and all
/// before the cursor leases. So no peer can write an entry that was returned.
struct Link {
    granting: Granting,
    queue: ConnectedQueue,
    leases: Vec<Arc<Lease>>,
    completions: Completions,
    sending: Region,
    receiving: Region,
    read_buffers: ReadBuffers,
    writing: Writing,
    /// Inboxes that the peer may write. Dropped only when nobody can write them any more.
    inboxes: Vec<Arc<InboxMemory>>,
    /// Free send buffers.
    free: Vec<u32>,
    /// Received and not read yet: buffer, start and end of the unread bytes.
    arrived: VecDeque<(u32, usize, usize)>,
    /// Sends that the peer has buffers for; the limit of these; and buffers freed here that the peer does
    /// not know of yet.
    credit: u32,
    credit_max: u32,
    owed: u32,
    /// SENDs in flight that carry only credit.
    words: u32,
    /// The largest SEND that the peer has buffers for, in bytes.
    send_len: usize,
    taken: [sys::ibv_wc; TAKEN_MAX],
}

/// Kind of a work request, in its number: a send.
const SEND: u64 = 1 << 32;
/// Kind: a send that carries only credit.
const CREDIT: u64 = 2 << 32;
/// Kinds: an operation in the peer's memory, and a change of a window.
const ONE_SIDED: u64 = 3 << 32;
const WINDOW: u64 = 4 << 32;
/// Kind: a WRITE of a slot to an inbox that the peer granted.
const MIRRORED: u64 = 5 << 32;
/// Receives reserved for credit: each side sends at most two before the other must have read.
const CREDIT_RECEIVES: u32 = 2;

impl Stream {
    /// Starts to connect from a device to a listener.
    ///
    /// # Errors
    /// [`VerbsError`] if the connection can't be started. Reading and writing report later failures.
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
            limit: Instant::now() + Duration::from_millis(config.connect_ms.into()),
            half_open: None,
            reads: reads_of(device, config),
            link: None,
            id,
            device: Arc::clone(device),
        })
    }

    /// Accepts a peer's request to connect; `id` is the request's id.
    pub(crate) fn accept(
        device: &Arc<Device>,
        id: CmId,
        request: &CmEvent,
        config: &StreamConfig,
        half_open: Arc<()>,
    ) -> Result<Self, VerbsError> {
        // Checked before anything is allocated. Dropping an id without an answer refuses it.
        let private_data = request.private_data.ok_or(VerbsError::Stranger)?;
        let mut stream = Self {
            config: config.clone(),
            state: State::Connecting,
            limit: Instant::now() + Duration::from_millis(config.connect_ms.into()),
            half_open: Some(half_open),
            reads: reads_of(device, config).and(request.reads),
            link: None,
            id,
            device: Arc::clone(device),
        };
        stream.open_link(true)?;
        stream.settle(private_data, request.reads)?;
        stream.audit(AuditEvent::ConnectionAccepted, None);
        Ok(stream)
    }

    /// Returns whether bytes can pass.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Returns why the connection ended. `None` until then, also before it is up.
    #[must_use]
    pub const fn end(&self) -> Option<StreamEnd> {
        match self.state {
            State::Over(why) => Some(why),
            State::Resolving | State::Connecting | State::Up => None,
        }
    }

    /// Advances the connection: call it when one of its descriptors is readable, or often. Returns whether
    /// it is usable or may become so. A connection that is not up in time ends with the next call.
    pub fn advance(&mut self) -> bool {
        // Poll the manager also when the connection is up: only the manager reports that the peer is gone.
        self.manage();
        self.collect();
        if matches!(self.state, State::Resolving | State::Connecting)
            && Instant::now() >= self.limit
        {
            let event = sys::rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE;
            self.ends(StreamEnd::Unconnected { event });
        }
        if !matches!(self.state, State::Connecting) {
            self.half_open = None;
        }
        self.end().is_none()
    }

    /// Returns descriptors that become readable when there is something to do.
    #[must_use]
    pub fn raw_fds(&self) -> [RawFd; 2] {
        let completions = self.link.as_ref().map_or(-1, |link| link.completions.fd());
        [self.id.as_raw_fd(), completions]
    }

    /// Returns the same descriptors, borrowed for as long as the stream is.
    #[must_use]
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.raw_fds().map(|raw| {
            // SAFETY: both belong to what this stream owns, and are open for as long as it is
            // borrowed; -1 stands for none. Exercised by
            // `verbs::control::verbs_control_descriptors_wake_sleeping_peer`.
            (raw >= 0).then(|| unsafe { BorrowedFd::borrow_raw(raw) })
        })
    }

    /// Returns whether there are unread bytes, or completed operations that were not taken. No descriptor
    /// reports these any more.
    #[must_use]
    pub fn holds_input(&self) -> bool {
        let held = |link: &Link| !link.arrived.is_empty() || link.read_buffers.has_done();
        self.link.as_ref().is_some_and(held)
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddrV4 {
        self.id.peer_address()
    }

    /// Returns the traffic class of the packets that this side sends, as the device reports it. `None`
    /// if there is no queue pair or the query fails.
    #[must_use]
    pub fn traffic_class(&self) -> Option<u8> {
        self.link.as_ref()?.queue.traffic_class().ok()
    }

    /// Returns the device that the connection uses.
    #[must_use]
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Takes the connection manager's events.
    fn manage(&mut self) {
        while let Some(event) = self.id.event() {
            if let Err(error) = self.managed(&event) {
                tracing::debug!(device = self.device.name(), "a connection failed: {error}");
                self.ends(StreamEnd::Unconnected { event: event.kind });
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
                // The accepting side got the private data with the request.
                if self.half_open.is_none() {
                    let private_data = event.private_data.ok_or(VerbsError::Stranger)?;
                    self.settle(private_data, event.reads)?;
                }
                if self.link.is_none() {
                    return Err(VerbsError::Stranger);
                }
                self.comes_up();
                Ok(())
            }
            // Data arrived before this event.
            (State::Up, kind::RDMA_CM_EVENT_ESTABLISHED) => Ok(()),
            (_, kind::RDMA_CM_EVENT_DISCONNECTED) => {
                // Take the device's completions first: they may hold the cause, and ending this side
                // stops the queue as well.
                self.collect();
                let why = self.stopped_by_device().unwrap_or(StreamEnd::Closed);
                self.id.disconnect();
                self.ends(why);
                Ok(())
            }
            (_, kind::RDMA_CM_EVENT_TIMEWAIT_EXIT | kind::RDMA_CM_EVENT_ADDR_CHANGE) => Ok(()),
            (State::Over(_), _) => Ok(()),
            (_, event) => {
                self.ends(StreamEnd::Unconnected { event });
                Ok(())
            }
        }
    }

    fn comes_up(&mut self) {
        if let Some(link) = &mut self.link {
            link.read_buffers.agreed(self.reads.own);
        }
        self.state = State::Up;
        self.audit(AuditEvent::ConnectionUp, None);
        // Return credit for buffers read before the connection came up.
        self.send_owed_credit();
    }

    /// Applies the peer's private data: its buffers, and the READs that it answers and issues. The queue
    /// can send then.
    fn settle(&mut self, private_data: PrivateData, reads: Reads) -> Result<(), VerbsError> {
        self.reads = self.reads.and(reads);
        if let Some(link) = &mut self.link {
            link.credit = private_data.buffers - CREDIT_RECEIVES;
            link.credit_max = link.credit;
            link.send_len = self.config.buffer_len.min(private_data.buffer_len as usize);
            link.queue.settle(self.config.rnr_timer)?;
        }
        Ok(())
    }

    /// Creates the queue and its buffers, then asks or accepts.
    fn open_link(&mut self, accept: bool) -> Result<(), VerbsError> {
        let config = &self.config;
        self.id
            .set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, config.ack_timeout)?;
        let pool = |name| {
            let memory = SharedMapping::memfd(name, config.buffer_len * config.buffers as usize);
            memory.map(Arc::new).map_err(|error| VerbsError::Call {
                what: "allocate buffers for a connection",
                source: io::Error::other(error),
            })
        };
        // In this order, so that each is dropped before what it uses if a later step fails.
        let sending = Region::readable(&self.device, pool("send")?, "frames sent")?;
        let receiving = Region::writable(&self.device, pool("receive")?, "frames received")?;
        let read_buffers = ReadBuffers::new(&self.device, config)?;
        let one_sided = GRANTS_MAX + u32::from(config.reads_max) + WRITES_MAX + config.writes_max;
        let depth = config.buffers + CREDIT_RECEIVES + one_sided;
        let inline_bytes = if config.reads() {
            WRITE_LEN_MAX as u32
        } else {
            0
        };
        let completions = Completions::new(&self.device, depth * 2, true)?;
        let queue = ConnectedQueue::new(&self.device, &self.id, &completions, depth, inline_bytes)?;
        let mut link = Link {
            granting: Granting::default(),
            queue,
            leases: Vec::new(),
            completions,
            sending,
            receiving,
            read_buffers,
            writing: Writing::default(),
            inboxes: Vec::new(),
            free: (0..config.buffers).collect(),
            arrived: VecDeque::with_capacity(config.buffers as usize),
            credit: 0,
            credit_max: 0,
            owed: 0,
            words: 0,
            send_len: 0,
            taken: std::array::from_fn(|_| no_completion()),
        };
        for buffer in 0..config.buffers {
            link.post_receive(buffer, config.buffer_len)?;
        }
        self.link = Some(link);
        let private_data = PrivateData {
            buffers: self.config.buffers,
            buffer_len: self.config.buffer_len as u32,
        };
        (self.id).connect(accept, self.config.retries, self.reads, private_data)
    }

    /// Takes all completions of the device, bounded against a peer that keeps sending.
    fn collect(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut broken: Option<StreamEnd> = None;
        // Bounded by the room, because a peer that keeps sending must not keep this thread here.
        let room = (self.config.buffers + CREDIT_RECEIVES) as usize * 2;
        // The descriptor reports only completions after it was armed, so poll once more after arming.
        for is_armed in [false, true] {
            let mut count = 0;
            while count < room {
                let Ok(taken) = link.completions.take(&mut link.taken, TAKEN_MAX) else {
                    let status = sys::ibv_wc_status::IBV_WC_GENERAL_ERR;
                    self.ends(StreamEnd::Broken { status });
                    return;
                };
                let taken = taken.len();
                for at in 0..taken {
                    if let Err(why) = link.completed(at, self.config.buffer_len) {
                        // The peer's end may first show as flushed receives.
                        if broken.is_none_or(|before| why.explains(before)) {
                            broken = Some(why);
                        }
                    }
                }
                count += taken;
                if taken == 0 {
                    break;
                }
            }
            if count >= room && !is_armed {
                // The descriptor reports the rest: its last event was not taken.
                break;
            }
            if !is_armed {
                link.completions.rearm();
            }
        }
        // Data may arrive long before the manager's event that the connection is up, on a busy machine.
        // A peer that sends has received the answer to its request, so the connection is up.
        if self.state == State::Connecting && !link.arrived.is_empty() {
            self.comes_up();
        }
        if let Some(mut why) = broken {
            if why.is_consequence() {
                why = self.stopped_by_device().unwrap_or(why);
            }
            self.ends(why);
        }
        self.send_owed_credit();
    }

    /// Returns [`StreamEnd::Violated`] if the device stopped a connection that is up. No READ or SEND of
    /// this side failed, so a request of the peer did. Returns `None` after rights were revoked, because
    /// the peer could not know that.
    fn stopped_by_device(&self) -> Option<StreamEnd> {
        let link = self.link.as_ref().filter(|_| self.is_up())?;
        let excused = link.granting.is_over() || self.device.watch().has_failed();
        (!excused && link.queue.is_stopped()).then_some(StreamEnd::Violated)
    }

    /// Posts a buffer again that was read. The peer learns of it with the next data, or at once when it
    /// may be waiting for credit.
    fn give_back(&mut self, buffer: u32) {
        let usable = matches!(self.state, State::Up | State::Connecting);
        let Some(link) = self.link.as_mut().filter(|_| usable) else {
            return;
        };
        if link.post_receive(buffer, self.config.buffer_len).is_err() {
            self.ends(StreamEnd::Broken { status: 0 });
            return;
        }
        link.owed += 1;
        self.send_owed_credit();
    }

    /// Sends credit alone once many buffers were read. At most two such SENDs are in flight, because both
    /// sides reserve that many buffers for them.
    fn send_owed_credit(&mut self) {
        let Some(link) = self.link.as_mut().filter(|_| self.state == State::Up) else {
            return;
        };
        let many = (self.config.buffers - CREDIT_RECEIVES) / 2;
        if link.owed < many || link.words == CREDIT_RECEIVES {
            return;
        }
        link.words += 1;
        if link.post_send(CREDIT, 0, link.sending.as_ptr()).is_err() {
            self.ends(StreamEnd::Broken { status: 0 });
        }
    }

    /// Ends the connection, unless it ended before for a reason that is at least as precise.
    fn ends(&mut self, why: StreamEnd) {
        if self.end().is_some_and(|before| !why.explains(before)) {
            return;
        }
        self.state = State::Over(why);
        match why {
            StreamEnd::Refused { .. } => self.audit(AuditEvent::AccessRefused, Some(&why)),
            StreamEnd::Violated => self.audit(AuditEvent::AccessViolation, Some(&why)),
            _ => {}
        }
    }

    fn ended(&self) -> io::Error {
        let why = self.end();
        why.map_or_else(
            || io::ErrorKind::WouldBlock.into(),
            |why| why.on(self.device.name()),
        )
    }

    fn link_up(&mut self) -> io::Result<&mut Link> {
        if !self.is_up() {
            self.advance();
        }
        let (ended, is_up) = (self.ended(), self.is_up());
        self.link.as_mut().filter(|_| is_up).ok_or(ended)
    }

    fn audit(&self, what: AuditEvent, why: Option<&dyn fmt::Display>) {
        let of = audit::Of {
            device: self.device.name(),
            peer: Some(self.peer_address()),
            why,
            ..audit::Of::default()
        };
        audit::write_entry(what, of);
    }
}

impl Link {
    /// Returns whether there is a free send buffer here, and a buffer at the peer.
    fn may_send(&self) -> bool {
        self.credit > 0 && !self.free.is_empty()
    }

    /// Handles one completion. Returns `Err` if it ends the connection.
    fn completed(&mut self, at: usize, buffer_len: usize) -> Result<(), StreamEnd> {
        let completion = &self.taken[at];
        let buffer = completion.wr_id as u32;
        let kind = completion.wr_id & !u64::from(u32::MAX);
        if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
            let why =
                StreamEnd::of_completion(completion.status, matches!(kind, ONE_SIDED | MIRRORED));
            return Err(why);
        }
        match kind {
            SEND => self.free.push(buffer),
            CREDIT => self.words -= 1,
            ONE_SIDED => self.read_buffers.operation_done(),
            WINDOW => self.window_done(buffer),
            MIRRORED => self.writing.one_done(),
            _ => {
                if !arrived_as_sent(completion, buffer_len) {
                    return Err(StreamEnd::Broken { status: 0 });
                }
                // SAFETY: both fields are numbers, and the completion has an immediate word (just checked).
                // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
                let word = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
                let credit = self.credit.saturating_add(u32::from_be(word));
                let too_much = self.credit_max > 0 && credit > self.credit_max;
                if too_much || completion.byte_len == 0 && word == 0 {
                    // The peer returns more credit than it was sent, or sends neither credit nor bytes. No
                    // correct peer does, and one that kept doing so would keep this thread here.
                    return Err(StreamEnd::Broken { status: 0 });
                }
                self.credit = credit.min(CREDIT_MAX);
                match completion.byte_len as usize {
                    0 => {
                        let posted = self.post_receive(buffer, buffer_len);
                        posted.map_err(|_| StreamEnd::Broken { status: 0 })?;
                    }
                    len => self.arrived.push_back((buffer, 0, len)),
                }
            }
        }
        Ok(())
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
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
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
        // not written before it completes.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
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
                State::Over(StreamEnd::Closed) => Ok(0),
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
        if bytes.is_empty() {
            // An empty SEND would carry only credit.
            return Ok(0);
        }
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
        let count = bytes.len().min(link.send_len);
        let at = link.sending.fill(buffer as usize * len, &bytes[..count]);
        if let Err(error) = link.post_send(SEND | u64::from(buffer), count, at) {
            self.ends(StreamEnd::Broken { status: 0 });
            return Err(io::Error::other(error));
        }
        Ok(count)
    }

    /// Returns `Ok` when the peer's device has all written bytes, [`io::ErrorKind::WouldBlock`] until
    /// then. Call it, for as long as you are willing to wait, before you drop a stream.
    fn flush(&mut self) -> io::Result<()> {
        self.advance();
        let buffers = self.config.buffers as usize;
        if (self.link.as_ref()).is_none_or(|link| link.free.len() == buffers) {
            return Ok(());
        }
        Err(self.ended())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.id.disconnect();
        let why = self.end();
        let why: &dyn fmt::Display = match &why {
            Some(why) => why,
            None => &"this side dropped it",
        };
        self.audit(AuditEvent::ConnectionClosed, Some(why));
        if let Some(link) = &mut self.link {
            link.free_windows();
        }
    }
}

/// Returns the READs in flight that this side and its device allow.
fn reads_of(device: &Device, config: &StreamConfig) -> Reads {
    let own = if config.reads() { config.reads_max } else { 0 };
    Reads {
        own: own.min(device.own_reads_max()),
        answered: config.reads_max.min(device.reads_max()),
    }
}

/// Returns whether a receive was completed as the protocol requires: by a SEND with an immediate word, into
/// its buffer. A WRITE with a word also completes a receive, but leaves the buffer unchanged and counts the
/// bytes that it wrote elsewhere.
fn arrived_as_sent(completion: &sys::ibv_wc, buffer_len: usize) -> bool {
    completion.opcode == sys::ibv_wc_opcode::IBV_WC_RECV
        && completion.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
        && completion.byte_len as usize <= buffer_len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sys::{ibv_wc_flags, ibv_wc_opcode};

    #[test]
    fn receive_accepts_only_send_with_immediate() {
        let sent = || {
            let mut sent = no_completion();
            sent.opcode = ibv_wc_opcode::IBV_WC_RECV;
            sent.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            sent.byte_len = 64;
            sent
        };
        assert!(arrived_as_sent(&sent(), 64));
        assert!(!arrived_as_sent(&sent(), 63), "more than the buffer holds");

        let mut written = sent();
        written.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        assert!(!arrived_as_sent(&written, 64), "a WRITE somewhere else");

        let mut invalidating = sent();
        invalidating.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
        assert!(!arrived_as_sent(&invalidating, 64), "a key, not a word");
    }
}
