//! Finds the UDP payload in a link-layer frame, through any encapsulation of the tables.
//!
//! A frame without a datagram has a [`Reason`], never an error. Checksums are not verified, because
//! captures are usually taken before the NIC fills them in.

mod encapsulation;
mod ip;
mod stamp;

use std::{net::SocketAddr, ops::Range};

use pcap_parser::Linktype;

pub(super) use self::ip::IpFragment;
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

/// Content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A whole UDP datagram, or as much of it as was captured.
    Datagram(Datagram),
    /// A part of a UDP packet.
    Fragment(IpFragment),
}

/// Reason why a frame has no datagram, and the number of its EtherType or protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) reason: Reason,
    pub(crate) number: u16,
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
    let mut next = first(link, frame)?;
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
        Next::Ip(at) => ip::packet(frame, at),
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
