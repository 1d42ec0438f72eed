//! Runs of datagrams as one buffer: whether this kernel supports them, when to retry after a refusal,
//! and the warning where they are unsupported.

use std::io;
use std::os::fd::AsRawFd;

use socket2::Socket;

use super::UDP_LEN_MAX;
use super::socket::{HEADERS_LEN, UdpWarning, set_option};
use tickcast_transport_base::SendStats;
use tickcast_transport_base::host::interface::ResolvedInterface;

/// Datagrams sent one by one after the first refused run. The count doubles after each further
/// refusal, up to `PAUSE_MAX`.
const PAUSE_MIN: u64 = 1 << 12;
/// Largest pause: a permanent refusal costs one run and one log line in millions of datagrams.
const PAUSE_MAX: u64 = 1 << 24;

/// The run state of a line, and when to retry after a refusal. The pause is counted in datagrams sent,
/// because without load waiting costs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    /// Length of the longest segment, in bytes. 0: no runs are sent.
    segment_max: usize,
    /// Number of datagrams that the line must have sent before the next run.
    from: u64,
    /// Datagrams to send one by one after the next refusal.
    pause: u64,
}

impl Runs {
    /// Allows runs of segments up to this length. 0: no runs.
    pub(super) const fn new(segment_max: usize) -> Self {
        Self {
            segment_max,
            from: 0,
            pause: PAUSE_MIN,
        }
    }

    /// Returns the longest segment of a run, in bytes, on a line that has sent `datagrams` datagrams. 0: no
    /// run now.
    pub(super) const fn segment_max(&self, datagrams: u64) -> usize {
        if datagrams < self.from {
            0
        } else {
            self.segment_max
        }
    }

    /// Records a refused run. Datagrams go one by one for a while.
    #[cold]
    pub(super) fn refused(&mut self, socket: &Socket, stats: &mut SendStats) {
        let pause = self.pause;
        self.from = stats.datagrams.saturating_add(pause);
        self.pause = (pause * 2).min(PAUSE_MAX);
        stats.gso = false;
        stats.runs_refused += 1;
        let reason = io::Error::from_raw_os_error(stats.last_errno);
        tracing::warn!(
            to = group_of(socket),
            "the network refused to segment a run of datagrams ({reason}); the next {pause} datagrams \
             are sent one by one, at several times the cost under load, before the next attempt"
        );
    }

    /// Records a run that passed.
    #[cold]
    pub(super) fn passed(socket: &Socket, stats: &mut SendStats) {
        stats.gso = true;
        tracing::info!(
            to = group_of(socket),
            "the network segments runs of datagrams again"
        );
    }
}

/// Returns the group that a socket sends to, for a log line.
fn group_of(socket: &Socket) -> String {
    let group = socket.peer_addr().ok().and_then(|it| it.as_socket_ipv4());
    group.map_or_else(|| "unknown".into(), |group| group.to_string())
}

/// Returns the longest segment of a run that `socket` takes, 0 where this kernel cuts none, and the
/// warning. A datagram longer than the interface's MTU is never a segment: the kernel would refuse
/// the run, but sends a single datagram in fragments.
pub(super) fn segment_max(
    socket: &impl AsRawFd,
    datagram_len_max: usize,
    interface: &ResolvedInterface,
    target: &str,
) -> (usize, Option<UdpWarning>) {
    // A segment length of 0 turns runs off; a kernel that knows the option accepts it.
    match set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0i32) {
        Ok(()) => {
            let mtu = interface.mtu.unwrap_or(usize::MAX);
            let carried = mtu.saturating_sub(HEADERS_LEN).min(UDP_LEN_MAX);
            (carried.min(datagram_len_max), None)
        }
        Err(error) => (0, Some(missing("UDP_SEGMENT", "gso", target, &error))),
    }
}

/// Turns on GRO. Returns whether the kernel delivers runs as one buffer, and the warning if it does not.
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

/// Returns whether the kernel may have refused a run because of the cutting. Its datagrams may then
/// pass one by one. A wrong guess costs a run that is refused datagram by datagram.
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
    fn missing_kernel_feature_names_setting() {
        // A socket of another family knows neither option, like that of an old kernel.
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
    fn refusals_double_the_wait_up_to_a_bound() {
        let (mut runs, mut stats) = (Runs::new(1472), SendStats::default());
        let socket = Socket::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        for n in 0..20 {
            assert_eq!(runs.segment_max(stats.datagrams), 1472);
            runs.refused(&socket, &mut stats);
            let pause = (PAUSE_MIN << n).min(PAUSE_MAX);
            assert_eq!(runs.segment_max(stats.datagrams + pause - 1), 0);
            stats.datagrams += pause;
        }
        assert_eq!((stats.runs_refused, stats.gso), (20, false));
        Runs::passed(&socket, &mut stats);
        assert!(stats.gso, "it is told that they are sent again");
    }

    #[test]
    fn segments_fit_slots_and_interface_mtu() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let of = |len, mtu| segment_max(&socket, len, &interface(mtu), "").0;
        assert_eq!(of(1472, Some(1500)), 1472);
        assert_eq!(of(8960, Some(1500)), 1472);
        assert_eq!(of(1024, Some(9000)), 1024);
        assert_eq!(of(65_507, None), 65_507);
        assert_eq!(of(1472, Some(20)), 0);
    }
}
