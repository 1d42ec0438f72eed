//! Checks of network devices: state, MTU, drops, rings.

use std::collections::BTreeSet;

use tickcast_transport::host::nic_rings::NicRings;

use super::super::check::{Check, Fix, Subject};
use super::wanted::{LOOPBACK, Wanted};
use crate::commands::tree::{Tree, list_of, of_interface};

/// Bytes of the IP and UDP headers before a datagram.
const HEADERS_LEN: u64 = 28;
/// Bits of an interface's flags (`linux/if.h`).
const IFF_UP: u64 = 1;
const IFF_MULTICAST: u64 = 1 << 12;
/// The backlog between devices and the protocols that `sysctl` sets, in packets: a burst of the line rate
/// of 10 Gbit/s for about 10 ms.
const BACKLOG_ENOUGH: u64 = 10_000;
/// Polls without a packet after which a device interrupts again, and the time in nanoseconds after which its
/// timer polls it. The kernel's documentation recommends both for busy polling.
const DEFERRED_POLLS: u64 = 2;
const FLUSH_NS: u64 = 200_000;
/// Counters of an interface that grow with each packet lost before the protocols, and their meaning.
const DROPS: [(&str, &str); 8] = [
    (
        "rx_missed_errors",
        "missed, because the receive ring was full",
    ),
    ("rx_fifo_errors", "overran the device"),
    ("rx_over_errors", "overran the receive ring"),
    ("rx_crc_errors", "damaged on the cable"),
    ("rx_frame_errors", "damaged on the cable"),
    ("rx_dropped", "dropped by driver or kernel"),
    ("tx_dropped", "not sent, because the send queue was full"),
    ("tx_fifo_errors", "not sent, because the device underran"),
];

/// Runs all checks of network devices.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    let mut checks = Vec::new();
    for name in &wanted.interfaces {
        checks.push(state(tree, name));
        checks.push(mtu(tree, wanted, name));
    }
    for name in judged(tree, wanted) {
        checks.push(node(tree, wanted, &name));
        checks.push(drops(tree, &name));
        checks.push(rings(&name, NicRings::of(&name).ok().flatten()));
    }
    let polled = polled(tree, wanted);
    if polled.is_empty() {
        checks.push(Check::ok(Subject::NicDefer, "no socket polls a device"));
    }
    checks.extend(polled.iter().map(|name| deferral(tree, name)));
    checks.push(backlog(tree));
    checks
}

/// Returns the interfaces that sockets poll: those of the config's setting; all of the config, where the
/// system lets every socket poll.
fn polled(tree: &Tree, wanted: &Wanted) -> BTreeSet<String> {
    let by_setting = wanted.busy_polled.iter().map(String::as_str);
    let mut polled: BTreeSet<&str> = by_setting.filter(|name| *name != LOOPBACK).collect();
    if tree.number("/proc/sys/net/core/busy_read") > Some(0) {
        polled.extend(wanted.networks());
    }
    polled.into_iter().map(str::to_owned).collect()
}

/// Returns the interfaces whose devices are judged: the config's. Without a config: all with hardware that
/// are up, and the given one.
pub(super) fn judged(tree: &Tree, wanted: &Wanted) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = wanted.networks().map(str::to_owned).collect();
    if !wanted.is_configured && !wanted.is_subscriber {
        let has_hardware = |name: &String| tree.has(&format!("/sys/class/net/{name}/device"));
        let is_up = |name: &String| flags(tree, name).is_some_and(|flags| flags & IFF_UP != 0);
        let all = tree.names("/sys/class/net").into_iter();
        names.extend(all.filter(|name| has_hardware(name) && is_up(name)));
    }
    names
}

/// Returns the flags of an interface.
fn flags(tree: &Tree, name: &str) -> Option<u64> {
    let text = tree.word(&of_interface(name, "flags")?)?;
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

fn state(tree: &Tree, name: &str) -> Check {
    let id = Subject::Interface;
    let why = "publishers send to groups through it, and subscribers join them on it";
    let Some(flags) = flags(tree, name) else {
        if of_interface(name, "").is_some_and(|path| tree.has(&path)) {
            return Check::unknown(
                id,
                format!("this system does not report the state of {name}"),
            );
        }
        let remedy = "choose one that `ip address` lists (interface in the config, --interface)";
        return Check::error(id, format!("this host has no {name}"), why, remedy);
    };
    let base = ["ip", "link", "set", "dev", name];
    let link = |set: &[&str], back: &[&str]| {
        Fix::command(&[&base[..], set].concat(), &[&base[..], back].concat())
    };
    if flags & IFF_UP == 0 {
        return Check::error(id, format!("{name} is down"), why, "")
            .fixed_by([link(&["up"], &["down"])]);
    }
    let carrier = of_interface(name, "carrier").and_then(|path| tree.number(&path));
    if carrier == Some(0) {
        let remedy = "check the cable, the module, and the switch's port";
        return Check::error(id, format!("{name} is up and has no carrier"), why, remedy);
    }
    // Loopback delivers groups without the flag.
    if flags & IFF_MULTICAST == 0 && name != LOOPBACK {
        return Check::error(id, format!("{name} has no multicast"), why, "")
            .fixed_by([link(&["multicast", "on"], &["multicast", "off"])]);
    }
    Check::ok(id, format!("{name} is up"))
}

fn mtu(tree: &Tree, wanted: &Wanted, name: &str) -> Check {
    let id = Subject::Mtu;
    let mtu = of_interface(name, "mtu").and_then(|path| tree.number(&path));
    let Some(mtu) = mtu else {
        return Check::unknown(id, format!("this system does not report that of {name}"));
    };
    let found = format!("{name} carries packets of {mtu} bytes");
    let needed = wanted.datagram_len_max + HEADERS_LEN;
    if !wanted.published().iter().any(|line| line.interface == name) || mtu >= needed {
        return Check::ok(id, found);
    }
    let set =
        |mtu: u64| ["ip", "link", "set", "dev", name, "mtu", &mtu.to_string()].map(str::to_owned);
    let (set, back) = (set(needed), set(mtu));
    Check::warning(
        id,
        format!("{found}, and a slot of this config needs {needed}"),
        "longer datagrams go in fragments, and the loss of one fragment loses the datagram",
        "give the switches and all hosts the same MTU, or use a smaller slot_len",
    )
    .fixed_by([Fix::command(&set, &back)])
}

/// Reports pinned cores that are on another memory node than the device.
fn node(tree: &Tree, wanted: &Wanted, name: &str) -> Check {
    let id = Subject::Numa;
    let pinned = wanted.cores();
    if pinned.is_empty() {
        return Check::ok(
            id,
            "no thread has a core of its own to place beside a device",
        );
    }
    let device = of_interface(name, "device").filter(|path| tree.has(path));
    let Some(device) = device else {
        return Check::ok(id, format!("{name} has no hardware"));
    };
    let node = tree.word(&format!("{device}/numa_node"));
    if node.as_deref() == Some("-1") {
        return Check::ok(id, format!("{name} is beside all cores"));
    }
    let node: Option<u16> = node.and_then(|node| node.parse().ok());
    let beside = node.and_then(|node| {
        let cores = tree.cores(&format!("/sys/devices/system/node/node{node}/cpulist"))?;
        (!cores.is_empty()).then_some(cores)
    });
    let Some(beside) = beside else {
        let found = format!("this system does not report the cores beside {name}");
        return Check::unknown(id, found);
    };
    let found = format!("{name} is beside cores {}", list_of(&beside));
    let far: BTreeSet<_> = pinned.difference(&beside).copied().collect();
    if far.is_empty() {
        return Check::ok(id, found);
    }
    Check::note(
        id,
        format!("{found}, and this config pins threads to {}", list_of(&far)),
        "each datagram crosses the link between two processors, and both wait for its memory",
        "choose cores of the list, or the interface of a card beside the threads",
    )
}

fn drops(tree: &Tree, name: &str) -> Check {
    let id = Subject::NicDrops;
    let (mut counted, mut is_reported) = (Vec::new(), false);
    for (counter, meaning) in DROPS {
        let count = tree.statistic(name, counter);
        is_reported |= count.is_some();
        if let Some(count @ 1..) = count {
            counted.push(format!("{count} {meaning} ({counter})"));
        }
    }
    if !is_reported {
        return Check::unknown(id, format!("this system does not report those of {name}"));
    }
    if counted.is_empty() {
        return Check::ok(
            id,
            format!("{name} has dropped nothing, as far as its driver counts"),
        );
    }
    Check::warning(
        id,
        format!("{name} since it came up: {}", counted.join(", ")),
        "each such packet of a group was repaired, or lost; packets of other protocols count too",
        format!(
            "if `ip -s -s link show dev {name}` still grows: enlarge the rings, move the interrupt to \
             a core of its own, or change the cable"
        ),
    )
}

fn rings(name: &str, rings: Option<NicRings>) -> Check {
    let id = Subject::NicRings;
    let Some(rings) = rings else {
        return Check::unknown(
            id,
            format!("{name} has none, or its driver does not report them"),
        );
    };
    let found = format!(
        "{name} holds {} of {} packets to receive, {} of {} to send",
        rings.receive, rings.receive_max, rings.send, rings.send_max
    );
    if rings.receive >= rings.receive_max {
        return Check::ok(id, found);
    }
    let set = |length: u32| {
        let length = length.to_string();
        ["ethtool", "-G", name, "rx", &length].map(str::to_owned)
    };
    let (set, back) = (set(rings.receive_max), set(rings.receive));
    Check::note(
        id,
        found,
        "a burst that exceeds the receive ring before the kernel polls it is dropped by the device; \
         the change restarts the device",
        "",
    )
    .fixed_by([Fix::command(&set, &back)])
}

/// Reports a polled device whose interrupts are not deferred.
fn deferral(tree: &Tree, name: &str) -> Check {
    let id = Subject::NicDefer;
    let wanted = [
        ("napi_defer_hard_irqs", DEFERRED_POLLS),
        ("gro_flush_timeout", FLUSH_NS),
    ];
    let (mut found, mut fixes) = (Vec::new(), Vec::new());
    for (file, value) in wanted {
        let path = of_interface(name, file);
        let number = path.as_ref().and_then(|path| tree.number(path));
        let (Some(path), Some(number)) = (path, number) else {
            return Check::unknown(id, format!("this system does not report {file} of {name}"));
        };
        found.push(format!("{file} {number}"));
        if number == 0 {
            fixes.push(Fix::write(&path, &value.to_string(), "0"));
        }
    }
    let found = format!("{name} has {}", found.join(" and "));
    if fixes.is_empty() {
        return Check::ok(id, found);
    }
    Check::note(
        id,
        format!("{found}, and sockets poll it"),
        "the device interrupts after each poll of a socket, and the interrupt takes packets and time from \
         the polling thread; deferred, it interrupts only when no socket has polled for the time-out",
        "",
    )
    .fixed_by(fixes)
}

/// Reports packets that found the queue of their core full (`/proc/net/softnet_stat`).
fn backlog(tree: &Tree) -> Check {
    let id = Subject::SoftnetDrops;
    let text = tree.text("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = text.lines().filter_map(|line| {
        let dropped = line.split_ascii_whitespace().nth(1)?;
        u64::from_str_radix(dropped, 16).ok()
    });
    let Some(dropped) = dropped.reduce(u64::saturating_add) else {
        return Check::unknown(id, "this system does not report them");
    };
    if dropped == 0 {
        return Check::ok(id, "no packet found the queue of its core full");
    }
    const NAME: &str = "net.core.netdev_max_backlog";
    let before = tree
        .number("/proc/sys/net/core/netdev_max_backlog")
        .unwrap_or(1_000);
    let check = Check::warning(
        id,
        format!("{dropped} packets found the queue of their core full since boot"),
        "each such packet of a group was repaired, or lost",
        "if `cat /proc/net/softnet_stat` still grows in its second column, also move interrupts to \
         cores that have time",
    );
    if before >= BACKLOG_ENOUGH {
        return check;
    }
    check.fixed_by([Fix::sysctl(NAME, BACKLOG_ENOUGH, before)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tickcast_subscriber::Interface;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    fn device(files: &[(&str, &str)]) -> FakedTree {
        let faked = FakedTree::of(&[]);
        for (file, text) in files {
            faked.put(&format!("/sys/class/net/eth0/{file}"), text);
        }
        faked
    }

    fn runs(check: &Check) -> Vec<&str> {
        check.commands().iter().map(Fix::run).collect()
    }

    #[test]
    fn interface_that_can_carry_no_groups_is_reported() {
        let faked = device(&[("flags", "0x1003\n"), ("carrier", "1\n")]);
        let check = || state(&faked.tree(), "eth0");
        assert_eq!(check().verdict(), Verdict::Ok);
        faked.put("/sys/class/net/eth0/carrier", "0\n");
        assert_eq!(check().verdict(), Verdict::Error);
        faked.put("/sys/class/net/eth0/flags", "0x3\n");
        faked.put("/sys/class/net/eth0/carrier", "1\n");
        assert_eq!(runs(&check()), ["ip link set dev eth0 multicast on"]);
        faked.put("/sys/class/net/eth0/flags", "0x1002\n");
        assert_eq!(runs(&check()), ["ip link set dev eth0 up"]);
        for name in ["eth1", "..", "a/b", ""] {
            let check = state(&faked.tree(), name);
            assert_eq!(check.verdict(), Verdict::Error, "{name}");
        }
        faked.put("/sys/class/net/lo/flags", "0x9\n");
        assert_eq!(state(&faked.tree(), "lo").verdict(), Verdict::Ok);
    }

    #[test]
    fn mtu_below_the_slots_is_reported() {
        let faked = device(&[("mtu", "1499\n")]);
        let wanted = wanted(json!({}));
        let check = mtu(&faked.tree(), &wanted, "eth0");
        assert_eq!(check.verdict(), Verdict::Warning);
        assert_eq!(runs(&check), ["ip link set dev eth0 mtu 1500"]);
        assert_eq!(check.commands()[0].undo(), "ip link set dev eth0 mtu 1499");
        let any = mtu(&faked.tree(), &Wanted::default(), "eth0");
        assert_eq!(any.verdict(), Verdict::Ok);
        faked.put("/sys/class/net/eth0/mtu", "1500\n");
        let check = mtu(&faked.tree(), &wanted, "eth0");
        assert_eq!(check.verdict(), Verdict::Ok);
    }

    #[test]
    fn cores_far_from_the_device_are_reported() {
        let faked = device(&[("device/numa_node", "1\n")]);
        faked.put("/sys/devices/system/node/node1/cpulist", "8-15\n");
        let pinned = |core: usize| wanted(json!({ "threads": { "feed_core": core } }));
        let check = |core| node(&faked.tree(), &pinned(core), "eth0");
        assert_eq!(check(8).verdict(), Verdict::Ok);
        let far = check(2);
        assert_eq!(far.verdict(), Verdict::Note);
        assert!(far.found().ends_with("pins threads to 2"), "{far}");
        let virtual_device = node(&faked.tree(), &pinned(2), "veth0");
        assert_eq!(virtual_device.verdict(), Verdict::Ok);
        let any = node(&faked.tree(), &Wanted::default(), "eth0");
        assert_eq!(any.verdict(), Verdict::Ok);
        for (text, verdict) in [("-1\n", Verdict::Ok), ("-2\n", Verdict::Unknown)] {
            faked.put("/sys/class/net/eth0/device/numa_node", text);
            assert_eq!(check(2).verdict(), verdict, "{text}");
        }
    }

    #[test]
    fn drops_of_a_device_are_reported() {
        let faked = device(&[
            ("statistics/rx_missed_errors", "7\n"),
            ("statistics/rx_dropped", "0\n"),
            ("statistics/tx_dropped", "many\n"),
        ]);
        let check = drops(&faked.tree(), "eth0");
        assert_eq!(check.verdict(), Verdict::Warning);
        assert!(check.found().contains("7 missed"), "{check}");
        assert!(!check.found().contains("tx_dropped"), "{check}");
        faked.put("/sys/class/net/eth0/statistics/rx_missed_errors", "0\n");
        assert_eq!(drops(&faked.tree(), "eth0").verdict(), Verdict::Ok);
        let verdict = drops(&faked.tree(), "../../..").verdict();
        assert_eq!(verdict, Verdict::Unknown);
    }

    #[test]
    fn receive_ring_below_its_maximum_is_reported() {
        let of = |receive| NicRings {
            receive,
            receive_max: 8192,
            send: 512,
            send_max: 8192,
        };
        let check = rings("eth0", Some(of(512)));
        assert_eq!(check.verdict(), Verdict::Note);
        assert_eq!(runs(&check), ["ethtool -G eth0 rx 8192"]);
        assert_eq!(check.commands()[0].undo(), "ethtool -G eth0 rx 512");
        assert_eq!(rings("eth0", Some(of(8192))).verdict(), Verdict::Ok);
        assert_eq!(rings("eth0", None).verdict(), Verdict::Unknown);
    }

    #[test]
    fn full_queues_of_cores_are_reported() {
        let faked = FakedTree::of(&[
            (
                "/proc/net/softnet_stat",
                "00ff 00000002 0\n0001 0000000a 0\nodd\n",
            ),
            ("/proc/sys/net/core/netdev_max_backlog", "1000\n"),
        ]);
        let check = backlog(&faked.tree());
        assert_eq!(check.verdict(), Verdict::Warning);
        assert!(check.found().starts_with("12 packets"), "{check}");
        assert_eq!(
            runs(&check),
            ["sysctl -w net.core.netdev_max_backlog=10000"]
        );
        faked.put("/proc/net/softnet_stat", "00ff 00000000 0\n");
        assert_eq!(backlog(&faked.tree()).verdict(), Verdict::Ok);
        let none = FakedTree::of(&[]);
        assert_eq!(backlog(&none.tree()).verdict(), Verdict::Unknown);
    }

    #[test]
    fn interrupts_of_a_polled_device_are_reported() {
        let faked = device(&[
            ("napi_defer_hard_irqs", "0\n"),
            ("gro_flush_timeout", "0\n"),
        ]);
        let check = deferral(&faked.tree(), "eth0");
        assert_eq!(check.verdict(), Verdict::Note);
        let sys = "/sys/class/net/eth0";
        let both = [
            format!("echo 2 > {sys}/napi_defer_hard_irqs"),
            format!("echo 200000 > {sys}/gro_flush_timeout"),
        ];
        assert_eq!(runs(&check), both);
        faked.put(&format!("{sys}/gro_flush_timeout"), "50000\n");
        let check = deferral(&faked.tree(), "eth0");
        assert_eq!(runs(&check), both[..1], "the other is kept");
        faked.put(&format!("{sys}/napi_defer_hard_irqs"), "1\n");
        assert_eq!(deferral(&faked.tree(), "eth0").verdict(), Verdict::Ok);
        assert_eq!(deferral(&faked.tree(), "eth1").verdict(), Verdict::Unknown);
    }

    #[test]
    fn polled_devices_are_those_of_setting_or_system() {
        let faked = FakedTree::of(&[]);
        let input = |us: u32| {
            wanted(json!({ "inputs": [{
                "source": 1, "kind": "udp", "busy_poll_us": us,
                "lines": [
                    { "listen": "239.1.1.1:100", "interface": "eth5" },
                    { "listen": "239.1.1.2:100", "interface": "lo" },
                ],
            }] }))
        };
        let names = |wanted: &Wanted| Vec::from_iter(polled(&faked.tree(), wanted));
        assert_eq!(names(&input(50)), ["eth5"]);
        assert_eq!(names(&input(0)), [""; 0]);
        faked.put("/proc/sys/net/core/busy_read", "0\n");
        assert_eq!(names(&input(0)), [""; 0]);
        faked.put("/proc/sys/net/core/busy_read", "50\n");
        assert_eq!(names(&input(0)), ["eth0", "eth5"]);
    }

    #[test]
    fn devices_without_a_config_are_those_with_hardware() {
        let faked = device(&[("device/vendor", "0x1\n"), ("flags", "0x1003\n")]);
        faked.put("/sys/class/net/eth1/device/vendor", "0x1\n");
        faked.put("/sys/class/net/eth1/flags", "0x1002\n");
        faked.put("/sys/class/net/veth0/flags", "0x1003\n");
        let names = |wanted: &Wanted| {
            judged(&faked.tree(), wanted)
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&Wanted::default()), ["eth0"], "eth1 is down");
        let given = Wanted::on(&Interface::Name("veth0".into()));
        assert_eq!(names(&given), ["eth0", "veth0"]);
        assert_eq!(names(&wanted(json!({ "interface": "veth0" }))), ["veth0"]);
    }
}
