//! Needs of a publisher's config, which the checks compare with the host.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use tickcast_publisher::Config;
use tickcast_publisher::config::{FanOutConfig, InputConfig, ThreadMode};
use tickcast_reliability::ring::Geometry;
use tickcast_subscriber::{Idle, Interface};

/// Name of the loopback interface.
pub(super) const LOOPBACK: &str = "lo";

/// A core that the config gives to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    /// The setting.
    pub(super) setting: &'static str,
    /// Number of the core.
    pub(super) core: usize,
}

/// A group that the publisher sends to or receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The group; port 0 for verbs, which have none.
    pub(super) group: SocketAddrV4,
    /// Name of the interface.
    pub(super) interface: String,
}

/// The needs of a config. Without a config: those of any process of tickcast on the given interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Wanted {
    /// Whether they are those of a publisher with a config.
    pub(super) is_configured: bool,
    /// Whether they are those of a subscriber to a config's groups.
    pub(super) is_subscriber: bool,
    /// Threads with a core of their own.
    pub(super) pinned: Vec<Pinned>,
    /// Whether threads poll without ever giving up their core.
    pub(super) spins: bool,
    /// Number of threads that poll.
    pub(super) threads: usize,
    /// Memory of all rings.
    pub(super) ring_bytes: u64,
    /// Directories or files in memory, each with the bytes that it holds.
    pub(super) files: Vec<(PathBuf, u64)>,
    /// Interfaces of groups, by name.
    pub(super) interfaces: BTreeSet<String>,
    /// Groups that are published.
    pub(super) sent: Vec<Line>,
    /// Groups of the inputs.
    pub(super) received: Vec<Line>,
    /// Length of the longest published datagram; 0 without a config.
    pub(super) datagram_len_max: u64,
    /// Largest receive buffer that the config requests.
    pub(super) receive_buffer_bytes: Option<u64>,
    /// Interfaces that sockets of the config poll (`busy_poll_us`).
    pub(super) busy_polled: BTreeSet<String>,
    /// Largest send buffer that the config requests.
    pub(super) send_buffer_bytes: Option<u64>,
    /// Memory that RDMA devices pin; `None` if the config has no verbs.
    pub(super) pinned_bytes: Option<u64>,
}

impl Wanted {
    /// Returns the needs of any process of tickcast: multicast on this interface.
    pub(in super::super) fn on(interface: &Interface) -> Self {
        Self {
            interfaces: BTreeSet::from([name_of(interface)]),
            ..Self::default()
        }
    }

    /// Returns the needs of a config.
    pub(in super::super) fn of(config: &Config) -> Self {
        let mut wanted = Self {
            is_configured: true,
            spins: config.threads.idle == Idle::Spin,
            threads: match config.threads.mode {
                ThreadMode::Inline => 1,
                ThreadMode::Threaded => 1 + config.inputs.len(),
            },
            ..Self::default()
        };
        let threads = &config.threads;
        let cores = [
            ("threads.feed_core", threads.feed_core),
            ("threads.publish_core", threads.publish_core),
            ("threads.repair_core", threads.repair_core),
        ];
        let pinned = cores.into_iter().filter_map(|(setting, core)| {
            let core = core?.0;
            Some(Pinned { setting, core })
        });
        wanted.pinned = pinned.collect();
        // The kernel counts each registration of a ring: of each line by verbs, and of each address for READ.
        let mut registered_bytes = 0_u64;
        for channel in &config.channels {
            let ring = Geometry::new(channel.slot_len, channel.slots);
            let bytes = ring.map_or(0, |ring| ring.bytes() as u64);
            wanted.ring_bytes = wanted.ring_bytes.saturating_add(bytes);
            wanted.datagram_len_max = wanted.datagram_len_max.max(channel.slot_len.into());
            let mut file = config.ring_dir.clone();
            for fan_out in &channel.fan_out {
                match fan_out {
                    FanOutConfig::Udp(udp) => {
                        wanted.send_buffer_bytes =
                            larger(wanted.send_buffer_bytes, udp.send_buffer_bytes);
                        for line in &udp.lines {
                            let interface = line.interface.as_ref().unwrap_or(&config.interface);
                            wanted.sends(line.group, interface);
                        }
                    }
                    FanOutConfig::Verbs(verbs) => {
                        let lines = verbs.lines.len() as u64;
                        registered_bytes =
                            registered_bytes.saturating_add(bytes.saturating_mul(lines));
                        for line in &verbs.lines {
                            let interface = line.interface.as_ref().unwrap_or(&config.interface);
                            wanted.sends(SocketAddrV4::new(line.group, 0), interface);
                        }
                    }
                    FanOutConfig::Shm(shm) => file = Some(shm.path.clone()),
                    _ => {}
                }
            }
            wanted.files.extend(file.map(|file| (file, bytes)));
        }
        if let Some(record) = &config.journal {
            // One file for each channel, and one for repair.
            let files = config.channels.len() as u64 + 1;
            let bytes = files.saturating_mul(u64::from(record.mib) << 20);
            wanted.files.push((record.directory.clone(), bytes));
        }
        for input in &config.inputs {
            let InputConfig::Udp(udp) = input else {
                continue;
            };
            wanted.receive_buffer_bytes =
                larger(wanted.receive_buffer_bytes, udp.receive_buffer_bytes);
            for line in udp.lines.iter().filter(|it| it.listen.ip().is_multicast()) {
                let interface = name_of(line.interface.as_ref().unwrap_or(&config.interface));
                wanted.interfaces.insert(interface.clone());
                if udp.busy_poll_us.is_some_and(|us| us > 0) {
                    wanted.busy_polled.insert(interface.clone());
                }
                wanted.received.push(Line {
                    group: line.listen,
                    interface,
                });
            }
        }
        if let Some(verbs) = &config.repair_verbs {
            wanted
                .interfaces
                .extend(verbs.interfaces.iter().map(name_of));
            if verbs.read {
                let interfaces = config.repair_interfaces();
                let devices: BTreeSet<_> = interfaces.iter().map(name_of).collect();
                let bytes = wanted.ring_bytes.saturating_mul(devices.len() as u64);
                registered_bytes = registered_bytes.saturating_add(bytes);
            }
        }
        wanted.pinned_bytes = (registered_bytes > 0).then_some(registered_bytes);
        wanted
    }

    /// Returns the needs of a subscriber to the groups of a config, which it joins on `interface`; by default
    /// on the interfaces of the config.
    pub(in super::super) fn of_subscriber(config: &Config, interface: Option<&Interface>) -> Self {
        let publisher = Self::of(config);
        let mut received = publisher.sent;
        if let Some(interface) = interface.map(name_of) {
            for line in &mut received {
                line.interface.clone_from(&interface);
            }
        }
        Self {
            is_subscriber: true,
            interfaces: received.iter().map(|it| it.interface.clone()).collect(),
            received,
            datagram_len_max: publisher.datagram_len_max,
            ..Self::default()
        }
    }

    /// Returns whether RDMA devices carry anything of the config.
    pub(super) const fn uses_verbs(&self) -> bool {
        self.pinned_bytes.is_some()
    }

    /// Returns the groups that carry the channels of the config.
    pub(super) fn published(&self) -> &[Line] {
        if self.is_subscriber {
            &self.received
        } else {
            &self.sent
        }
    }

    fn sends(&mut self, group: SocketAddrV4, interface: &Interface) {
        let interface = name_of(interface);
        self.interfaces.insert(interface.clone());
        self.sent.push(Line { group, interface });
    }

    /// Returns the cores of pinned threads.
    pub(super) fn cores(&self) -> BTreeSet<usize> {
        self.pinned.iter().map(|it| it.core).collect()
    }

    /// Returns all groups, each once for each interface.
    pub(super) fn groups(&self) -> BTreeSet<(Ipv4Addr, &str)> {
        let all = self.sent.iter().chain(&self.received);
        all.map(|line| (*line.group.ip(), line.interface.as_str()))
            .collect()
    }

    /// Returns the interfaces whose packets leave the host, as far as their names say.
    pub(super) fn networks(&self) -> impl Iterator<Item = &str> {
        let all = self.interfaces.iter().map(String::as_str);
        all.filter(|name| *name != LOOPBACK)
    }
}

/// Returns the name of an interface, or its address if no interface has it.
fn name_of(interface: &Interface) -> String {
    match interface {
        Interface::Name(name) => name.clone(),
        Interface::Address(address) => match interface.resolve() {
            Ok(resolved) => resolved.name,
            Err(_) => address.to_string(),
        },
    }
}

fn larger(one: Option<u64>, other: Option<usize>) -> Option<u64> {
    one.max(other.map(|bytes| bytes as u64))
}

/// Returns the needs of a config with these settings, for tests.
#[cfg(test)]
pub(super) fn wanted(settings: serde_json::Value) -> Wanted {
    Wanted::of(&config(settings))
}

/// Returns a config with these settings, for tests.
#[cfg(test)]
pub(super) fn config(settings: serde_json::Value) -> Config {
    let mut config = serde_json::json!({
        "name": "a", "control": "127.0.0.1:0", "inputs": [{ "source": 1, "kind": "own" }],
        "interface": "eth0",
        "channels": [{
            "id": 1, "name": "all", "slots": 1024, "slot_len": 1472,
            "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }],
        }],
    });
    if let serde_json::Value::Object(settings) = settings {
        for (key, value) in settings {
            config[key] = value;
        }
    }
    Config::parse(&config.to_string()).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn needs_of_a_config_are_those_of_all_its_parts() {
        let wanted = wanted(json!({
            "threads": { "idle": "spin", "feed_core": 2, "repair_core": 3 },
            "journal": { "directory": "/dev/shm/records", "mib": 4 },
            "channels": [
                {
                    "id": 1, "name": "a", "slots": 1024, "slot_len": 1472,
                    "fan_out": [
                        { "transport": "udp", "send_buffer_bytes": 5000, "lines": [
                            { "group": "239.255.90.1:7590" },
                            { "group": "239.255.90.2:7590", "interface": "eth1" },
                        ] },
                        { "transport": "shm", "path": "/dev/shm/a" },
                    ],
                },
                {
                    "id": 2, "name": "b", "slots": 2048, "slot_len": 4096,
                    "fan_out": [{ "transport": "verbs", "lines": [{ "group": "239.255.90.3" }] }],
                },
            ],
            "inputs": [{
                "source": 1, "kind": "udp", "receive_buffer_bytes": 9000, "busy_poll_us": 50,
                "lines": [
                    { "listen": "239.1.1.1:100", "interface": "eth2" },
                    { "listen": "10.0.0.1:100" },
                ],
            }],
        }));
        let bytes = |slot_len, slots| Geometry::new(slot_len, slots).unwrap().bytes() as u64;
        let (a, b) = (bytes(1472, 1024), bytes(4096, 2048));
        let expected = Wanted {
            is_configured: true,
            is_subscriber: false,
            pinned: vec![
                Pinned {
                    setting: "threads.feed_core",
                    core: 2,
                },
                Pinned {
                    setting: "threads.repair_core",
                    core: 3,
                },
            ],
            spins: true,
            threads: 2,
            ring_bytes: a + b,
            files: vec![
                ("/dev/shm/a".into(), a),
                ("/dev/shm/records".into(), 12 << 20),
            ],
            interfaces: ["eth0", "eth1", "eth2"].map(str::to_owned).into(),
            sent: [
                ("239.255.90.1:7590", "eth0"),
                ("239.255.90.2:7590", "eth1"),
                ("239.255.90.3:0", "eth0"),
            ]
            .map(line)
            .into(),
            received: vec![line(("239.1.1.1:100", "eth2"))],
            datagram_len_max: 4096,
            receive_buffer_bytes: Some(9000),
            busy_polled: ["eth2".to_owned()].into(),
            send_buffer_bytes: Some(5000),
            pinned_bytes: Some(b),
        };
        assert_eq!(wanted, expected);
        assert_eq!(wanted.cores(), BTreeSet::from([2, 3]));
        assert_eq!(wanted.groups().len(), 4);
    }

    fn line((group, interface): (&str, &str)) -> Line {
        Line {
            group: group.parse().unwrap(),
            interface: interface.to_owned(),
        }
    }

    #[test]
    fn pinned_memory_counts_every_registration_of_a_ring() {
        let pinned = |verbs: serde_json::Value, lines: serde_json::Value| {
            let fan_out = json!([{ "transport": "verbs", "lines": lines }]);
            let wanted = wanted(json!({
                "repair_verbs": verbs,
                "channels": [{ "id": 1, "name": "a", "slots": 1024, "fan_out": fan_out }],
            }));
            wanted.pinned_bytes.map(|bytes| bytes / wanted.ring_bytes)
        };
        let one = json!([{ "group": "239.255.90.3" }]);
        let two = json!([
            { "group": "239.255.90.3", "interface": "eth0" },
            { "group": "239.255.90.4", "interface": "eth1" },
        ]);
        assert_eq!(pinned(json!(null), one.clone()), Some(1));
        assert_eq!(pinned(json!({}), one), Some(2));
        assert_eq!(pinned(json!({}), two.clone()), Some(4));
        assert_eq!(pinned(json!({ "read": false }), two.clone()), Some(2));
        let given = json!({ "interfaces": ["eth2", "eth3", "eth4"] });
        assert_eq!(pinned(given, two), Some(5));
    }

    #[test]
    fn needs_of_a_subscriber_are_the_published_groups() {
        let settings = json!({
            "threads": { "idle": "spin", "feed_core": 2 },
            "inputs": [{ "source": 1, "kind": "udp", "lines": [{ "listen": "239.1.1.1:100" }] }],
        });
        let config = config(settings);
        let line = |interface: &str| line(("239.255.90.1:7590", interface));
        let expected = |interface: &str| Wanted {
            is_subscriber: true,
            interfaces: BTreeSet::from([interface.to_owned()]),
            received: vec![line(interface)],
            datagram_len_max: 1472,
            ..Wanted::default()
        };
        let wanted = Wanted::of_subscriber(&config, None);
        assert_eq!(wanted, expected("eth0"));
        assert_eq!(wanted.published(), [line("eth0")]);
        let other = Interface::Name("eth5".into());
        let wanted = Wanted::of_subscriber(&config, Some(&other));
        assert_eq!(wanted, expected("eth5"));
    }

    #[test]
    fn needs_without_a_config_are_one_interface() {
        let wanted = Wanted::on(&Interface::default());
        assert!(!wanted.is_configured && wanted.interfaces.contains(LOOPBACK));
        assert_eq!(wanted.networks().count(), 0);
    }
}
