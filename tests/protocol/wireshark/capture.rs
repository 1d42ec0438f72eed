//! Captures in pcap format: datagrams over UDP, and TCP connections cut into segments.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Packets begin with the IPv4 header.
const LINK_RAW: u32 = 101;
const TCP: u8 = 6;
const UDP: u8 = 17;
pub(super) const PUBLISHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const SUBSCRIBER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// A capture in the making. Packets are counted from 0.
#[derive(Default)]
pub(super) struct Capture {
    records: Vec<u8>,
    packets: usize,
    /// The next TCP sequence by source and destination port.
    sent: BTreeMap<(u16, u16), u32>,
}

impl Capture {
    /// Adds a datagram to the group, and returns its packet.
    pub(super) fn datagram(&mut self, payload: &[u8]) -> usize {
        self.cut_datagram(payload, payload.len())
    }

    /// Adds a datagram of which only the first bytes were captured, and returns its packet.
    pub(super) fn cut_datagram(&mut self, payload: &[u8], captured: usize) -> usize {
        let mut packet = Vec::new();
        for word in [40_000, 7_500, 8 + payload.len() as u16, 0] {
            packet.extend(word.to_be_bytes());
        }
        packet.extend(payload);
        self.packet(UDP, [PUBLISHER, GROUP], &packet, payload.len() - captured)
    }

    /// Adds a segment between these ports, the publisher's being one of them, and returns its packet.
    pub(super) fn segment(&mut self, from: u16, to: u16, payload: &[u8]) -> usize {
        self.cut_segment(from, to, payload, payload.len())
    }

    /// Adds a segment of which only the first bytes were captured, and returns its packet.
    pub(super) fn cut_segment(
        &mut self,
        from: u16,
        to: u16,
        payload: &[u8],
        captured: usize,
    ) -> usize {
        let next = self.sent.entry((from, to)).or_insert(1);
        let sequence = std::mem::replace(next, *next + payload.len() as u32);
        let mut packet = Vec::new();
        packet.extend(from.to_be_bytes());
        packet.extend(to.to_be_bytes());
        packet.extend(sequence.to_be_bytes());
        packet.extend(1_u32.to_be_bytes());
        // A header of five words, PSH and ACK; a window; no checksum, no urgent pointer.
        packet.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(payload);
        let ends = match from < to {
            true => [PUBLISHER, SUBSCRIBER],
            false => [SUBSCRIBER, PUBLISHER],
        };
        self.packet(TCP, ends, &packet, payload.len() - captured)
    }

    /// Adds a stream between these ports, in segments of these lengths in turn. Returns its packets.
    pub(super) fn stream(
        &mut self,
        from: u16,
        to: u16,
        bytes: &[u8],
        lens: &[usize],
    ) -> std::ops::Range<usize> {
        let (first, mut rest) = (self.packets, bytes);
        for len in lens.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (segment, behind) = rest.split_at((*len).min(rest.len()));
            self.segment(from, to, segment);
            rest = behind;
        }
        first..self.packets
    }

    fn packet(
        &mut self,
        protocol: u8,
        [from, to]: [Ipv4Addr; 2],
        payload: &[u8],
        missing: usize,
    ) -> usize {
        let len = 20 + payload.len();
        let mut packet = vec![0x45, 0];
        packet.extend((len as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend(payload);
        let captured = len - missing;
        for word in [self.packets as u32, 0, captured as u32, len as u32] {
            self.records.extend(word.to_le_bytes());
        }
        self.records.extend(&packet[..captured]);
        self.packets += 1;
        self.packets - 1
    }

    /// Returns the file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, LINK_RAW] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(&self.records);
        file
    }

    pub(super) const fn packets(&self) -> usize {
        self.packets
    }
}
