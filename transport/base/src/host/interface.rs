//! Resolves the network interface that a configuration names, by name or by address. The error lists
//! the interfaces that exist.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::nic_requests::mtu;
use crate::host::host_addresses::HostAddresses;

/// A network interface as a configuration names it: `lo`, `eth0`, `127.0.0.1`. Default: loopback.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Interface {
    /// By the operating system's name.
    Name(String),
    /// By one of its addresses, which is then also the sender's.
    Address(Ipv4Addr),
}

impl Default for Interface {
    fn default() -> Self {
        Self::Address(Ipv4Addr::LOCALHOST)
    }
}

/// The operating system's data about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedInterface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// The requested address, or the interface's first.
    pub address: Ipv4Addr,
    /// Length of the longest IP packet it carries, in bytes, if known.
    pub mtu: Option<usize>,
}

/// Reason that an interface can't be resolved. The configuration is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The text is neither a name nor an address.
    #[error(
        "{text:?} is neither an interface's name nor an IPv4 address; write for example \"eth0\" or \"10.0.0.1\""
    )]
    Text {
        /// The configured value.
        text: String,
    },
    /// No interface has that name or address.
    #[error("no interface has the name or address {wanted}; this host has {available}")]
    Unknown {
        /// The requested value.
        wanted: String,
        /// Names and addresses that exist.
        available: String,
    },
    /// The interface has no IPv4 address.
    #[error("interface {name} has no IPv4 address; assign one or choose another interface")]
    NoAddress {
        /// Name of the interface.
        name: String,
    },
    /// The interfaces can't be listed.
    #[error("the host's interfaces can't be listed: {reason}")]
    List {
        /// The operating system's error.
        reason: String,
    },
}

impl FromStr for Interface {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Self, InterfaceError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        // IFNAMSIZ is 16, including the terminating zero.
        let is_name = (1..16).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
            && !text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if is_name {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(InterfaceError::Text {
                text: text.to_owned(),
            })
        }
    }
}

impl TryFrom<String> for Interface {
    type Error = InterfaceError;

    fn try_from(text: String) -> Result<Self, InterfaceError> {
        text.parse()
    }
}

impl From<Interface> for String {
    fn from(interface: Interface) -> Self {
        interface.to_string()
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Interface {
    /// Resolves the interface with the operating system.
    ///
    /// # Errors
    /// [`InterfaceError`], which lists the interfaces that exist.
    pub fn resolve(&self) -> Result<ResolvedInterface, InterfaceError> {
        let all = HostAddresses::list().map_err(|error| InterfaceError::List {
            reason: error.to_string(),
        })?;
        let all = all.of_ipv4();
        let found = match self {
            Self::Name(name) => all.iter().find(|(n, a)| n == name && a.is_some()),
            Self::Address(address) => all
                .iter()
                .find(|(_, a)| *a == Some(*address))
                // All of 127/8 belongs to the loopback interface, though it lists only one address.
                .or_else(|| {
                    let is_loopback = |a: &Option<Ipv4Addr>| a.is_some_and(|a| a.is_loopback());
                    all.iter()
                        .find(|(_, a)| address.is_loopback() && is_loopback(a))
                }),
        };
        let Some((name, Some(listed))) = found else {
            return Err(self.not_found(&all));
        };
        let address = match self {
            Self::Name(_) => *listed,
            Self::Address(address) => *address,
        };
        Ok(ResolvedInterface {
            index: index_of(name).ok_or_else(|| self.not_found(&all))?,
            address,
            mtu: mtu(name).ok(),
            name: name.clone(),
        })
    }

    fn not_found(&self, all: &[(String, Option<Ipv4Addr>)]) -> InterfaceError {
        if let Self::Name(name) = self
            && all.iter().any(|(n, _)| n == name)
        {
            return InterfaceError::NoAddress { name: name.clone() };
        }
        let mut available: Vec<String> = all
            .iter()
            .map(|(name, address)| match address {
                Some(address) => format!("{name} ({address})"),
                None => name.clone(),
            })
            .collect();
        available.sort();
        available.dedup();
        InterfaceError::Unknown {
            wanted: self.to_string(),
            available: available.join(", "),
        }
    }
}

fn index_of(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: `name` is a C string that lives through the call. Exercised by the same test.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_address() {
        let by_address = Interface::default().resolve().unwrap();
        assert!(by_address.index > 0 && by_address.mtu.is_some_and(|mtu| mtu >= 1500));
        let by_name = Interface::Name(by_address.name.clone()).resolve().unwrap();
        assert_eq!(by_name, by_address);
        let other = Interface::from_str("127.0.0.2").unwrap().resolve().unwrap();
        assert_eq!(other.name, by_address.name);
        assert_eq!(other.address, Ipv4Addr::new(127, 0, 0, 2));
    }

    #[test]
    fn unknown_interface_error_lists_available_ones() {
        for wanted in ["nosuch0", "192.0.2.77"] {
            let error = Interface::from_str(wanted).unwrap().resolve().unwrap_err();
            assert!(matches!(error, InterfaceError::Unknown { .. }));
            assert!(error.to_string().contains("127.0.0.1"), "{error}");
        }
    }

    #[test]
    fn text_that_is_neither_name_nor_address_is_refused() {
        for text in [
            "",
            "127.0.0",
            "300.1.1.1",
            "a/b",
            "sixteen-letters-",
            "with space",
        ] {
            assert!(Interface::from_str(text).is_err(), "{text:?}");
        }
        assert_eq!(
            Interface::from_str("eth0.12").unwrap().to_string(),
            "eth0.12"
        );
    }
}
