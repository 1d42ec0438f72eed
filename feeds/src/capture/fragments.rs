//! Reassembles the payloads of IP packets from fragments, bounded in packets, bytes and age.
//!
//! An IP id is used again soon, so fragments join only within [`AGE_MAX`] of capture time (RFC 1122,
//! 3.3.2). Bytes that overlap must be equal (RFC 5722), and the checksum of UDP must be right. Otherwise the
//! id may be used again, so the fragment that contradicts the others begins another packet.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

use tickcast_reliability::types::Nanos;

use super::account::{Reason, Row};
use super::frame::{IpFragment, IpOrigin};

/// Packets held at once, and completed ones remembered; a further one evicts the oldest.
const PACKETS_MAX: usize = 64;
/// The most bytes that an IP packet carries; fragments of one that exceed them are not kept.
const PACKET_LEN_MAX: usize = 65_535;
/// Fragments of one packet are at most this long apart, as receivers do it.
const AGE_MAX: Nanos = Nanos::from_secs(30);
/// Fragments of one packet are at most this many fragments apart, where a capture has no times too.
const DISTANCE_MAX: u64 = 4_096;
const UDP_HEADER_LEN: usize = 8;
const LEN: usize = 4;
const CHECKSUM: Range<usize> = 6..8;
const PROTOCOL_UDP: u8 = 17;

/// Packets of which fragments are missing, and those completed last.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    pending: VecDeque<Pending>,
    /// The newest is at the back.
    completed: VecDeque<Completed>,
    /// Fragments so far.
    fragments: u64,
}

/// Result of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Its packet lacks others.
    Waits,
    /// It completes a packet.
    Completed(Reassembled),
    /// It came before, in a packet that was completed.
    Repeated(Row),
    /// These frames can be no packet.
    Damaged(Reason, Row),
}

/// A completed packet; its bytes behind the IP header are [`Reassembly::payload`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reassembled {
    pub(super) origin: IpOrigin,
    /// The frames that it came in, and their bytes.
    pub(super) row: Row,
}

/// When a fragment came: by the capture's clock, and among all fragments.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Nanos,
    number: u64,
}

impl Moment {
    /// Returns whether fragments of one packet may come at both. A stamp may be missing, or step back.
    fn is_near(self, later: Self) -> bool {
        let is_timed = self.at != Nanos::ZERO && later.at != Nanos::ZERO;
        let age = later.at.since(self.at).max(self.at.since(later.at));
        (!is_timed || age <= AGE_MAX) && later.number - self.number <= DISTANCE_MAX
    }
}

#[derive(Debug)]
struct Pending {
    key: IpOrigin,
    begun: Moment,
    bytes: Vec<u8>,
    /// Parts of the bytes that are there, which do not touch.
    held: Vec<Range<usize>>,
    /// Length of the whole, once the last fragment is there.
    len: Option<usize>,
    row: Row,
}

#[derive(Debug)]
struct Completed {
    key: IpOrigin,
    at: Moment,
    bytes: Vec<u8>,
}

impl Reassembly {
    /// Takes a fragment that was captured at `at`, in the frames of `row`.
    pub(super) fn add(
        &mut self,
        fragment: &IpFragment,
        bytes: &[u8],
        at: Nanos,
        row: Row,
    ) -> Added {
        if fragment.offset + bytes.len() > PACKET_LEN_MAX {
            return Added::Damaged(Reason::Malformed, row);
        }
        self.fragments += 1;
        let number = self.fragments;
        let now = Moment { at, number };
        let key = fragment.origin;
        let found = self.pending.iter().position(|p| p.key == key);
        let mut pending = match found.and_then(|index| self.pending.remove(index)) {
            Some(pending) if pending.begun.is_near(now) => pending,
            // The fragments of an aged packet stay incomplete.
            _ if self.is_repeated(key, now, fragment.offset, bytes) => return Added::Repeated(row),
            _ => Pending::new(key, now),
        };
        if !pending.add(fragment.offset, fragment.is_last, bytes) {
            self.begin(fragment, bytes, now, row);
            return Added::Damaged(Reason::Contradiction, pending.row);
        }
        pending.row.frames += row.frames;
        pending.row.bytes += row.bytes;
        if !pending.is_whole() {
            self.hold(pending, found);
            return Added::Waits;
        }
        let completed = self.complete(pending, now);
        if matches!(completed, Added::Damaged(Reason::Checksum, _)) {
            // Its frames are counted.
            self.begin(fragment, bytes, now, Row::default());
        }
        completed
    }

    /// Begins a packet with a fragment that does not belong to the one before of its id.
    fn begin(&mut self, fragment: &IpFragment, bytes: &[u8], now: Moment, row: Row) {
        let mut pending = Pending::new(fragment.origin, now);
        pending.add(fragment.offset, fragment.is_last, bytes);
        pending.row = row;
        self.hold(pending, None);
    }

    /// Takes a fragment that lies in the packet completed last, and came in the frames of `row`.
    pub(super) fn add_inner(&mut self, fragment: &IpFragment, at: Nanos, row: Row) -> Added {
        let part = self.payload().get(fragment.bytes.clone());
        let part = part.unwrap_or_default().to_vec();
        self.add(fragment, &part, at, row)
    }

    /// Returns whether a packet that was just completed has these bytes.
    fn is_repeated(&self, key: IpOrigin, now: Moment, offset: usize, bytes: &[u8]) -> bool {
        self.completed.iter().any(|packet| {
            let part = packet.bytes.get(offset..offset + bytes.len());
            packet.key == key && packet.at.is_near(now) && part == Some(bytes)
        })
    }

    /// Holds a packet, in its former place if it had one.
    fn hold(&mut self, pending: Pending, place: Option<usize>) {
        if self.pending.len() == PACKETS_MAX {
            self.pending.pop_front();
        }
        let place = place.unwrap_or(self.pending.len());
        self.pending.insert(place, pending);
    }

    fn complete(&mut self, pending: Pending, now: Moment) -> Added {
        let Pending {
            key, bytes, row, ..
        } = pending;
        if key.protocol == PROTOCOL_UDP {
            let Some(udp) = udp(&bytes) else {
                return Added::Damaged(Reason::Malformed, row);
            };
            // Only fragments are checked. The NIC fills in the checksum of a packet that is sent whole, so
            // a capture on the sending host has wrong ones there. It can't for fragments: the host does.
            if !is_checksum_right(&key, udp) {
                return Added::Damaged(Reason::Checksum, row);
            }
        }
        if self.completed.len() == PACKETS_MAX {
            self.completed.pop_front();
        }
        self.completed.push_back(Completed {
            key,
            at: now,
            bytes,
        });
        Added::Completed(Reassembled { origin: key, row })
    }

    /// Returns the bytes behind the IP header of the packet completed last.
    pub(super) fn payload(&self) -> &[u8] {
        let last = self.completed.back();
        last.map_or(&[], |packet| &packet.bytes[..])
    }
}

impl Pending {
    fn new(key: IpOrigin, begun: Moment) -> Self {
        Self {
            key,
            begun,
            bytes: Vec::new(),
            held: Vec::new(),
            len: None,
            row: Row::default(),
        }
    }

    /// Adds a fragment; returns `false` if it contradicts the others.
    fn add(&mut self, offset: usize, is_last: bool, bytes: &[u8]) -> bool {
        let end = offset + bytes.len();
        let is_equal = |held: &Range<usize>| {
            let both = held.start.max(offset)..held.end.min(end);
            both.is_empty()
                || self.bytes[both.clone()] == bytes[both.start - offset..both.end - offset]
        };
        if !self.held.iter().all(is_equal) {
            return false;
        }
        let len = self.len.or(is_last.then_some(end));
        let is_beyond = len.is_some_and(|len| end.max(self.bytes.len()) > len);
        if is_beyond || (is_last && len != Some(end)) {
            return false;
        }
        self.len = len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        let mut joined = offset..end;
        self.held.retain(|held| {
            let is_apart = held.end < joined.start || joined.end < held.start;
            if !is_apart {
                joined = held.start.min(joined.start)..held.end.max(joined.end);
            }
            is_apart
        });
        self.held.push(joined);
        true
    }

    /// Returns whether all bytes are there, from 0 to the end.
    fn is_whole(&self) -> bool {
        matches!(&self.held[..], [all] if all.start == 0 && Some(all.end) == self.len)
    }
}

/// Returns a UDP packet up to the end by its header.
fn udp(bytes: &[u8]) -> Option<&[u8]> {
    let field = bytes.get(LEN..)?.first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*field));
    if len < UDP_HEADER_LEN {
        return None;
    }
    bytes.get(..len)
}

/// Returns whether the checksum of a UDP packet is right, or absent.
fn is_checksum_right(key: &IpOrigin, udp: &[u8]) -> bool {
    if udp.get(CHECKSUM) == Some(&[0, 0]) {
        return true;
    }
    let addresses = [key.source, key.destination].map(|address| match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    });
    let pseudo_header = addresses[0] + addresses[1] + u64::from(PROTOCOL_UDP) + udp.len() as u64;
    let mut total = pseudo_header + sum(udp);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total == 0xffff
}

/// Returns the sum of the 16-bit words.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words
        .map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)))
        .sum()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::net::Ipv4Addr;

    use super::*;
    use crate::capture::Capture;

    /// Capture time of the tests' fragments.
    const NOW: Nanos = Nanos::from_secs(1_000_000);

    #[test]
    fn fragments_held_have_the_bytes_of_one_packet() {
        let mut reassembly = Reassembly::default();
        let bytes = vec![0; 1 << 20];
        let mut add = |offset: usize, len: usize| {
            let fragment = IpFragment {
                origin: IpOrigin {
                    source: Ipv4Addr::LOCALHOST.into(),
                    destination: Ipv4Addr::LOCALHOST.into(),
                    protocol: PROTOCOL_UDP,
                    id: 1,
                },
                offset,
                is_last: false,
                bytes: 0..len,
            };
            let added = reassembly.add(&fragment, &bytes[..len], NOW, row(1));
            let held = reassembly.pending.iter().map(|p| p.bytes.len());
            (added == Added::Waits, held.sum::<usize>())
        };
        assert_eq!(add(0, bytes.len()), (false, 0), "longer than a packet");
        assert_eq!(add(65_528, 8), (false, 0), "beyond the end of a packet");
        assert_eq!(add(65_528, 7), (true, PACKET_LEN_MAX), "up to its end");
        for offset in (0..1_024).step_by(8) {
            assert_eq!(add(offset, 60_000), (true, PACKET_LEN_MAX), "overlapping");
        }
    }

    /// A UDP packet with a length field that need not be right.
    fn packet(len: usize, field: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
        bytes[..4].copy_from_slice(&[0x43, 0x21, 0x12, 0x34]);
        bytes[4..6].copy_from_slice(&field.to_be_bytes());
        bytes[CHECKSUM].fill(0);
        bytes
    }

    /// Fragment of packet `id` with all bytes of `whole` in a range.
    fn fragment(id: u32, whole: &[u8], bytes: Range<usize>) -> IpFragment {
        IpFragment {
            origin: IpOrigin {
                source: [10, 0, 0, 1].into(),
                destination: [233, 0, 0, 1].into(),
                protocol: PROTOCOL_UDP,
                id,
            },
            offset: bytes.start,
            is_last: bytes.end == whole.len(),
            bytes,
        }
    }

    fn add_at(
        reassembly: &mut Reassembly,
        whole: &[u8],
        fragment: &IpFragment,
        at: Nanos,
    ) -> Added {
        let bytes = &whole[fragment.bytes.clone()];
        let row = Row {
            frames: 1,
            bytes: 100 + bytes.len() as u64,
        };
        reassembly.add(fragment, bytes, at, row)
    }

    fn add(
        reassembly: &mut Reassembly,
        whole: &[u8],
        fragment: &IpFragment,
    ) -> Option<(IpOrigin, Row)> {
        match add_at(reassembly, whole, fragment, NOW) {
            Added::Completed(packet) => Some((packet.origin, packet.row)),
            _ => None,
        }
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
            let expected = (parts[0].origin, row);
            let completed = add(&mut reassembly, &whole, &parts[order[2]]);
            assert_eq!(completed, Some(expected), "{order:?}");
            assert_eq!(reassembly.payload(), whole);
            assert!(reassembly.pending.is_empty());
        }
    }

    #[test]
    fn fragments_of_other_packets_are_kept_apart() {
        let whole = packet(16, 16);
        let (first, second) = (fragment(1, &whole, 0..8), fragment(1, &whole, 8..16));
        let origin = second.origin;
        for origin in [
            IpOrigin { id: 2, ..origin },
            IpOrigin {
                source: [10, 0, 0, 2].into(),
                ..origin
            },
            IpOrigin {
                destination: [233, 0, 0, 2].into(),
                ..origin
            },
            IpOrigin {
                protocol: 47,
                ..origin
            },
        ] {
            let other = IpFragment {
                origin,
                ..second.clone()
            };
            let mut reassembly = Reassembly::default();
            assert_eq!(add(&mut reassembly, &whole, &first), None);
            assert_eq!(add(&mut reassembly, &whole, &other), None);
            assert!(add(&mut reassembly, &whole, &second).is_some());
        }
    }

    #[test]
    fn udp_length_beyond_reassembled_bytes_is_no_packet() {
        for (field, is_packet) in [(7, false), (8, true), (15, true), (16, true), (17, false)] {
            let whole = packet(16, field);
            let mut reassembly = Reassembly::default();
            assert_eq!(
                add(&mut reassembly, &whole, &fragment(1, &whole, 8..16)),
                None
            );
            let completed = add(&mut reassembly, &whole, &fragment(1, &whole, 0..8));
            assert_eq!(completed.is_some(), is_packet, "{field}");
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
    fn packet_of_thousands_of_fragments_is_completed() {
        let whole = packet(65_528, 65_528);
        let mut reassembly = Reassembly::default();
        let starts = (0..whole.len()).step_by(24);
        let completed = starts.filter_map(|start| {
            let range = start..(start + 24).min(whole.len());
            add(&mut reassembly, &whole, &fragment(1, &whole, range))
        });
        assert_eq!(completed.count(), 1);
    }

    /// The row of `n` fragments of 8 bytes.
    fn row(n: u64) -> Row {
        Row {
            frames: n,
            bytes: n * 108,
        }
    }

    #[test]
    fn fragments_of_a_reused_id_do_not_join() {
        let whole = packet(16, 16);
        let (first, last) = (fragment(1, &whole, 0..8), fragment(1, &whole, 8..16));
        let join = |begun: u64, then: u64| {
            let mut reassembly = Reassembly::default();
            assert_eq!(
                add_at(&mut reassembly, &whole, &last, Nanos(begun)),
                Added::Waits
            );
            let added = add_at(&mut reassembly, &whole, &first, Nanos(then));
            assert_eq!(reassembly.pending.len(), usize::from(added == Added::Waits));
            matches!(added, Added::Completed(packet) if packet.row == row(2))
        };
        let (now, limit) = (NOW.0, AGE_MAX.0);
        for (begun, then, is_one) in [
            (now, now + limit, true),
            (now, now + limit + 1, false),
            (now + limit, now, true),
            (now + limit + 1, now, false),
            (0, now, true),
            (now, 0, true),
            (0, 0, true),
        ] {
            assert_eq!(join(begun, then), is_one, "{begun} {then}");
        }
    }

    #[test]
    fn packet_behind_an_aged_one_is_whole() {
        let (old, new) = (packet(16, 16), [packet(15, 16), vec![1]].concat());
        let mut reassembly = Reassembly::default();
        let late = NOW.after(AGE_MAX).after(Nanos(1));
        add_at(&mut reassembly, &old, &fragment(1, &old, 8..16), NOW);
        let first = add_at(&mut reassembly, &new, &fragment(1, &new, 0..8), late);
        assert_eq!(first, Added::Waits);
        let last = add_at(&mut reassembly, &new, &fragment(1, &new, 8..16), late);
        assert!(matches!(last, Added::Completed(packet) if packet.row == row(2)));
        assert_eq!(reassembly.payload(), new);
    }

    #[test]
    fn fragments_far_apart_without_times_do_not_join() {
        let whole = packet(16, 16);
        let (first, last) = (fragment(1, &whole, 0..8), fragment(1, &whole, 8..16));
        for (between, is_one) in [(DISTANCE_MAX - 1, true), (DISTANCE_MAX, false)] {
            let mut reassembly = Reassembly::default();
            add_at(&mut reassembly, &whole, &first, Nanos::ZERO);
            for _ in 0..between {
                let other = fragment(2, &whole, 0..8);
                assert_eq!(
                    add_at(&mut reassembly, &whole, &other, Nanos::ZERO),
                    Added::Waits
                );
            }
            let added = add_at(&mut reassembly, &whole, &last, Nanos::ZERO);
            assert_eq!(added != Added::Waits, is_one);
        }
    }

    #[test]
    fn equal_overlap_is_assembled_another_is_damage() {
        let whole = packet(32, 32);
        let orders = [
            [0..16, 8..24, 24..32],
            [8..24, 24..32, 0..16],
            [0..32, 8..16, 0..8],
        ];
        for order in orders {
            for damaged in [None, Some(8), Some(15)] {
                let mut reassembly = Reassembly::default();
                let mut results = Vec::new();
                for (n, range) in order.iter().enumerate() {
                    let mut bytes = whole.clone();
                    // The second of two that overlap differs.
                    let is_second = order[..n]
                        .iter()
                        .any(|o| o.start < range.end && range.start < o.end);
                    if let Some(at) = damaged.filter(|_| is_second) {
                        bytes[at] ^= 1;
                    }
                    let part = fragment(1, &whole, range.clone());
                    results.push(add_at(&mut reassembly, &bytes, &part, NOW));
                }
                let completed = results
                    .iter()
                    .filter(|r| matches!(r, Added::Completed(_)))
                    .count();
                let is_early = order[0] == (0..32);
                assert_eq!(
                    completed,
                    usize::from(damaged.is_none() || is_early),
                    "{order:?}"
                );
                if completed == 1 {
                    assert_eq!(reassembly.payload(), whole);
                } else {
                    let frames = results.iter().map(|r| match r {
                        Added::Damaged(Reason::Contradiction, row) => row.frames,
                        _ => 0,
                    });
                    let waiting = reassembly.pending.iter().map(|it| it.row.frames);
                    let counts = (frames.sum::<u64>(), waiting.sum::<u64>());
                    assert!(counts.0 > 0 && counts.0 + counts.1 == 3, "{results:?}");
                }
            }
        }
    }

    #[test]
    fn fragments_of_two_ends_are_damage() {
        let (short, long) = (packet(16, 16), packet(24, 24));
        let last = |whole: &[u8]| fragment(1, whole, 8..whole.len());
        for (one, other) in [(&short, &long), (&long, &short)] {
            let mut reassembly = Reassembly::default();
            assert_eq!(add_at(&mut reassembly, one, &last(one), NOW), Added::Waits);
            let added = add_at(&mut reassembly, other, &last(other), NOW);
            assert!(matches!(added, Added::Damaged(Reason::Contradiction, row) if row.frames == 1));
            // The other one belongs to a packet that begins with it.
            let first = fragment(1, other, 0..8);
            let added = add_at(&mut reassembly, other, &first, NOW);
            assert!(matches!(added, Added::Completed(_)), "{added:?}");
        }
        let mut reassembly = Reassembly::default();
        add_at(&mut reassembly, &short, &last(&short), NOW);
        let beyond = fragment(1, &long, 16..23);
        let added = add_at(&mut reassembly, &long, &beyond, NOW);
        assert!(matches!(added, Added::Damaged(Reason::Contradiction, row) if row.frames == 1));
    }

    #[test]
    fn fragment_behind_its_completed_packet_is_repeated() {
        let whole = packet(16, 16);
        let parts = [fragment(1, &whole, 0..8), fragment(1, &whole, 8..16)];
        let complete = |reassembly: &mut Reassembly| {
            assert_eq!(add_at(reassembly, &whole, &parts[0], NOW), Added::Waits);
            assert!(add(reassembly, &whole, &parts[1]).is_some());
        };
        for part in &parts {
            let mut reassembly = Reassembly::default();
            complete(&mut reassembly);
            for (after, expected) in [
                (0, Added::Repeated(row(1))),
                (AGE_MAX.0, Added::Repeated(row(1))),
                (AGE_MAX.0 + 1, Added::Waits),
            ] {
                let at = NOW.after(Nanos(after));
                assert_eq!(add_at(&mut reassembly, &whole, part, at), expected);
            }
        }
        // Other bytes are of another packet.
        let mut reassembly = Reassembly::default();
        complete(&mut reassembly);
        let other = [&whole[..15], &[!whole[15]]].concat();
        assert_eq!(
            add_at(&mut reassembly, &other, &parts[1], NOW),
            Added::Waits
        );
        assert!(add(&mut reassembly, &other, &parts[0]).is_some());
        assert_eq!(reassembly.payload(), other);
    }

    #[test]
    fn completed_packets_remembered_are_bounded() {
        let whole = packet(16, 16);
        let mut reassembly = Reassembly::default();
        for id in 0..=PACKETS_MAX as u32 {
            add_at(&mut reassembly, &whole, &fragment(id, &whole, 0..8), NOW);
            assert!(add(&mut reassembly, &whole, &fragment(id, &whole, 8..16)).is_some());
        }
        assert_eq!(reassembly.completed.len(), PACKETS_MAX);
        let again = |id| add_at(&mut reassembly, &whole, &fragment(id, &whole, 0..8), NOW);
        assert_eq!([1, 0].map(again), [Added::Repeated(row(1)), Added::Waits]);
    }

    #[test]
    fn checksum_of_a_reassembled_packet_is_verified() {
        let v4 = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([233, 0, 0, 1]));
        let v6 = (
            IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]),
            IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 9]),
        );
        for ((source, destination), right) in [(v4, 0x6a15_u16), (v6, 0x5f8a)] {
            for len in [17, 24_u16] {
                let mut whole = packet(len.into(), len);
                // An odd last byte counts as if a zero followed.
                whole[16..].fill(0);
                let sum_of_len = 2 * (24 - len);
                let right = fold(u32::from(right) + u32::from(sum_of_len));
                for (checksum, is_right) in [
                    (right, true),
                    (0, true),
                    (right ^ 1, false),
                    (!right, false),
                ] {
                    whole[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
                    let part = |range| {
                        let mut part = fragment(1, &whole, range);
                        (part.origin.source, part.origin.destination) = (source, destination);
                        part
                    };
                    let mut reassembly = Reassembly::default();
                    let parts = [part(0..16), part(16..len.into())];
                    add_at(&mut reassembly, &whole, &parts[0], NOW);
                    let added = add_at(&mut reassembly, &whole, &parts[1], NOW);
                    match added {
                        Added::Completed(_) => assert!(is_right, "{checksum:#x}"),
                        Added::Damaged(Reason::Checksum, row) => {
                            assert_eq!((is_right, row.frames), (false, 2), "{checksum:#x}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    /// Reads a capture of IPv4 fragments of one id: seconds, flags with the offset, and bytes.
    fn read(frames: &[(u32, u16, &[u8])]) -> (usize, Capture) {
        let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0, 0, 1, 0, 101, 0, 0, 0]);
        for (seconds, flags, body) in frames {
            let len = body.len() as u32 + 20;
            for word in [1_700_000_000 + seconds, 0, len, len] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend([0x45, 0, 0, len as u8, 0, 1]);
            bytes.extend(flags.to_be_bytes());
            bytes.extend([64, 17, 0, 0, 10, 0, 0, 1, 233, 0, 0, 1]);
            bytes.extend(*body);
        }
        let mut capture = Capture::from_reader("test", Cursor::new(bytes)).unwrap();
        let mut datagrams = 0;
        while capture.next().unwrap().is_some() {
            datagrams += 1;
        }
        assert_eq!(capture.stats().account.total().frames, frames.len() as u64);
        (datagrams, capture)
    }

    /// First fragment, and the last one, of a packet of 16 bytes.
    const FIRST: u16 = 0x2000;
    const LAST: u16 = 1;

    #[test]
    fn capture_with_repeated_fragments_is_whole() {
        let whole = packet(16, 16);
        let (first, last) = whole.split_at(8);
        let parts = [(0, FIRST, first), (0, LAST, last)];
        let (datagrams, capture) = read(&[parts[0], parts[1], parts[0], parts[1]]);
        assert_eq!((datagrams, capture.faults()), (1, Vec::new()));
        let repeated = capture.stats().account.of(Reason::RepeatedFragment);
        assert_eq!(repeated.frames, 2);
    }

    #[test]
    fn capture_of_damaged_fragments_names_each_reason() {
        let whole = packet(16, 16);
        let (first, last) = whole.split_at(8);
        let mut wrong = first.to_vec();
        wrong[CHECKSUM].fill(7);
        let cases = [
            (0, first, 31, Reason::Fragment, "incomplete"),
            (0, &wrong, 0, Reason::Checksum, "checksum"),
        ];
        for (begun, first, then, reason, text) in cases {
            let (datagrams, capture) = read(&[(begun, FIRST, first), (then, LAST, last)]);
            assert_eq!(
                (datagrams, capture.stats().account.of(reason).frames),
                (0, 2)
            );
            assert!(capture.faults()[0].contains(text), "{:?}", capture.faults());
        }
        let (datagrams, capture) = read(&[(0, FIRST, first), (0, FIRST, &wrong), (0, LAST, last)]);
        let account = capture.stats().account;
        let frames = [Reason::Contradiction, Reason::Checksum].map(|it| account.of(it).frames);
        assert_eq!((datagrams, frames), (0, [1, 2]));
        assert!(capture.faults()[0].contains("contradict"));
    }

    #[test]
    fn wrong_checksum_of_an_unfragmented_packet_is_no_fault() {
        let mut whole = packet(16, 16);
        whole[CHECKSUM].fill(7);
        let (datagrams, capture) = read(&[(0, 0, &whole)]);
        assert_eq!((datagrams, capture.faults()), (1, Vec::new()));
    }

    /// Adds the carry of a sum of ones' complement.
    fn fold(sum: u32) -> u16 {
        ((sum & 0xffff) + (sum >> 16)) as u16
    }
}
