//! The way of datagrams from one host to the other, and the stage where they stop.

use serde::Serialize;

use super::super::check::{Check, Subject};
use super::counters::Counters;

/// Bytes of the IP and UDP headers.
const HEADERS_LEN: u64 = 28;
/// Bytes of the IP header, which each fragment has.
const IP_HEADER_LEN: u64 = 20;

/// A stage on the way of a datagram. Datagrams stop at a stage if they do not pass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The sender's system call.
    Send,
    /// The sender's interface.
    SenderInterface,
    /// The receiver's interface.
    ReceiverInterface,
    /// The receiver's IP layer.
    ReceiverIp,
    /// The receiver's socket.
    ReceiverSocket,
}

/// One end of the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Site {
    /// The host.
    pub(super) host: String,
    /// Name of its interface.
    pub(super) interface: String,
    /// Longest packet of the interface, in bytes; 0 if unknown.
    pub(super) mtu: u64,
}

/// Datagrams of one length in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in super::super) struct Passage {
    pub(super) from: Site,
    pub(super) to: Site,
    pub(super) group: String,
    /// Bytes of each datagram.
    pub(super) len: usize,
    /// Datagrams that were given to the kernel.
    pub(super) asked: u64,
    /// Datagrams that the kernel took.
    pub(super) sent: u64,
    /// Datagrams that arrived at the socket.
    pub(super) arrived: u64,
    /// Changes of the sender's counters.
    pub(super) sender: Counters,
    /// Changes of the receiver's counters.
    pub(super) receiver: Counters,
}

impl Passage {
    /// Returns the packets of one datagram: more than one if it is cut into fragments.
    fn packets_each(&self) -> u64 {
        let whole = self.len as u64 + HEADERS_LEN;
        if self.from.mtu == 0 || whole <= self.from.mtu {
            return 1;
        }
        // Fragments carry multiples of 8 bytes.
        let each = self.from.mtu.saturating_sub(IP_HEADER_LEN) / 8 * 8;
        (whole - IP_HEADER_LEN).div_ceil(each.max(8))
    }

    /// Returns the stage where datagrams stop; `None` if all arrived. Other traffic of the hosts hides a
    /// stage, and then a later one is returned.
    pub(super) fn stops_at(&self) -> Option<Stage> {
        if self.arrived >= self.asked {
            return None;
        }
        if self.sent < self.asked {
            return Some(Stage::Send);
        }
        let packets = self.sent.saturating_mul(self.packets_each());
        Some(if self.sender.sent_packets < packets {
            Stage::SenderInterface
        } else if self.receiver.received_packets < packets {
            Stage::ReceiverInterface
        } else if self.receiver.ip_multicast < packets {
            Stage::ReceiverIp
        } else {
            Stage::ReceiverSocket
        })
    }

    /// Returns the result in words. `shorter_pass` says whether shorter datagrams pass the same way.
    pub(super) fn check(&self, shorter_pass: bool) -> Check {
        let (from, to) = (&self.from, &self.to);
        let way = format!(
            "{} bytes from {} ({}) to {} ({})",
            self.len, from.host, from.interface, to.host, to.interface
        );
        let packets = match self.packets_each() {
            1 => String::new(),
            packets => format!(", {packets} fragments each"),
        };
        let arrived = format!("{way}: {} of {} arrive{packets}", self.arrived, self.asked);
        let Some(stage) = self.stops_at() else {
            return Check::ok(Subject::Peer, arrived);
        };
        let (id, stop, advice) = self.advice(stage);
        let mtu = match shorter_pass {
            true => {
                "shorter datagrams pass, so compare the MTU of all interfaces and switches on \
                     the way; "
            }
            false => "",
        };
        let why =
            "records of this length do not arrive by multicast, and each is repaired over TCP";
        let (found, remedy) = (format!("{arrived}; {stop}"), format!("{mtu}{advice}"));
        if packets.is_empty() {
            Check::error(id, found, why, remedy)
        } else {
            Check::note(id, found, why, remedy)
        }
    }

    /// Returns the subject of a stage, the evidence, and the advice.
    fn advice(&self, stage: Stage) -> (Subject, String, String) {
        let (from, to, group) = (&self.from, &self.to, &self.group);
        let (sender, receiver) = (&self.sender, &self.receiver);
        match stage {
            Stage::Send => (
                Subject::PeerSend,
                format!(
                    "the kernel of {} refused {}",
                    from.host,
                    self.asked - self.sent
                ),
                format!(
                    "on {}: check the route (`ip route get {group}`), and rules of a firewall for \
                     output (`nft list ruleset`)",
                    from.host
                ),
            ),
            Stage::SenderInterface => (
                Subject::PeerSender,
                format!(
                    "{} sent {} packets and dropped {}",
                    from.interface, sender.sent_packets, sender.send_drops
                ),
                format!(
                    "on {}: with --ttl 0 nothing leaves the host; is {} the right interface \
                     (--interface)? does its queue drop (`tc -s qdisc show dev {}`)?",
                    from.host, from.interface, from.interface
                ),
            ),
            Stage::ReceiverInterface => (
                Subject::PeerReceiver,
                format!(
                    "{} of {} received {} packets and dropped {}",
                    to.interface, to.host, receiver.received_packets, receiver.receive_drops
                ),
                format!(
                    "between the hosts: does the switch snoop IGMP without a querier (`ip maddress \
                     show dev {0}`, the switch's table)? are both in one VLAN? behind a router, is \
                     --ttl large enough, and does it route multicast? is {0} the right interface of \
                     {1}?",
                    to.interface, to.host
                ),
            ),
            Stage::ReceiverIp => (
                Subject::PeerIp,
                format!(
                    "the IP layer of {} took {} packets to groups; its check of sources dropped {}",
                    to.host, receiver.ip_multicast, receiver.reverse_path_drops
                ),
                if receiver.reverse_path_drops > 0 {
                    format!(
                        "on {}: sysctl -w net.ipv4.conf.{}.rp_filter=2",
                        to.host, to.interface
                    )
                } else {
                    format!(
                        "on {}: is the group joined on {} (`ip maddress show`)? does a firewall drop \
                         before routing (`nft list ruleset`)?",
                        to.host, to.interface
                    )
                },
            ),
            Stage::ReceiverSocket => (
                Subject::PeerSocket,
                format!(
                    "{} could not put {} datagrams together, and {} found a full socket",
                    to.host, receiver.reassembly_failures, receiver.socket_drops
                ),
                format!(
                    "on {}: does a firewall drop UDP to {group} (`nft list ruleset`)? are socket \
                     buffers large enough (`tickcast doctor`)? other traffic can hide an earlier \
                     stage, so repeat this on quiet hosts",
                    to.host
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::Verdict;
    use super::*;

    fn passage(len: usize) -> Passage {
        let site = |host: &str| Site {
            host: host.into(),
            interface: "eth0".into(),
            mtu: 1500,
        };
        let passed = Counters {
            sent_packets: 10,
            received_packets: 10,
            ip_multicast: 10,
            ..Counters::default()
        };
        Passage {
            from: site("a"),
            to: site("b"),
            group: "239.255.74.10".into(),
            len,
            asked: 10,
            sent: 10,
            arrived: 0,
            sender: passed,
            receiver: passed,
        }
    }

    fn id(passage: &Passage) -> (Subject, Verdict) {
        let check = passage.check(false);
        (check.id(), check.verdict())
    }

    #[test]
    fn datagrams_that_all_arrive_stop_nowhere() {
        let whole = Passage {
            arrived: 10,
            sender: Counters::default(),
            ..passage(64)
        };
        assert_eq!(whole.stops_at(), None, "whatever the counters say");
        assert_eq!(id(&whole), (Subject::Peer, Verdict::Ok));
    }

    #[test]
    fn refused_datagrams_stop_at_the_send_call() {
        let refused = Passage {
            sent: 9,
            ..passage(64)
        };
        assert_eq!(id(&refused), (Subject::PeerSend, Verdict::Error));
    }

    #[test]
    fn datagrams_that_never_leave_stop_at_the_sender() {
        let mut kept = passage(64);
        kept.sender.sent_packets = 9;
        assert_eq!(id(&kept), (Subject::PeerSender, Verdict::Error));
        assert!(kept.check(false).remedy().contains("--ttl 0"));
    }

    #[test]
    fn datagrams_lost_on_the_way_stop_at_the_receiver() {
        let mut lost = passage(64);
        lost.receiver.received_packets = 0;
        assert_eq!(id(&lost), (Subject::PeerReceiver, Verdict::Error));
        assert!(lost.check(false).remedy().contains("querier"));
        assert!(!lost.check(false).remedy().contains("MTU"));
        assert!(
            lost.check(true)
                .remedy()
                .starts_with("shorter datagrams pass")
        );
    }

    #[test]
    fn datagrams_of_a_wrong_source_stop_in_the_ip_layer() {
        let mut dropped = passage(64);
        dropped.receiver.ip_multicast = 3;
        assert_eq!(id(&dropped), (Subject::PeerIp, Verdict::Error));
        assert!(dropped.check(false).remedy().contains("joined"));
        dropped.receiver.reverse_path_drops = 7;
        assert!(dropped.check(false).remedy().contains("rp_filter=2"));
    }

    #[test]
    fn datagrams_that_a_firewall_drops_stop_at_the_socket() {
        let dropped = passage(64);
        assert_eq!(id(&dropped), (Subject::PeerSocket, Verdict::Error));
        assert!(dropped.check(false).remedy().contains("firewall"));
    }

    #[test]
    fn fragments_are_counted_as_packets() {
        assert_eq!(passage(1472).packets_each(), 1);
        assert_eq!(passage(1473).packets_each(), 2);
        assert_eq!(passage(8972).packets_each(), 7);
        let mut long = passage(8972);
        assert_eq!(id(&long), (Subject::PeerSender, Verdict::Note));
        long.sender.sent_packets = 70;
        assert_eq!(id(&long).0, Subject::PeerReceiver);
        long.from.mtu = 0;
        assert_eq!(long.packets_each(), 1);
        long.from.mtu = 1;
        assert!(long.packets_each() > 1);
    }
}
