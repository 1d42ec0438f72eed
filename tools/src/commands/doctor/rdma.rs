//! Checks of RDMA on this host, from the build to a datagram through each port.

use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tickcast_subscriber::Interface;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::verbs::ports::{self, Port};
use tickcast_transport::verbs::{
    Device, IS_BUILT, VerbsError, VerbsFanOut, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiver,
    VerbsReceiverConfig, VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, Receive};

use super::Check;

/// Below this, no ring can be pinned.
const MEMLOCK_MIN_BYTES: u64 = 64 << 20;
/// The bit of `CapEff` that allows a process to pin memory beyond its limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// Time limit for joining a group, and for datagrams to come back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of datagrams sent through a port.
const DATAGRAMS: u64 = 100;
const Q_KEY: u32 = 0x646f_6374;

/// Runs all checks except the self-test. Also returns the addresses of the devices that work.
pub(super) fn look(only: Option<&Interface>) -> (Vec<Check>, Vec<Ipv4Addr>) {
    let mut checks = vec![built()];
    let mut working = Vec::new();
    checks.extend(files());
    checks.push(memlock());
    let ports = match ports::all() {
        Ok(ports) => ports,
        Err(error) => {
            checks.push(Check::finding(
                format!("devices: they can't be listed: {error}"),
                "RDMA can't be checked without the list of devices",
                "run it as a user who may read /sys/class/infiniband",
            ));
            Vec::new()
        }
    };
    if ports.is_empty() {
        checks.push(Check::finding(
            "devices: this host has none",
            "verbs need an RDMA device; without one tickcast uses udp",
            "load the module of the card (mlx5_ib for ConnectX); to try it without a card: `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev eth0`",
        ));
    }
    let wanted = only.and_then(|interface| interface.resolve().ok());
    if let (Some(interface), None) = (only, &wanted) {
        checks.push(Check::finding(
            format!("interface {interface}: this host has no such interface"),
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
        let (more, works) = look_at(port, &addresses, wanted.as_ref().map(|w| w.address));
        checks.extend(more);
        working.extend(works);
    }
    if let (Some(wanted), false, false) = (&wanted, seen, ports.is_empty()) {
        checks.push(Check::finding(
            format!(
                "interface {} ({}): it belongs to no RDMA device",
                wanted.name, wanted.address
            ),
            "tickcast finds a device by its interface",
            "choose one that `rdma link` lists as a netdev",
        ));
    }
    (checks, working)
}

fn built() -> Check {
    if IS_BUILT {
        return Check::ok("build: with RDMA");
    }
    Check::finding(
        "build: without RDMA",
        "this program can list devices, but not use them",
        "install librdmacm-dev, libclang1-14 and libclang-common-14-dev (Debian's names), and build with `--features rdma`",
    )
}

/// Checks access to the device files of verbs.
fn files() -> Option<Check> {
    let path = "/dev/infiniband/rdma_cm";
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Some(Check::ok(format!("rights: {path} can be opened"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(Check::finding(
            format!("rights: {path} is not there"),
            "groups are joined and connections made through it",
            "load the module: `modprobe rdma_ucm`",
        )),
        Err(error) => Some(Check::finding(
            format!("rights: {path} can't be opened: {error}"),
            "groups are joined and connections made through it",
            "give this user the files below /dev/infiniband (often group rdma)",
        )),
    }
}

fn memlock() -> Check {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    memlock_of(&limits, &status)
}

fn memlock_of(limits: &str, status: &str) -> Check {
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    if capabilities.unwrap_or(0) & CAP_IPC_LOCK != 0 {
        return Check::ok("memlock: this user may pin memory (CAP_IPC_LOCK)");
    }
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => Check::ok("memlock: unlimited"),
        Some((_, Ok(bytes))) if bytes >= MEMLOCK_MIN_BYTES => Check::note(
            format!("memlock: {bytes} bytes may be pinned"),
            "every ring and every receive buffer is pinned: slots x slot_len, and receive depth x (64 + MTU)",
            "check that their sum fits, or raise the limit: `ulimit -l unlimited`, \
             LimitMEMLOCK=infinity",
        ),
        Some((soft, _)) => Check::finding(
            format!("memlock: only {soft} bytes may be pinned"),
            "every ring and every receive buffer is pinned: slots x slot_len, and receive depth x (64 + MTU)",
            "raise the limit: `ulimit -l unlimited`, LimitMEMLOCK=infinity, or CAP_IPC_LOCK",
        ),
        None => Check::note(
            "memlock: the limit can't be read",
            "every ring and every receive buffer is pinned",
            "check `ulimit -l`",
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
fn look_at(
    port: &Port,
    addresses: &[Ipv4Addr],
    wanted: Option<Ipv4Addr>,
) -> (Vec<Check>, Option<Ipv4Addr>) {
    let name = format!("{} port {}", port.device, port.port);
    let mut checks = Vec::new();
    if !port.is_active() {
        checks.push(Check::finding(
            format!("{name}: {}, {}", port.state, port.link_layer),
            "a port that is not active sends and receives nothing",
            "is its cable in, its interface up (`ip link set dev … up`), a subnet manager running (InfiniBand)?",
        ));
        return (checks, None);
    }
    checks.push(Check::ok(format!(
        "{name}: {}, {}, {}",
        port.state, port.link_layer, port.rate
    )));
    let gids: Vec<String> = (port.gids.iter())
        .map(|gid| format!("{} {} ({})", gid.index, gid.gid, gid.kind))
        .collect();
    let Some(address) = wanted.or(addresses.first().copied()) else {
        checks.push(Check::finding(
            format!(
                "{name}: no IPv4 address among its identifiers: {}",
                gids.join(", ")
            ),
            "tickcast finds a device by its interface's IPv4 address",
            "give its interface one; on InfiniBand bring IPoIB up",
        ));
        return (checks, None);
    };
    checks.push(Check::ok(format!(
        "{name}: identifiers {}",
        gids.join(", ")
    )));
    let v2 = |gid: &ports::Gid| gid.kind.contains("v2");
    if port.is_ethernet() && !port.gids.iter().any(v2) {
        checks.push(Check::finding(
            format!("{name}: no identifier of RoCE v2"),
            "routers don't forward RoCE v1, and switches don't snoop its groups",
            "`cma_roce_mode -d DEVICE -p PORT -m 2`, or newer firmware",
        ));
    }
    checks.push(counters(&name, port));
    let device = match Device::open(address) {
        Ok(device) => device,
        Err(VerbsError::NotBuilt) => return (checks, None),
        Err(error) => {
            checks.push(Check::finding(
                format!("{name}: can't be opened at {address}"),
                "neither publisher nor subscriber can use it",
                error.to_string(),
            ));
            return (checks, None);
        }
    };
    checks.push(if port.is_ethernet() && device.mtu() < 4096 {
        Check::note(
            format!("{name}: packets of {} bytes", device.mtu()),
            "a datagram is one packet: this size is the maximum of slot_len",
            "raise the MTU of the interface and of the switches to 4200 or more for 4096",
        )
    } else {
        Check::ok(format!("{name}: packets of {} bytes", device.mtu()))
    });
    match loop_back(&device) {
        Ok(()) => {
            checks.push(Check::ok(format!(
                "{name}: {DATAGRAMS} datagrams to a group and back, over {address}"
            )));
            (checks, Some(address))
        }
        Err(reason) => {
            checks.push(Check::finding(
                format!("{name}: datagrams to a group don't return: {reason}"),
                "published datagrams would not arrive",
                "check the groups' route (RoCE: `ip route get 239.1.1.1`), the subnet manager \
                 (InfiniBand), and memlock above",
            ));
            (checks, None)
        }
    }
}

/// Reports the device's own drop counters.
fn counters(name: &str, port: &Port) -> Check {
    match port.hw_counters.get("out_of_buffer") {
        Some(0) => Check::ok(format!(
            "{name}: no datagram found no buffer (out_of_buffer 0)"
        )),
        Some(count) => Check::note(
            format!(
                "{name}: {count} datagrams found no receive buffer since the driver was loaded"
            ),
            "a subscriber did not poll in time; each was repaired, or lost",
            "if the count still rises, use more receive buffers, or give the subscriber its own \
             core",
        ),
        None => Check::note(
            format!("{name}: it has no counter of datagrams that found no buffer (out_of_buffer)"),
            "such losses show only as gaps; Soft-RoCE has no such counter",
            "watch missing_datagrams",
        ),
    }
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

    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn memlock_check_reads_limits_and_capabilities() {
        let limits =
            |soft: &str| format!("Limit Soft Hard\nMax locked memory {soft} {soft} bytes\n");
        let none = "Name:\ta\nCapEff:\t0000000000000000\n";
        let verdict = |soft, status| memlock_of(&limits(soft), status).verdict;
        assert_eq!(verdict("unlimited", none), Verdict::Ok);
        assert_eq!(verdict("8388608", none), Verdict::Finding);
        assert_eq!(verdict("134217728", none), Verdict::Note);
        let may = "CapEff:\t0000000000004000\n";
        assert_eq!(verdict("8388608", may), Verdict::Ok);
        assert_eq!(memlock_of("", none).verdict, Verdict::Note);
    }

    #[test]
    fn rdma_port_down_is_a_finding_with_remedy() {
        let mut port = Port {
            device: "mlx5_0".into(),
            port: 1,
            state: "DOWN".into(),
            link_layer: "InfiniBand".into(),
            rate: String::new(),
            gids: Vec::new(),
            interfaces: Vec::new(),
            hw_counters: BTreeMap::new(),
        };
        let (checks, works) = look_at(&port, &[], None);
        assert_eq!((checks[0].verdict, works), (Verdict::Finding, None));
        assert!(checks[0].remedy.contains("cable"), "{}", checks[0]);
        port.state = "ACTIVE".into();
        let (checks, _) = look_at(&port, &[], None);
        assert!(checks[1].remedy.contains("IPoIB"), "{}", checks[1]);
        assert_eq!(counters("a", &port).verdict, Verdict::Note);
        port.hw_counters.insert("out_of_buffer".into(), 3);
        assert!(counters("a", &port).found.contains("3 datagrams"));
        port.hw_counters.insert("out_of_buffer".into(), 0);
        assert_eq!(counters("a", &port).verdict, Verdict::Ok);
    }
}
