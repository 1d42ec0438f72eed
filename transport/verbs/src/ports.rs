//! The RDMA devices that the operating system reports in `/sys/class/infiniband`. Reading it needs no
//! rights, no libraries and no working device, so the report can say why a device does not work.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

/// Directory where the kernel lists the devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// One port of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// The device's name, as `rdma link` shows it.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// State as the kernel prints it: `ACTIVE`, `DOWN`, ….
    pub state: String,
    /// `Ethernet` (RoCE) or `InfiniBand`.
    pub link_layer: String,
    /// Rate as the kernel prints it, for people.
    pub rate: String,
    /// The port's identifiers that are in use.
    pub gids: Vec<Gid>,
    /// Network interfaces of the same card. On InfiniBand these are IPoIB's.
    pub interfaces: Vec<String>,
    /// The device's own counters. Empty if it has none.
    pub hw_counters: BTreeMap<String, u64>,
}

/// One identifier of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u32,
    /// The identifier. For RoCEv2 over IPv4 it is the mapped address.
    pub gid: Ipv6Addr,
    /// `RoCE v2`, `IB/RoCE v1`, ….
    pub kind: String,
    /// The network interface that it belongs to. `None` on InfiniBand.
    pub interface: Option<String>,
}

impl Port {
    /// Returns whether the port can send and receive.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Returns whether packets go over Ethernet. Switches must then be configured not to drop them.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

/// Returns all ports, sorted by device and number. Empty if the kernel has no RDMA.
///
/// # Errors
/// The operating system's error, if a directory exists and can't be read.
pub fn all() -> io::Result<Vec<Port>> {
    below(Path::new(CLASS))
}

fn below(class: &Path) -> io::Result<Vec<Port>> {
    let mut ports = Vec::new();
    for device in names(class)? {
        for number in names(&class.join(&device).join("ports"))? {
            let path = class.join(&device).join("ports").join(&number);
            let Ok(port) = number.parse() else { continue };
            // "4: ACTIVE"
            let state = text(&path.join("state"));
            ports.push(Port {
                device: device.clone(),
                port,
                state: state.rsplit(' ').next().unwrap_or_default().to_owned(),
                link_layer: text(&path.join("link_layer")),
                rate: text(&path.join("rate")),
                gids: gids(&path)?,
                interfaces: names(&class.join(&device).join("device/net"))?,
                hw_counters: hw_counters(&path)?,
            });
        }
    }
    ports.sort_by(|a, b| (&a.device, a.port).cmp(&(&b.device, b.port)));
    Ok(ports)
}

fn gids(port: &Path) -> io::Result<Vec<Gid>> {
    let mut all = Vec::new();
    for name in names(&port.join("gids"))? {
        let gid = Ipv6Addr::from_str(&text(&port.join("gids").join(&name)));
        let (Ok(index), Ok(gid)) = (name.parse(), gid) else {
            continue;
        };
        if gid == Ipv6Addr::UNSPECIFIED {
            continue;
        }
        let attribute = |kind: &str| text(&port.join("gid_attrs").join(kind).join(&name));
        all.push(Gid {
            index,
            gid,
            kind: attribute("types"),
            interface: Some(attribute("ndevs")).filter(|name| !name.is_empty()),
        });
    }
    all.sort_by_key(|gid| gid.index);
    Ok(all)
}

fn hw_counters(port: &Path) -> io::Result<BTreeMap<String, u64>> {
    let path = port.join("hw_counters");
    let named = names(&path)?.into_iter().filter_map(|name| {
        let value = text(&path.join(&name)).parse().ok()?;
        // `lifespan` is the refresh interval of the counters, not a counter.
        (name != "lifespan").then_some((name, value))
    });
    Ok(named.collect())
}

/// Returns the names in a directory. Empty if it does not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.filter_map(name).collect())
}

/// Returns a file's text. Empty if the kernel has none: it refuses to read entries that are not in use.
fn text(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_the_kernel_shows_them() {
        let class = std::env::temp_dir().join(format!("tickcast-ports-{}", std::process::id()));
        let port = class.join("mlx5_0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a01:0001\n"),
            ("gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/3", "eth0\n"),
            ("hw_counters/out_of_buffer", "7\n"),
            ("hw_counters/lifespan", "12\n"),
        ] {
            let file = port.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        fs::create_dir_all(class.join("mlx5_0/device/net/ib0")).unwrap();
        let ports = below(&class).unwrap();
        fs::remove_dir_all(&class).unwrap();
        let [port] = &ports[..] else {
            panic!("{ports:?}")
        };
        assert_eq!((port.device.as_str(), port.port), ("mlx5_0", 1));
        assert!(port.is_active() && port.is_ethernet());
        assert_eq!(port.gids.len(), 2, "empty entries are none");
        assert_eq!(port.gids[0].interface, None);
        assert_eq!(port.interfaces, ["ib0"]);
        let gid = &port.gids[1];
        assert_eq!((gid.index, gid.kind.as_str()), (3, "RoCE v2"));
        assert_eq!(gid.interface.as_deref(), Some("eth0"));
        assert_eq!(gid.gid.to_ipv4_mapped(), Some([10, 1, 0, 1].into()));
        assert_eq!(
            port.hw_counters,
            BTreeMap::from([("out_of_buffer".into(), 7)])
        );
        assert_eq!(below(&class).unwrap(), [], "no RDMA is no error");
    }
}
