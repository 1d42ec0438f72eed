//! IPv4, IPv6 with extension headers, UDP, and the fragments of packets that are read further.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use super::{Content, Datagram, Next, Reason, Skip, array_at, u8_at, u16_at, u32_at};

const UDP_HEADER_LEN: usize = 8;

/// An IP packet whose headers were passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    source: IpAddr,
    destination: IpAddr,
    pub(super) protocol: u8,
    /// Start of the payload.
    pub(super) at: usize,
    /// End of the packet by its header, which may lie beyond the captured bytes.
    pub(super) end: usize,
}

/// The fields that fragments of one packet share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpOrigin {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Protocol of the payload; in IPv6 it may be an extension header.
    pub(crate) protocol: u8,
    pub(crate) id: u32,
}

/// A fragment of a packet whose protocol is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpFragment {
    pub(crate) origin: IpOrigin,
    /// Offset of its bytes in the packet's payload.
    pub(crate) offset: usize,
    /// Whether it is the last one.
    pub(crate) is_last: bool,
    /// Its bytes, as a range of the frame.
    pub(crate) bytes: Range<usize>,
}

/// Returns whether packets of a protocol are read, so that their fragments are put together.
type IsRead = fn(u8) -> bool;

/// Reads an IP header of either version.
pub(super) fn packet(frame: &[u8], at: usize, is_read: IsRead) -> Result<Next, Skip> {
    match u8_at(frame, at)? >> 4 {
        4 => ipv4(frame, at, is_read),
        6 => ipv6(frame, at, is_read),
        _ => Err(Reason::Malformed.into()),
    }
}

fn ipv4(frame: &[u8], at: usize, is_read: IsRead) -> Result<Next, Skip> {
    let header_len = usize::from(u8_at(frame, at)? & 0xf) * 4;
    let total_len = usize::from(u16_at(frame, at + 2)?);
    let flags = u16_at(frame, at + 6)?;
    // Segmentation offload leaves the total length zero; then the frame length applies.
    let end = match total_len {
        0 => frame.len(),
        n => at + n,
    };
    let packet = Packet {
        source: Ipv4Addr::from(array_at(frame, at + 12)?).into(),
        destination: Ipv4Addr::from(array_at(frame, at + 16)?).into(),
        protocol: u8_at(frame, at + 9)?,
        at: at + header_len,
        end,
    };
    if header_len < 20 || end < packet.at {
        return Err(Reason::Malformed.into());
    }
    // Either more fragments follow, or this is not the first.
    if flags & 0x3fff != 0 && is_read(packet.protocol) {
        let id = u32::from(u16_at(frame, at + 4)?);
        return fragment(frame, &packet, id, flags << 3, flags & 0x2000 == 0);
    }
    Ok(Next::Protocol(packet))
}

fn ipv6(frame: &[u8], at: usize, is_read: IsRead) -> Result<Next, Skip> {
    let end = match usize::from(u16_at(frame, at + 4)?) {
        0 => frame.len(),
        n => at + 40 + n,
    };
    let packet = Packet {
        source: Ipv6Addr::from(array_at::<16>(frame, at + 8)?).into(),
        destination: Ipv6Addr::from(array_at::<16>(frame, at + 24)?).into(),
        protocol: u8_at(frame, at + 6)?,
        at: at + 40,
        end,
    };
    extensions(frame, packet, is_read)
}

/// Returns the packet behind the extension headers of IPv6.
fn extensions(frame: &[u8], mut packet: Packet, is_read: IsRead) -> Result<Next, Skip> {
    loop {
        let at = packet.at;
        match packet.protocol {
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6.
            0 | 43 | 60 | 135 | 139 | 140 => {
                packet.protocol = u8_at(frame, at)?;
                packet.at += (usize::from(u8_at(frame, at + 1)?) + 1) * 8;
            }
            44 => {
                let flags = u16_at(frame, at + 2)?;
                packet.protocol = u8_at(frame, at)?;
                packet.at += 8;
                // A header with neither offset nor "more" holds the whole packet.
                if flags & 0xfff9 != 0
                    && (is_extension(packet.protocol) || is_read(packet.protocol))
                {
                    let id = u32_at(frame, at + 4)?;
                    return fragment(frame, &packet, id, flags & 0xfff8, flags & 1 == 0);
                }
            }
            // Authentication header: its length counts 4-byte words.
            51 => {
                packet.protocol = u8_at(frame, at)?;
                packet.at += (usize::from(u8_at(frame, at + 1)?) + 2) * 4;
            }
            _ => return Ok(Next::Protocol(packet)),
        }
    }
}

/// Returns whether a next header is an extension of IPv6 that is passed.
const fn is_extension(next: u8) -> bool {
    matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
}

/// Returns the first header of a payload that was put together from fragments.
pub(super) fn reassembled(origin: &IpOrigin, bytes: &[u8], is_read: IsRead) -> Result<Next, Skip> {
    let packet = Packet {
        source: origin.source,
        destination: origin.destination,
        protocol: origin.protocol,
        at: 0,
        end: bytes.len(),
    };
    match origin.source {
        IpAddr::V4(_) => Ok(Next::Protocol(packet)),
        IpAddr::V6(_) => extensions(bytes, packet, is_read),
    }
}

fn fragment(
    frame: &[u8],
    packet: &Packet,
    id: u32,
    offset: u16,
    is_last: bool,
) -> Result<Next, Skip> {
    // A part of a fragment would make a packet with a hole.
    if packet.end > frame.len() || packet.at >= packet.end {
        return Err(Reason::Fragment.into());
    }
    Ok(Next::Found(Content::Fragment(IpFragment {
        origin: IpOrigin {
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            id,
        },
        offset: usize::from(offset),
        is_last,
        bytes: packet.at..packet.end,
    })))
}

/// Reads a UDP header.
pub(super) fn udp(frame: &[u8], packet: &Packet) -> Result<Datagram, Skip> {
    let at = packet.at;
    let source = SocketAddr::new(packet.source, u16_at(frame, at)?);
    let destination = SocketAddr::new(packet.destination, u16_at(frame, at + 2)?);
    let udp_len = usize::from(u16_at(frame, at + 4)?);
    let payload_at = at + UDP_HEADER_LEN;
    if udp_len < UDP_HEADER_LEN || at + udp_len > packet.end || payload_at > frame.len() {
        return Err(Reason::Malformed.into());
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
