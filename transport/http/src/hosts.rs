//! The names under which an endpoint may be addressed. A web page whose own name resolves to this host
//! (DNS rebinding) sends that name, and is refused.

use std::net::IpAddr;

use rustix::system::uname;

/// A host, as a header or a config names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Address in its shortest family, so that each has one form.
    Address(IpAddr),
    /// Name in lower case, without the dot at its end.
    Name(String),
}

impl Host {
    /// Parses an address, with or without brackets, or a name of letters, digits, hyphens, underscores and
    /// dots. Returns `None` for anything else, and for a port.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if let Ok(address) = inner.unwrap_or(text).parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = !name.is_empty() && name.bytes().all(is_of_name);
        is_name.then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// The names under which an endpoint may be addressed.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<Host>);

impl Hosts {
    /// Allows `localhost`, the name of this host, and these further names or addresses.
    #[must_use]
    pub fn new(further: &[String]) -> Self {
        let own = uname().nodename().to_string_lossy().into_owned();
        let all = ["localhost", &*own].into_iter();
        let all = all.chain(further.iter().map(String::as_str));
        Self(all.filter_map(Host::parse).collect())
    }

    /// Returns whether a `Host` header names this endpoint, for a connection to its address `local`. Any port
    /// is allowed, because a proxy may listen at another one.
    #[must_use]
    pub fn allow(&self, header: &str, local: IpAddr) -> bool {
        let named = without_port(header).and_then(Host::parse);
        let local = Host::Address(local.to_canonical());
        named.is_some_and(|it| it == local || self.0.contains(&it))
    }
}

/// Returns the host of a `Host` header; `None` if the header is malformed.
fn without_port(header: &str) -> Option<&str> {
    let (host, port) = match header.rfind(']') {
        Some(end) => header.split_at(end + 1),
        None => header.split_at(header.find(':').unwrap_or(header.len())),
    };
    let digits = match port {
        "" => return Some(host),
        port => port.strip_prefix(':')?,
    };
    let is_port = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_this_endpoint_or_is_refused() {
        let own = uname().nodename().to_str().unwrap().to_uppercase();
        let further = ["Metrics.example.", "192.0.2.9", "2001:DB8:0::9"].map(String::from);
        let hosts = Hosts::new(&further);
        let local = IpAddr::from([10, 0, 0, 1]);
        for (host, is_allowed) in [
            ("localhost", true),
            ("LOCALHOST:7401", true),
            ("localhost.", true),
            (&*own, true),
            ("10.0.0.1:7401", true),
            ("[::ffff:10.0.0.1]:7401", true),
            ("metrics.EXAMPLE", true),
            ("metrics.example.:7401", true),
            ("192.0.2.9:1", true),
            ("[2001:db8::9]:1", true),
            ("127.0.0.1", false),
            ("10.0.0.2:7401", false),
            ("attacker.example", false),
            ("attacker.example:7401", false),
            ("localhost.attacker.example", false),
            ("localhost@attacker.example", false),
            ("localhost:7401@attacker.example", false),
            ("localhost:x", false),
            ("[localhost", false),
            ("[::1]7401", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(hosts.allow(host, local), is_allowed, "{host:?}");
        }
        let loopback = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(hosts.allow("[::1]:7401", loopback));
    }

    #[test]
    fn host_is_a_name_or_an_address_without_port() {
        for text in ["a.example", "A_b-1", "10.0.0.1", "::1", "[::1]"] {
            assert!(Host::parse(text).is_some(), "{text:?}");
        }
        for text in [
            "",
            ".",
            "*",
            "a:7401",
            "[::1]:7401",
            "[a]",
            "a b",
            "http://a",
            "é",
        ] {
            assert_eq!(Host::parse(text), None, "{text:?}");
        }
    }
}
