//! Checks that use the network and the devices of this host: a datagram to a group and back, other
//! publishers, RDMA.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use tickcast_publisher::internal::{Plan, find_others};
use tickcast_subscriber::Interface;
use tickcast_transport::host::interface::ResolvedInterface;
use tickcast_transport::verbs::ports;

use super::super::check::{Check, Subject};
use super::wanted::Wanted;

/// Time limit for a datagram to a group to come back on the same host.
const PATIENCE: Duration = Duration::from_secs(2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);

/// Sends a datagram to a group through an interface, and checks that it comes back.
pub(super) fn multicast(interface: &Interface) -> Check {
    let id = Subject::Multicast;
    let why = "publishers send all datagrams to groups, and subscribers join them on an interface";
    let resolved = match interface.resolve() {
        Ok(resolved) => resolved,
        Err(error) => {
            let remedy = "choose one that `ip address` lists (--interface)";
            return Check::error(id, error.to_string(), why, remedy);
        }
    };
    let name = format!("{} ({})", resolved.name, resolved.address);
    match to_group_and_back(&resolved) {
        Ok(()) => Check::ok(id, format!("a datagram to a group and back on {name}")),
        Err(error) => Check::error(
            id,
            format!("no datagram to a group and back on {name}: {error}"),
            why,
            "is the interface up, with MULTICAST (`ip link show`)? does a firewall drop UDP to 239.0.0.0/8?",
        ),
    }
}

fn to_group_and_back(interface: &ResolvedInterface) -> io::Result<()> {
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    receiver.join_multicast_v4(&GROUP, &interface.address)?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let sender = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    sender.set_multicast_if_v4(&interface.address)?;
    sender.set_multicast_ttl_v4(0)?;
    let to = SocketAddrV4::new(GROUP, receiver.local_addr()?.port());
    let sent = std::process::id().to_le_bytes();
    sender.send_to(&sent, &to.into())?;
    let mut bytes = [0; 16];
    loop {
        let len = receiver.recv(&mut bytes)?;
        if bytes[..len] == sent {
            return Ok(());
        }
    }
}

/// Listens on the groups of a plan for other publishers, as a publisher does before it starts.
pub(super) fn groups_in_use(plan: &Plan) -> Vec<Check> {
    let id = Subject::GroupsInUse;
    let others = find_others(plan);
    if others.is_empty() {
        return vec![Check::ok(
            id,
            "no other publisher sends to the groups of this config",
        )];
    }
    let found = others.into_iter().map(|other| {
        Check::error(
            id,
            other.to_string(),
            "the publisher refuses to start, because subscribers of each publisher drop the datagrams \
             of the other",
            "end that publisher, or give each publisher groups of its own; if it is this config's own \
             publisher, all is well",
        )
    });
    found.collect()
}

/// Reports whether this host has RDMA devices.
pub(super) fn rdma(wanted: &Wanted) -> Check {
    match ports::all() {
        Ok(ports) => rdma_of(ports.len(), wanted),
        Err(error) => {
            let found = format!("devices can't be listed: {error}");
            Check::unknown(Subject::Rdma, found)
        }
    }
}

fn rdma_of(count: usize, wanted: &Wanted) -> Check {
    let id = Subject::Rdma;
    let see = "`tickcast doctor --rdma` checks them";
    match (count, wanted.pinned_bytes) {
        (0, Some(_)) => Check::error(
            id,
            "this host has no device, and this config uses verbs",
            "the publisher refuses to start with a fan-out or a repair listener that it can't open",
            "load the module of the card, or use udp; `tickcast doctor --rdma` names the steps",
        ),
        (0, None) => Check::ok(id, "this host has no device; UDP needs none"),
        (count, _) => Check::ok(id, format!("this host has {count} ports; {see}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tickcast_publisher::Config;

    use super::*;
    use crate::commands::doctor::check::Verdict;

    #[test]
    fn multicast_through_a_missing_interface_is_reported() {
        let name = |name: &str| multicast(&Interface::Name(name.into())).verdict();
        assert_eq!(name("nosuch0"), Verdict::Error);
        assert_eq!(multicast(&Interface::default()).verdict(), Verdict::Ok);
    }

    #[test]
    fn rdma_that_is_missing_matters_to_a_config_with_verbs() {
        let verbs = Wanted {
            pinned_bytes: Some(1),
            ..Wanted::default()
        };
        assert_eq!(rdma_of(0, &verbs).verdict(), Verdict::Error);
        assert_eq!(rdma_of(1, &verbs).verdict(), Verdict::Ok);
        assert_eq!(rdma_of(0, &Wanted::default()).verdict(), Verdict::Ok);
    }

    #[test]
    fn groups_without_another_publisher_are_free() {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        let config = json!({
            "name": "a", "control": "127.0.0.1:0", "inputs": [],
            "channels": [{ "id": 1, "name": "all", "slots": 1024, "fan_out": [{
                "transport": "udp", "lines": [{ "group": format!("239.254.17.3:{port}") }],
            }] }],
        });
        let config = Config::parse(&config.to_string()).unwrap();
        let plan = Plan::for_handlers(config).unwrap();
        let checks = groups_in_use(&plan);
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict(), Verdict::Ok);
    }
}
