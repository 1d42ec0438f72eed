//! Checks of multicast: routes, the check of source addresses, memberships, queriers.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::super::check::{Check, Fix, Subject};
use super::nic::judged;
use super::wanted::{LOOPBACK, Wanted};
use crate::commands::tree::{Tree, of_interface};

/// Flags of a route (`linux/route.h`).
const RTF_UP: u32 = 1;
const RTF_REJECT: u32 = 1 << 9;
/// Value of `rp_filter` that accepts a source with a route through any interface.
const LOOSE: u64 = 2;
const STRICT: u64 = 1;
const CONF: &str = "/proc/sys/net/ipv4/conf";

/// Runs all checks of multicast that only read.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    let memberships = memberships(tree);
    let mut checks = vec![route(tree, wanted)];
    for name in judged(tree, wanted) {
        checks.push(reverse_path(tree, &name));
        checks.push(membership(tree, wanted, &memberships, &name));
        checks.push(querier(tree, &memberships, &name));
    }
    checks
}

/// A route of `/proc/net/route`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    interface: String,
    is_rejected: bool,
    metric: u32,
    mask: u32,
}

/// Returns the route of a group in the main table, if there is one.
fn route_of(tree: &Tree, group: Ipv4Addr) -> Option<Route> {
    let text = tree.text("/proc/net/route")?;
    let routes = text.lines().skip(1).filter_map(|line| {
        let columns: Vec<_> = line.split_ascii_whitespace().collect();
        let &[interface, destination, _, flags, _, _, metric, mask, ..] = columns.as_slice() else {
            return None;
        };
        // The kernel writes addresses as the machine holds them.
        let address = |hex| Some(u32::from_be(u32::from_str_radix(hex, 16).ok()?));
        let (destination, mask) = (address(destination)?, address(mask)?);
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_its = u32::from(group) & mask == destination && flags & RTF_UP != 0;
        is_its.then_some(Route {
            interface: interface.to_owned(),
            is_rejected: flags & RTF_REJECT != 0,
            metric: metric.parse().ok()?,
            mask,
        })
    });
    routes.max_by_key(|route| (route.mask, std::cmp::Reverse(route.metric)))
}

fn route(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::MulticastRoute;
    let header = tree.word("/proc/net/route");
    if !header.is_some_and(|header| header.starts_with("Iface")) {
        return Check::unknown(id, "this system does not report its routes");
    }
    let mut elsewhere = Vec::new();
    for (group, interface) in wanted.groups() {
        if interface == LOOPBACK {
            continue;
        }
        let add = ["ip", "route", "replace", "239.0.0.0/8", "dev", interface];
        let remove = ["ip", "route", "del", "239.0.0.0/8", "dev", interface];
        match route_of(tree, group) {
            Some(route) if route.is_rejected || route.interface != interface => {
                let to = match route.is_rejected {
                    true => "nowhere",
                    false => &route.interface,
                };
                let fix = Fix::command(&add, &remove);
                elsewhere.push((format!("{group} to {to}"), interface, fix));
            }
            _ => {}
        }
    }
    let Some((found, interface, fix)) = elsewhere.into_iter().next() else {
        return Check::ok(id, "no route leads the groups elsewhere");
    };
    Check::note(
        id,
        format!("the route of {found}, and this config uses {interface}"),
        "tickcast names the interface itself, but other programs that join or send without one use \
         the route",
        "",
    )
    .fixed_by([fix])
}

fn reverse_path(tree: &Tree, name: &str) -> Check {
    let id = Subject::ReversePath;
    let of = |name: &str| tree.number(&format!("{CONF}/{name}/rp_filter"));
    let own = of_interface(name, "").and_then(|_| of(name));
    let (Some(of_all), Some(own)) = (of("all"), own) else {
        return Check::unknown(id, format!("this system does not report that of {name}"));
    };
    // The kernel takes the larger value.
    if of_all.max(own) != STRICT {
        return Check::ok(id, format!("{name} accepts every source that has a route"));
    }
    let dropped = tree.counter("/proc/net/netstat", "TcpExt", "IPReversePathFilter");
    let dropped = dropped.unwrap_or(0);
    let found = format!(
        "{name} accepts only sources whose route leads back through it; {dropped} packets were \
         dropped for it since boot"
    );
    let why = "datagrams of a group are dropped in silence if their sender is reached through \
               another interface, as with two lines on two networks";
    let key = format!("net.ipv4.conf.{}.rp_filter", name.replace('.', "/"));
    let fix = Fix::sysctl(&key, LOOSE, own);
    let check = if dropped > 0 {
        Check::warning
    } else {
        Check::note
    };
    check(id, found, why, "").fixed_by([fix])
}

/// The groups that the host has joined on an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Memberships {
    interface: String,
    /// The version of IGMP in use: that of the oldest querier heard.
    version: String,
    groups: BTreeSet<Ipv4Addr>,
    /// Whether a query waits for its answer.
    is_asked: bool,
}

/// Reads `/proc/net/igmp`.
fn memberships(tree: &Tree) -> Vec<Memberships> {
    let text = tree.text("/proc/net/igmp").unwrap_or_default();
    let mut all: Vec<Memberships> = Vec::new();
    for line in text.lines().skip(1) {
        if line.starts_with(char::is_whitespace) {
            let mut columns = line.split_ascii_whitespace();
            let group = columns
                .next()
                .and_then(|it| u32::from_str_radix(it, 16).ok());
            let (Some(group), Some(last)) = (group, all.last_mut()) else {
                continue;
            };
            // The kernel writes addresses as the machine holds them.
            last.groups.insert(Ipv4Addr::from(u32::from_be(group)));
            let timer = columns.nth(1).and_then(|it| it.split_once(':'));
            last.is_asked |= timer.is_some_and(|(runs, _)| runs == "1");
        } else if let Some((device, rest)) = line.split_once(':') {
            let interface = device.split_ascii_whitespace().nth(1);
            let version = rest.split_ascii_whitespace().nth(1);
            let (Some(interface), Some(version)) = (interface, version) else {
                continue;
            };
            all.push(Memberships {
                interface: interface.to_owned(),
                version: version.to_owned(),
                ..Memberships::default()
            });
        }
    }
    all
}

fn membership(tree: &Tree, wanted: &Wanted, all: &[Memberships], name: &str) -> Check {
    let id = Subject::IgmpMembership;
    let forced = tree.number(&format!("{CONF}/{name}/force_igmp_version"));
    if let Some(version @ 1..=2) = forced {
        let key = format!(
            "net.ipv4.conf.{}.force_igmp_version",
            name.replace('.', "/")
        );
        return Check::note(
            id,
            format!("{name} speaks IGMP version {version} only"),
            "a membership for certain senders, which subscribers and inputs with `from` ask for, \
             becomes one for all senders",
            "",
        )
        .fixed_by([Fix::sysctl(&key, 0, version)]);
    }
    if all.is_empty() {
        return Check::unknown(id, "this system does not report its memberships");
    }
    let own = all.iter().find(|it| it.interface == name);
    let joined = |it: &Memberships, group: Ipv4Addr| it.groups.contains(&group);
    let mut groups = wanted.received.iter().filter(|line| line.interface == name);
    let astray = groups.find_map(|line| {
        let group = *line.group.ip();
        let is_here = own.is_some_and(|it| joined(it, group));
        let elsewhere = all
            .iter()
            .find(|it| it.interface != LOOPBACK && joined(it, group))?;
        (!is_here).then_some((group, &elsewhere.interface))
    });
    if let Some((group, elsewhere)) = astray {
        return Check::warning(
            id,
            format!("{group} is joined on {elsewhere}, and this config receives it on {name}"),
            "packets that arrive on an interface without a membership are dropped",
            "set `interface` of that line to the venue's network, or end the program that joined it on \
             the other",
        );
    }
    let count = own.map_or(0, |it| it.groups.len());
    Check::ok(id, format!("{count} groups are joined on {name}"))
}

fn querier(tree: &Tree, all: &[Memberships], name: &str) -> Check {
    let id = Subject::IgmpQuerier;
    let why = "a switch that snoops IGMP forgets a membership some four minutes after the last query, \
               and then no longer forwards the group";
    // The interface may be a bridge itself, or a port of one.
    for bridge in ["bridge", "brport/bridge/bridge"] {
        let Some(folder) = of_interface(name, bridge) else {
            continue;
        };
        let file = |file: &str| tree.number(&format!("{folder}/{file}"));
        let (snoops, asks) = (file("multicast_snooping"), file("multicast_querier"));
        if (snoops, asks) == (Some(1), Some(1)) {
            return Check::ok(id, format!("the bridge of {name} is the querier"));
        }
        if (snoops, asks) == (Some(1), Some(0)) {
            let events = tree
                .text(&format!("{folder}/../uevent"))
                .unwrap_or_default();
            let mut lines = events.lines();
            let device = lines.find_map(|line| line.strip_prefix("INTERFACE="));
            let device = device.unwrap_or(name);
            let set = |value| {
                [
                    "ip",
                    "link",
                    "set",
                    "dev",
                    device,
                    "type",
                    "bridge",
                    "mcast_querier",
                    value,
                ]
            };
            return Check::warning(
                id,
                format!("the bridge of {name} snoops IGMP, and is no querier itself"),
                why,
                "leave it as it is if a router or switch of this network is the querier",
            )
            .fixed_by([Fix::command(&set("1"), &set("0"))]);
        }
    }
    let Some(own) = all.iter().find(|it| it.interface == name) else {
        return Check::unknown(
            id,
            format!("no group is joined on {name}, so nothing is known"),
        );
    };
    match own.version.as_str() {
        "V1" | "V2" => Check::note(
            id,
            format!("the querier on {name} speaks {} only", own.version),
            "a membership for certain senders becomes one for all senders",
            "let the querier speak version 3",
        ),
        _ if own.is_asked => Check::ok(id, format!("a querier asks on {name}")),
        // A query shows only in the seconds before its answer.
        _ => Check::unknown_but(
            id,
            format!("no query waits for its answer on {name}, so a querier may exist or not"),
            why,
            format!(
                "run `tcpdump -ni {name} igmp` for three minutes: a query must come; else make a \
                 switch or router of this network the querier"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    fn runs(check: &Check) -> Vec<&str> {
        check.commands().iter().map(Fix::run).collect()
    }

    /// Writes an address as the kernel does.
    fn hex(address: &str) -> String {
        let address: Ipv4Addr = address.parse().unwrap();
        format!("{:08X}", u32::from(address).to_be())
    }

    fn routes(lines: &[(&str, &str, &str, u32, u32)]) -> FakedTree {
        let mut text = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\n".to_owned();
        for (interface, destination, mask, flags, metric) in lines {
            let (destination, mask) = (hex(destination), hex(mask));
            text +=
                &format!("{interface}\t{destination}\t0\t{flags:04X}\t0\t0\t{metric}\t{mask}\t0\n");
        }
        text += "odd\neth9\tx\t0\t1\t0\t0\t0\t0\n";
        FakedTree::of(&[("/proc/net/route", &text)])
    }

    #[test]
    fn route_that_leads_groups_elsewhere_is_reported() {
        let wanted = wanted(json!({}));
        let verdict = |lines: &[_]| route(&routes(lines).tree(), &wanted);
        let default = ("eth1", "0.0.0.0", "0.0.0.0", 3, 0);
        let check = verdict(&[default]);
        assert_eq!(check.verdict(), Verdict::Note);
        assert!(check.found().contains("239.255.90.1 to eth1"), "{check}");
        let expected = ["ip route replace 239.0.0.0/8 dev eth0"];
        assert_eq!(runs(&check), expected);
        let better = ("eth0", "224.0.0.0", "240.0.0.0", 1, 0);
        assert_eq!(verdict(&[default, better]).verdict(), Verdict::Ok);
        let worse = ("eth0", "0.0.0.0", "0.0.0.0", 3, 100);
        assert_eq!(verdict(&[default, worse]).verdict(), Verdict::Note);
        let rejects = ("*", "239.0.0.0", "255.0.0.0", 0x201, 0);
        let rejected = verdict(&[better, rejects]);
        assert_eq!(rejected.verdict(), Verdict::Note);
        assert!(rejected.found().contains("239.255.90.1 to nowhere"));
        assert_eq!(verdict(&[]).verdict(), Verdict::Ok);
        let none = FakedTree::of(&[]);
        assert_eq!(route(&none.tree(), &wanted).verdict(), Verdict::Unknown);
    }

    #[test]
    fn strict_reverse_path_filter_is_reported() {
        let faked = FakedTree::of(&[
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0\n"),
            ("/proc/sys/net/ipv4/conf/eth0.5/rp_filter", "1\n"),
        ]);
        let check = || reverse_path(&faked.tree(), "eth0.5");
        assert_eq!(check().verdict(), Verdict::Note);
        let expected = "sysctl -w net.ipv4.conf.eth0/5.rp_filter=2";
        assert_eq!(runs(&check()), [expected]);
        let netstat = "TcpExt: A IPReversePathFilter\nTcpExt: 0 4\n";
        faked.put("/proc/net/netstat", netstat);
        assert_eq!(check().verdict(), Verdict::Warning);
        faked.put("/proc/sys/net/ipv4/conf/all/rp_filter", "2\n");
        assert_eq!(check().verdict(), Verdict::Ok);
        for name in ["../all", "eth1"] {
            let check = reverse_path(&faked.tree(), name);
            assert_eq!(check.verdict(), Verdict::Unknown, "{name}");
        }
    }

    fn igmp(version: &str, timer: &str) -> String {
        format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             1\tlo        :     1      V3\n\t\t\t\t{}     1 0:00000000\t\t0\n\
             4\teth0      :     2      {version}\n\t\t\t\t{}     1 {timer}\t\t0\n\
             \t\t\t\t{}     1 0:00000000\t\t0\n\t\t\t\todd\n5\teth1 : 1 V3\n\t\t\t\t{} 1 0:0 0\n",
            hex("224.0.0.1"),
            hex("239.1.1.1"),
            hex("224.0.0.1"),
            hex("239.1.1.2"),
        )
    }

    #[test]
    fn membership_on_another_interface_is_reported() {
        let faked = FakedTree::of(&[("/proc/net/igmp", &igmp("V3", "0:00000000"))]);
        let receives = |group: &str| {
            wanted(json!({ "inputs": [{
                "source": 1, "kind": "udp", "lines": [{ "listen": format!("{group}:100") }],
            }] }))
        };
        let all = memberships(&faked.tree());
        let groups: Vec<_> = all.iter().map(|it| it.groups.len()).collect();
        assert_eq!(groups, [1, 2, 1]);
        let check = |group| membership(&faked.tree(), &receives(group), &all, "eth0");
        assert_eq!(check("239.1.1.1").verdict(), Verdict::Ok);
        assert_eq!(check("239.1.1.9").verdict(), Verdict::Ok, "not joined yet");
        let astray = check("239.1.1.2");
        assert_eq!(astray.verdict(), Verdict::Warning);
        let none = membership(&faked.tree(), &receives("239.1.1.1"), &[], "eth0");
        assert_eq!(none.verdict(), Verdict::Unknown);
        assert!(astray.found().contains("joined on eth1"), "{astray}");
        faked.put("/proc/sys/net/ipv4/conf/eth0/force_igmp_version", "2\n");
        let forced = check("239.1.1.1");
        let expected = ["sysctl -w net.ipv4.conf.eth0.force_igmp_version=0"];
        assert_eq!(
            (forced.verdict(), runs(&forced)),
            (Verdict::Note, expected.to_vec())
        );
    }

    #[test]
    fn querier_that_is_missing_or_old_is_reported() {
        let check = |version, timer, name| {
            let faked = FakedTree::of(&[("/proc/net/igmp", &igmp(version, timer))]);
            querier(&faked.tree(), &memberships(&faked.tree()), name)
        };
        assert_eq!(check("V3", "1:00000AFC", "eth0").verdict(), Verdict::Ok);
        let silent = check("V3", "0:00000000", "eth0");
        assert_eq!(silent.verdict(), Verdict::Unknown);
        assert!(silent.remedy().contains("tcpdump -ni eth0"), "{silent}");
        let old = check("V2", "0:00000000", "eth0");
        assert!(old.found().contains("speaks V2 only"), "{old}");
        assert_eq!(check("V3", "0:0", "eth7").verdict(), Verdict::Unknown);
        let bridge = "/sys/class/net/br0/bridge";
        let faked = FakedTree::of(&[]);
        faked.put(&format!("{bridge}/multicast_snooping"), "1\n");
        faked.put(&format!("{bridge}/multicast_querier"), "0\n");
        let check = || querier(&faked.tree(), &[], "br0");
        let expected = ["ip link set dev br0 type bridge mcast_querier 1"];
        assert_eq!(
            (check().verdict(), runs(&check())),
            (Verdict::Warning, expected.to_vec())
        );
        faked.put(&format!("{bridge}/multicast_querier"), "1\n");
        assert_eq!(check().verdict(), Verdict::Ok);
        let port = "/sys/class/net/eth0/brport/bridge";
        faked.put(&format!("{port}/bridge/multicast_snooping"), "1\n");
        faked.put(&format!("{port}/bridge/multicast_querier"), "0\n");
        faked.put(&format!("{port}/uevent"), "DEVTYPE=bridge\nINTERFACE=br0\n");
        assert_eq!(runs(&querier(&faked.tree(), &[], "eth0")), expected);
    }
}
