//! The origin of a connection: the unit by which the publisher's resources are divided.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a connection came from, as far as addresses are scarce: an IPv4 address, or the first 64
/// bits of an IPv6 address, because one host commands a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerOrigin {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl PeerOrigin {
    /// Returns the origin of this address. An IPv4 address that is mapped into IPv6 counts as IPv4.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

impl fmt::Display for PeerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6(network) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(*network) << 64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_ipv4_address_or_ipv6_network() {
        let of = |text: &str| PeerOrigin::of(text.parse().unwrap());
        assert_eq!(of("10.1.0.7"), of("::ffff:10.1.0.7"));
        assert_ne!(of("10.1.0.7"), of("10.1.0.8"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("10.1.0.7").to_string(), "10.1.0.7");
        assert_eq!(of("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
    }
}
