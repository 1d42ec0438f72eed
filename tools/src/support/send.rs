//! Sends datagrams to a group or to one host, waiting for room instead of losing them, and counts
//! those that the network refused.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use tickcast_transport::FanOut;
use tickcast_transport::control::resolve;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{UDP_LEN_MAX, UdpFanOut, UdpFanOutConfig, UdpSendLine};

use crate::exit::CommandError;

/// One way out.
pub struct Sender {
    way: Way,
    refused: u64,
}

enum Way {
    Group(Box<UdpFanOut>),
    Host(UdpSocket),
}

/// How long to wait when the system has no room for a datagram.
const ROOM_POLL: Duration = Duration::from_micros(20);

impl Sender {
    /// To a multicast group, passing at most `ttl` routers.
    ///
    /// # Errors
    /// [`CommandError::Udp`] when that can't be.
    pub fn to_group(
        group: SocketAddrV4,
        interface: &Interface,
        ttl: u8,
    ) -> Result<Self, CommandError> {
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

    /// To what `HOST:PORT` or `GROUP:PORT` names.
    ///
    /// # Errors
    /// [`CommandError::Address`] or [`CommandError::Udp`] when that can't be.
    pub fn to(target: &str, interface: &Interface, ttl: u8) -> Result<Self, CommandError> {
        let address = |source| CommandError::Address {
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
    /// [`CommandError`] when nothing more can be sent.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        match &mut self.way {
            Way::Group(group) => {
                while !group.send_copy(bytes)? {
                    std::thread::sleep(ROOM_POLL);
                }
                self.refused = group.stats().iter().map(|line| line.refused).sum();
            }
            Way::Host(socket) => {
                // An error may be an earlier datagram's, reported late ("nobody listens there"):
                // that one is counted, this one gets its own try.
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

    /// Datagrams that the network refused, as far as it has said.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The address a group's datagrams come from.
    pub fn sender(&self) -> Option<Ipv4Addr> {
        match &self.way {
            Way::Group(group) => group.senders().first().map(|sender| *sender.ip()),
            Way::Host(_) => None,
        }
    }
}
