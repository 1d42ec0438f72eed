//! The tables of encapsulations: one row and one function for each.

use super::ip::{self, Packet};
use super::{Next, Reason, Skip, u8_at, u16_at, u32_at};

type Result<T> = std::result::Result<T, Skip>;

/// Reads the header at an offset of the frame and returns the header behind it.
type EtherTypeRow = fn(&[u8], usize) -> Result<Next>;

/// EtherType of Arista's time stamp.
pub(super) const ARISTA: u16 = 0xd28b;
/// Time scale and format in the version of Arista's time stamp; the other bits name the hardware.
pub(super) const ARISTA_VERSION: u16 = 0xfff0;

/// EtherTypes that are read, with the function that passes their header.
const ETHER_TYPES: &[(u16, EtherTypeRow)] = &[
    (0x0800, |_, at| Ok(Next::Ip(at))),
    (0x86dd, |_, at| Ok(Next::Ip(at))),
    (0x8100, vlan),
    (0x88a8, vlan),
    (0x9100, vlan),
    (0x9200, vlan),
    (MPLS, |frame, at| mpls(frame, MPLS, at)),
    (0x8848, |frame, at| mpls(frame, 0x8848, at)),
    (ARISTA, arista_stamp),
    // Ethernet in GRE.
    (0x6558, |_, at| Ok(Next::Ethernet(at))),
    (0x22eb, erspan_3),
];

/// EtherTypes that carry no feed.
const OTHER_ETHER_TYPES: &[(u16, Reason)] = &[
    (0x0806, Reason::Arp),
    (0x8035, Reason::Arp),
    (0x88f7, Reason::Clock),
    (0x88cc, Reason::LinkControl),
    (0x8808, Reason::LinkControl),
    (0x8809, Reason::LinkControl),
    (0x888e, Reason::LinkControl),
    (0x9000, Reason::LinkControl),
    // Wake-on-LAN, PPPoE discovery, VLAN and multicast registration, fault management.
    (0x0842, Reason::LinkControl),
    (0x8863, Reason::LinkControl),
    (0x88f5, Reason::LinkControl),
    (0x88f6, Reason::LinkControl),
    (0x8902, Reason::LinkControl),
];

/// Reads the header at an IP packet's payload and returns the header behind it.
type ProtocolRow = fn(&[u8], &Packet) -> Result<Next>;

/// IP protocols that are read.
const PROTOCOLS: &[(u8, ProtocolRow)] = &[
    (17, udp),
    (47, gre),
    (4, |_, packet| Ok(Next::Ip(packet.at))),
    (41, |_, packet| Ok(Next::Ip(packet.at))),
    (137, |frame, packet| mpls(frame, MPLS, packet.at)),
];

/// IP protocols that carry no feed.
const OTHER_PROTOCOLS: &[(u8, Reason)] = &[
    (1, Reason::GroupControl),
    (2, Reason::GroupControl),
    (58, Reason::GroupControl),
    (6, Reason::Tcp),
    (46, Reason::Routing),
    (88, Reason::Routing),
    (89, Reason::Routing),
    (103, Reason::Routing),
    (112, Reason::Routing),
    (124, Reason::Routing),
];

/// Names of EtherTypes and IP protocols that are often met and not read.
const NAMES: &[(Reason, u16, &str)] = &[
    (Reason::OtherEtherType, 0x8847, "MPLS of unknown content"),
    (Reason::OtherEtherType, 0x8848, "MPLS of unknown content"),
    (Reason::OtherEtherType, 0x8864, "PPPoE session"),
    (Reason::OtherEtherType, 0x880b, "PPP"),
    (Reason::OtherEtherType, 0x88e5, "MACsec"),
    (Reason::OtherEtherType, 0x88e7, "provider backbone bridge"),
    (Reason::OtherEtherType, 0x894f, "network service header"),
    (Reason::OtherEtherType, 0x8915, "RoCE"),
    (
        Reason::OtherEtherType,
        ARISTA,
        "Arista stamp of unknown version",
    ),
    (Reason::OtherProtocol, 47, "GRE of another version"),
    (Reason::OtherProtocol, 50, "ESP"),
    (Reason::OtherProtocol, 51, "AH"),
    (Reason::OtherProtocol, 97, "EtherIP"),
    (Reason::OtherProtocol, 113, "PGM"),
    (Reason::OtherProtocol, 115, "L2TP"),
    (Reason::OtherProtocol, 132, "SCTP"),
    (Reason::OtherProtocol, 136, "UDP-Lite"),
];

const MPLS: u16 = 0x8847;
/// The field of an EtherType is a length up to here.
const LENGTH_MAX: u16 = 1_500;
const VXLAN_PORTS: [u16; 3] = [4789, 4790, 8472];

/// Returns the name of an EtherType or IP protocol that is not read, if it is often met.
pub(super) fn name(reason: Reason, number: u16) -> Option<&'static str> {
    let mut names = NAMES.iter();
    let found = names.find(|(of, is, _)| (*of, *is) == (reason, number));
    found.map(|(_, _, name)| *name)
}

/// Passes one EtherType's header.
pub(super) fn ether_type(frame: &[u8], kind: u16, at: usize) -> Result<Next> {
    if kind <= LENGTH_MAX {
        return link_control(frame, kind, at);
    }
    if let Some((_, row)) = ETHER_TYPES.iter().find(|(number, _)| *number == kind) {
        return row(frame, at);
    }
    let other = OTHER_ETHER_TYPES.iter().find(|(number, _)| *number == kind);
    Err(Skip {
        reason: other.map_or(Reason::OtherEtherType, |(_, reason)| *reason),
        number: kind,
    })
}

/// Returns whether the header of an IP protocol is passed.
pub(super) fn is_read(protocol: u8) -> bool {
    PROTOCOLS.iter().any(|(number, _)| *number == protocol)
}

/// Passes one IP protocol's header.
pub(super) fn protocol(frame: &[u8], packet: Packet) -> Result<Next> {
    let rows = PROTOCOLS.iter();
    if let Some((_, row)) = rows.clone().find(|(number, _)| *number == packet.protocol) {
        return row(frame, &packet);
    }
    let mut others = OTHER_PROTOCOLS.iter();
    let other = others.find(|(number, _)| *number == packet.protocol);
    Err(Skip {
        reason: other.map_or(Reason::OtherProtocol, |(_, reason)| *reason),
        number: packet.protocol.into(),
    })
}

/// 802.1Q, 802.1ad and the tags before it: tag (2), EtherType (2).
fn vlan(frame: &[u8], at: usize) -> Result<Next> {
    Ok(Next::EtherType(u16_at(frame, at + 2)?, at + 4))
}

/// MPLS: labels of 4 bytes up to the bottom of the stack, then IP, or Ethernet behind an optional
/// control word. A first nibble of 0, 4 or 6 may also begin an address: the reading that fits decides.
fn mpls(frame: &[u8], kind: u16, mut at: usize) -> Result<Next> {
    while u32_at(frame, at)? & 0x100 == 0 {
        at += 4;
    }
    at += 4;
    let (likely, other) = match u8_at(frame, at)? >> 4 {
        4 | 6 => (Next::Ip(at), Next::Ethernet(at)),
        0 => (Next::Ethernet(at + 4), Next::Ethernet(at)),
        _ => (Next::Ethernet(at), Next::Ethernet(at)),
    };
    let (fit, next) = match (Fit::of(frame, &likely), Fit::of(frame, &other)) {
        (one, two) if two > one => (two, other),
        (one, _) => (one, likely),
    };
    match (fit, &next) {
        (Fit::None, Next::Ethernet(at)) => {
            // A frame that the capture cut off is no content of another kind.
            u16_at(frame, at + 12)?;
            Err(not_read(kind))
        }
        _ => Ok(next),
    }
}

/// How well bytes read as the header that they are taken for, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    /// An IP header whose packet does not end within the frame.
    CutIp,
    /// An EtherType that is known, or control of the link to an address for that.
    Known,
    WholeIp,
}

impl Fit {
    /// Passes VLAN tags, and judges the header behind them.
    fn of(frame: &[u8], next: &Next) -> Self {
        match *next {
            Next::Ip(at) => Self::of_ip(frame, at, None),
            Next::Ethernet(at) => Self::of_ethernet(frame, at).unwrap_or(Self::None),
            _ => Self::None,
        }
    }

    fn of_ethernet(frame: &[u8], at: usize) -> Result<Self> {
        const TAGS_MAX: usize = 4;
        let mut kind_at = at + 12;
        for _ in 0..TAGS_MAX {
            if !matches!(u16_at(frame, kind_at)?, 0x8100 | 0x88a8 | 0x9100 | 0x9200) {
                break;
            }
            kind_at += 4;
        }
        let (kind, behind) = (u16_at(frame, kind_at)?, kind_at + 2);
        let is_known = |number: u16| {
            let mut others = OTHER_ETHER_TYPES.iter();
            ETHER_TYPES.iter().any(|(it, _)| *it == number) || others.any(|(it, _)| *it == number)
        };
        Ok(match kind {
            0x0800 => Self::of_ip(frame, behind, Some(4)),
            0x86dd => Self::of_ip(frame, behind, Some(6)),
            // 802.2 alone is too weak a sign: the address must be one for control, or SNAP follow.
            0..=LENGTH_MAX => match link_control(frame, kind, behind) {
                Ok(Next::EtherType(inner, _)) if is_known(inner) => Self::Known,
                Err(skip) if skip.reason == Reason::LinkControl && is_control(frame, at) => {
                    Self::Known
                }
                _ => Self::None,
            },
            kind if is_known(kind) => Self::Known,
            _ => Self::None,
        })
    }

    fn of_ip(frame: &[u8], at: usize, version: Option<u8>) -> Self {
        let is_version = |first: u8| version.is_none_or(|version| version == first >> 4);
        if !u8_at(frame, at).is_ok_and(is_version) {
            return Self::None;
        }
        match ip::packet(frame, at, is_read) {
            Ok(Next::Protocol(packet)) if packet.end > frame.len() => Self::CutIp,
            Ok(_) => Self::WholeIp,
            Err(_) => Self::None,
        }
    }
}

/// Returns whether the destination of an Ethernet frame is for control of the link.
fn is_control(frame: &[u8], at: usize) -> bool {
    let address = frame.get(at..).unwrap_or_default();
    address.starts_with(&[0x01, 0x80, 0xc2]) || address.starts_with(&[0x01, 0x00, 0x0c])
}

/// Content that is not read, by its EtherType.
const fn not_read(number: u16) -> Skip {
    Skip {
        reason: Reason::OtherEtherType,
        number,
    }
}

/// Arista's time stamp: subtype 1 (2), version (2), a stamp of 8 or 6 bytes, EtherType (2).
fn arista_stamp(frame: &[u8], at: usize) -> Result<Next> {
    let len = match (u16_at(frame, at)?, u16_at(frame, at + 2)? & ARISTA_VERSION) {
        (1, 0x0010 | 0x0110) => 8,
        (1, 0x0020 | 0x0120) => 6,
        _ => return Err(not_read(ARISTA)),
    };
    let behind = at + 4 + len;
    Ok(Next::EtherType(u16_at(frame, behind)?, behind + 2))
}

/// 802.2 behind a length: SNAP with an EtherType, or control of the link. Other access points may be
/// an EtherType that was damaged.
fn link_control(frame: &[u8], len: u16, at: usize) -> Result<Next> {
    let head = u32_at(frame, at)?;
    let is_snap = head == 0xaaaa_0300 && u16_at(frame, at + 4)? == 0;
    if is_snap {
        return Ok(Next::EtherType(u16_at(frame, at + 6)?, at + 8));
    }
    let [to, from, ..] = head.to_be_bytes();
    // Null, management, spanning tree, SNAP of a vendor, IPX, NetBIOS, IS-IS, raw IPX.
    let is_known = matches!(to, 0x00 | 0x02 | 0x42 | 0xaa | 0xe0 | 0xf0 | 0xfe | 0xff);
    if is_known && to & 0xfe == from & 0xfe && len > 0 {
        return Err(Reason::LinkControl.into());
    }
    Err(not_read(len))
}

/// GRE: flags (2), type (2), and 4 bytes for each of checksum, key and sequence.
fn gre(frame: &[u8], packet: &Packet) -> Result<Next> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const VERSION: u16 = 0x7;
    const ERSPAN_1_2: u16 = 0x88be;
    let flags = u16_at(frame, packet.at)?;
    let kind = u16_at(frame, packet.at + 2)?;
    if flags & (ROUTING | VERSION) != 0 {
        return Err(Skip {
            reason: Reason::OtherProtocol,
            number: packet.protocol.into(),
        });
    }
    let fields = [CHECKSUM, KEY, SEQUENCE].map(|flag| usize::from(flags & flag != 0));
    let at = packet.at + 4 + 4 * fields.iter().sum::<usize>();
    Ok(match kind {
        // ERSPAN II numbers its packets and has a header of 8 bytes; ERSPAN I has neither.
        ERSPAN_1_2 if flags & SEQUENCE != 0 => Next::Ethernet(at + 8),
        ERSPAN_1_2 => Next::Ethernet(at),
        kind => Next::EtherType(kind, at),
    })
}

/// ERSPAN III: a header of 12 bytes, and 8 more if the last bit says so. Five bits tell an Ethernet frame
/// from an IP packet.
fn erspan_3(frame: &[u8], at: usize) -> Result<Next> {
    const IP: u8 = 2;
    let kind = u8_at(frame, at + 10)? >> 2 & 0x1f;
    let has_more = u8_at(frame, at + 11)? & 1 != 0;
    let behind = at + if has_more { 20 } else { 12 };
    Ok(match kind {
        IP => Next::Ip(behind),
        _ => Next::Ethernet(behind),
    })
}

/// UDP, and VXLAN within it: flags (4), network (3), reserved (1), an Ethernet frame. With a group policy,
/// the flags hold the policy's bits and its group.
fn udp(frame: &[u8], packet: &Packet) -> Result<Next> {
    const NETWORK: u32 = 0x0800_0000;
    const POLICY: u32 = 0x8000_0000;
    const OF_POLICY: u32 = 0x0048_ffff;
    let is_read = |flags: u32| flags == NETWORK || flags & !OF_POLICY == NETWORK | POLICY;
    let datagram = ip::udp(frame, packet)?;
    let payload = datagram.payload.start;
    let is_vxlan = VXLAN_PORTS.contains(&datagram.destination.port())
        && u32_at(frame, payload).is_ok_and(is_read)
        && u8_at(frame, payload + 7).is_ok_and(|reserved| reserved == 0);
    if is_vxlan {
        return Ok(Next::Ethernet(payload + 8));
    }
    Ok(Next::Found(super::Content::Datagram(datagram)))
}
