//! Sends datagrams to a group or to one host. Waits for buffer space instead of losing datagrams, and
//! counts those that the network refused.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use tickcast_transport::FanOut;
use tickcast_transport::control::resolve;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{UDP_LEN_MAX, UdpFanOut, UdpFanOutConfig, UdpSendLine};

use crate::exit::ToolError;

/// A sender to one destination.
pub struct Sender {
    way: Way,
    refused: u64,
}

enum Way {
    Group(Box<UdpFanOut>),
    Host(UdpSocket),
}

/// Time to wait if the system has no room for a datagram.
const ROOM_POLL: Duration = Duration::from_micros(20);

impl Sender {
    /// Sends to a multicast group, through at most `ttl` routers.
    ///
    /// # Errors
    /// Returns [`ToolError::Udp`] if the group or interface can't be used.
    pub fn to_group(
        group: SocketAddrV4,
        interface: &Interface,
        ttl: u8,
    ) -> Result<Self, ToolError> {
        let line = UdpSendLine {
            group,
            interface: interface.clone(),
        };
        let group = UdpFanOut::open(&UdpFanOutConfig {
            lines: vec![line],
            ttl,
            send_buffer_bytes: None,
            datagram_len_max: UDP_LEN_MAX,
            gso: false,
        })?;
        Ok(Self::over(Way::Group(Box::new(group))))
    }

    /// Sends to the destination given as `HOST:PORT` or `GROUP:PORT`.
    ///
    /// # Errors
    /// Returns [`ToolError::Address`] or [`ToolError::Udp`] if the destination can't be used.
    pub fn to(target: &str, interface: &Interface, ttl: u8) -> Result<Self, ToolError> {
        let address = |source| ToolError::Address {
            target: target.into(),
            source,
        };
        let all = resolve(target).map_err(address)?;
        let to = all.iter().find(|to| to.is_ipv4()).or_else(|| all.first());
        match to.copied() {
            Some(SocketAddr::V4(group)) if group.ip().is_multicast() => {
                Self::to_group(group, interface, ttl)
            }
            Some(to) => {
                let any = match to {
                    SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
                    SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
                };
                let socket = UdpSocket::bind(any).and_then(|s| s.connect(to).map(|()| s));
                Ok(Self::over(Way::Host(socket.map_err(address)?)))
            }
            None => Err(address(ErrorKind::NotFound.into())),
        }
    }

    const fn over(way: Way) -> Self {
        Self { way, refused: 0 }
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// Returns [`ToolError`] if sending can't continue.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ToolError> {
        match &mut self.way {
            Way::Group(group) => {
                while !group.send_copy(bytes)? {
                    std::thread::sleep(ROOM_POLL);
                }
                self.refused = group.stats().iter().map(|line| line.refused).sum();
            }
            Way::Host(socket) => {
                // The error may be the late report of an earlier datagram ("nobody listens there"). Count
                // that one, and try again with this one.
                for last in [false, true] {
                    match socket.send(bytes) {
                        Ok(_) => break,
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                            self.refused += 1;
                        }
                        Err(_) if last => self.refused += 1,
                        Err(_) => std::thread::sleep(ROOM_POLL),
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of datagrams that the network has reported as refused.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the source address of a group's datagrams.
    pub fn sender(&self) -> Option<Ipv4Addr> {
        match &self.way {
            Way::Group(group) => group.senders().first().map(|sender| *sender.ip()),
            Way::Host(_) => None,
        }
    }
}
