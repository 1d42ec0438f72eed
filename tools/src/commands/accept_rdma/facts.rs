//! The inventory of a host, and the raw counters of its devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tickcast_subscriber::Interface;
use tickcast_transport::verbs::Device;
use tickcast_transport::verbs::ports;

use super::command;
use super::order::{HostFacts, Line, LineFacts, NotDone};
use crate::commands::tree::Tree;

const CLASS: &str = "/sys/class/infiniband";
/// Longest text of a fact, in characters.
const TEXT_LEN_MAX: usize = 160;
/// Time limit of a program that reports a fact.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Returns what is known of this host and of the devices of these interfaces, A first.
///
/// # Errors
/// Returns [`NotDone::Failed`] with the reason if a device can't be opened.
pub(super) fn of_host(
    interfaces: &[Interface],
    may_break_links: bool,
) -> Result<HostFacts, NotDone> {
    let tree = Tree::of_this_host();
    let lines = interfaces.iter().zip([Line::A, Line::B]);
    let lines = lines.map(|(interface, line)| of_line(&tree, interface, line));
    Ok(HostFacts {
        name: (tree.word("/proc/sys/kernel/hostname")).unwrap_or_else(|| "unnamed".into()),
        more: of_system(&tree),
        lines: lines.collect::<Result<_, _>>()?,
        may_break_links,
    })
}

fn of_system(tree: &Tree) -> BTreeMap<String, String> {
    let cmdline = tree.text("/proc/cmdline").unwrap_or_default();
    let passes = cmdline.split_whitespace().any(|it| it == "iommu=pt");
    let iommu = match (tree.names("/sys/kernel/iommu_groups").len(), passes) {
        (0, _) => "off".to_owned(),
        (groups, true) => format!("{groups} groups, passed through (iommu=pt)"),
        (groups, false) => format!("{groups} groups, translating; iommu=pt saves the translation"),
    };
    let online = tree.word("/sys/devices/system/cpu/online");
    let isolated = tree.word("/sys/devices/system/cpu/isolated");
    let facts = [
        ("kernel", tree.word("/proc/sys/kernel/osrelease")),
        ("rdma-core", rdma_core(tree)),
        ("cores", online),
        ("isolated cores", isolated),
        ("iommu", Some(iommu)),
    ];
    known(facts)
}

/// Returns the version of the loaded libibverbs. Its file is `libibverbs.so.1.14.44.0` in rdma-core 44.0.
fn rdma_core(tree: &Tree) -> Option<String> {
    let maps = tree.text("/proc/self/maps")?;
    let path = maps.lines().find(|it| it.contains("/libibverbs.so."))?;
    let path = path.split_whitespace().last()?;
    let file = std::fs::canonicalize(path).ok()?;
    version_of(file.file_name()?.to_str()?).map(str::to_owned)
}

fn version_of(file: &str) -> Option<&str> {
    let version = file.strip_prefix("libibverbs.so.")?;
    version.splitn(3, '.').nth(2)
}

fn of_line(tree: &Tree, interface: &Interface, line: Line) -> Result<LineFacts, NotDone> {
    let failed = |why: &dyn std::fmt::Display| {
        NotDone::Failed(format!("line {} over {interface}: {why}", line.letter()))
    };
    let resolved = interface.resolve().map_err(|error| failed(&error))?;
    let device = Device::open(resolved.address).map_err(|error| failed(&error))?;
    let (name, port) = (device.name().to_owned(), device.port());
    let ports = ports::all().unwrap_or_default();
    let found = (ports.iter()).find(|it| it.device == name && it.port == port);
    let gid = found.and_then(|port| port.gids.iter().find(|it| it.gid == device.gid()));
    // Without its own entry in /sys nothing says that the device is one of hardware.
    let place = std::fs::canonicalize(tree.at(&format!("{CLASS}/{name}")));
    let is_software = place.is_ok_and(|place| is_virtual(&place))
        || ["rxe", "siw"].iter().any(|driver| name.starts_with(driver));
    Ok(LineFacts {
        line,
        more: of_device(tree, &name, port, &resolved.name, (found, gid)),
        interface: resolved.name,
        address: resolved.address,
        gid: device.gid(),
        gid_index: gid.map(|it| it.index),
        device: name,
        port,
        mtu: u32::try_from(device.mtu()).unwrap_or(u32::MAX),
        is_ethernet: found.is_none_or(ports::Port::is_ethernet),
        is_software,
    })
}

/// Returns whether the kernel keeps a device among those without hardware.
fn is_virtual(place: &Path) -> bool {
    place.iter().any(|part| part == "virtual")
}

fn of_device(
    tree: &Tree,
    name: &str,
    port: u8,
    interface: &str,
    (found, gid): (Option<&ports::Port>, Option<&ports::Gid>),
) -> BTreeMap<String, String> {
    // The file exists only once configfs is mounted and the device has a directory there.
    let mode = format!("/sys/kernel/config/rdma_cm/{name}/ports/{port}/default_roce_mode");
    let at = |file: &str| tree.word(&format!("{CLASS}/{name}/{file}"));
    let driver = std::fs::canonicalize(tree.at(&format!("{CLASS}/{name}/device/driver")));
    let driver = driver
        .ok()
        .and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
    let speed = at("device/current_link_speed");
    let width = at("device/current_link_width");
    let facts = [
        ("board", at("board_id").or_else(|| at("hca_type"))),
        ("firmware", at("fw_ver")),
        ("driver", driver),
        ("state", found.map(|it| it.state.clone())),
        ("link layer", found.map(|it| it.link_layer.clone())),
        ("rate", found.map(|it| it.rate.clone())),
        (
            "identifier",
            gid.map(|it| format!("{} {} ({})", it.index, it.gid, it.kind)),
        ),
        (
            "interface MTU",
            tree.word(&format!("/sys/class/net/{interface}/mtu")),
        ),
        (
            "PCIe",
            speed
                .zip(width)
                .map(|(speed, width)| format!("{speed} x{width}")),
        ),
        ("memory node", at("device/numa_node")),
        (
            "PFC",
            output(&["dcb", "pfc", "show", "dev", interface], "prio-pfc"),
        ),
        (
            "trust",
            output(&["mlnx_qos", "-i", interface], "Priority trust state"),
        ),
        ("default RoCE mode", tree.word(&mode)),
    ];
    known(facts)
}

fn known<const N: usize>(facts: [(&str, Option<String>); N]) -> BTreeMap<String, String> {
    let facts = facts.into_iter().map(|(name, fact)| {
        let fact = fact
            .filter(|it| !it.is_empty())
            .unwrap_or_else(|| "unknown".into());
        (name.to_owned(), fact.chars().take(TEXT_LEN_MAX).collect())
    });
    facts.collect()
}

/// Returns the line that begins with `key` in the output of a program; `None` without program or line.
fn output(command: &[&str], key: &str) -> Option<String> {
    let (program, args) = command.split_first()?;
    let text = command::output(program, args, CALL_MAX).ok()?;
    let line = text.lines().map(str::trim).find(|it| it.starts_with(key))?;
    Some(line.to_owned())
}

/// Returns all counters of the devices and interfaces of these lines, by line, kind and name.
pub(super) fn counters(tree: &Tree, lines: &[LineFacts]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for line in lines {
        let (letter, device) = (line.line.letter(), &line.device);
        let port = format!("{CLASS}/{device}/ports/{}", line.port);
        let interface = format!("/sys/class/net/{}", line.interface);
        let folders = [
            ("port", format!("{port}/counters")),
            ("hardware", format!("{port}/hw_counters")),
            ("interface", format!("{interface}/statistics")),
        ];
        for (kind, folder) in folders {
            for name in tree.names(&folder) {
                // `lifespan` is the interval in which the kernel reads the others.
                let value = tree.number(&format!("{folder}/{name}"));
                if let Some(value) = value.filter(|_| name != "lifespan") {
                    all.insert(format!("{letter} {kind} {name}"), value);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::commands::tree::FakedTree;

    #[test]
    fn version_of_rdma_core_is_in_its_file_name() {
        assert_eq!(version_of("libibverbs.so.1.14.44.0"), Some("44.0"));
        assert_eq!(version_of("libibverbs.so.1"), None);
        assert_eq!(version_of("libmlx5.so.1.24.44.0"), None);
    }

    #[test]
    fn counters_are_named_by_line_kind_and_name() {
        let faked = FakedTree::of(&[
            (
                "/sys/class/infiniband/mlx5_0/ports/2/counters/port_rcv_data",
                "9\n",
            ),
            (
                "/sys/class/infiniband/mlx5_0/ports/2/hw_counters/out_of_buffer",
                "3\n",
            ),
            (
                "/sys/class/infiniband/mlx5_0/ports/2/hw_counters/lifespan",
                "10\n",
            ),
            (
                "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
                "8\n",
            ),
            ("/sys/class/net/eth2/statistics/rx_dropped", "1\n"),
            ("/sys/class/net/eth2/statistics/odd", "-\n"),
        ]);
        let line = LineFacts {
            line: Line::B,
            interface: "eth2".into(),
            address: Ipv4Addr::LOCALHOST,
            gid: Ipv6Addr::LOCALHOST,
            gid_index: None,
            device: "mlx5_0".into(),
            port: 2,
            mtu: 4_096,
            is_ethernet: true,
            is_software: false,
            more: BTreeMap::new(),
        };
        let all = counters(&faked.tree(), &[line]);
        let all: Vec<_> = all
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        assert_eq!(
            all,
            [
                ("B hardware out_of_buffer", 3),
                ("B interface rx_dropped", 1),
                ("B port port_rcv_data", 9),
            ]
        );
    }

    #[test]
    fn device_without_hardware_is_known_by_its_place() {
        let rxe = "/sys/devices/virtual/infiniband/rxe0";
        let card = "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0/infiniband/mlx5_0";
        assert!(is_virtual(Path::new(rxe)));
        assert!(!is_virtual(Path::new(card)));
    }
}
