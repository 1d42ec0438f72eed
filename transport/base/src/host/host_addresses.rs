//! The addresses of this host, and the interface that belongs to an address of this host or of its networks.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The interface's name.
    pub interface: String,
    /// The address; `None` if it is no IP address.
    pub address: Option<IpAddr>,
    /// The number of leading bits that name an IPv4 address's network; 32 for any other address.
    pub prefix_len: u32,
    /// The interface that an IPv6 address of link scope belongs to; 0 for any other address.
    pub scope: u32,
    /// Whether the interface is up.
    pub is_up: bool,
}

/// The addresses of all interfaces, read once.
#[derive(Clone, Debug, Default)]
pub struct HostAddresses(Vec<HostAddress>);

impl FromIterator<HostAddress> for HostAddresses {
    fn from_iter<T: IntoIterator<Item = HostAddress>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

impl HostAddresses {
    /// Reads the addresses from the operating system.
    ///
    /// # Errors
    /// The operating system's error if it does not list them.
    pub fn list() -> io::Result<Self> {
        let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: `head` is a valid place for the list's address; the list is freed below. Exercised
        // by `tests::loopback_is_listed_with_its_network`.
        if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut all = Vec::new();
        let mut at = head;
        // SAFETY: `at` walks the list that getifaddrs made, whose entries live until freeifaddrs;
        // `ifa_name` is a C string, and `ifa_addr` and `ifa_netmask`, where not null, are of the kind that
        // the address's family says. Nothing of it is used after freeifaddrs. Exercised by the same test.
        unsafe {
            while let Some(entry) = at.as_ref() {
                let interface = CStr::from_ptr(entry.ifa_name)
                    .to_string_lossy()
                    .into_owned();
                let family = entry.ifa_addr.as_ref().map(|a| i32::from(a.sa_family));
                let mut listed = HostAddress {
                    interface,
                    address: None,
                    prefix_len: 32,
                    scope: 0,
                    is_up: entry.ifa_flags & libc::IFF_UP as u32 != 0,
                };
                match family {
                    Some(libc::AF_INET) => {
                        let v4 = |a: *mut libc::sockaddr| {
                            u32::from_be((*a.cast::<libc::sockaddr_in>()).sin_addr.s_addr)
                        };
                        listed.address = Some(Ipv4Addr::from(v4(entry.ifa_addr)).into());
                        if !entry.ifa_netmask.is_null() {
                            listed.prefix_len = v4(entry.ifa_netmask).leading_ones();
                        }
                    }
                    Some(libc::AF_INET6) => {
                        let a = entry.ifa_addr.cast::<libc::sockaddr_in6>();
                        listed.address = Some(Ipv6Addr::from((*a).sin6_addr.s6_addr).into());
                        listed.scope = (*a).sin6_scope_id;
                    }
                    _ => {}
                }
                all.push(listed);
                at = entry.ifa_next;
            }
            libc::freeifaddrs(head);
        }
        Ok(Self(all))
    }

    /// Returns each interface's name with each of its IPv4 addresses, and with `None` for each other address.
    #[must_use]
    pub(crate) fn of_ipv4(&self) -> Vec<(String, Option<Ipv4Addr>)> {
        let named = |it: &HostAddress| (it.interface.clone(), v4(it));
        self.0.iter().map(named).collect()
    }

    /// Returns the interface that has this address, by name. Returns `None` if no interface has it, or if the
    /// interface has no IPv4 address and so can join no IPv4 group.
    #[must_use]
    pub fn interface_with(&self, address: SocketAddr) -> Option<&str> {
        let ip = address.ip().to_canonical();
        let scope = match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let has = |it: &&HostAddress| {
            let is_loopback = |ip: IpAddr| ip.is_ipv4() && ip.is_loopback();
            let of_loopback = is_loopback(ip) && it.address.is_some_and(is_loopback);
            (it.address == Some(ip) || of_loopback) && (scope == 0 || it.scope == scope)
        };
        let found = self.0.iter().find(has)?;
        self.with_ipv4(&found.interface)
    }

    /// Returns the interface whose network contains this address, by name, among those that are up; the
    /// smallest such network, if several do. If several interfaces share that network, it is the one with the
    /// address `via`, or else the first.
    #[must_use]
    pub fn interface_towards(&self, address: Ipv4Addr, via: Option<SocketAddr>) -> Option<&str> {
        let of_network = |it: &&HostAddress| {
            let mask = u32::MAX.checked_shl(32 - it.prefix_len).unwrap_or(0);
            it.is_up && v4(it).is_some_and(|own| (own.to_bits() ^ address.to_bits()) & mask == 0)
        };
        let all = || self.0.iter().filter(of_network);
        let longest = all().map(|it| it.prefix_len).max()?;
        let mut smallest = all().filter(|it| it.prefix_len == longest);
        let preferred = via.and_then(|via| self.interface_with(via));
        let is_preferred = |it: &&HostAddress| self.with_ipv4(&it.interface) == preferred;
        let first = smallest.clone().next()?;
        self.with_ipv4(&smallest.find(is_preferred).unwrap_or(first).interface)
    }

    /// Returns the name if the interface has an IPv4 address; without one it joins no group.
    fn with_ipv4<'a>(&self, name: &'a str) -> Option<&'a str> {
        let mut of_name = self.0.iter().filter(|it| it.interface == name);
        of_name.any(|it| v4(it).is_some()).then_some(name)
    }
}

const fn v4(listed: &HostAddress) -> Option<Ipv4Addr> {
    match listed.address {
        Some(IpAddr::V4(address)) => Some(address),
        Some(IpAddr::V6(_)) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::interface::Interface;

    fn listed(interface: &str, address: &str, prefix_len: u32, scope: u32) -> HostAddress {
        HostAddress {
            interface: interface.into(),
            address: address.parse().ok(),
            prefix_len,
            scope,
            is_up: interface != "down",
        }
    }

    fn host() -> HostAddresses {
        HostAddresses::from_iter([
            listed("lo", "", 32, 0),
            listed("lo", "127.0.0.1", 8, 0),
            listed("eth0", "10.1.0.7", 16, 0),
            listed("eth0", "10.1.0.8", 16, 0),
            listed("eth0", "2001:db8::7", 32, 0),
            listed("eth0", "fe80::1", 32, 2),
            listed("eth0.100", "fe80::1", 32, 3),
            listed("eth0.100", "10.1.2.7", 24, 0),
            listed("mgmt", "fe80::2", 32, 4),
            listed("tun0", "10.9.0.1", 32, 0),
            listed("down", "10.1.2.6", 25, 0),
        ])
    }

    #[test]
    fn interface_is_found_by_each_of_its_addresses() {
        let host = host();
        for (address, expected) in [
            ("10.1.0.7:1", Some("eth0")),
            ("10.1.0.8:1", Some("eth0")),
            ("[::ffff:10.1.0.8]:1", Some("eth0")),
            ("[2001:db8::7]:1", Some("eth0")),
            ("127.0.0.1:1", Some("lo")),
            ("127.3.2.1:1", Some("lo")),
            ("10.1.0.9:1", None),
            ("[2001:db8::77]:1", None),
            // Interfaces may share an address of link scope.
            ("[fe80::1%2]:1", Some("eth0")),
            ("[fe80::1%3]:1", Some("eth0.100")),
            ("[fe80::1%9]:1", None),
            // Without an IPv4 address, the interface joins no group.
            ("[fe80::2%4]:1", None),
        ] {
            let found = host.interface_with(address.parse().unwrap());
            assert_eq!(found, expected, "{address}");
        }
    }

    #[test]
    fn interface_towards_a_host_is_that_of_the_smallest_network() {
        let host = host();
        for (address, expected) in [
            ("10.1.0.9", Some("eth0")),
            ("10.1.2.9", Some("eth0.100")),
            ("10.9.0.1", Some("tun0")),
            ("10.9.0.2", None),
            ("192.0.2.9", None),
        ] {
            let found = host.interface_towards(address.parse().unwrap(), None);
            assert_eq!(found, expected, "{address}");
        }
        let all = HostAddresses::from_iter([listed("any", "10.0.0.1", 0, 0)]);
        let far = Ipv4Addr::new(192, 0, 2, 9);
        assert!(all.interface_towards(far, None).is_some());
    }

    #[test]
    fn interface_towards_a_shared_network_carries_the_connection() {
        let host = HostAddresses::from_iter([
            listed("lo", "127.0.0.1", 8, 0),
            listed("eth1", "10.1.0.7", 16, 0),
            listed("eth2", "10.1.0.8", 16, 0),
            listed("eth3", "10.1.0.9", 16, 0),
            listed("mgmt", "10.0.0.1", 8, 0),
        ]);
        for (via, expected) in [
            (None, "eth1"),
            (Some("10.1.0.7:1"), "eth1"),
            (Some("10.1.0.8:1"), "eth2"),
            (Some("10.1.0.9:1"), "eth3"),
            // A connection through a larger network, or from no address of this host, decides nothing.
            (Some("10.0.0.1:1"), "eth1"),
            (Some("192.0.2.1:1"), "eth1"),
        ] {
            let via = via.map(|it: &str| it.parse().unwrap());
            let found = host.interface_towards(Ipv4Addr::new(10, 1, 0, 77), via);
            assert_eq!(found, Some(expected), "{via:?}");
        }
    }

    #[test]
    fn loopback_is_listed_with_its_network() {
        let host = HostAddresses::list().unwrap();
        let loopback = Interface::default().resolve().unwrap().name;
        let loopback = Some(&*loopback);
        assert_eq!(host.interface_with(([127, 0, 0, 9], 1).into()), loopback);
        let within = Ipv4Addr::new(127, 200, 0, 1);
        assert_eq!(host.interface_towards(within, None), loopback);
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 1));
        let has_v6 = host.0.iter().any(|it| it.address == Some(v6.ip()));
        assert_eq!(host.interface_with(v6), loopback.filter(|_| has_v6));
    }
}
