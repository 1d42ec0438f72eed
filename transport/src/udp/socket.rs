//! Opens and tunes the sockets, and reports requested and granted values separately.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use tickcast_transport_base::host::interface::{InterfaceError, ResolvedInterface};

/// Reason that a UDP transport can't be opened. The configuration or the host is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The interface can't be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The number of lines is invalid.
    #[error("{lines} lines are configured; a channel has one line or two")]
    Lines {
        /// Number of lines.
        lines: usize,
    },
    /// The address is not a multicast group.
    #[error("{group} is not a multicast group; choose one within 239.0.0.0/8, with a port")]
    NotAGroup {
        /// The configured value.
        group: SocketAddrV4,
    },
    /// A value is out of range.
    #[error("{field} is {value}, it must lie between {min} and {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// The configured value.
        value: usize,
        /// The smallest valid value.
        min: usize,
        /// The largest valid value.
        max: usize,
    },
    /// A call failed.
    #[error("can't {what} for {target}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// Group or address, and interface.
        target: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A socket buffer: the requested and the granted size, in bytes as an application counts. The kernel
/// books twice that, and each datagram costs more than its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferGrant {
    /// Requested bytes. 0 if the system's default was used.
    pub asked_bytes: usize,
    /// Granted bytes.
    pub granted_bytes: usize,
}

/// A deviation from the configuration that does not prevent operation. Worth a log line at the start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UdpWarning {
    /// The kernel granted a smaller buffer than requested: bursts are dropped sooner.
    #[error(
        "{what} of {target}: {asked_bytes} bytes were requested, and the kernel granted \
         {granted_bytes}; raise the limit with: sysctl -w {sysctl}={asked_bytes}"
    )]
    Buffer {
        /// "receive buffer" or "send buffer".
        what: &'static str,
        /// Group or address, and interface.
        target: String,
        /// The requested value.
        asked_bytes: usize,
        /// The granted value.
        granted_bytes: usize,
        /// The setting that limits the buffer.
        sysctl: &'static str,
    },
    /// Datagrams are cut into IP fragments, each of which can be lost.
    #[error(
        "{target}: datagrams of {datagram_len} bytes exceed the interface's MTU of {mtu}; they will be sent in fragments, make the slots {fits} bytes or less"
    )]
    Fragments {
        /// Group and interface.
        target: String,
        /// Length of the longest datagram, in bytes.
        datagram_len: usize,
        /// The interface's MTU, in bytes.
        mtu: usize,
        /// The longest datagram that fits, in bytes.
        fits: usize,
    },
    /// Datagrams pass one by one, each at its own cost in the kernel.
    #[error(
        "{target}: this kernel has no {option} ({reason}): datagrams pass one by one, at several \
         times the cost under load; set \"{setting}\": false to accept this"
    )]
    Offload {
        /// The socket option.
        option: &'static str,
        /// The setting that turns the option off.
        setting: &'static str,
        /// Group or address, and interface.
        target: String,
        /// The operating system's error.
        reason: String,
    },
    /// Busy polling was requested, and one of its options refused.
    #[error("{target}: {option}={value} was refused ({reason}), so {effect}; {remedy}")]
    BusyPoll {
        /// Group or address, and interface.
        target: String,
        /// The socket option.
        option: &'static str,
        /// The requested value.
        value: i32,
        /// The operating system's error.
        reason: String,
        /// The effect of the refusal.
        effect: &'static str,
        /// The change that makes the option work.
        remedy: &'static str,
    },
}

/// Length of the IP and UDP headers before a datagram, in bytes.
pub(super) const HEADERS_LEN: usize = 28;

/// Direction of a socket buffer.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    Send,
    Receive,
}

pub(super) fn describe(address: SocketAddrV4, interface: &ResolvedInterface) -> String {
    format!("{address} on {} ({})", interface.name, interface.address)
}

pub(super) fn check_group(group: SocketAddrV4) -> Result<(), UdpError> {
    if group.ip().is_multicast() && group.port() != 0 {
        Ok(())
    } else {
        Err(UdpError::NotAGroup { group })
    }
}

pub(super) fn check_range(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), UdpError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(UdpError::OutOfRange {
            field,
            value,
            min,
            max,
        })
    }
}

pub(super) fn check_mtu(
    target: &str,
    datagram_len: usize,
    interface: &ResolvedInterface,
) -> Option<UdpWarning> {
    let mtu = interface
        .mtu
        .filter(|mtu| datagram_len + HEADERS_LEN > *mtu)?;
    Some(UdpWarning::Fragments {
        target: target.to_owned(),
        datagram_len,
        mtu,
        fits: (mtu.saturating_sub(HEADERS_LEN)) / 64 * 64,
    })
}

/// Opens a socket that sends to `group` from the interface's address. It is connected, so that a send
/// needs no route look-up.
pub(super) fn open_sender(
    group: SocketAddrV4,
    interface: &ResolvedInterface,
    ttl: u8,
) -> Result<Socket, UdpError> {
    let step = |what: &'static str, result: io::Result<()>| {
        result.map_err(|source| UdpError::Io {
            what,
            target: describe(group, interface),
            source,
        })
    };
    let socket = open(group, interface)?;
    step(
        "bind a sender",
        socket.bind(&SocketAddrV4::new(interface.address, 0).into()),
    )?;
    let chosen = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr {
            s_addr: u32::from(interface.address).to_be(),
        },
        imr_ifindex: interface.index as i32,
    };
    step(
        "choose the interface",
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, chosen),
    )?;
    // Otherwise the interface's queue drops datagrams silently when it is full.
    step(
        "enable reports of drops in its interface",
        set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1i32),
    )?;
    step("set the TTL", socket.set_multicast_ttl_v4(ttl.into()))?;
    step("set the loop-back", socket.set_multicast_loop_v4(true))?;
    step("connect a sender", socket.connect(&group.into()))?;
    Ok(socket)
}

/// Opens a socket that receives only datagrams to `address`: bound to the group itself, and not a member
/// of any group yet.
pub(super) fn open_receiver(
    address: SocketAddrV4,
    interface: &ResolvedInterface,
) -> Result<Socket, UdpError> {
    let step = |what: &'static str, result: io::Result<()>| {
        result.map_err(|source| UdpError::Io {
            what,
            target: describe(address, interface),
            source,
        })
    };
    let socket = open(address, interface)?;
    if address.ip().is_multicast() {
        // Several subscribers of one host share a group; a unicast port has one owner.
        step("share the port", socket.set_reuse_address(true))?;
        step(
            "restrict it to its own groups",
            socket.set_multicast_all_v4(false),
        )?;
    }
    step(
        "count the kernel's drops",
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1i32),
    )?;
    step("bind a receiver", socket.bind(&address.into()))?;
    Ok(socket)
}

fn open(address: SocketAddrV4, interface: &ResolvedInterface) -> Result<Socket, UdpError> {
    Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|source| UdpError::Io {
            what: "open a socket",
            target: describe(address, interface),
            source,
        })
}

/// Requests a buffer, beyond the system's limit if permitted, and compares it with the granted size.
pub(super) fn set_buffer(
    socket: &Socket,
    direction: Direction,
    asked_bytes: Option<usize>,
    target: &str,
) -> io::Result<(BufferGrant, Option<UdpWarning>)> {
    let (what, sysctl, force) = match direction {
        Direction::Send => ("send buffer", "net.core.wmem_max", libc::SO_SNDBUFFORCE),
        Direction::Receive => ("receive buffer", "net.core.rmem_max", libc::SO_RCVBUFFORCE),
    };
    if let Some(asked) = asked_bytes {
        let asked = i32::try_from(asked).unwrap_or(i32::MAX / 2);
        if set_option(socket, libc::SOL_SOCKET, force, asked).is_err() {
            match direction {
                Direction::Send => socket.set_send_buffer_size(asked as usize)?,
                Direction::Receive => socket.set_recv_buffer_size(asked as usize)?,
            }
        }
    }
    let booked = match direction {
        Direction::Send => socket.send_buffer_size()?,
        Direction::Receive => socket.recv_buffer_size()?,
    };
    let grant = BufferGrant {
        asked_bytes: asked_bytes.unwrap_or(0),
        granted_bytes: booked / 2,
    };
    let warning = (grant.granted_bytes < grant.asked_bytes).then(|| UdpWarning::Buffer {
        what,
        target: target.to_owned(),
        asked_bytes: grant.asked_bytes,
        granted_bytes: grant.granted_bytes,
        sysctl,
    });
    Ok((grant, warning))
}

pub(super) fn set_option<T: Copy>(
    fd: &impl AsRawFd,
    level: i32,
    name: i32,
    value: T,
) -> io::Result<()> {
    let fd: RawFd = fd.as_raw_fd();
    // SAFETY: `value` lives through the call and its size is passed along; the kernel copies it
    // and checks the size against the option. Exercised by every test in tests/local/udp.rs that opens
    // a socket.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
