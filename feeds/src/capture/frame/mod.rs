//! Finds the UDP payload in a link-layer frame, through any encapsulation of the tables.
//!
//! A frame without a datagram has a [`Reason`], never an error. Checksums are not verified, because
//! captures are usually taken before the NIC fills them in.

mod encapsulation;
mod ip;
mod stamp;

use std::{net::SocketAddr, ops::Range};

use pcap_parser::Linktype;

pub(super) use self::ip::{IpFragment, IpOrigin};
pub use self::stamp::{PacketTime, UnknownPacketTime};
use super::account::Reason;

/// Headers of one frame at most: more is a loop or an attack.
const HEADERS_MAX: usize = 24;

/// Link layer that a frame starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet,
    LinuxSll,
    LinuxSll2,
    Loopback,
    RawIp,
}

impl Link {
    /// Returns the link type for a capture's number, or `None` if it is not supported.
    pub(crate) const fn from_number(link: Linktype) -> Option<Self> {
        // The upper half of the field holds the length of the frame check sequence.
        match Linktype(link.0 & 0xffff) {
            Linktype::ETHERNET => Some(Self::Ethernet),
            Linktype::LINUX_SLL => Some(Self::LinuxSll),
            Linktype::LINUX_SLL2 => Some(Self::LinuxSll2),
            Linktype::NULL | Linktype::LOOP => Some(Self::Loopback),
            // BSDs write 12 and 14 for raw IP.
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 | Linktype(12 | 14) => {
                Some(Self::RawIp)
            }
            _ => None,
        }
    }
}

/// Position of a frame's UDP payload, and its two addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// Captured part of the payload, as a range of the frame.
    pub(crate) payload: Range<usize>,
    /// Length of the payload when it was sent.
    pub(crate) original_len: usize,
}

impl Datagram {
    /// Returns whether the whole payload was captured.
    pub(crate) const fn is_whole(&self) -> bool {
        self.payload.end - self.payload.start >= self.original_len
    }
}

/// Content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A whole UDP datagram, or as much of it as was captured.
    Datagram(Datagram),
    /// A part of an IP packet.
    Fragment(IpFragment),
}

/// Reason why a frame has no datagram, and the number of its EtherType or protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) reason: Reason,
    pub(crate) number: u16,
}

impl Skip {
    /// Returns the name of content that is not read: a frame of it may hold a packet of a feed.
    pub(crate) fn not_read(self) -> Option<String> {
        let Self { reason, number } = self;
        let number = match reason {
            Reason::OtherEtherType if number <= 1_500 => {
                return Some(format!(
                    "802.2 with the length {number} and no known content"
                ));
            }
            Reason::OtherEtherType => format!("EtherType {number:#06x}"),
            Reason::OtherProtocol => format!("IP protocol {number}"),
            _ => return None,
        };
        Some(match encapsulation::name(reason, self.number) {
            Some(name) => format!("{number} ({name})"),
            None => number,
        })
    }
}

impl From<Reason> for Skip {
    fn from(reason: Reason) -> Self {
        Self { reason, number: 0 }
    }
}

/// The header that comes next, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    Ethernet(usize),
    /// The payload of an EtherType.
    EtherType(u16, usize),
    Ip(usize),
    /// The payload of an IP protocol.
    Protocol(ip::Packet),
    Found(Content),
}

/// Finds the datagram, or the fragment of one, in a frame.
pub(crate) fn content(link: Link, frame: &[u8]) -> Result<Content, Skip> {
    behind(first(link, frame)?, frame)
}

/// Finds the datagram, or the fragment of one, in the payload of an IP packet that came in fragments.
pub(crate) fn content_of_packet(origin: &IpOrigin, payload: &[u8]) -> Result<Content, Skip> {
    behind(
        ip::reassembled(origin, payload, encapsulation::is_read)?,
        payload,
    )
}

fn behind(mut next: Next, frame: &[u8]) -> Result<Content, Skip> {
    for _ in 0..HEADERS_MAX {
        next = match next {
            Next::Found(content) => return Ok(content),
            header => pass(frame, header)?,
        };
    }
    Err(Reason::Malformed.into())
}

/// Returns the first header.
fn first(link: Link, frame: &[u8]) -> Result<Next, Skip> {
    Ok(match link {
        Link::Ethernet => Next::Ethernet(0),
        Link::LinuxSll => Next::EtherType(u16_at(frame, 14)?, 16),
        Link::LinuxSll2 => Next::EtherType(u16_at(frame, 0)?, 20),
        Link::Loopback => Next::Ip(4),
        Link::RawIp => Next::Ip(0),
    })
}

/// Reads a header and returns the one behind it.
fn pass(frame: &[u8], header: Next) -> Result<Next, Skip> {
    match header {
        Next::Ethernet(at) => Ok(Next::EtherType(u16_at(frame, at + 12)?, at + 14)),
        Next::EtherType(kind, at) => encapsulation::ether_type(frame, kind, at),
        Next::Ip(at) => ip::packet(frame, at, encapsulation::is_read),
        Next::Protocol(packet) => encapsulation::protocol(frame, packet),
        Next::Found(content) => Ok(Next::Found(content)),
    }
}

/// Returns the first result of `wanted` on a frame's headers, outermost first.
fn find<T>(link: Link, frame: &[u8], wanted: impl Fn(&Next) -> Option<T>) -> Option<T> {
    let mut next = first(link, frame).ok()?;
    for _ in 0..HEADERS_MAX {
        let found = wanted(&next);
        if found.is_some() || matches!(next, Next::Found(_)) {
            return found;
        }
        next = pass(frame, next).ok()?;
    }
    None
}

fn array_at<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], Skip> {
    let bytes = frame.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or(Reason::Malformed.into())
}

fn u8_at(frame: &[u8], at: usize) -> Result<u8, Skip> {
    array_at(frame, at).map(|[byte]| byte)
}

fn u16_at(frame: &[u8], at: usize) -> Result<u16, Skip> {
    array_at(frame, at).map(u16::from_be_bytes)
}

fn u32_at(frame: &[u8], at: usize) -> Result<u32, Skip> {
    array_at(frame, at).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 4] = [10, 1, 2, 3];
    const GROUP: [u8; 4] = [233, 54, 12, 111];
    const SOURCE_6: [u8; 16] = [0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
    const GROUP_6: [u8; 16] = [
        0xff, 0x35, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34,
    ];

    fn udp(payload: &[u8]) -> Vec<u8> {
        udp_of(payload.len() as u16 + 8, 0x1234, payload)
    }

    /// UDP with a length and a destination port that need not be right.
    fn udp_of(len: u16, port: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x43, 0x21];
        bytes.extend(port.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend([0xcc, 0xcc]);
        bytes.extend(payload);
        bytes
    }

    fn ipv4(protocol: u8, flags: u16, body: &[u8]) -> Vec<u8> {
        ipv4_of((body.len() as u16 + 24, 6), protocol, flags, body)
    }

    /// IPv4 with 4 bytes of options, and a total and a header length that need not be right.
    fn ipv4_of((len, words): (u16, u8), protocol: u8, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x40 | words, 0];
        bytes.extend(len.to_be_bytes());
        bytes.extend([0xab, 0xcd]);
        bytes.extend(flags.to_be_bytes());
        bytes.extend([64, protocol, 0xcc, 0xcc]);
        bytes.extend(SOURCE);
        bytes.extend(GROUP);
        bytes.extend([1, 1, 1, 1]);
        bytes.extend(body);
        bytes
    }

    fn ipv6(next: u8, body: &[u8]) -> Vec<u8> {
        ipv6_of(body.len() as u16, next, body)
    }

    fn ipv6_of(len: u16, next: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x6a, 0xbc, 0xde, 0xf0];
        bytes.extend(len.to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend(SOURCE_6);
        bytes.extend(GROUP_6);
        bytes.extend(body);
        bytes
    }

    fn ethernet(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0x5e, 54, 12, 111, 2, 3, 4, 5, 6, 7];
        bytes.extend(kind.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn in_ethernet(kind: u16, body: &[u8]) -> Result<Content, Skip> {
        content(Link::Ethernet, &ethernet(kind, body))
    }

    fn raw(packet: &[u8]) -> Result<Content, Skip> {
        content(Link::RawIp, packet)
    }

    fn skip(reason: Reason, number: u16) -> Result<Content, Skip> {
        Err(Skip { reason, number })
    }

    const MALFORMED: Result<Content, Skip> = Err(Skip {
        reason: Reason::Malformed,
        number: 0,
    });
    const PART: Result<Content, Skip> = Err(Skip {
        reason: Reason::Fragment,
        number: 0,
    });

    /// A datagram from the addresses above.
    fn datagram(payload: Range<usize>) -> Result<Content, Skip> {
        Ok(Content::Datagram(Datagram {
            source: (SOURCE, 0x4321).into(),
            destination: (GROUP, 0x1234).into(),
            original_len: payload.len(),
            payload,
        }))
    }

    fn datagram_6(payload: Range<usize>) -> Result<Content, Skip> {
        Ok(Content::Datagram(Datagram {
            source: (SOURCE_6, 0x4321).into(),
            destination: (GROUP_6, 0x1234).into(),
            original_len: payload.len(),
            payload,
        }))
    }

    #[test]
    fn link_numbers_have_their_links() {
        for (number, link) in [
            (0, Some(Link::Loopback)),
            (1, Some(Link::Ethernet)),
            (12, Some(Link::RawIp)),
            (14, Some(Link::RawIp)),
            (101, Some(Link::RawIp)),
            (108, Some(Link::Loopback)),
            (113, Some(Link::LinuxSll)),
            (147, None),
            (228, Some(Link::RawIp)),
            (229, Some(Link::RawIp)),
            (276, Some(Link::LinuxSll2)),
            // 4 bytes of frame check sequence.
            (0x2400_0001, Some(Link::Ethernet)),
        ] {
            assert_eq!(Link::from_number(Linktype(number)), link, "{number:#x}");
        }
    }

    #[test]
    fn ipv4_datagram_has_addresses_and_payload_range() {
        // 802.1Q: tag and EtherType.
        let tagged = [&[0, 42, 8, 0][..], &ipv4(17, 0x4000, &udp(b"payload"))].concat();
        assert_eq!(in_ethernet(0x8100, &tagged), datagram(50..57));
        let padded = [&ethernet(0x8100, &tagged)[..], &[0xee; 9]].concat();
        assert_eq!(content(Link::Ethernet, &padded), datagram(50..57));
    }

    #[test]
    fn ipv6_datagram_has_addresses_and_payload_range() {
        let packet = ipv6(17, &udp(b"payload"));
        assert_eq!(in_ethernet(0x86dd, &packet), datagram_6(62..69));
    }

    #[test]
    fn ipv6_extension_headers_have_their_lengths() {
        let udp = udp(b"payload");
        for kind in [0, 43, 60, 135, 139, 140] {
            for words in 0..3_u8 {
                let len = (usize::from(words) + 1) * 8;
                let mut header = vec![0xcc; len];
                header[..2].copy_from_slice(&[17, words]);
                let packet = ipv6(kind, &[&header[..], &udp].concat());
                let start = 40 + len + 8;
                assert_eq!(raw(&packet), datagram_6(start..start + 7), "{kind}");
            }
        }
        for words in 1..4_u8 {
            let len = (usize::from(words) + 2) * 4;
            let mut header = vec![0xcc; len];
            header[..2].copy_from_slice(&[17, words]);
            let packet = ipv6(51, &[&header[..], &udp].concat());
            let start = 40 + len + 8;
            assert_eq!(raw(&packet), datagram_6(start..start + 7), "{words}");
        }
    }

    #[test]
    fn ip_length_of_zero_is_length_of_frame() {
        let body = udp(b"payload");
        assert_eq!(
            in_ethernet(0x0800, &ipv4_of((0, 6), 17, 0, &body)),
            datagram(46..53)
        );
        assert_eq!(
            in_ethernet(0x86dd, &ipv6_of(0, 17, &body)),
            datagram_6(62..69)
        );
    }

    #[test]
    fn ipv4_header_lengths_are_checked() {
        let tcp = skip(Reason::Tcp, 6);
        for (lens, expected) in [
            ((23, 6), &MALFORMED),
            ((24, 6), &tcp),
            ((19, 5), &MALFORMED),
            ((20, 5), &tcp),
            ((20, 4), &MALFORMED),
            ((100, 4), &MALFORMED),
        ] {
            assert_eq!(&raw(&ipv4_of(lens, 6, 0, &[])), expected, "{lens:?}");
        }
        for version in [0x50, 0x75, 0x05] {
            let mut packet = ipv4(17, 0, &udp(b"payload"));
            packet[0] = version;
            assert_eq!(raw(&packet), MALFORMED);
        }
    }

    fn fragment(id: u32, offset: usize, is_last: bool, bytes: Range<usize>) -> IpFragment {
        IpFragment {
            origin: IpOrigin {
                source: SOURCE.into(),
                destination: GROUP.into(),
                protocol: 17,
                id,
            },
            offset,
            is_last,
            bytes,
        }
    }

    #[test]
    fn ipv4_fragment_has_id_offset_and_range() {
        for (flags, offset, is_last) in [
            (0x2000, 0, false),
            (0x2001, 8, false),
            (0x0002, 16, true),
            (0x4003, 24, true),
            (0x1fff, 65_528, true),
        ] {
            let frame = ethernet(0x0800, &ipv4(17, flags, b"01234567"));
            let expected = fragment(0xabcd, offset, is_last, 38..46);
            let expected = Ok(Content::Fragment(expected));
            assert_eq!(content(Link::Ethernet, &frame), expected, "{flags:#x}");
            let padded = [&frame[..], &[0]].concat();
            assert_eq!(content(Link::Ethernet, &padded), expected, "{flags:#x}");
            let cut = &frame[..frame.len() - 1];
            assert_eq!(content(Link::Ethernet, cut), PART, "{flags:#x}");
        }
        assert_eq!(raw(&ipv4(17, 0x2000, b"")), PART, "without bytes");
        assert_eq!(raw(&ipv4(6, 0x2000, b"0123")), skip(Reason::Tcp, 6));
    }

    #[test]
    fn ipv6_fragment_has_id_offset_and_range() {
        let header = |next: u8, flags: u16| {
            let [high, low] = flags.to_be_bytes();
            [next, 0xcc, high, low, 1, 2, 3, 4]
        };
        for (flags, offset, is_last) in [
            (0x0001, 0, false),
            (0x0009, 8, false),
            (0x0010, 16, true),
            (0xfffe, 65_528, true),
        ] {
            let packet = ipv6(44, &[&header(17, flags)[..], b"01234567"].concat());
            let mut expected = fragment(0x0102_0304, offset, is_last, 48..56);
            expected.origin.source = SOURCE_6.into();
            expected.origin.destination = GROUP_6.into();
            assert_eq!(
                raw(&packet),
                Ok(Content::Fragment(expected)),
                "{flags:#06x}"
            );
        }
        // Neither offset nor "more": the whole packet. The two bits between them are reserved.
        for flags in [0, 6] {
            let packet = ipv6(44, &[&header(17, flags)[..], &udp(b"payload")].concat());
            assert_eq!(raw(&packet), datagram_6(56..63));
        }
        let other = ipv6(44, &[&header(58, 0x0009)[..], b"01234567"].concat());
        assert_eq!(raw(&other), skip(Reason::GroupControl, 58));
    }

    #[test]
    fn udp_lengths_are_checked() {
        let udp = |len: u16| raw(&ipv4(17, 0, &udp_of(len, 0x1234, b"payload")));
        assert_eq!(udp(7), MALFORMED);
        assert_eq!(udp(8), datagram(32..32));
        assert_eq!(udp(15), datagram(32..39));
        assert_eq!(udp(16), MALFORMED, "beyond the packet");
    }

    #[test]
    fn cut_frame_gives_captured_part_of_payload() {
        let whole = ipv4(17, 0, &udp(b"payload"));
        for captured in 32..=39 {
            let expected = Ok(Content::Datagram(Datagram {
                source: (SOURCE, 0x4321).into(),
                destination: (GROUP, 0x1234).into(),
                payload: 32..captured,
                original_len: 7,
            }));
            assert_eq!(raw(&whole[..captured]), expected, "{captured}");
        }
        for captured in 0..32 {
            assert_eq!(raw(&whole[..captured]), MALFORMED, "{captured}");
        }
    }

    #[test]
    fn ether_types_without_feed_have_their_reasons() {
        for (kind, reason) in [
            (0x0806, Reason::Arp),
            (0x8035, Reason::Arp),
            (0x88f7, Reason::Clock),
            (0x88cc, Reason::LinkControl),
            (0x8808, Reason::LinkControl),
            (0x8809, Reason::LinkControl),
            (0x888e, Reason::LinkControl),
            (0x9000, Reason::LinkControl),
            (0x0842, Reason::LinkControl),
            (0x8863, Reason::LinkControl),
            (0x88f5, Reason::LinkControl),
            (0x88f6, Reason::LinkControl),
            (0x8902, Reason::LinkControl),
            (0x8864, Reason::OtherEtherType),
            (0x88e5, Reason::OtherEtherType),
            (0x1234, Reason::OtherEtherType),
            (1_501, Reason::OtherEtherType),
        ] {
            assert_eq!(in_ethernet(kind, &[0; 50]), skip(reason, kind), "{kind:#x}");
        }
    }

    #[test]
    fn protocols_without_feed_have_their_reasons() {
        for (protocol, reason) in [
            (1, Reason::GroupControl),
            (2, Reason::GroupControl),
            (58, Reason::GroupControl),
            (6, Reason::Tcp),
            (88, Reason::Routing),
            (89, Reason::Routing),
            (103, Reason::Routing),
            (112, Reason::Routing),
            (46, Reason::Routing),
            (124, Reason::Routing),
            (136, Reason::OtherProtocol),
            (200, Reason::OtherProtocol),
        ] {
            let packet = ipv4(protocol, 0, &[0; 50]);
            assert_eq!(raw(&packet), skip(reason, protocol.into()), "{protocol}");
        }
    }

    #[test]
    fn length_field_means_snap_or_link_control() {
        let packet = ipv4(17, 0, &udp(b"payload"));
        let snap = |head: [u8; 6]| [&head[..], &[8, 0], &packet].concat();
        let right = snap([0xaa, 0xaa, 3, 0, 0, 0]);
        for len in [0, 47, 1_500] {
            assert_eq!(in_ethernet(len, &right), datagram(54..61));
        }
        for head in [
            [0xaa, 0xaa, 3, 0, 0, 1],
            [0xaa, 0xaa, 3, 1, 0, 0],
            [0x42, 0x42, 3, 0, 0, 0],
        ] {
            let expected = skip(Reason::LinkControl, 0);
            assert_eq!(in_ethernet(1_500, &snap(head)), expected, "{head:02x?}");
        }
    }

    #[test]
    fn mpls_payload_is_recognised_by_its_first_nibble() {
        let label = [0xff, 0xf0, 0x01, 0x40];
        let packet = ipv4(17, 0, &udp(b"payload"));
        let other = ipv6(17, &udp(b"payload"));
        // The destination begins with 1: neither IP nor a control word.
        let mut frame = ethernet(0x0800, &packet);
        frame[0] = 0x11;
        let in_mpls = |inner: &[u8]| in_ethernet(0x8847, &[&label[..], inner].concat());
        assert_eq!(in_mpls(&packet), datagram(50..57));
        assert_eq!(in_mpls(&other), datagram_6(66..73));
        assert_eq!(in_mpls(&frame), datagram(64..71));
        assert_eq!(
            in_mpls(&[&[0; 4][..], &frame].concat()),
            datagram(68..75),
            "behind a control word"
        );
        let in_ip = ipv4(137, 0, &[&label[..], &packet].concat());
        assert_eq!(raw(&in_ip), datagram(60..67));
    }

    #[test]
    fn pseudowire_without_control_word_is_read_by_what_fits() {
        let packet = ipv4(17, 0, &udp(b"payload"));
        let in_mpls = |inner: &[u8]| {
            let label = [0xff, 0xf0, 0x01, 0x40];
            in_ethernet(0x8847, &[&label[..], inner].concat())
        };
        // Addresses that begin like a control word, like IPv4 and like IPv6.
        for first in [0x01, 0x00, 0x45, 0x4c, 0x60] {
            let mut frame = ethernet(0x0800, &packet);
            frame[0] = first;
            assert_eq!(in_mpls(&frame), datagram(64..71), "{first:#x}");
            let mut tagged = ethernet(0x8100, &[&[0, 42, 8, 0][..], &packet].concat());
            tagged[0] = first;
            assert_eq!(in_mpls(&tagged), datagram(68..75), "{first:#x}");
            let mut arp = ethernet(0x0806, &[0; 28]);
            arp[0] = first;
            assert_eq!(in_mpls(&arp), skip(Reason::Arp, 0x0806), "{first:#x}");
        }
        let behind_word = [&[0; 4][..], &ethernet(0x0800, &packet)].concat();
        assert_eq!(in_mpls(&behind_word), datagram(68..75));
    }

    #[test]
    fn pseudowire_of_unknown_content_is_not_link_control() {
        let in_mpls = |to: [u8; 6], body: &[u8]| {
            let inner = [&to[..], &[2, 3, 4, 5, 6, 7, 0, 38], body].concat();
            in_ethernet(0x8847, &[&[0xff, 0xf0, 0x01, 0x40][..], &inner].concat())
        };
        let tree = [&[0x42, 0x42, 3][..], &[0; 40]].concat();
        assert_eq!(
            in_mpls([1, 0x80, 0xc2, 0, 0, 0], &tree),
            skip(Reason::LinkControl, 0)
        );
        let other = skip(Reason::OtherEtherType, 0x8847);
        assert_eq!(in_mpls([1, 0, 0x5e, 1, 2, 3], &tree), other);
        assert_eq!(in_mpls([0, 0, 0x5e, 1, 2, 3], &[0x99; 40]), other);
        let short = in_ethernet(0x8847, &[0xff, 0xf0, 0x01, 0x40, 0, 0, 0, 0, 0]);
        assert_eq!(short, MALFORMED);
    }

    #[test]
    fn damaged_ether_type_below_1501_is_no_link_control() {
        let packet = ipv4(17, 0, &udp(b"payload"));
        let none = skip(Reason::OtherEtherType, 0);
        assert_eq!(in_ethernet(0, &packet), none);
        for sap in [0x42, 0xe0, 0xf0, 0xfe] {
            let control = [&[sap, sap, 3][..], &[0; 40]].concat();
            assert_eq!(in_ethernet(38, &control), skip(Reason::LinkControl, 0));
            assert_eq!(in_ethernet(0, &control), none, "{sap:#x}");
        }
    }

    #[test]
    fn content_that_is_not_read_has_its_name() {
        let name = |reason, number| Skip { reason, number }.not_read();
        let (kind, protocol) = (Reason::OtherEtherType, Reason::OtherProtocol);
        assert_eq!(
            name(kind, 0x8864).unwrap(),
            "EtherType 0x8864 (PPPoE session)"
        );
        assert_eq!(name(kind, 0x1234).unwrap(), "EtherType 0x1234");
        assert_eq!(name(protocol, 136).unwrap(), "IP protocol 136 (UDP-Lite)");
        assert!(name(kind, 0).unwrap().starts_with("802.2"));
        for reason in [Reason::Arp, Reason::Tcp, Reason::LinkControl] {
            assert_eq!(name(reason, 6), None);
        }
    }

    #[test]
    fn arista_stamp_has_length_of_its_version() {
        let packet = ipv4(17, 0, &udp(b"payload"));
        let stamp = |subtype: u16, version: u16, len: usize| {
            let mut bytes = subtype.to_be_bytes().to_vec();
            bytes.extend(version.to_be_bytes());
            bytes.resize(4 + len, 0xcc);
            bytes.extend([8, 0]);
            bytes.extend(&packet);
            in_ethernet(0xd28b, &bytes)
        };
        for (version, len) in [(0x0010, 8), (0x0110, 8), (0x0020, 6), (0x0120, 6)] {
            let start = 14 + 4 + len + 2 + 32;
            assert_eq!(stamp(1, version, len), datagram(start..start + 7));
        }
        let other = skip(Reason::OtherEtherType, 0xd28b);
        assert_eq!(stamp(2, 0x0010, 8), other);
        assert_eq!(stamp(1, 0x0030, 8), other);
    }

    #[test]
    fn gre_fields_are_passed_by_their_flags() {
        let packet = ipv4(17, 0, &udp(b"payload"));
        let frame = ethernet(0x0800, &packet);
        let gre = |flags: u16, kind: u16, fields: usize, inner: &[u8]| {
            let mut bytes = flags.to_be_bytes().to_vec();
            bytes.extend(kind.to_be_bytes());
            bytes.resize(4 + fields, 0xcc);
            bytes.extend(inner);
            raw(&ipv4(47, 0, &bytes))
        };
        for (flags, fields) in [
            (0, 0),
            (0x8000, 4),
            (0x2000, 4),
            (0x1000, 4),
            (0xb000, 12),
            // Bits that add nothing.
            (0x0ff8, 0),
        ] {
            let start = 28 + fields + 32;
            let expected = datagram(start..start + 7);
            assert_eq!(gre(flags, 0x0800, fields, &packet), expected, "{flags:#x}");
            // ERSPAN II has a sequence, and a header of 8 bytes.
            let header = if flags & 0x1000 != 0 { 8 } else { 0 };
            let start = start + header + 14;
            let expected = datagram(start..start + 7);
            let in_erspan = gre(flags, 0x88be, fields + header, &frame);
            assert_eq!(in_erspan, expected, "{flags:#x}");
        }
        for flags in [0x4000, 1, 2, 4, 7, 0xc007] {
            let expected = skip(Reason::OtherProtocol, 47);
            assert_eq!(gre(flags, 0x0800, 0, &packet), expected, "{flags:#x}");
        }
    }

    #[test]
    fn vxlan_needs_its_port_flags_and_reserved_byte() {
        let frame = ethernet(0x0800, &ipv4(17, 0, &udp(b"payload")));
        let vxlan = |port: u16, flags: u32, reserved: u8| {
            let head = [&flags.to_be_bytes()[..], &[1, 2, 3, reserved]].concat();
            let body = [&head[..], &frame].concat();
            let udp = udp_of(body.len() as u16 + 8, port, &body);
            match raw(&ipv4(17, 0, &udp)) {
                Ok(Content::Datagram(datagram)) => (datagram.destination.port(), datagram.payload),
                other => panic!("{other:?}"),
            }
        };
        let all = 32..32 + 8 + frame.len();
        for port in [4789, 4790, 8472] {
            assert_eq!(vxlan(port, 0x0800_0000, 0), (0x1234, 86..93));
        }
        assert_eq!(vxlan(4788, 0x0800_0000, 0), (4788, all.clone()));
        assert_eq!(vxlan(4789, 0x0800_0000, 1), (4789, all.clone()));
        for policy in [0x8800_0000, 0x8800_1234, 0x8848_0000, 0x8808_ffff] {
            assert_eq!(vxlan(4789, policy, 0), (0x1234, 86..93), "{policy:#x}");
        }
        // Other bits, the next protocol of VXLAN-GPE, and the fields of a policy without its bit.
        for other in [
            0x0900_0000,
            0x0c00_0003,
            0x0800_0001,
            0x8810_0000,
            0x8000_0000,
        ] {
            assert_eq!(vxlan(4789, other, 0), (4789, all.clone()), "{other:#x}");
        }
    }
}
