//! A reliable connection as a stream of bytes: what one side writes the other reads, in order, or
//! both learn that it is over. Nothing blocks; connecting goes on in the background.
//!
//! Every SEND takes one buffer of the connection's own pool at either end. Nothing is sent that the
//! other side has no buffer for: each SEND tells how many it has read since (credit). A peer that
//! does not read stops its own stream; one that breaks the rule is cut off by its device.
//!
//! What was written is on its way; dropping a stream ends it at once. Whoever wants the last words
//! heard flushes before, for as long as it is willing to wait.

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
    /// Looking for the peer, then for the way to it.
    Resolving,
    /// Asked, or accepted; the other side has the word.
    Connecting,
    Up,
    Over(StreamEnd),
}

/// A connection to one peer.
pub struct Stream {
    config: StreamConfig,
    state: State,
    /// When it must be up.
    limit: Instant,
    /// Counts, at the listener, those that are not up yet.
    half_open: Option<Arc<()>>,
    /// READs at once, either way: as this side has them, then as both agreed on.
    reads: Reads,
    /// Until the way to the peer is known there is only an id. Before the id, so that it goes
    /// first.
    link: Option<Link>,
    id: CmId,
    device: Arc<Device>,
}

/// Fields go in this order: windows before the queue that they are bound to, that before its buffers,
/// and before the leases of cursors: no peer writes an entry that comes back.
struct Link {
    granting: Granting,
    queue: ConnectedQueue,
    leases: Vec<Arc<Lease>>,
    completions: Completions,
    sending: Region,
    receiving: Region,
    read_buffers: ReadBuffers,
    writing: Writing,
    /// What the other side may write; it is let go of when nobody can any more.
    inboxes: Vec<Arc<InboxMemory>>,
    /// Send buffers that are free.
    free: Vec<u32>,
    /// What arrived and was not read yet: buffer, from where, up to where.
    arrived: VecDeque<(u32, usize, usize)>,
    /// Sends that the other side has buffers for, at most so many, and buffers here that it was not
    /// told of.
    credit: u32,
    credit_max: u32,
    owed: u32,
    /// Words of credit alone that are on their way.
    words: u32,
    /// The largest SEND that the other side has buffers for.
    send_len: usize,
    taken: [sys::ibv_wc; TAKEN_MAX],
}

/// In the number of a work request: it is a send.
const SEND: u64 = 1 << 32;
/// The number of a send that carries nothing but credit.
const CREDIT: u64 = 2 << 32;
/// Likewise, of what this side does in the other's memory, and of what is done to a window.
const ONE_SIDED: u64 = 3 << 32;
const WINDOW: u64 = 4 << 32;
/// And of slots that this side writes to where the other granted an inbox.
const MIRRORED: u64 = 5 << 32;
/// Receives kept for those: each side may owe a word at most twice before the other must have read.
const CREDIT_RECEIVES: u32 = 2;

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
            limit: Instant::now() + Duration::from_millis(config.connect_ms.into()),
            half_open: None,
            reads: reads_of(device, config),
            link: None,
            id,
            device: Arc::clone(device),
        })
    }

    /// Answers a peer's request to connect, whose id this is.
    pub(crate) fn accept(
        device: &Arc<Device>,
        id: CmId,
        request: &CmEvent,
        config: &StreamConfig,
        half_open: Arc<()>,
    ) -> Result<Self, VerbsError> {
        // Before anything is made for it; an id that goes without an answer is refused.
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
        stream.say(AuditEvent::ConnectionAccepted, None);
        Ok(stream)
    }

    /// Whether bytes can pass.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Why it is over; `None` while it is not, also before it is up.
    #[must_use]
    pub const fn end(&self) -> Option<StreamEnd> {
        match self.state {
            State::Over(why) => Some(why),
            State::Resolving | State::Connecting | State::Up => None,
        }
    }

    /// Brings it forward: call it when one of its descriptors is readable, or often. Whether it is
    /// still, or not yet, usable. One that is not up in time ends with the next call.
    pub fn advance(&mut self) -> bool {
        // A connection that is up is asked as well: that its peer is gone, only the manager tells.
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

    /// Descriptors that become readable when there is something to do.
    #[must_use]
    pub fn raw_fds(&self) -> [RawFd; 2] {
        let completions = self.link.as_ref().map_or(-1, |link| link.completions.fd());
        [self.id.as_raw_fd(), completions]
    }

    /// The same, borrowed for as long as the stream is.
    #[must_use]
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.raw_fds().map(|raw| {
            // SAFETY: both belong to what this stream owns, and are open for as long as it is
            // borrowed; -1 stands for none. Exercised by
            // `verbs::control::who_sleeps_on_the_descriptors_is_woken`.
            (raw >= 0).then(|| unsafe { BorrowedFd::borrow_raw(raw) })
        })
    }

    /// Whether bytes have come that were not read, or something is done that was not taken: no
    /// descriptor tells of them any more.
    #[must_use]
    pub fn holds_input(&self) -> bool {
        let held = |link: &Link| !link.arrived.is_empty() || link.read_buffers.has_done();
        self.link.as_ref().is_some_and(held)
    }

    /// Where the other side is.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddrV4 {
        self.id.peer_address()
    }

    /// The device that it is made from.
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
                // The accepting side heard it before, with the request.
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
            // Data came sooner.
            (State::Up, kind::RDMA_CM_EVENT_ESTABLISHED) => Ok(()),
            (_, kind::RDMA_CM_EVENT_DISCONNECTED) => {
                // What the device has to say of it comes before this side's own end of it, which stops the
                // queue as well.
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
        self.say(AuditEvent::ConnectionUp, None);
        // What came, and was read, before.
        self.tell_owed();
    }

    /// The other side said which buffers it has, and how many READs it answers and asks; the queue can
    /// send.
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

    /// Makes the queue and its buffers, and asks or accepts.
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
        // In this order, so that each goes before what it uses when a later step fails.
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

    /// Takes what the device has done: all there is, but what goes on coming meanwhile.
    fn collect(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut broken: Option<StreamEnd> = None;
        // As many as there is room for: a peer that keeps sending must not keep us here.
        let room = (self.config.buffers + CREDIT_RECEIVES) as usize * 2;
        // What comes after the descriptor was armed, it tells of; so what came before is taken then.
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
                        // Flushed receives are how the other side's end may be seen first.
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
                // The descriptor tells of the rest: its last event was not taken.
                break;
            }
            if !is_armed {
                link.completions.rearm();
            }
        }
        // Data may overtake the manager's word that the connection is up, by long on a busy machine. Who
        // sends has had the answer to its request: it is up.
        if self.state == State::Connecting && !link.arrived.is_empty() {
            self.comes_up();
        }
        if let Some(mut why) = broken {
            if why.is_consequence() {
                why = self.stopped_by_device().unwrap_or(why);
            }
            self.ends(why);
        }
        self.tell_owed();
    }

    /// Whose doing it is where the device stopped a connection that is up: no READ or SEND of this side
    /// failed, so something of the other's did. Where rights were taken back, it could not know.
    fn stopped_by_device(&self) -> Option<StreamEnd> {
        let link = self.link.as_ref().filter(|_| self.is_up())?;
        let excused = link.granting.is_over() || self.device.watch().has_failed();
        (!excused && link.queue.is_stopped()).then_some(StreamEnd::Violated)
    }

    /// A buffer was read: it is posted again, and the other side is told, with the next data or,
    /// when it may be waiting for the word, at once.
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
        self.tell_owed();
    }

    /// Tells the other side of buffers that were read, once they are many. Two such words are on
    /// their way at most, as many as it has receives for, and room here.
    fn tell_owed(&mut self) {
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

    /// It is over, unless it was and this says no more than what was known.
    fn ends(&mut self, why: StreamEnd) {
        if self.end().is_some_and(|before| !why.explains(before)) {
            return;
        }
        self.state = State::Over(why);
        match why {
            StreamEnd::Refused { .. } => self.say(AuditEvent::AccessRefused, Some(&why)),
            StreamEnd::Violated => self.say(AuditEvent::AccessViolation, Some(&why)),
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

    fn say(&self, what: AuditEvent, why: Option<&dyn fmt::Display>) {
        let of = audit::Of {
            device: self.device.name(),
            peer: Some(self.peer_address()),
            why,
            ..audit::Of::default()
        };
        audit::say(what, of);
    }
}

impl Link {
    /// Whether there is a buffer here, and one at the other side.
    fn may_send(&self) -> bool {
        self.credit > 0 && !self.free.is_empty()
    }

    /// What one completion that was taken means; `Err` where that is the connection's end.
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
                // SAFETY: both fields are numbers, and a word came with it (just checked).
                // Exercised by `verbs::stream::a_stream_carries_bytes_both_ways`.
                let word = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
                let credit = self.credit.saturating_add(u32::from_be(word));
                let too_much = self.credit_max > 0 && credit > self.credit_max;
                if too_much || completion.byte_len == 0 && word == 0 {
                    // It gives back more than it was sent, or says nothing at all: no honest peer
                    // does, and one that did so for ever would keep us here.
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
        // Exercised by `verbs::stream::a_stream_carries_bytes_both_ways`.
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
        // not written before it completes. Exercised by `verbs::stream::a_stream_carries_bytes_both_ways`.
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
            // A SEND of nothing is a word of credit.
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

    /// Done when the other side's device has all that was written; [`io::ErrorKind::WouldBlock`]
    /// until then. Call it, for as long as you are willing to wait, before you drop a stream.
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
            None => &"it was dropped",
        };
        self.say(AuditEvent::ConnectionClosed, Some(why));
        if let Some(link) = &mut self.link {
            link.free_windows();
        }
    }
}

/// READs at once, as this side and its device have them.
fn reads_of(device: &Device, config: &StreamConfig) -> Reads {
    let own = if config.reads() { config.reads_max } else { 0 };
    Reads {
        own: own.min(device.own_reads_max()),
        answered: config.reads_max.min(device.reads_max()),
    }
}

/// Whether a receive was used up as honest peers do: by a SEND with a word, into its buffer. A WRITE with a
/// word uses one up as well, leaves the buffer as it was, and counts the bytes that it wrote elsewhere.
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
    fn only_a_send_with_a_word_is_taken_from_a_receive_buffer() {
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
