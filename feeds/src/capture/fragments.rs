//! Reassembles UDP packets from IP fragments, bounded in packets and bytes.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::account::Row;
use super::frame::IpFragment;

/// Packets held at once; a further one evicts the oldest.
const PACKETS_MAX: usize = 64;
/// Fragments of one packet; a packet of more is not completed.
const FRAGMENTS_MAX: usize = 128;
/// The most bytes that an IP packet carries; fragments of one that exceed them are not kept.
const PACKET_LEN_MAX: usize = 65_535;
const UDP_HEADER_LEN: usize = 8;

/// Packets of which fragments are missing.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    pending: VecDeque<Pending>,
    /// The UDP packet completed last, with its header.
    whole: Vec<u8>,
}

#[derive(Debug)]
struct Pending {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// Offset and bytes, by offset.
    parts: Vec<(usize, Vec<u8>)>,
    /// Length of the whole, once the last fragment is there.
    len: Option<usize>,
    row: Row,
}

/// A completed packet; its payload is [`Reassembly::payload`].
#[derive(Debug)]
pub(super) struct Reassembled {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The frames that it came in, and their bytes.
    pub(super) row: Row,
}

impl Reassembly {
    /// Takes a fragment, of a record of `record_bytes`; returns the packet that it completes.
    pub(super) fn add(
        &mut self,
        fragment: &IpFragment,
        bytes: &[u8],
        record_bytes: u64,
    ) -> Option<Reassembled> {
        if fragment.offset + bytes.len() > PACKET_LEN_MAX {
            return None;
        }
        let is_of = |p: &Pending| {
            (p.source, p.destination, p.id) == (fragment.source, fragment.destination, fragment.id)
        };
        let index = match self.pending.iter().position(is_of) {
            Some(index) => index,
            None => {
                if self.pending.len() == PACKETS_MAX {
                    self.pending.pop_front();
                }
                self.pending.push_back(Pending {
                    source: fragment.source,
                    destination: fragment.destination,
                    id: fragment.id,
                    parts: Vec::new(),
                    len: None,
                    row: Row::default(),
                });
                self.pending.len() - 1
            }
        };
        let pending = self.pending.get_mut(index)?;
        pending.row.frames += 1;
        pending.row.bytes += record_bytes;
        if fragment.is_last {
            pending.len = Some(fragment.offset + bytes.len());
        }
        let at = pending
            .parts
            .partition_point(|(offset, _)| *offset < fragment.offset);
        let is_there =
            (pending.parts.get(at)).is_some_and(|(offset, _)| *offset == fragment.offset);
        let has_room =
            pending.parts.len() < FRAGMENTS_MAX && pending.bytes() + bytes.len() <= PACKET_LEN_MAX;
        if !is_there && has_room {
            pending.parts.insert(at, (fragment.offset, bytes.to_vec()));
        }
        if !pending.is_whole() {
            return None;
        }
        let pending = self.pending.remove(index)?;
        self.whole.clear();
        pending
            .parts
            .iter()
            .for_each(|(_, bytes)| self.whole.extend(bytes));
        let &[s0, s1, d0, d1, l0, l1, ..] = self.whole.get(..UDP_HEADER_LEN)? else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        if !(UDP_HEADER_LEN..=self.whole.len()).contains(&len) {
            return None;
        }
        self.whole.truncate(len);
        Some(Reassembled {
            source: SocketAddr::new(pending.source, u16::from_be_bytes([s0, s1])),
            destination: SocketAddr::new(pending.destination, u16::from_be_bytes([d0, d1])),
            row: pending.row,
        })
    }

    /// Returns the payload of the packet completed last.
    pub(super) fn payload(&self) -> &[u8] {
        self.whole.get(UDP_HEADER_LEN..).unwrap_or_default()
    }
}

impl Pending {
    /// Returns the bytes of all parts.
    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Returns whether the parts follow one another from 0 to the end.
    fn is_whole(&self) -> bool {
        let end = self.parts.iter().try_fold(0, |end, (offset, bytes)| {
            (*offset == end).then_some(end + bytes.len())
        });
        end.is_some() && end == self.len
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn fragments_held_have_the_bytes_of_one_packet() {
        let mut reassembly = Reassembly::default();
        let bytes = vec![0; 1 << 20];
        let mut add = |offset: usize, len: usize| {
            let fragment = IpFragment {
                source: Ipv4Addr::LOCALHOST.into(),
                destination: Ipv4Addr::LOCALHOST.into(),
                id: 1,
                offset,
                is_last: false,
                bytes: 0..len,
            };
            assert!(reassembly.add(&fragment, &bytes[..len], 0).is_none());
            reassembly.pending.iter().map(Pending::bytes).sum::<usize>()
        };
        assert_eq!(add(0, bytes.len()), 0, "longer than a packet");
        assert_eq!(add(65_528, 8), 0, "beyond the end of a packet");
        assert_eq!(add(65_528, 7), 7, "up to the end of a packet");
        assert_eq!(add(65_520, 8), 15);
        for offset in (0..FRAGMENTS_MAX * 8).step_by(8) {
            assert!(add(offset, 60_000) <= PACKET_LEN_MAX, "overlapping");
        }
    }

    /// A UDP packet with a length field that need not be right.
    fn packet(len: usize, field: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
        bytes[..4].copy_from_slice(&[0x43, 0x21, 0x12, 0x34]);
        bytes[4..6].copy_from_slice(&field.to_be_bytes());
        bytes
    }

    /// Fragment of packet `id` with all bytes of `whole` in a range.
    fn fragment(id: u32, whole: &[u8], bytes: std::ops::Range<usize>) -> IpFragment {
        IpFragment {
            source: [10, 0, 0, 1].into(),
            destination: [233, 0, 0, 1].into(),
            id,
            offset: bytes.start,
            is_last: bytes.end == whole.len(),
            bytes,
        }
    }

    fn add(
        reassembly: &mut Reassembly,
        whole: &[u8],
        fragment: &IpFragment,
    ) -> Option<(SocketAddr, SocketAddr, Row)> {
        let bytes = &whole[fragment.bytes.clone()];
        let record_bytes = 100 + bytes.len() as u64;
        let packet = reassembly.add(fragment, bytes, record_bytes)?;
        Some((packet.source, packet.destination, packet.row))
    }

    #[test]
    fn reassembled_packet_has_addresses_payload_and_row() {
        let whole = packet(3_000, 3_000);
        let parts = [0..1_000, 1_000..2_000, 2_000..3_000].map(|r| fragment(1, &whole, r));
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut reassembly = Reassembly::default();
            for n in [order[0], order[0], order[1]] {
                assert_eq!(add(&mut reassembly, &whole, &parts[n]), None);
            }
            let row = Row {
                frames: 4,
                bytes: 4 * 1_100,
            };
            let expected = (
                ([10, 0, 0, 1], 0x4321).into(),
                ([233, 0, 0, 1], 0x1234).into(),
                row,
            );
            let completed = add(&mut reassembly, &whole, &parts[order[2]]);
            assert_eq!(completed, Some(expected), "{order:?}");
            assert_eq!(reassembly.payload(), &whole[8..]);
            assert!(reassembly.pending.is_empty());
        }
    }

    #[test]
    fn fragments_of_other_packets_are_kept_apart() {
        let whole = packet(16, 16);
        let (first, second) = (fragment(1, &whole, 0..8), fragment(1, &whole, 8..16));
        let (source, destination) = ([10, 0, 0, 2].into(), [233, 0, 0, 2].into());
        for other in [
            IpFragment {
                id: 2,
                ..second.clone()
            },
            IpFragment {
                source,
                ..second.clone()
            },
            IpFragment {
                destination,
                ..second.clone()
            },
        ] {
            let mut reassembly = Reassembly::default();
            assert_eq!(add(&mut reassembly, &whole, &first), None);
            assert_eq!(add(&mut reassembly, &whole, &other), None);
            assert!(add(&mut reassembly, &whole, &second).is_some());
        }
    }

    #[test]
    fn udp_length_beyond_reassembled_bytes_is_no_packet() {
        for (field, payload) in [
            (7, None),
            (8, Some(0)),
            (15, Some(7)),
            (16, Some(8)),
            (17, None),
        ] {
            let whole = packet(16, field);
            let mut reassembly = Reassembly::default();
            assert_eq!(
                add(&mut reassembly, &whole, &fragment(1, &whole, 8..16)),
                None
            );
            let completed = add(&mut reassembly, &whole, &fragment(1, &whole, 0..8));
            let len = completed.map(|_| reassembly.payload().len());
            assert_eq!(len, payload, "{field}");
        }
    }

    #[test]
    fn further_packet_evicts_the_oldest() {
        let whole = packet(16, 16);
        let mut reassembly = Reassembly::default();
        for id in 0..PACKETS_MAX as u32 {
            assert_eq!(
                add(&mut reassembly, &whole, &fragment(id, &whole, 0..8)),
                None
            );
        }
        // At the limit nothing is evicted; one more packet takes the place of the first.
        assert!(add(&mut reassembly, &whole, &fragment(0, &whole, 8..16)).is_some());
        for id in [100, 101] {
            assert_eq!(
                add(&mut reassembly, &whole, &fragment(id, &whole, 0..8)),
                None
            );
        }
        assert_eq!(reassembly.pending.len(), PACKETS_MAX);
        assert!(add(&mut reassembly, &whole, &fragment(2, &whole, 8..16)).is_some());
        assert_eq!(
            add(&mut reassembly, &whole, &fragment(1, &whole, 8..16)),
            None
        );
    }

    #[test]
    fn packet_of_too_many_fragments_is_not_completed() {
        for (fragments, is_completed) in [(FRAGMENTS_MAX, true), (FRAGMENTS_MAX + 1, false)] {
            let whole = packet(8 * fragments, 8 * fragments as u16);
            let mut reassembly = Reassembly::default();
            let parts = (0..fragments).map(|n| fragment(1, &whole, 8 * n..8 * n + 8));
            let completed = parts.filter_map(|part| add(&mut reassembly, &whole, &part));
            assert_eq!(completed.count(), usize::from(is_completed), "{fragments}");
        }
    }
}
