//! The errors of verbs, distinguished by their remedy.

use std::io;
use std::net::Ipv4Addr;

use thiserror::Error;

use crate::access::AccessDefect;
use tickcast_transport_base::host::interface::InterfaceError;

/// Reason that verbs can't be used as configured. The host or the configuration is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// This build has no RDMA.
    #[error(
        "this build has no RDMA; install librdmacm-dev and libclang1-14 (Debian's names), build with `--features rdma`, or use the transport udp"
    )]
    NotBuilt,
    /// The interface does not exist.
    #[error("{source}")]
    Interface {
        /// The error of the interface.
        source: InterfaceError,
    },
    /// This host has no RDMA.
    #[error(
        "this host has no RDMA ({source}); load rdma_ucm and the device's module, or use the transport udp"
    )]
    NoRdma {
        /// The operating system's error.
        source: io::Error,
    },
    /// The interface belongs to no RDMA device.
    #[error(
        "no RDMA device has the address {address} ({source}); choose the address of a device that `rdma link` lists, or use the transport udp"
    )]
    NoDevice {
        /// The interface's address.
        address: Ipv4Addr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The device's files can't be opened.
    #[error(
        "{what}: permission denied; let this user open the files below /dev/infiniband (often by the group rdma)"
    )]
    Permission {
        /// The step that failed.
        what: &'static str,
    },
    /// No more memory can be pinned.
    #[error(
        "{what} of {bytes} bytes: the limit of pinned memory is reached; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity, or CAP_IPC_LOCK)"
    )]
    Memlock {
        /// The step that failed.
        what: &'static str,
        /// Bytes that the step tried to pin.
        bytes: usize,
    },
    /// The port is down.
    #[error("port {port} of {device} is not active; check its cable, its link and `rdma link`")]
    PortDown {
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
    },
    /// A slot does not fit into one packet.
    #[error(
        "slots of {slot_len} bytes don't fit the {mtu} bytes that port {port} of {device} carries; make the slots at most {mtu}, or raise the MTU of its interface (4200 gives 4096)"
    )]
    Mtu {
        /// Length of a slot, in bytes.
        slot_len: usize,
        /// Length of the port's largest packet, in bytes.
        mtu: usize,
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
    },
    /// A number is out of the range that the device or this code supports.
    #[error("{name} is {value}; it must be between {min} and {max}")]
    Range {
        /// The setting.
        name: &'static str,
        /// The value, as given.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// The device does not support a queue of this size.
    #[error(
        "{device} can't create a queue for {requests} requests with {inline_bytes} bytes inline (it reports a maximum of {requests_max}); lower send_depth, inline_bytes or the receive depth"
    )]
    TooDeep {
        /// Name of the device.
        device: String,
        /// Requests in flight that were asked for.
        requests: u32,
        /// Inline bytes per request that were asked for.
        inline_bytes: u32,
        /// The device's limit of requests in flight, without inline bytes.
        requests_max: u32,
    },
    /// The group is not a multicast address.
    #[error("{group} is not a multicast group; choose one of 224.0.0.0/4, for example 239.x.y.z")]
    NotMulticast {
        /// The address, as given.
        group: Ipv4Addr,
    },
    /// The group could not be joined.
    #[error(
        "group {group} can't be joined on {device}: {reason}; is there a subnet manager (InfiniBand) or a route for the group (RoCE)?"
    )]
    Join {
        /// Address of the group.
        group: Ipv4Addr,
        /// Name of the device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// The peer of a connection is not tickcast, or runs another version.
    #[error(
        "the peer of a connection does not speak the protocol of this version of tickcast and was refused; connect with the same version"
    )]
    Stranger,
    /// Too many connections of a listener are not up yet.
    #[error(
        "too many connections are not up yet: another one was refused; the peer may connect again"
    )]
    Crowded,
    /// The connecting peer gave up before its request was answered.
    #[error("the peer gave up before its request was answered; it may connect again")]
    GaveUp,
    /// The device has no atomic operations.
    #[error(
        "{device} has no compare-and-swap, which a subscriber's cursor needs; report progress by messages on this device"
    )]
    NoAtomics {
        /// Name of the device.
        device: String,
    },
    /// The device has no memory windows of type 2.
    #[error(
        "{device} has no memory windows of type 2, so no peer can be allowed to READ or WRITE; subscribers repair by NACK"
    )]
    NoWindows {
        /// Name of the device.
        device: String,
    },
    /// The device can't bind so long a window.
    #[error(
        "{device} binds windows of at most {max} bytes, and this memory has {len}; use fewer or shorter slots, or subscribers repair by NACK"
    )]
    WindowTooLong {
        /// Name of the device.
        device: String,
        /// Length of the memory, in bytes.
        len: usize,
        /// Length of the device's longest window, in bytes.
        max: usize,
    },
    /// The device does not grant or refuse accesses to memory as required.
    #[error(
        "{device} failed its probe: {defect}; peers get no such access, subscribers repair by NACK, and `tickcast doctor --rdma` probes again"
    )]
    NotProven {
        /// Name of the device.
        device: String,
        /// The first step without the required result.
        defect: AccessDefect,
    },
    /// The device did not bind a window to the whole memory.
    #[error(
        "{device} can't bind a window to {len} bytes: {why}; use fewer or shorter slots, or subscribers repair by NACK"
    )]
    NotBindable {
        /// Name of the device.
        device: String,
        /// Length of the memory, in bytes.
        len: usize,
        /// The reason.
        why: String,
    },
    /// Another call failed.
    #[error("{what} failed: {source}")]
    Call {
        /// Name of the function.
        what: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

/// Returns an error unless `min <= value <= max`.
pub(crate) const fn check_range(
    name: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), VerbsError> {
    if min <= value && value <= max {
        return Ok(());
    }
    Err(VerbsError::Range {
        name,
        value,
        min,
        max,
    })
}

#[cfg(feature = "rdma")]
/// Converts the result of a call that returns an error number.
pub(crate) fn done(what: &'static str, errno: i32) -> Result<(), VerbsError> {
    if errno == 0 {
        Ok(())
    } else {
        Err(failed(what, errno))
    }
}

#[cfg(feature = "rdma")]
impl VerbsError {
    /// Returns the operating system's error number, if a call failed with one.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } | Self::NoDevice { source, .. } | Self::NoRdma { source } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}

#[cfg(feature = "rdma")]
/// Converts an error number to the error that names the remedy.
pub(crate) fn failed(what: &'static str, errno: i32) -> VerbsError {
    let source = io::Error::from_raw_os_error(errno);
    match errno {
        libc::EACCES | libc::EPERM => VerbsError::Permission { what },
        _ => VerbsError::Call { what, source },
    }
}

#[cfg(feature = "rdma")]
/// Converts an error number of a step that pins memory, like [`failed`].
pub(crate) fn failed_to_pin(what: &'static str, bytes: usize, errno: i32) -> VerbsError {
    match errno {
        libc::ENOMEM | libc::EAGAIN => VerbsError::Memlock { what, bytes },
        _ => failed(what, errno),
    }
}

#[cfg(all(test, feature = "rdma"))]
mod tests {
    use super::*;

    #[test]
    fn unpinnable_memory_names_limit_to_raise() {
        for errno in [libc::ENOMEM, libc::EAGAIN] {
            let error = failed_to_pin("a registration of the ring", 96 << 20, errno);
            assert!(matches!(error, VerbsError::Memlock { .. }), "{error}");
            let said = error.to_string();
            let due = [
                "a registration of the ring",
                "100663296 bytes",
                "ulimit -l",
                "LimitMEMLOCK=",
            ];
            assert!(due.iter().all(|due| said.contains(due)), "{said}");
        }
        // An error other than a lack of memory is reported as it is.
        let error = failed_to_pin("a registration of the ring", 64, libc::EPERM);
        assert!(matches!(error, VerbsError::Permission { .. }), "{error}");
        let error = failed_to_pin("a registration of the ring", 64, libc::ENODEV);
        assert!(matches!(error, VerbsError::Call { .. }), "{error}");
    }
}
