//! Takes a datagram out of an Ethernet frame. Frames are hostile until checked here.
//!
//! The checks are those of the kernel's UDP, except for the UDP checksum, which a sender in the same host
//! leaves unfinished. The checksum of the IP header protects both addresses, the program compared the
//! group and the port, and the receiving core checks the CRC of every datagram
//! (docs/decisions/0062).

use std::net::{Ipv4Addr, SocketAddrV4};

const ETHERNET_LEN: usize = 14;
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// Length of all headers before a datagram, in bytes.
pub(crate) const HEADERS_LEN: usize = ETHERNET_LEN + IP_LEN + UDP_LEN;

/// Places in the frame.
pub(crate) const AT_ETHERTYPE: usize = 12;
pub(crate) const AT_VERSION: usize = ETHERNET_LEN;
const AT_TOTAL_LEN: usize = ETHERNET_LEN + 2;
pub(crate) const AT_FRAGMENT: usize = ETHERNET_LEN + 6;
pub(crate) const AT_PROTOCOL: usize = ETHERNET_LEN + 9;
const AT_SOURCE: usize = ETHERNET_LEN + 12;
pub(crate) const AT_DESTINATION: usize = ETHERNET_LEN + 16;
pub(crate) const AT_PORT: usize = ETHERNET_LEN + IP_LEN + 2;
const AT_UDP_LEN: usize = ETHERNET_LEN + IP_LEN + 4;

/// IPv4, in network order.
pub(crate) const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// Version 4, with a header of five words: without options.
pub(crate) const VERSION_AND_LEN: u8 = 0x45;
/// All bits of a fragment's field but "don't fragment", in network order.
pub(crate) const FRAGMENT_MASK: [u8; 2] = [0xbf, 0xff];
pub(crate) const PROTOCOL_UDP: u8 = 17;

/// A datagram within its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpFrame<'a> {
    /// Address of the sender.
    pub(crate) from: Ipv4Addr,
    pub(crate) bytes: &'a [u8],
}

/// Returns the datagram of a frame. Returns `None` unless the frame is plain, whole, undamaged in its IP
/// header and addressed to `group`.
pub(crate) fn parse(frame: &[u8], group: SocketAddrV4) -> Option<UdpFrame<'_>> {
    let (headers, rest) = frame.split_first_chunk::<HEADERS_LEN>()?;
    let pair = |at: usize| [headers[at], headers[at + 1]];
    let number = |at: usize| usize::from(u16::from_be_bytes(pair(at)));
    let address = |at: usize| -> [u8; 4] { std::array::from_fn(|i| headers[at + i]) };
    let fragment = u16::from_ne_bytes(pair(AT_FRAGMENT)) & u16::from_ne_bytes(FRAGMENT_MASK);
    let is_plain = pair(AT_ETHERTYPE) == ETHERTYPE_IPV4
        && headers[AT_VERSION] == VERSION_AND_LEN
        && fragment == 0
        && headers[AT_PROTOCOL] == PROTOCOL_UDP;
    let is_ours = address(AT_DESTINATION) == group.ip().octets()
        && number(AT_PORT) == usize::from(group.port());
    // The sum of all words of a valid header, with the carries, has all bits set.
    let sum = (AT_VERSION..AT_VERSION + IP_LEN)
        .step_by(2)
        .map(|at| u32::from(u16::from_ne_bytes(pair(at))))
        .sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let is_undamaged = (sum & 0xffff) + (sum >> 16) == 0xffff;
    if !(is_plain && is_ours && is_undamaged) {
        return None;
    }
    // Short frames are padded, so the IP packet may end before its frame, and the datagram before its packet.
    let (in_ip, in_udp) = (number(AT_TOTAL_LEN), number(AT_UDP_LEN));
    let len = in_udp.checked_sub(UDP_LEN)?;
    let is_whole = IP_LEN + in_udp <= in_ip && ETHERNET_LEN + in_ip <= frame.len();
    let bytes = rest.get(..len).filter(|_| is_whole)?;
    Some(UdpFrame {
        from: address(AT_SOURCE).into(),
        bytes,
    })
}

/// Frames of tests, built from their fields.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 7, 1), 7500);
    pub(crate) const SENDER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 7);

    /// Sets the checksum of the IP header.
    pub(crate) fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
        frame[AT_VERSION + 10..AT_VERSION + 12].fill(0);
        let words = frame[AT_VERSION..AT_VERSION + IP_LEN].chunks_exact(2);
        let sum: u64 = words
            .map(|w| u64::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let checksum = !((sum % 0xffff) as u16);
        frame[AT_VERSION + 10..AT_VERSION + 12].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// Returns a plain frame of `SENDER` to `GROUP`.
    pub(crate) fn frame(bytes: &[u8]) -> Vec<u8> {
        let in_udp = (UDP_LEN + bytes.len()) as u16;
        let mut all = vec![0x01, 0x00, 0x5e, 0x7f, 0x07, 0x01, 2, 0, 0, 0, 0, 1];
        all.extend(ETHERTYPE_IPV4);
        all.extend([VERSION_AND_LEN, 0]);
        all.extend((in_udp + IP_LEN as u16).to_be_bytes());
        all.extend([0x12, 0x34, 0x40, 0, 8, PROTOCOL_UDP, 0, 0]);
        all.extend(SENDER.octets());
        all.extend(GROUP.ip().octets());
        all.extend(40_000u16.to_be_bytes());
        all.extend(GROUP.port().to_be_bytes());
        all.extend(in_udp.to_be_bytes());
        all.extend([0, 0]);
        all.extend(bytes);
        sealed(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::samples::{GROUP, SENDER, frame, sealed};
    use super::*;

    fn changed(at: usize, to: &[u8]) -> Vec<u8> {
        let mut bytes = frame(b"datagram");
        bytes[at..at + to.len()].copy_from_slice(to);
        sealed(bytes)
    }

    #[test]
    fn plain_frame_yields_its_datagram_and_sender() {
        let bytes = frame(b"datagram");
        let parsed = parse(&bytes, GROUP).unwrap();
        assert_eq!((parsed.from, parsed.bytes), (SENDER, &b"datagram"[..]));
        assert_eq!(bytes.as_ptr_range().end, parsed.bytes.as_ptr_range().end);
    }

    #[test]
    fn padding_behind_the_packet_is_cut_off() {
        let mut padded = frame(b"short");
        padded.resize(60, 0xee);
        assert_eq!(parse(&padded, GROUP).unwrap().bytes, b"short");
        // The same within the packet.
        let in_packet = changed(AT_UDP_LEN, &12u16.to_be_bytes());
        assert_eq!(parse(&in_packet, GROUP).unwrap().bytes, b"data");
        let empty = frame(b"");
        assert_eq!(parse(&empty, GROUP).unwrap().bytes, b"");
    }

    #[test]
    fn frames_that_are_not_plain_or_whole_are_refused() {
        for (what, at, to) in [
            ("VLAN", AT_ETHERTYPE, &[0x81, 0x00][..]),
            ("IPv6", AT_VERSION, &[0x65]),
            ("options", AT_VERSION, &[0x46]),
            ("first fragment", AT_FRAGMENT, &[0x20, 0]),
            ("last fragment", AT_FRAGMENT, &[0, 9]),
            ("far fragment", AT_FRAGMENT, &[0x1f, 0]),
            ("reserved bit", AT_FRAGMENT, &[0x80, 0]),
            ("TCP", AT_PROTOCOL, &[6]),
            ("another group", AT_DESTINATION, &[239, 255, 7, 2]),
            ("another port", AT_PORT, &7501u16.to_be_bytes()),
            ("packet beyond its frame", AT_TOTAL_LEN, &[0, 37]),
            ("datagram beyond its packet", AT_UDP_LEN, &[0, 17]),
            ("datagram without a header", AT_UDP_LEN, &[0, 7]),
            ("packet without a header", AT_TOTAL_LEN, &[0, 19]),
        ] {
            assert_eq!(parse(&changed(at, to), GROUP), None, "{what}");
        }
        assert!(parse(&changed(AT_FRAGMENT, &[0, 0]), GROUP).is_some());
    }

    #[test]
    fn damage_of_any_bit_of_the_ip_header_is_noticed() {
        let whole = frame(b"datagram");
        for bit in AT_VERSION * 8..(AT_VERSION + IP_LEN) * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&damaged, GROUP), None, "bit {bit}");
        }
    }

    #[test]
    fn frame_cut_anywhere_is_refused() {
        let whole = frame(b"datagram");
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len], GROUP), None, "{len}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_yield_more_than_the_frame(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(parsed) = parse(&bytes, GROUP) {
                prop_assert!(parsed.bytes.len() + HEADERS_LEN <= bytes.len());
            }
        }

        /// Most of a frame is valid, so that the checks behind the first are reached.
        #[test]
        fn hostile_fields_never_yield_more_than_their_packet(
            payload in proptest::collection::vec(any::<u8>(), 0..64),
            changes in proptest::collection::vec((0..HEADERS_LEN, any::<u8>()), 0..4),
            cut in 0..200usize,
        ) {
            let mut bytes = frame(&payload);
            for (at, to) in changes {
                bytes[at] = to;
            }
            let mut bytes = sealed(bytes);
            bytes.truncate(cut.max(1));
            if let Some(parsed) = parse(&bytes, GROUP) {
                let in_ip = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
                prop_assert!(parsed.bytes.len() + IP_LEN + UDP_LEN <= in_ip);
                prop_assert!(in_ip + ETHERNET_LEN <= bytes.len());
                prop_assert_eq!(parsed.bytes, &bytes[HEADERS_LEN..][..parsed.bytes.len()]);
                prop_assert_eq!(&bytes[AT_DESTINATION..][..4], &GROUP.ip().octets());
            }
        }
    }
}
