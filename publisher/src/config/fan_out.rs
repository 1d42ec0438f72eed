//! Fan-outs as written in the config: each has one transport, and only that transport's fields.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::verbs;

use crate::config::input::part;

/// One fan-out of a ring.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// assert!(matches!(config.channels[0].fan_out[0], FanOutConfig::Udp(_)));
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "transport", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FanOutConfig {
    /// UDP multicast.
    Udp(UdpConfig),
    /// RDMA multicast.
    Verbs(VerbsConfig),
    /// Shared memory, for subscribers on this host.
    Shm(ShmConfig),
}

/// Shared memory: subscribers on this host map the ring itself. A channel has at most one fan-out
/// of this kind.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "shm", "path": "/dev/shm/tickcast-all" }] }] }"#,
/// # )?;
/// if let FanOutConfig::Shm(shm) = &config.channels[0].fan_out[0] {
///     assert!(shm.path.starts_with("/dev/shm"));
/// }
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShmConfig {
    /// The file, on tmpfs or hugetlbfs. The publisher creates it at each start and removes it when
    /// it ends.
    pub path: PathBuf,
}

/// UDP multicast: one socket per line.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// if let FanOutConfig::Udp(udp) = &config.channels[0].fan_out[0] {
///     assert_eq!((udp.lines.len(), udp.send_buffer_bytes, udp.gso), (1, None, true));
/// }
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpConfig {
    /// Line A, then line B if there is one.
    #[schemars(length(min = 1, max = 2))]
    pub lines: Vec<LineConfig>,
    /// Send buffer to request from the kernel, per line; null: the system's default.
    #[serde(default)]
    pub send_buffer_bytes: Option<usize>,
    /// Whether datagrams that are due together go to the kernel as one buffer, which the kernel or
    /// the device segments (GSO). If GSO is not available, the publisher reports that and sends
    /// them one by one.
    #[serde(default = "yes")]
    pub gso: bool,
}

const fn yes() -> bool {
    true
}

/// One network that carries a channel.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// if let FanOutConfig::Udp(udp) = &config.channels[0].fan_out[0] {
///     assert_eq!(udp.lines[0].group.to_string(), "239.255.90.1:7590");
/// }
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineConfig {
    /// Multicast group and port.
    pub group: SocketAddrV4,
    /// The interface to send from; null: the publisher's.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub interface: Option<Interface>,
}

/// RDMA multicast: unreliable datagrams from a device's queue pair, one per line.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "verbs", "lines": [{ "group": "239.9.0.1" }] }] }] }"#,
/// # )?;
/// if let FanOutConfig::Verbs(verbs) = &config.channels[0].fan_out[0] {
///     assert!(verbs.signal_every <= verbs.send_depth / 2);
/// }
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerbsConfig {
    /// Line A, then line B if there is one.
    #[schemars(length(min = 1, max = 2))]
    pub lines: Vec<VerbsLineConfig>,
    /// Queue key. Devices drop datagrams with another key; it separates systems, but is no secret.
    /// Subscribers receive it from the publisher.
    #[serde(default = "q_key_default")]
    #[schemars(range(min = 1, max = i32::MAX))]
    pub q_key: u32,
    /// Traffic class of every packet; the upper six bits are the DSCP.
    #[serde(default)]
    pub traffic_class: u8,
    /// Service level of every packet, 0 to 15; null: on Ethernet the upper three bits of
    /// `traffic_class`, on InfiniBand the level that the subnet manager gave the group.
    #[serde(default)]
    #[schemars(range(max = 15))]
    pub service_level: Option<u8>,
    /// Maximum number of sends in flight, per line.
    #[serde(default = "verbs::send_depth_default")]
    #[schemars(range(min = 16, max = 32768))]
    pub send_depth: u32,
    /// Number of sends between two completions from the device; at most half of `send_depth`.
    #[serde(default = "verbs::signal_every_default")]
    #[schemars(range(min = 1, max = 16384))]
    pub signal_every: u32,
    /// Datagrams up to this length go to the device inside the request itself.
    #[serde(default = "verbs::inline_default")]
    #[schemars(range(max = 4096))]
    pub inline_bytes: u32,
    /// Maximum rate per line; null: the port's rate.
    #[serde(default)]
    pub pace: Option<verbs::RateLimit>,
}

/// One RDMA network that carries a channel.
///
/// ```
/// # use tickcast_publisher::config::FanOutConfig;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "verbs", "lines": [{ "group": "239.9.0.1" }] }] }] }"#,
/// # )?;
/// if let FanOutConfig::Verbs(verbs) = &config.channels[0].fan_out[0] {
///     assert!(verbs.lines[0].group.is_multicast() && verbs.lines[0].interface.is_none());
/// }
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerbsLineConfig {
    /// Multicast group, without a port.
    pub group: Ipv4Addr,
    /// The interface of the device to send from; null: the publisher's.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub interface: Option<Interface>,
}

/// Returns "tick" in ASCII, the default key.
const fn q_key_default() -> u32 {
    0x7469_636b
}

impl<'de> Deserialize<'de> for FanOutConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(from)?;
        let transport = fields.remove("transport");
        match transport.as_ref().map(Value::as_str) {
            Some(Some("udp")) => part(fields).map(Self::Udp),
            Some(Some("verbs")) => part(fields).map(Self::Verbs),
            Some(Some("shm")) => part(fields).map(Self::Shm),
            None => Err(D::Error::custom(
                "missing field `transport`: write \"udp\", \"verbs\" or \"shm\"",
            )),
            _ => Err(D::Error::custom(format_args!(
                "{} is not a transport: write \"udp\", \"verbs\" or \"shm\"",
                transport.unwrap_or_default()
            ))),
        }
    }
}
