//! Address of an HTTP endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Address of an HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointAddress {
    /// Path of a Unix socket.
    Socket(PathBuf),
    /// Address and port of a TCP listener.
    Port(SocketAddr),
}

impl From<SocketAddr> for EndpointAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Port(address)
    }
}

impl FromStr for EndpointAddress {
    type Err = String;

    /// Parses a path, which contains a `/`, or an address with a port.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        let address = text.parse();
        address.map(Self::Port).map_err(|_| {
            format!(
                "{text:?} is neither a path nor an address; give the path of a command socket, for \
                 example /run/tickcast/a.commands, or an address and a port, for example \
                 10.0.0.1:7402"
            )
        })
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Port(address) => address.fmt(f),
        }
    }
}

impl Serialize for EndpointAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EndpointAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_address_is_a_path_or_a_port() {
        let socket = EndpointAddress::Socket("/run/a.commands".into());
        assert_eq!("/run/a.commands".parse(), Ok(socket.clone()));
        let port = EndpointAddress::from(SocketAddr::from(([10, 0, 0, 1], 7402)));
        assert_eq!("10.0.0.1:7402".parse(), Ok(port.clone()));
        let error = EndpointAddress::from_str("somewhere").unwrap_err();
        assert!(error.contains("10.0.0.1:7402"), "{error}");
        for address in [socket, port] {
            let text = serde_json::to_string(&address).unwrap();
            let parsed = serde_json::from_str::<EndpointAddress>(&text);
            assert_eq!(parsed.unwrap(), address);
        }
    }
}
