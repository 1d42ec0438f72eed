//! Steers the datagrams of groups to sockets: two maps, and the program that reads them.

mod program;

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::bpf::{Map, MapKind, attach, load_program};

/// Flags of an attachment (`linux/if_link.h`).
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// The part of the kernel that runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The driver, before the kernel allocates a packet.
    Native,
    /// The network stack. Every driver can do that, and each datagram costs almost as much as by UDP.
    Generic,
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub(crate) struct Attached {
    _link: OwnedFd,
    pub(crate) mode: XdpMode,
    /// Why the driver can't run the program, if it can't.
    pub(crate) refused: Option<io::Error>,
}

/// The program and its maps.
#[derive(Debug)]
pub(crate) struct Steering {
    program: OwnedFd,
    groups: Map,
    sockets: Map,
    queues: u32,
}

impl Steering {
    /// Loads the program for this number of receive queues and of groups.
    pub(crate) fn load(queues: u32, groups_max: u32) -> io::Result<Self> {
        let sockets_max = queues.saturating_mul(groups_max);
        let groups = Map::new(MapKind::Hash, "tickcast_groups", (8, 4), groups_max)?;
        let sockets = Map::new(MapKind::Sockets, "tickcast_xsks", (4, 4), sockets_max)?;
        let instructions = program::program(groups.as_raw_fd(), sockets.as_raw_fd(), queues);
        Ok(Self {
            program: load_program("tickcast", &instructions)?,
            groups,
            sockets,
            queues,
        })
    }

    /// Attaches the program to an interface: in the driver, or else in the network stack.
    pub(crate) fn attach(&self, interface: u32) -> io::Result<Attached> {
        let (link, mode, refused) = match attach(self.program.as_fd(), interface, NATIVE) {
            Ok(link) => (link, XdpMode::Native, None),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => {
                let link = attach(self.program.as_fd(), interface, GENERIC)?;
                (link, XdpMode::Generic, Some(error))
            }
        };
        Ok(Attached {
            _link: link,
            mode,
            refused,
        })
    }

    /// Sets the socket that receives a slot's datagrams of one queue. Closing the socket removes it.
    pub(crate) fn set_socket(
        &self,
        slot: u32,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let at = slot * self.queues + queue;
        let socket = socket.as_raw_fd();
        self.sockets.set(&at.to_ne_bytes(), &socket.to_ne_bytes())
    }

    /// Steers a group's datagrams to the sockets of a slot.
    pub(crate) fn insert(&self, group: SocketAddrV4, slot: u32) -> io::Result<()> {
        let first = slot * self.queues;
        self.groups.set(&key(group), &first.to_ne_bytes())
    }

    /// Passes a group's datagrams to the kernel again.
    pub(crate) fn remove(&self, group: SocketAddrV4) -> io::Result<()> {
        self.groups.remove(&key(group))
    }
}

/// Whether the network stack would refuse the program for the same reason.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}

/// Returns the key that the program builds from a frame: both fields in network order.
fn key(group: SocketAddrV4) -> [u8; 8] {
    let [a, b, c, d] = group.ip().octets();
    let port = u32::from(u16::from_ne_bytes(group.port().to_be_bytes()));
    let [e, f, g, h] = port.to_ne_bytes();
    [a, b, c, d, e, f, g, h]
}
