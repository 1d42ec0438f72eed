//! Runs of datagrams as one buffer: whether this kernel can, and what to say where it can't.

use std::io;
use std::os::fd::AsRawFd;

use super::UDP_LEN_MAX;
use super::interface::ResolvedInterface;
use super::socket::{HEADERS_LEN, UdpWarning, set_option};

/// The longest segments of a run that `socket` may be given, 0 where this kernel cuts none; and what
/// to say of it. What is longer than the interface carries is never a segment: the kernel would
/// refuse the run, where it sends a single datagram in fragments.
pub(super) fn segment_max(
    socket: &impl AsRawFd,
    datagram_len_max: usize,
    interface: &ResolvedInterface,
    target: &str,
) -> (usize, Option<UdpWarning>) {
    // A segment of 0 is none; a kernel that knows the option takes it.
    match set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0i32) {
        Ok(()) => {
            let mtu = interface.mtu.unwrap_or(usize::MAX);
            let carried = mtu.saturating_sub(HEADERS_LEN).min(UDP_LEN_MAX);
            (carried.min(datagram_len_max), None)
        }
        Err(error) => (0, Some(missing("UDP_SEGMENT", "gso", target, &error))),
    }
}

/// Has the kernel hand over runs as they come. Whether it does, and what to say where it does not.
pub(super) fn receive_runs(socket: &impl AsRawFd, target: &str) -> (bool, Option<UdpWarning>) {
    match set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1i32) {
        Ok(()) => (true, None),
        Err(error) => (false, Some(missing("UDP_GRO", "gro", target, &error))),
    }
}

fn missing(
    option: &'static str,
    setting: &'static str,
    target: &str,
    error: &io::Error,
) -> UdpWarning {
    UdpWarning::Offload {
        option,
        setting,
        target: target.to_owned(),
        reason: error.to_string(),
    }
}

/// Whether the kernel may have refused a run because it was to be cut: its datagrams may pass one by
/// one. A wrong guess costs a run that is refused datagram by datagram.
pub(super) const fn cutting_was_refused(errno: i32) -> bool {
    matches!(
        errno,
        libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn interface(mtu: Option<usize>) -> ResolvedInterface {
        ResolvedInterface {
            name: "eth0".into(),
            index: 1,
            address: Ipv4Addr::LOCALHOST,
            mtu,
        }
    }

    #[test]
    fn what_a_kernel_does_not_know_is_told_with_the_setting_to_change() {
        // A socket of another family knows neither option, as an old kernel's does not.
        let socket = UnixDatagram::unbound().unwrap();
        let (segment_max, warning) = segment_max(&socket, 1472, &interface(None), "239.1.1.1:7");
        assert_eq!(segment_max, 0);
        let text = warning.unwrap().to_string();
        assert!(
            text.contains("UDP_SEGMENT") && text.contains("\"gso\": false"),
            "{text}"
        );
        let (runs, warning) = receive_runs(&socket, "239.1.1.1:7");
        assert!(!runs);
        let text = warning.unwrap().to_string();
        assert!(
            text.contains("UDP_GRO") && text.contains("239.1.1.1:7"),
            "{text}"
        );
    }

    #[test]
    fn segments_are_no_longer_than_slots_and_what_the_interface_carries() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let of = |len, mtu| segment_max(&socket, len, &interface(mtu), "").0;
        assert_eq!(of(1472, Some(1500)), 1472);
        assert_eq!(of(8960, Some(1500)), 1472);
        assert_eq!(of(1024, Some(9000)), 1024);
        assert_eq!(of(65_507, None), 65_507);
        assert_eq!(of(1472, Some(20)), 0);
    }
}
