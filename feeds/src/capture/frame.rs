//! Finds the UDP payload in a link-layer frame. Other frames return a [`Skip`] reason, never an error.
//!
//! Reads Ethernet (802.1Q and QinQ tags), Linux cooked captures (SLL, SLL2), BSD loopback and raw
//! IP, with IPv4, and IPv6 with extension headers. Checksums are not verified, because captures are
//! usually taken before the NIC fills them in. Fragments are not reassembled: no venue sends them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use pcap_parser::Linktype;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const PROTOCOL_UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;

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

/// Reason why a frame has no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    NotIp,
    NotUdp,
    Fragment,
    Malformed,
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

/// Finds the UDP datagram in a frame.
pub(crate) fn datagram(link: Link, frame: &[u8]) -> Result<Datagram, Skip> {
    let ip_at = match link {
        Link::Ethernet => ethernet(frame)?,
        Link::LinuxSll => ip_type(u16_at(frame, 14)?, 16)?,
        Link::LinuxSll2 => ip_type(u16_at(frame, 0)?, 20)?,
        Link::Loopback => 4,
        Link::RawIp => 0,
    };
    match u8_at(frame, ip_at)? >> 4 {
        4 => ipv4(frame, ip_at),
        6 => ipv6(frame, ip_at),
        _ => Err(Skip::NotIp),
    }
}

fn ethernet(frame: &[u8]) -> Result<usize, Skip> {
    let mut at = 12;
    loop {
        let ethertype = u16_at(frame, at)?;
        at += 2;
        if !ETHERTYPE_VLAN.contains(&ethertype) {
            return ip_type(ethertype, at);
        }
        at += 2;
    }
}

const fn ip_type(ethertype: u16, at: usize) -> Result<usize, Skip> {
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Ok(at),
        _ => Err(Skip::NotIp),
    }
}

fn ipv4(frame: &[u8], at: usize) -> Result<Datagram, Skip> {
    let header_len = usize::from(u8_at(frame, at)? & 0xf) * 4;
    let total_len = usize::from(u16_at(frame, at + 2)?);
    let fragment = u16_at(frame, at + 6)?;
    // Either more fragments follow, or this is not the first.
    if fragment & 0x3fff != 0 {
        return Err(Skip::Fragment);
    }
    if u8_at(frame, at + 9)? != PROTOCOL_UDP {
        return Err(Skip::NotUdp);
    }
    let source = Ipv4Addr::from(array_at(frame, at + 12)?);
    let destination = Ipv4Addr::from(array_at(frame, at + 16)?);
    // Segmentation offload leaves the total length zero; then the frame length applies.
    let ip_end = match total_len {
        0 => frame.len(),
        n => at + n,
    };
    if header_len < 20 || ip_end < at + header_len {
        return Err(Skip::Malformed);
    }
    udp(
        frame,
        at + header_len,
        ip_end,
        source.into(),
        destination.into(),
    )
}

fn ipv6(frame: &[u8], at: usize) -> Result<Datagram, Skip> {
    let ip_end = match usize::from(u16_at(frame, at + 4)?) {
        0 => frame.len(),
        n => at + 40 + n,
    };
    let source = Ipv6Addr::from(array_at::<16>(frame, at + 8)?);
    let destination = Ipv6Addr::from(array_at::<16>(frame, at + 24)?);
    let mut next = u8_at(frame, at + 6)?;
    let mut at = at + 40;
    loop {
        match next {
            PROTOCOL_UDP => return udp(frame, at, ip_end, source.into(), destination.into()),
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6.
            0 | 43 | 60 | 135 | 139 | 140 => {
                next = u8_at(frame, at)?;
                at += (usize::from(u8_at(frame, at + 1)?) + 1) * 8;
            }
            // A fragment header with neither offset nor "more" holds the whole packet.
            44 => {
                if u16_at(frame, at + 2)? & 0xfff9 != 0 {
                    return Err(Skip::Fragment);
                }
                next = u8_at(frame, at)?;
                at += 8;
            }
            // Authentication header: its length counts 4-byte words.
            51 => {
                next = u8_at(frame, at)?;
                at += (usize::from(u8_at(frame, at + 1)?) + 2) * 4;
            }
            _ => return Err(Skip::NotUdp),
        }
    }
}

fn udp(
    frame: &[u8],
    at: usize,
    ip_end: usize,
    source: IpAddr,
    destination: IpAddr,
) -> Result<Datagram, Skip> {
    let source = SocketAddr::new(source, u16_at(frame, at)?);
    let destination = SocketAddr::new(destination, u16_at(frame, at + 2)?);
    let udp_len = usize::from(u16_at(frame, at + 4)?);
    let payload_at = at + UDP_HEADER_LEN;
    if udp_len < UDP_HEADER_LEN || at + udp_len > ip_end || payload_at > frame.len() {
        return Err(Skip::Malformed);
    }
    // Short frames are padded, so the lengths in the headers decide, not the end of the frame.
    let payload = payload_at..(at + udp_len).min(frame.len());
    Ok(Datagram {
        source,
        destination,
        payload,
        original_len: udp_len - UDP_HEADER_LEN,
    })
}

fn array_at<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], Skip> {
    let bytes = frame.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or(Skip::Malformed)
}

fn u8_at(frame: &[u8], at: usize) -> Result<u8, Skip> {
    array_at(frame, at).map(|[byte]| byte)
}

fn u16_at(frame: &[u8], at: usize) -> Result<u16, Skip> {
    array_at(frame, at).map(u16::from_be_bytes)
}
