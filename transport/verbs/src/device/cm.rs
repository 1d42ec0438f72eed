//! The connection manager: ids and their events. Blocks only in calls that take a time limit.
//!
//! Every id has a channel of its own, so that no owner takes another's events. An event is copied
//! and acknowledged at once, because librdmacm waits for that before it destroys an id.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::device::private_data::PrivateData;
use crate::device::sys;
use crate::error::{VerbsError, failed};

/// READs and atomic operations in flight on a connection, as one side states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Operations that this side issues (`initiator_depth`).
    pub(crate) own: u8,
    /// Operations of the peer that this side answers (`responder_resources`).
    pub(crate) answered: u8,
}

impl Reads {
    /// Returns the limits that both sides support.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            own: self.own.min(other.own),
            answered: self.answered.min(other.answered),
        }
    }
}

/// The purpose of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams and multicast groups.
    Udp,
}

/// An event of an id.
#[derive(Clone, Copy)]
pub(crate) struct CmEvent {
    /// `rdma_cm_event_type`.
    pub(crate) kind: u32,
    /// 0, or an error: a negative error number, or the reason of a rejection.
    pub(crate) status: i32,
    /// For a joined group: the address handle attributes to send to it.
    pub(crate) group: Option<sys::ibv_ah_attr>,
    /// For a connection: the private data that the peer sent with its request or answer.
    pub(crate) private_data: Option<PrivateData>,
    /// For a connection: the READs that the peer allows this side, and those that it issues.
    pub(crate) reads: Reads,
    /// For a request to connect: the id of the future connection.
    request: Option<NonNull<sys::rdma_cm_id>>,
}

impl CmEvent {
    /// Returns whether the device or its address is gone.
    pub(crate) const fn is_of_device(&self) -> bool {
        matches!(
            self.kind,
            sys::rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE
                | sys::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL
        )
    }
}

/// An id of the connection manager with its channel. Its queue pair, if any, is destroyed with it.
#[derive(Debug)]
pub(crate) struct CmId {
    id: NonNull<sys::rdma_cm_id>,
    channel: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm may be called from any thread, and each id is used by its owner alone (`&mut`
// where anything changes). Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for CmId {}

impl CmId {
    pub(crate) fn new(space: PortSpace) -> Result<Self, VerbsError> {
        let channel = channel()?;
        let space = match space {
            PortSpace::Tcp => sys::rdma_port_space::RDMA_PS_TCP,
            PortSpace::Udp => sys::rdma_port_space::RDMA_PS_UDP,
        };
        let mut id = ptr::null_mut();
        // SAFETY: the channel is open; `id` is written on success only. Exercised by
        // `verbs::datagrams::rdma_device_reports_its_port_attributes`.
        let result =
            unsafe { sys::rdma_create_id(channel.as_ptr(), &raw mut id, ptr::null_mut(), space) };
        let Some(id) = NonNull::new(id).filter(|_| result == 0) else {
            let errno = sys::errno();
            // SAFETY: the channel was made above and has no id.
            // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
            unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
            return Err(no_rdma(errno));
        };
        Ok(Self { id, channel })
    }

    /// Binds to the device that has `address`.
    pub(crate) fn bind(&self, address: Ipv4Addr, port: u16) -> Result<(), VerbsError> {
        let mut address_raw = sockaddr(SocketAddrV4::new(address, port));
        // SAFETY: the id lives; the address is a whole `sockaddr_in` and is only read. Exercised
        // by `verbs::datagrams::address_without_rdma_device_is_refused`.
        let result =
            unsafe { sys::rdma_bind_addr(self.id.as_ptr(), (&raw mut address_raw).cast()) };
        if result == 0 {
            return Ok(());
        }
        match sys::errno() {
            errno @ (libc::ENODEV | libc::EADDRNOTAVAIL) => Err(VerbsError::NoDevice {
                address,
                source: io::Error::from_raw_os_error(errno),
            }),
            errno => Err(failed("rdma_bind_addr", errno)),
        }
    }

    /// Returns the context of the device that it is bound to.
    pub(crate) fn context(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id lives and is not written meanwhile.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        NonNull::new(unsafe { self.id.as_ref().verbs })
    }

    /// Returns the port that it is bound to.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: as for `context`.
        unsafe { self.id.as_ref().port_num }
    }

    /// Returns the port's global identifier (GID) for the address that it is bound to.
    pub(crate) fn gid(&self) -> Ipv6Addr {
        // SAFETY: the id lives; librdmacm fills this part when it is bound, and all bytes are values.
        // Exercised by `verbs::datagrams::rdma_device_reports_its_port_attributes`.
        Ipv6Addr::from(unsafe { self.id.as_ref().route.addr.addr.ibaddr.sgid.raw })
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Starts to join a group as a member or as a sender only. An event reports the result.
    pub(crate) fn join(&mut self, group: Ipv4Addr, flags: u32) -> Result<(), i32> {
        let mut address = sockaddr(SocketAddrV4::new(group, 0));
        let mut attributes = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: sys::JOIN_ADDRESS_AND_FLAGS,
            join_flags: flags,
            addr: (&raw mut address).cast(),
        };
        // SAFETY: id, attributes and address live through the call, which copies them. Exercised
        // by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let result = unsafe {
            sys::rdma_join_multicast_ex(self.as_ptr(), &raw mut attributes, ptr::null_mut())
        };
        if result == 0 {
            Ok(())
        } else {
            Err(sys::errno())
        }
    }

    /// Leaves the group.
    pub(crate) fn leave(&mut self, group: Ipv4Addr) -> Result<(), i32> {
        let mut address = sockaddr(SocketAddrV4::new(group, 0));
        // SAFETY: as for `join`; all events were acknowledged when they were taken.
        let result = unsafe { sys::rdma_leave_multicast(self.as_ptr(), (&raw mut address).cast()) };
        if result == 0 {
            Ok(())
        } else {
            Err(sys::errno())
        }
    }

    /// Takes ownership of the id in a request to connect and moves it to a channel of its own.
    pub(crate) fn adopt(request: &CmEvent) -> Option<Result<Self, VerbsError>> {
        let id = request.request?;
        let destroy = || {
            // SAFETY: nobody else has it, and its events were acknowledged.
            // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
            unsafe { sys::rdma_destroy_id(id.as_ptr()) };
        };
        let channel = match channel() {
            Ok(channel) => channel,
            Err(error) => {
                destroy();
                return Some(Err(error));
            }
        };
        // SAFETY: both live, and the event that brought the id was acknowledged. Exercised by
        // `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        if unsafe { sys::rdma_migrate_id(id.as_ptr(), channel.as_ptr()) } != 0 {
            let errno = sys::errno();
            destroy();
            // SAFETY: no id is on it.
            // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
            unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
            return Some(Err(failed("rdma_migrate_id", errno)));
        }
        Some(Ok(Self { id, channel }))
    }

    /// Returns whether the peer that asked for this connection still waits for an answer. The manager reports
    /// no events of an id before it is accepted.
    pub(crate) fn is_awaited(&self) -> bool {
        // SAFETY: zero is a value of every field.
        // Exercised by `verbs::stream::for_a_peer_that_gave_up_nothing_is_made`.
        let mut attributes: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        let mut mask = 0;
        // SAFETY: the id lives, and both are written to by the call alone. Exercised as above.
        unsafe { sys::rdma_init_qp_attr(self.as_ptr(), &raw mut attributes, &raw mut mask) == 0 }
    }

    /// Lets peers connect to the bound address.
    pub(crate) fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        // SAFETY: the id lives. Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::rdma_listen(self.as_ptr(), backlog) };
        if result == 0 {
            Ok(())
        } else {
            Err(failed("rdma_listen", sys::errno()))
        }
    }

    /// Returns the port that peers connect to.
    pub(crate) fn listening_port(&self) -> u16 {
        // SAFETY: the id lives; the function reads a field of it.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        u16::from_be(unsafe { sys::rdma_get_src_port(self.as_ptr()) })
    }

    /// Returns the peer's address. Unspecified if that is not an IPv4 address.
    pub(crate) fn peer_address(&self) -> SocketAddrV4 {
        // SAFETY: the id lives; the peer's address is a storage that is large enough for any, and its
        // family is checked before it is used. Exercised by
        // `verbs::control::nack_over_verbs_is_answered_with_requested_bytes`.
        let raw = unsafe {
            let to = &raw const (*self.id.as_ptr()).route.addr.dst_addr_union;
            to.cast::<libc::sockaddr_in>().read_unaligned()
        };
        if i32::from(raw.sin_family) != libc::AF_INET {
            return SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        }
        let address = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
        SocketAddrV4::new(address, u16::from_be(raw.sin_port))
    }

    /// Starts to resolve a peer's address from a device. An event reports the result.
    pub(crate) fn resolve(
        &self,
        from: Ipv4Addr,
        to: SocketAddrV4,
        limit_ms: i32,
    ) -> Result<(), VerbsError> {
        let mut from = sockaddr(SocketAddrV4::new(from, 0));
        let mut to = sockaddr(to);
        // SAFETY: id and addresses live through the call, which copies them. Exercised by
        // `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe {
            let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
            sys::rdma_resolve_addr(self.as_ptr(), from, to, limit_ms)
        };
        if result == 0 {
            Ok(())
        } else {
            Err(failed("rdma_resolve_addr", sys::errno()))
        }
    }

    /// Starts to resolve the route to the peer.
    pub(crate) fn resolve_route(&self, limit_ms: i32) -> Result<(), VerbsError> {
        // SAFETY: the id lives.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe { sys::rdma_resolve_route(self.as_ptr(), limit_ms) };
        if result == 0 {
            Ok(())
        } else {
            Err(failed("rdma_resolve_route", sys::errno()))
        }
    }

    /// Sets an option of one byte.
    pub(crate) fn set_option(&self, option: i32, mut value: u8) -> Result<(), VerbsError> {
        // SAFETY: the value lives through the call and is one byte long, the length passed.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe {
            let value = (&raw mut value).cast();
            sys::rdma_set_option(self.as_ptr(), sys::RDMA_OPTION_ID, option, value, 1)
        };
        if result == 0 {
            Ok(())
        } else {
            Err(failed("rdma_set_option", sys::errno()))
        }
    }

    /// Asks the peer to connect, or accepts its request, with `reads` and `private_data`. An event reports
    /// the result.
    pub(crate) fn connect(
        &self,
        accept: bool,
        retries: u8,
        reads: Reads,
        private_data: PrivateData,
    ) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of every field: numbers and a null pointer.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let mut parameters: sys::rdma_conn_param = unsafe { mem::zeroed() };
        let private_data = private_data.encode();
        parameters.private_data = private_data.as_ptr().cast();
        parameters.private_data_len = private_data.len() as u8;
        parameters.retry_count = retries;
        parameters.responder_resources = reads.answered;
        parameters.initiator_depth = reads.own;
        // 7 would retry forever.
        parameters.rnr_retry_count = 6;
        // SAFETY: the id has a queue pair, and the parameters live through the call. Exercised by
        // `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        let result = unsafe {
            if accept {
                sys::rdma_accept(self.as_ptr(), &raw mut parameters)
            } else {
                sys::rdma_connect(self.as_ptr(), &raw mut parameters)
            }
        };
        let what = if accept {
            "rdma_accept"
        } else {
            "rdma_connect"
        };
        if result == 0 {
            Ok(())
        } else {
            Err(failed(what, sys::errno()))
        }
    }

    /// Ends a connection; both sides must call this.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the id lives; for one that is not connected the call fails and changes nothing.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        unsafe { sys::rdma_disconnect(self.as_ptr()) };
    }

    /// Returns the next event, if any.
    pub(crate) fn event(&mut self) -> Option<CmEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives; an event is written on success only, is valid until it is
        // acknowledged, and its `ud` part is filled for events of groups. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe {
            if sys::rdma_get_cm_event(self.channel.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            let kind = (*event).event;
            let joined = kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN;
            let request = kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
            let with_private_data =
                request || kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
            let taken = CmEvent {
                kind,
                status: (*event).status,
                group: joined.then(|| (*event).param.ud.ah_attr),
                private_data: with_private_data
                    .then(|| private_data_of(&(*event).param.conn))
                    .flatten(),
                reads: if with_private_data {
                    reads_of(&(*event).param.conn)
                } else {
                    Reads::default()
                },
                request: NonNull::new((*event).id).filter(|_| request),
            };
            sys::rdma_ack_cm_event(event);
            Some(taken)
        }
    }

    /// Waits for the next event. For start-up only.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<CmEvent> {
        let until = Instant::now() + limit;
        loop {
            if let Some(event) = self.event() {
                return Some(event);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let mut poll = libc::pollfd {
                fd: self.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one `pollfd` that lives through the call.
            // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
            unsafe { libc::poll(&raw mut poll, 1, left.as_millis().clamp(1, 1_000) as i32) };
        }
    }
}

impl AsRawFd for CmId {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
        unsafe { self.channel.as_ref().fd }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: no event is unacknowledged, a queue pair is destroyed by its owner before, and
        // nobody else has the id or the channel. Exercised by
        // `verbs::datagrams::dropped_fan_out_and_receiver_free_rdma_resources`.
        unsafe {
            sys::rdma_destroy_id(self.id.as_ptr());
            sys::rdma_destroy_event_channel(self.channel.as_ptr());
        }
    }
}

/// Creates an event channel that does not block.
fn channel() -> Result<NonNull<sys::rdma_event_channel>, VerbsError> {
    // SAFETY: no argument. Exercised by `verbs::datagrams::rdma_device_reports_its_port_attributes`.
    let channel = NonNull::new(unsafe { sys::rdma_create_event_channel() });
    let channel = channel.ok_or_else(|| match sys::errno() {
        errno @ (libc::EACCES | libc::EPERM) => failed("rdma_create_event_channel", errno),
        errno => no_rdma(errno),
    })?;
    // SAFETY: the descriptor is the channel's.
    // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
    unsafe {
        let fd = channel.as_ref().fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
    Ok(channel)
}

/// Returns the READs of a connection from this side's view: the manager has already swapped the peer's
/// values.
const fn reads_of(of: &sys::rdma_conn_param) -> Reads {
    Reads {
        own: of.initiator_depth,
        answered: of.responder_resources,
    }
}

/// Reads the private data of an event. `None` if it is not of this protocol.
///
/// # Safety
/// `of` belongs to an event that was not acknowledged yet.
unsafe fn private_data_of(of: &sys::rdma_conn_param) -> Option<PrivateData> {
    if of.private_data.is_null() || usize::from(of.private_data_len) < PrivateData::LEN {
        return None;
    }
    // SAFETY: the event states the number of valid bytes. Exercised by
    // `verbs::stream::verbs_stream_carries_bytes_both_ways`.
    PrivateData::decode(unsafe {
        of.private_data
            .cast::<[u8; PrivateData::LEN]>()
            .read_unaligned()
    })
}

fn no_rdma(errno: i32) -> VerbsError {
    VerbsError::NoRdma {
        source: io::Error::from_raw_os_error(errno),
    }
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: zero is a value of every field.
    // Exercised by `verbs::stream::verbs_stream_carries_bytes_both_ways`.
    let mut raw: libc::sockaddr_in = unsafe { mem::zeroed() };
    raw.sin_family = libc::AF_INET as libc::sa_family_t;
    raw.sin_port = address.port().to_be();
    raw.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    raw
}
