//! The names under which an endpoint may be addressed. A web page whose own name resolves to this host
//! (DNS rebinding) sends that name, and is refused.

use std::net::IpAddr;

use rustix::system::uname;

/// The names under which an endpoint may be addressed.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Allows `localhost`, the name of this host, and these further names or addresses.
    #[must_use]
    pub fn new(further: &[String]) -> Self {
        let own = uname().nodename().to_string_lossy().to_ascii_lowercase();
        let further = further.iter().map(|name| bare(name).to_ascii_lowercase());
        let all = ["localhost".into(), own].into_iter().chain(further);
        Self(all.filter(|name| !name.is_empty()).collect())
    }

    /// Returns whether a `Host` header names this endpoint, for a connection to its address `local`. Any port
    /// is allowed, because a proxy may listen at another one.
    #[must_use]
    pub fn allow(&self, header: &str, local: IpAddr) -> bool {
        let Some(host) = without_port(header) else {
            return false;
        };
        match bare(host).parse::<IpAddr>() {
            Ok(address) if address.to_canonical() == local.to_canonical() => true,
            _ => {
                let host = bare(host).to_ascii_lowercase();
                let host = host.strip_suffix('.').unwrap_or(&host);
                self.0.iter().any(|name| name == host)
            }
        }
    }
}

/// Returns an IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(host)
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
        let hosts = Hosts::new(&["Metrics.example".into(), "192.0.2.9".into()]);
        let local = IpAddr::from([10, 0, 0, 1]);
        for (host, is_allowed) in [
            ("localhost", true),
            ("LOCALHOST:7401", true),
            ("localhost.", true),
            (&*own, true),
            ("10.0.0.1:7401", true),
            ("[::ffff:10.0.0.1]:7401", true),
            ("metrics.EXAMPLE", true),
            ("192.0.2.9:1", true),
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
        ] {
            assert_eq!(hosts.allow(host, local), is_allowed, "{host:?}");
        }
        let loopback = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(hosts.allow("[::1]:7401", loopback));
    }
}
