//! Counters of a host on the way of a datagram: its interface, and its IP layer.

use serde::{Deserialize, Serialize};

use super::super::host::Tree;

/// Counters since boot, or their changes in a span. They include all other traffic of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counters {
    /// Packets that the interface sent.
    pub(super) sent_packets: u64,
    /// Packets that the interface did not send.
    pub(super) send_drops: u64,
    /// Packets that the interface received.
    pub(super) received_packets: u64,
    /// Packets that the interface or its driver dropped.
    pub(super) receive_drops: u64,
    /// Packets to groups that the IP layer took, on all interfaces.
    pub(super) ip_multicast: u64,
    /// Packets that the check of source addresses dropped.
    pub(super) reverse_path_drops: u64,
    /// Datagrams that could not be put together from their fragments.
    pub(super) reassembly_failures: u64,
    /// Datagrams that found no room in a socket.
    pub(super) socket_drops: u64,
}

impl Counters {
    /// Reads the counters. A counter that the system does not report is 0.
    pub(super) fn read(tree: &Tree, interface: &str) -> Self {
        let counts = of_interface(tree, interface);
        let sum = |columns: &[usize]| {
            let counts = columns.iter().filter_map(|column| counts.get(*column));
            counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
        };
        let of_ip = |file: &str, group: &str, names: &[&str]| {
            let file = format!("/proc/net/{file}");
            let counts = names
                .iter()
                .filter_map(|name| tree.counter(&file, group, name));
            counts.fold(0, u64::saturating_add)
        };
        Self {
            sent_packets: sum(&[9]),
            send_drops: sum(&[10, 11]),
            received_packets: sum(&[1]),
            receive_drops: sum(&[2, 3]),
            ip_multicast: of_ip("netstat", "IpExt", &["InMcastPkts"]),
            reverse_path_drops: of_ip("netstat", "TcpExt", &["IPReversePathFilter"]),
            reassembly_failures: of_ip("snmp", "Ip", &["ReasmFails"]),
            socket_drops: of_ip("snmp", "Udp", &["RcvbufErrors", "MemErrors"]),
        }
    }

    /// Returns the changes since earlier values.
    pub(super) const fn since(&self, before: &Self) -> Self {
        Self {
            sent_packets: self.sent_packets.saturating_sub(before.sent_packets),
            send_drops: self.send_drops.saturating_sub(before.send_drops),
            received_packets: self
                .received_packets
                .saturating_sub(before.received_packets),
            receive_drops: self.receive_drops.saturating_sub(before.receive_drops),
            ip_multicast: self.ip_multicast.saturating_sub(before.ip_multicast),
            reverse_path_drops: (self.reverse_path_drops).saturating_sub(before.reverse_path_drops),
            reassembly_failures: (self.reassembly_failures)
                .saturating_sub(before.reassembly_failures),
            socket_drops: self.socket_drops.saturating_sub(before.socket_drops),
        }
    }
}

/// Returns the counters of an interface in `/proc/net/dev`. Received: bytes, packets, errors, drops, and
/// four more. Sent: the same from column 8 on. The file has the interfaces of this process's network
/// namespace, which the mounted /sys may not have.
fn of_interface(tree: &Tree, interface: &str) -> Vec<u64> {
    let text = tree.text("/proc/net/dev").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.trim() == interface);
    let counts = found.map_or("", |(_, counts)| counts);
    let counts = counts.split_ascii_whitespace();
    counts.map(|count| count.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::host::FakedTree;
    use super::*;

    #[test]
    fn counters_are_read_where_the_kernel_keeps_them() {
        let faked = FakedTree::of(&[
            (
                "/proc/net/dev",
                "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n    lo: 1 1 1 1\n  \
                 eth0: 9000 20 3 4 0 0 0 5 8000 10 1 2 0 0 0 0\n",
            ),
            (
                "/proc/net/netstat",
                "TcpExt: IPReversePathFilter\nTcpExt: 5\nIpExt: A InMcastPkts\nIpExt: 0 6\n",
            ),
            (
                "/proc/net/snmp",
                "Ip: ReasmFails\nIp: 7\nUdp: RcvbufErrors MemErrors\nUdp: 8 1\n",
            ),
        ]);
        let read = Counters::read(&faked.tree(), "eth0");
        let expected = Counters {
            sent_packets: 10,
            send_drops: 3,
            received_packets: 20,
            receive_drops: 7,
            ip_multicast: 6,
            reverse_path_drops: 5,
            reassembly_failures: 7,
            socket_drops: 9,
        };
        assert_eq!(read, expected);
        let unknown = Counters::read(&FakedTree::of(&[]).tree(), "eth0");
        assert_eq!(unknown, Counters::default());
        let before = Counters {
            sent_packets: 4,
            ip_multicast: 99,
            ..Counters::default()
        };
        let since = read.since(&before);
        assert_eq!((since.sent_packets, since.ip_multicast), (6, 0));
    }
}
