//! Any bytes as the `Host` of a request to an endpoint.

use std::net::IpAddr;

use tickcast_http::hosts::Hosts;

/// Asserts these invariants of a `Host` header:
/// - It is allowed only if it is a name of the endpoint, in any case, with or without a port.
/// - Another port or the case of letters does not change that.
pub fn admin(bytes: &[u8]) {
    let header = String::from_utf8_lossy(bytes);
    let local = IpAddr::from([192, 0, 2, 1]);
    let names = ["own.example", "2001:db8::9"].map(String::from);
    let hosts = Hosts::new(&names);
    let is_allowed = |host: &str| hosts.allow(host, local);
    assert_eq!(
        is_allowed(&header),
        is_allowed(&header.to_ascii_uppercase())
    );
    if !is_allowed(&header) {
        return;
    }
    let end = header
        .rfind(']')
        .map_or_else(|| header.find(':'), |end| Some(end + 1));
    let (host, port) = header.split_at(end.unwrap_or(header.len()));
    let digits = port.strip_prefix(':').unwrap_or_default();
    assert!(
        digits.bytes().all(|byte| byte.is_ascii_digit()),
        "{header:?}"
    );
    assert!(
        is_allowed(host) && is_allowed(&format!("{host}:1")),
        "{header:?}"
    );
    assert!(
        !is_allowed(&format!("{host}.attacker.example")),
        "{header:?}"
    );
    assert!(
        !is_allowed(&format!("attacker.example@{host}")),
        "{header:?}"
    );
}
