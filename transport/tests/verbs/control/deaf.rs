//! A peer that announces more buffers than it has: it connects as others do, and posts shorter receives,
//! or none.

use std::mem;
use std::net::SocketAddrV4;
use std::ptr;

use tickcast_transport::verbs::rdma_sys as sys;

/// Its bare queue pair. The process's end frees what it holds.
pub(crate) struct Deaf {
    id: *mut sys::rdma_cm_id,
    channel: *mut sys::rdma_event_channel,
    pub(crate) is_up: bool,
    /// Memory to receive into, which it announces as sixteen times as long.
    short: Option<&'static mut [u8; 256]>,
}

impl Deaf {
    /// Creates a peer that posts a few receives that are too short.
    pub(crate) fn with_short_buffers(to: SocketAddrV4) -> Self {
        Self {
            short: Some(Box::leak(Box::new([0; 256]))),
            ..Self::new(to)
        }
    }

    /// Creates a peer that posts no receive.
    pub(crate) fn new(to: SocketAddrV4) -> Self {
        // SAFETY: every call gets what the calls before it have made; the address lives through it.
        unsafe {
            let channel = sys::rdma_create_event_channel();
            assert!(!channel.is_null());
            let fd = (*channel).fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
            let mut id = ptr::null_mut();
            let space = sys::rdma_port_space::RDMA_PS_TCP;
            let made = sys::rdma_create_id(channel, &raw mut id, ptr::null_mut(), space);
            assert_eq!(made, 0);
            let mut address: libc::sockaddr_in = mem::zeroed();
            address.sin_family = libc::AF_INET as u16;
            address.sin_port = to.port().to_be();
            address.sin_addr.s_addr = u32::from(*to.ip()).to_be();
            let address = (&raw mut address).cast();
            assert_eq!(
                sys::rdma_resolve_addr(id, ptr::null_mut(), address, 5_000),
                0
            );
            Self {
                id,
                channel,
                is_up: false,
                short: None,
            }
        }
    }

    /// Takes the connection manager's events and does the next step.
    pub(crate) fn advance(&mut self) {
        use sys::rdma_cm_event_type as kind;
        // SAFETY: id and channel live; an event is read before it is acknowledged.
        let event = unsafe {
            let mut event = ptr::null_mut();
            if sys::rdma_get_cm_event(self.channel, &raw mut event) != 0 {
                return;
            }
            let kind = (*event).event;
            sys::rdma_ack_cm_event(event);
            kind
        };
        match event {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => {
                // SAFETY: the id lives.
                assert_eq!(unsafe { sys::rdma_resolve_route(self.id, 5_000) }, 0);
            }
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => self.ask(),
            kind::RDMA_CM_EVENT_ESTABLISHED => {
                // The retry time that our own side sets, instead of the manager's 655 ms.
                // SAFETY: zero is a value of every field; the pair lives.
                let result = unsafe {
                    let mut attributes: sys::ibv_qp_attr = mem::zeroed();
                    attributes.min_rnr_timer = 12;
                    let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
                    sys::ibv_modify_qp((*self.id).qp, &raw mut attributes, mask)
                };
                assert_eq!(result, 0);
                self.is_up = true;
            }
            _ => {}
        }
    }

    /// Creates a queue pair, and asks to connect as a stream does.
    fn ask(&mut self) {
        // Four big-endian words: a mark, the version, 64 buffers of 4096 bytes.
        let hello = *b"tick\0\0\0\x01\0\0\0\x40\0\0\x10\0";
        // SAFETY: zero is a value of every field; all live through the calls that get them.
        unsafe {
            let context = (*self.id).verbs;
            let domain = sys::ibv_alloc_pd(context);
            let completions = sys::ibv_create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0);
            let mut attributes: sys::ibv_qp_init_attr = mem::zeroed();
            attributes.send_cq = completions;
            attributes.recv_cq = completions;
            attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            attributes.cap.max_send_wr = 1;
            attributes.cap.max_recv_wr = 4;
            attributes.cap.max_send_sge = 1;
            attributes.cap.max_recv_sge = 1;
            assert_eq!(sys::rdma_create_qp(self.id, domain, &raw mut attributes), 0);
            for _ in 0..4 {
                let Some(short) = &mut self.short else { break };
                let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
                let memory = sys::ibv_reg_mr(domain, short.as_mut_ptr().cast(), 256, access);
                assert!(!memory.is_null());
                let mut piece = sys::ibv_sge {
                    addr: short.as_ptr().addr() as u64,
                    length: 256,
                    lkey: (*memory).lkey,
                };
                let mut request: sys::ibv_recv_wr = mem::zeroed();
                request.sg_list = &raw mut piece;
                request.num_sge = 1;
                let pair = (*self.id).qp;
                let posted = sys::ibv_post_recv(pair, &raw mut request, &mut ptr::null_mut());
                assert_eq!(posted, 0);
            }
            let mut parameters: sys::rdma_conn_param = mem::zeroed();
            parameters.private_data = hello.as_ptr().cast();
            parameters.private_data_len = hello.len() as u8;
            assert_eq!(sys::rdma_connect(self.id, &raw mut parameters), 0);
        }
    }
}
