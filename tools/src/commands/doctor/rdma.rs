//! Checks of RDMA on this host, from the build to a datagram through each port.

use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tickcast_subscriber::Interface;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::verbs::port_events::{PortCounts, PortEvent, PortEvents};
use tickcast_transport::verbs::ports::{self, Port};
use tickcast_transport::verbs::{
    AccessDefect, AccessProof, Device, IS_BUILT, VerbsError, VerbsFanOut, VerbsFanOutConfig,
    VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig, VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, Receive};

use super::check::{Check, Fix, Subject};

/// Time limit for joining a group, and for datagrams to come back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of datagrams sent through a port.
const DATAGRAMS: u64 = 100;
const Q_KEY: u32 = 0x646f_6374;
/// The device file through which groups are joined.
const RDMA_CM: &str = "/dev/infiniband/rdma_cm";

/// Runs all checks of RDMA except the self-test. Also returns the addresses of the devices that work.
pub(super) fn check(only: Option<&Interface>) -> (Vec<Check>, Vec<Ipv4Addr>) {
    let mut checks = vec![built()];
    let mut working = Vec::new();
    checks.push(files());
    let ports = match ports::all() {
        Ok(ports) => ports,
        Err(error) => {
            checks.push(Check::error(
                Subject::RdmaDevices,
                format!("they can't be listed: {error}"),
                "RDMA can't be checked without the list of devices",
                "run it as a user who may read /sys/class/infiniband",
            ));
            Vec::new()
        }
    };
    if ports.is_empty() {
        checks.push(Check::error(
            Subject::RdmaDevices,
            "this host has none",
            "verbs need an RDMA device; without one tickcast uses udp",
            "load the module of the card (mlx5_ib for ConnectX); to try it without a card: `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev eth0`",
        ));
    }
    let wanted = only.and_then(|interface| interface.resolve().ok());
    if let (Some(interface), None) = (only, &wanted) {
        checks.push(Check::error(
            Subject::RdmaInterface,
            format!("{interface}: this host has no such interface"),
            "tickcast finds a device by its interface",
            "choose one that `ip address` lists",
        ));
        return (checks, working);
    }
    let mut seen = false;
    for port in &ports {
        let addresses = addresses(port);
        if let Some(wanted) = &wanted
            && !addresses.contains(&wanted.address)
        {
            continue;
        }
        seen = true;
        let (more, works) = check_port(port, &addresses, wanted.as_ref().map(|w| w.address));
        checks.extend(more);
        working.extend(works);
    }
    if let (Some(wanted), false, false) = (&wanted, seen, ports.is_empty()) {
        checks.push(Check::error(
            Subject::RdmaInterface,
            format!(
                "{} ({}): it belongs to no RDMA device",
                wanted.name, wanted.address
            ),
            "tickcast finds a device by its interface",
            "choose one that `rdma link` lists as a netdev",
        ));
    }
    (checks, working)
}

fn built() -> Check {
    let id = Subject::RdmaBuild;
    if IS_BUILT {
        return Check::ok(id, "with RDMA");
    }
    Check::error(
        id,
        "without RDMA",
        "this program can list devices, but not use them",
        "install librdmacm-dev, libclang1-14 and libclang-common-14-dev (Debian's names), and build with `--features rdma`",
    )
}

/// Checks access to the device files of verbs.
fn files() -> Check {
    let opened = OpenOptions::new().read(true).write(true).open(RDMA_CM);
    files_of(opened.map(drop))
}

fn files_of(opened: io::Result<()>) -> Check {
    let id = Subject::RdmaRights;
    let why = "groups are joined and connections made through it";
    match opened {
        Ok(()) => Check::ok(id, format!("{RDMA_CM} can be opened")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Check::error(id, format!("{RDMA_CM} is not there"), why, "").fixed_by([Fix::command(
                &["modprobe", "rdma_ucm"],
                &["modprobe", "-r", "rdma_ucm"],
            )])
        }
        Err(error) => Check::error(
            id,
            format!("{RDMA_CM} can't be opened: {error}"),
            why,
            "give this user the files below /dev/infiniband (often group rdma)",
        ),
    }
}

/// Returns the addresses that identify a port's device.
fn addresses(port: &Port) -> Vec<Ipv4Addr> {
    let of = |name: &String| Some(Interface::Name(name.clone()).resolve().ok()?.address);
    let mapped = port.gids.iter().filter_map(|gid| gid.gid.to_ipv4_mapped());
    let named = port.gids.iter().filter_map(|gid| gid.interface.as_ref());
    // On InfiniBand, no GID names its interface.
    let of_card = port.interfaces.iter().filter(|_| !port.is_ethernet());
    let mut all: Vec<Ipv4Addr> = Vec::new();
    for address in mapped.chain(named.chain(of_card).filter_map(of)) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Checks one port. Returns the results, and the address if the port works.
fn check_port(
    port: &Port,
    addresses: &[Ipv4Addr],
    wanted: Option<Ipv4Addr>,
) -> (Vec<Check>, Option<Ipv4Addr>) {
    let name = format!("{} port {}", port.device, port.port);
    let mut checks = Vec::new();
    if !port.is_active() {
        checks.push(Check::error(
            Subject::RdmaPort,
            format!("{name}: {}, {}", port.state, port.link_layer),
            "a port that is not active sends and receives nothing",
            "is its cable in, its interface up (`ip link set dev … up`), a subnet manager running (InfiniBand)?",
        ));
        return (checks, None);
    }
    let state = format!("{name}: {}, {}, {}", port.state, port.link_layer, port.rate);
    checks.push(Check::ok(Subject::RdmaPort, state));
    let gids: Vec<String> = (port.gids.iter())
        .map(|gid| format!("{} {} ({})", gid.index, gid.gid, gid.kind))
        .collect();
    let Some(address) = wanted.or(addresses.first().copied()) else {
        checks.push(Check::error(
            Subject::RdmaGids,
            format!(
                "{name}: no IPv4 address among its identifiers: {}",
                gids.join(", ")
            ),
            "tickcast finds a device by its interface's IPv4 address",
            "give its interface one; on InfiniBand bring IPoIB up",
        ));
        return (checks, None);
    };
    let identifiers = format!("{name}: identifiers {}", gids.join(", "));
    checks.push(Check::ok(Subject::RdmaGids, identifiers));
    let v2 = |gid: &ports::Gid| gid.kind.contains("v2");
    if port.is_ethernet() && !port.gids.iter().any(v2) {
        checks.push(Check::error(
            Subject::RdmaGids,
            format!("{name}: no identifier of RoCE v2"),
            "routers don't forward RoCE v1, and switches don't snoop its groups",
            "`cma_roce_mode -d DEVICE -p PORT -m 2`, or newer firmware",
        ));
    }
    checks.push(counters(&name, port));
    for counts in PortEvents::open([(port.device.as_str(), port.port)]).read() {
        checks.extend([congestion(&name, &counts), discards(&name, &counts)]);
    }
    let device = match Device::open_active(address) {
        Ok(device) => device,
        Err(VerbsError::NotBuilt) => return (checks, None),
        Err(error) => {
            checks.push(Check::error(
                Subject::RdmaPort,
                format!("{name}: can't be opened at {address}"),
                "neither publisher nor subscriber can use it",
                error.to_string(),
            ));
            return (checks, None);
        }
    };
    checks.push(packets(&name, port, device.mtu()));
    checks.extend(access(&name, &device.prove_access()));
    let returned = loop_back(&device);
    let works = returned.is_ok().then_some(address);
    checks.push(returned_of(&name, address, returned));
    (checks, works)
}

/// Reports the length of a packet.
fn packets(name: &str, port: &Port, mtu: usize) -> Check {
    let id = Subject::RdmaMtu;
    let found = format!("{name}: packets of {mtu} bytes");
    if !port.is_ethernet() || mtu >= 4096 {
        return Check::ok(id, found);
    }
    Check::note(
        id,
        found,
        "a datagram is one packet: this size is the maximum of slot_len",
        "raise the MTU of the interface and of the switches to 4200 or more for 4096",
    )
}

/// Reports the accesses to memory that the device grants and refuses.
fn access(name: &str, proof: &AccessProof) -> [Check; 2] {
    let id = Subject::RdmaAccess;
    let of = |what: &str, proven: Result<(), &AccessDefect>, why: &str| match proven {
        Ok(()) => Check::ok(
            id,
            format!("{name}: {what} granted to one peer, and refused beyond its grant"),
        ),
        Err(defect) if !defect.is_conclusive() => Check::unknown(
            id,
            format!("{name}: whether {what} granted and refused as required: {defect}"),
        ),
        Err(defect) => Check::note(
            id,
            format!("{name}: {what} not offered: {defect}"),
            why,
            "newer firmware or driver, another card, or another function of it; without that set \
             repair_verbs.read to false",
        ),
    };
    [
        of(
            "READ is",
            proof.read(),
            "a publisher on this device does not offer READ, and subscribers repair by NACK",
        ),
        of(
            "cursors are",
            proof.cursors(),
            "subscribers report their progress by messages",
        ),
    ]
}

/// Reports whether datagrams returned.
fn returned_of(name: &str, address: Ipv4Addr, returned: Result<(), String>) -> Check {
    let id = Subject::RdmaLoopback;
    match returned {
        Ok(()) => Check::ok(
            id,
            format!("{name}: {DATAGRAMS} datagrams to a group and back, over {address}"),
        ),
        Err(reason) => Check::error(
            id,
            format!("{name}: datagrams to a group don't return: {reason}"),
            "published datagrams would not arrive",
            "check the groups' route (RoCE: `ip route get 239.1.1.1`), the subnet manager \
             (InfiniBand), and memlock above",
        ),
    }
}

/// Reports the device's own drop counters.
fn counters(name: &str, port: &Port) -> Check {
    let id = Subject::RdmaCounters;
    match port.hw_counters.get("out_of_buffer") {
        Some(0) => Check::ok(
            id,
            format!("{name}: no datagram found no buffer (out_of_buffer 0)"),
        ),
        Some(count) => Check::note(
            id,
            format!(
                "{name}: {count} datagrams found no receive buffer since the driver was loaded"
            ),
            "a subscriber did not poll in time; each was repaired, or lost",
            "if the count still rises, use more receive buffers, or give the subscriber its own \
             core",
        ),
        None => Check::note(
            id,
            format!("{name}: it has no counter of datagrams that found no buffer (out_of_buffer)"),
            "such losses show only as gaps; Soft-RoCE has no such counter",
            "watch missing_datagrams",
        ),
    }
}

/// Reports the signs of a congested network.
fn congestion(name: &str, counts: &PortCounts) -> Check {
    let id = Subject::RdmaCongestion;
    match counted(counts, PortEvent::is_congestion) {
        None => Check::unknown(id, format!("{name}: its device does not count it")),
        Some(events) if events.is_empty() => {
            Check::ok(id, format!("{name}: no mark, and nothing waited"))
        }
        Some(events) => Check::note(
            id,
            format!("{name} since the driver was loaded: {events}"),
            "switches marked packets or held them back, so repair and replay slow down; multicast is \
             not slowed down, and is dropped where a queue is full",
            "if it still grows: lower the budgets of repair and replay, set the pace of the fan-out, or \
             give its traffic a queue of its own in the switches (traffic_class)",
        ),
    }
}

/// Reports packets that the port discarded or received damaged.
fn discards(name: &str, counts: &PortCounts) -> Check {
    let id = Subject::RdmaDiscards;
    // Packets without a buffer have a check of their own.
    let is_discard = |event: PortEvent| !event.is_congestion() && event != PortEvent::OutOfBuffer;
    match counted(counts, is_discard) {
        None => Check::unknown(id, format!("{name}: its device does not count them")),
        Some(events) if events.is_empty() => {
            Check::ok(id, format!("{name}: nothing was discarded or damaged"))
        }
        Some(events) => Check::warning(
            id,
            format!("{name} since the driver was loaded: {events}"),
            "each such packet was repaired or lost",
            "if it still grows: discards need a slower sender or a switch that takes its pace; errors \
             and link losses need another cable, module or switch port",
        ),
    }
}

/// Returns the events of this kind that happened, in words; `None` if the device counts none of them.
fn counted(counts: &PortCounts, is_kind: impl Fn(PortEvent) -> bool) -> Option<String> {
    let all = counts.counts.iter().filter(|(event, _)| is_kind(*event));
    let all: Vec<_> = all.collect();
    let happened = all.iter().filter(|(_, count)| *count > 0);
    let happened = happened.map(|(event, count)| format!("{} {count}", event.name()));
    (!all.is_empty()).then(|| happened.collect::<Vec<_>>().join(", "))
}

/// Sends datagrams to a group and receives them on the same port.
fn loop_back(device: &Device) -> Result<(), String> {
    let interface = Interface::Address(device.address());
    let pid = std::process::id();
    let group = Ipv4Addr::new(239, 254, (pid >> 8) as u8, pid as u8);
    let mut receiver = VerbsReceiver::open(&VerbsReceiverConfig {
        lines: vec![VerbsReceiveLine {
            group,
            interface: interface.clone(),
            senders: vec![VerbsSender {
                address: device.address(),
                gid: device.gid(),
            }],
        }],
        datagram_len_max: device.mtu(),
        q_key: Q_KEY,
        depth: 1024,
        batch: 64,
        waitable: false,
    })
    .map_err(|error| error.to_string())?;
    let mut sender = VerbsFanOut::for_copies(&VerbsFanOutConfig {
        lines: vec![VerbsSendLine { group, interface }],
        datagram_len_max: device.mtu(),
        q_key: Q_KEY,
        traffic_class: 0,
        service_level: None,
        send_depth: 128,
        signal_every: 16,
        inline_bytes: 0,
        pace: None,
    })
    .map_err(|error| error.to_string())?;
    let until = Instant::now() + PATIENCE;
    let mut arrived = 0;
    let mut poll = |receiver: &mut VerbsReceiver| {
        let now = SystemClock.now();
        let polled = receiver.poll(now, &mut |received| {
            let number = received.bytes.first_chunk().map(|b| u64::from_le_bytes(*b));
            arrived += u64::from(number == Some(arrived));
        });
        polled.map_err(|error| error.to_string()).map(|_| arrived)
    };
    while !receiver.is_joined() {
        poll(&mut receiver)?;
        if Instant::now() >= until {
            return Err(format!("{group} was not joined within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut bytes = vec![0; device.mtu()];
    let mut sent = 0_u64;
    loop {
        if sent < DATAGRAMS {
            bytes[..8].copy_from_slice(&sent.to_le_bytes());
            sent += u64::from(sender.send_copy(&bytes).map_err(|e| e.to_string())?);
        }
        let arrived = poll(&mut receiver)?;
        if arrived == DATAGRAMS {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(format!("{arrived} of {sent} arrived, in order"));
        }
        if arrived < sent {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tickcast_transport::verbs::Observed;

    use super::*;
    use crate::commands::doctor::check::Verdict;

    fn port() -> Port {
        Port {
            device: "mlx5_0".into(),
            port: 1,
            state: "DOWN".into(),
            link_layer: "InfiniBand".into(),
            rate: String::new(),
            gids: Vec::new(),
            interfaces: Vec::new(),
            hw_counters: BTreeMap::new(),
        }
    }

    #[test]
    fn rdma_port_down_is_a_finding_with_remedy() {
        let mut port = port();
        let (checks, works) = check_port(&port, &[], None);
        assert_eq!((checks[0].verdict(), works), (Verdict::Error, None));
        assert!(checks[0].remedy().contains("cable"), "{}", checks[0]);
        port.state = "ACTIVE".into();
        let (checks, _) = check_port(&port, &[], None);
        assert!(checks[1].remedy().contains("IPoIB"), "{}", checks[1]);
        assert_eq!(counters("a", &port).verdict(), Verdict::Note);
        port.hw_counters.insert("out_of_buffer".into(), 3);
        assert!(counters("a", &port).found().contains("3 datagrams"));
        port.hw_counters.insert("out_of_buffer".into(), 0);
        assert_eq!(counters("a", &port).verdict(), Verdict::Ok);
    }

    fn counts(counts: &[(PortEvent, u64)]) -> PortCounts {
        PortCounts {
            device: "mlx5_0".into(),
            port: 1,
            counts: counts.to_vec(),
        }
    }

    #[test]
    fn congestion_of_an_rdma_port_is_reported() {
        let check = |of: &[_]| congestion("a", &counts(of));
        let discard = (PortEvent::SendDiscard, 5);
        assert_eq!(check(&[discard]).verdict(), Verdict::Unknown);
        let none = [(PortEvent::CnpSent, 0), (PortEvent::EcnMark, 0), discard];
        assert_eq!(check(&none).verdict(), Verdict::Ok);
        let marked = check(&[(PortEvent::CnpSent, 0), (PortEvent::EcnMark, 3), discard]);
        assert_eq!(marked.verdict(), Verdict::Note);
        assert!(marked.found().ends_with(": port_ecn_marks 3"), "{marked}");
        assert!(marked.remedy().contains("budgets"), "{marked}");
    }

    #[test]
    fn discards_and_damage_of_an_rdma_port_are_reported() {
        let check = |of: &[_]| discards("a", &counts(of));
        let others = [(PortEvent::CnpSent, 9), (PortEvent::OutOfBuffer, 9)];
        assert_eq!(check(&others).verdict(), Verdict::Unknown);
        let none = [others[0], (PortEvent::LinkDown, 0)];
        assert_eq!(check(&none).verdict(), Verdict::Ok);
        let lost = check(&[(PortEvent::SendDiscard, 2), (PortEvent::LinkDown, 1)]);
        assert_eq!(lost.verdict(), Verdict::Warning);
        let found = "port_send_discards 2, port_link_downs 1";
        assert!(lost.found().ends_with(found), "{lost}");
        assert!(lost.remedy().contains("cable"), "{lost}");
    }

    #[test]
    fn rdma_device_files_without_access_are_reported() {
        let files = |kind: io::ErrorKind| files_of(Err(kind.into()));
        let missing = files(io::ErrorKind::NotFound);
        assert_eq!(missing.verdict(), Verdict::Error);
        assert_eq!(missing.commands()[0].run(), "modprobe rdma_ucm");
        let denied = files(io::ErrorKind::PermissionDenied);
        assert!(denied.remedy().contains("group rdma"), "{denied}");
        assert_eq!(files_of(Ok(())).verdict(), Verdict::Ok);
    }

    #[test]
    fn interface_without_an_rdma_device_is_reported() {
        for name in ["nosuch0", "lo"] {
            let (checks, working) = check(Some(&Interface::Name(name.into())));
            let of_interface = |check: &&Check| check.id() == Subject::RdmaInterface;
            let found = checks.iter().find(of_interface);
            // Without any device the interface does not matter.
            let is_listed = ports::all().is_ok_and(|ports| !ports.is_empty());
            assert_eq!(found.is_some(), is_listed || name == "nosuch0", "{name}");
            assert!(found.is_none_or(|it| it.verdict() == Verdict::Error));
            assert_eq!(working, Vec::<Ipv4Addr>::new());
        }
    }

    #[test]
    fn rdma_packets_that_are_short_are_reported() {
        let mut port = port();
        assert_eq!(packets("a", &port, 2048).verdict(), Verdict::Ok);
        port.link_layer = "Ethernet".into();
        assert_eq!(packets("a", &port, 2048).verdict(), Verdict::Note);
        assert_eq!(packets("a", &port, 4096).verdict(), Verdict::Ok);
    }

    #[test]
    fn access_that_an_rdma_device_lacks_is_reported() {
        let verdicts = |read: &[Observed], cursors: &[Observed]| {
            let checks = access("a", &AccessProof::of(read, cursors));
            checks.map(|check| (check.verdict(), check.found().to_owned()))
        };
        let (done, refused) = (Observed::Done, Observed::Refused);
        let [d, r] = [&done, &refused].map(Clone::clone);
        let read = [
            d.clone(),
            d.clone(),
            d.clone(),
            d.clone(),
            d.clone(),
            r.clone(),
        ];
        let read = [read.as_slice(), &[d.clone(), d.clone(), r.clone()]].concat();
        let cursors = [d.clone(), d.clone(), d.clone(), d.clone(), d, r];
        let sound = verdicts(&read, &cursors);
        assert!(sound.iter().all(|it| it.0 == Verdict::Ok), "{sound:?}");
        let [ring, cursor] = verdicts(&read, &cursors[..3]);
        assert_eq!((ring.0, cursor.0), (Verdict::Ok, Verdict::Note));
        let failed = Observed::Failed("errno 95".into());
        let [ring, cursor] = verdicts(&[done.clone(), failed.clone()], &[]);
        assert_eq!((ring.0, cursor.0), (Verdict::Unknown, Verdict::Unknown));
        assert!(ring.1.contains("itself fails: errno 95"), "{}", ring.1);
        let [ring, cursor] = verdicts(&[done.clone(), done, failed], &[]);
        assert_eq!((ring.0, cursor.0), (Verdict::Note, Verdict::Note));
        assert!(ring.1.contains("window fails: errno 95"), "{}", ring.1);
    }

    #[test]
    fn rdma_datagrams_that_do_not_return_are_reported() {
        let of = |returned| returned_of("a", Ipv4Addr::LOCALHOST, returned).verdict();
        assert_eq!(of(Ok(())), Verdict::Ok);
        assert_eq!(of(Err("none".into())), Verdict::Error);
    }
}
