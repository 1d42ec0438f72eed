//! The errors and warnings of AF_XDP, distinguished by their remedy.

use std::io;
use std::net::SocketAddrV4;

use thiserror::Error;

use tickcast_transport_base::host::interface::InterfaceError;

/// Reason that a channel can't be received by AF_XDP. The configuration or the host is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
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
    /// The interface carries no Ethernet.
    #[error(
        "interface {interface} is the loopback, which has no receive queues; use the transport shm or udp within a host"
    )]
    Loopback {
        /// Name of the interface.
        interface: String,
    },
    /// The interface cuts the datagrams into fragments.
    #[error(
        "datagrams of {datagram_len} bytes exceed the MTU of {mtu} of interface {interface}, and AF_XDP receives no fragments; make the slots {fits} bytes or less, or use the transport udp"
    )]
    Mtu {
        /// Name of the interface.
        interface: String,
        /// Length of the longest datagram, in bytes.
        datagram_len: usize,
        /// The interface's MTU, in bytes.
        mtu: usize,
        /// The longest datagram that fits, in bytes.
        fits: usize,
    },
    /// A datagram does not fit into a frame.
    #[error(
        "datagrams of {datagram_len} bytes do not fit into the frames of interface {interface}, which hold {fits}; make the slots {fits} bytes or less, or use the transport udp"
    )]
    TooLong {
        /// Name of the interface.
        interface: String,
        /// Length of the longest datagram, in bytes.
        datagram_len: usize,
        /// The longest datagram that fits, in bytes.
        fits: usize,
    },
    /// This process may not use AF_XDP.
    #[error(
        "interface {interface}: may not {what} ({source}); run with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, or use the transport udp"
    )]
    Forbidden {
        /// Name of the interface.
        interface: String,
        /// The step that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// This kernel has no AF_XDP.
    #[error(
        "interface {interface}: this kernel can't {what} ({source}); use Linux 5.10 or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or the transport udp"
    )]
    Unsupported {
        /// Name of the interface.
        interface: String,
        /// The step that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The interface belongs to another program.
    #[error(
        "interface {interface} has an XDP program or an AF_XDP socket already ({source}); `ip link show {interface}` names the program; one process receives there by AF_XDP, others use the transport udp or another interface"
    )]
    Occupied {
        /// Name of the interface.
        interface: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another receiver of this process has the group.
    #[error(
        "{group} on interface {interface} belongs to another receiver of this process; a frame has one receiver, so use the transport udp for one of them"
    )]
    GroupTaken {
        /// Name of the interface.
        interface: String,
        /// The group.
        group: SocketAddrV4,
    },
    /// The interface serves its largest number of lines.
    #[error(
        "interface {interface} serves {lines} lines, and has neither a slot nor frames for another; raise memory_bytes, or use the transport udp for some"
    )]
    Full {
        /// Name of the interface.
        interface: String,
        /// Lines that are open.
        lines: usize,
    },
    /// The memory for frames can't be had.
    #[error(
        "interface {interface}: {bytes} bytes of locked memory can't be had ({source}); raise the limit (`ulimit -l`, LimitMEMLOCK=), or lower memory_bytes"
    )]
    Memory {
        /// Name of the interface.
        interface: String,
        /// The requested memory, in bytes.
        bytes: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// A call failed.
    #[error("interface {interface}: can't {what}: {source}")]
    Io {
        /// Name of the interface.
        interface: String,
        /// The step that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl XdpError {
    /// Returns the error of a step, by the operating system's number.
    pub(crate) fn of(interface: &str, what: &'static str, source: io::Error) -> Self {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden {
                interface,
                what,
                source,
            },
            Some(
                libc::EAFNOSUPPORT
                | libc::ENOSYS
                | libc::EPROTONOSUPPORT
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP,
            ) => Self::Unsupported {
                interface,
                what,
                source,
            },
            Some(libc::EBUSY | libc::EEXIST) => Self::Occupied { interface, source },
            _ => Self::Io {
                interface,
                what,
                source,
            },
        }
    }
}

/// A deviation from the configuration that does not prevent operation. Worth a log line at the start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum XdpWarning {
    /// The driver can't run the program, so that the kernel allocates a packet for each datagram.
    #[error(
        "interface {interface}: its driver runs no XDP program ({reason}), so a datagram costs almost as much as by udp; use another device, or lower the MTU if it exceeds what the driver takes"
    )]
    Generic {
        /// Name of the interface.
        interface: String,
        /// The operating system's error.
        reason: String,
    },
    /// A line got fewer frames than requested: bursts are dropped sooner.
    #[error(
        "{target}: {asked} frames per queue were requested, and {granted} are free for it; raise memory_bytes, which now holds {total}"
    )]
    Frames {
        /// Group and interface.
        target: String,
        /// The requested frames.
        asked: u32,
        /// The granted frames.
        granted: u32,
        /// All frames of a queue.
        total: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_interface_step_and_remedy() {
        for (errno, words) in [
            (libc::EPERM, "CAP_NET_ADMIN"),
            (libc::EACCES, "CAP_BPF"),
            (libc::EAFNOSUPPORT, "CONFIG_XDP_SOCKETS"),
            (libc::EBUSY, "has an XDP program"),
            (libc::EEXIST, "ip link show eth9"),
            (libc::EIO, "can't open a socket"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let text = XdpError::of("eth9", "open a socket", source).to_string();
            assert!(
                text.contains(words) && text.contains("interface eth9"),
                "{text}"
            );
        }
    }
}
