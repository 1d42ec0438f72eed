//! Steers the datagrams of groups to sockets: two maps, and the program that reads them.

mod program;

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::bpf::{Map, MapKind, attach, detach, load_program};

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

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub(crate) struct Attached {
    link: OwnedFd,
    pub(crate) mode: XdpMode,
    /// Why the driver can't run the program, if it can't.
    pub(crate) refused: Option<io::Error>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // A kernel before 5.9 has no such call, and detaches with the last descriptor.
        let _ = detach(&self.link);
    }
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
            link,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::test_run;
    use crate::frame::samples::{GROUP, frame, sealed};
    use crate::socket::XskSocket;

    const PASS: u32 = program::PASS as u32;
    const REDIRECT: u32 = program::REDIRECT as u32;
    const SLOT: u32 = 3;

    /// Returns the program with a group's entry and a socket for queue 0 of its slot. Returns `None` where
    /// this host does not permit that.
    fn steering() -> Option<(Steering, XskSocket)> {
        let loaded = Steering::load(2, 8).and_then(|it| Ok((it, XskSocket::open()?)));
        let (steering, socket) = match loaded {
            Ok(loaded) => loaded,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: this user may load no XDP program: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        steering.set_socket(SLOT, 0, socket.as_fd()).unwrap();
        steering.insert(GROUP, SLOT).unwrap();
        Some((steering, socket))
    }

    #[track_caller]
    fn verdict(of: &Steering, packet: &[u8]) -> u32 {
        test_run(&of.program, packet).unwrap()
    }

    #[test]
    fn plain_udp_to_an_entry_is_redirected() {
        let Some((it, _socket)) = steering() else {
            return;
        };
        for len in [0, 1, 18, 1472] {
            assert_eq!(verdict(&it, &frame(&vec![7; len])), REDIRECT, "{len}");
        }
        let mut unfragmented = frame(b"datagram");
        unfragmented[crate::frame::AT_FRAGMENT] = 0;
        assert_eq!(verdict(&it, &sealed(unfragmented)), REDIRECT);
    }

    #[test]
    fn frames_of_any_other_kind_pass() {
        use crate::frame::{AT_DESTINATION, AT_ETHERTYPE, AT_FRAGMENT, AT_PORT, AT_PROTOCOL};
        let Some((it, _socket)) = steering() else {
            return;
        };
        for (what, at, to) in [
            ("VLAN", AT_ETHERTYPE, &[0x81, 0x00][..]),
            ("ARP", AT_ETHERTYPE, &[0x08, 0x06]),
            ("IPv6", AT_ETHERTYPE, &[0x86, 0xdd]),
            ("options", crate::frame::AT_VERSION, &[0x46]),
            ("first fragment", AT_FRAGMENT, &[0x20, 0]),
            ("last fragment", AT_FRAGMENT, &[0, 9]),
            ("far fragment", AT_FRAGMENT, &[0x1f, 0]),
            ("reserved bit", AT_FRAGMENT, &[0x80, 0]),
            ("TCP", AT_PROTOCOL, &[6]),
            ("IGMP", AT_PROTOCOL, &[2]),
            ("another group", AT_DESTINATION, &[239, 255, 7, 2]),
            ("another port", AT_PORT, &7501u16.to_be_bytes()),
        ] {
            let mut packet = frame(b"datagram");
            packet[at..at + to.len()].copy_from_slice(to);
            assert_eq!(verdict(&it, &sealed(packet)), PASS, "{what}");
        }
        // Cut before the end of its headers.
        for len in 14..42 {
            assert_eq!(verdict(&it, &frame(b"")[..len]), PASS, "{len}");
        }
    }

    #[test]
    fn removed_or_socketless_group_passes() {
        let Some((it, socket)) = steering() else {
            return;
        };
        let packet = frame(b"datagram");
        it.remove(GROUP).unwrap();
        assert_eq!(verdict(&it, &packet), PASS);
        it.remove(GROUP).unwrap();
        // The slot before has no socket.
        it.insert(GROUP, SLOT - 1).unwrap();
        assert_eq!(verdict(&it, &packet), PASS);
        it.insert(GROUP, SLOT).unwrap();
        assert_eq!(verdict(&it, &packet), REDIRECT);
        drop(socket);
        assert_eq!(verdict(&it, &packet), PASS);
    }
}
