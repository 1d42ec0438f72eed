//! The JSON config with every default, and errors that name line and JSON path. `plan`
//! interprets it and checks its consistency.

mod commands;
mod fan_out;
pub(crate) mod input;
pub(crate) mod journal;
pub(crate) mod latency_log;
mod place;
pub(crate) mod schema;
pub(crate) mod settings;
mod standby;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickcast_reliability::control::REPAIR_OFFERS_MAX;
use tickcast_reliability::publish::HeartbeatConfig;
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::host::files::read_at_most;
use tickcast_transport::host::idle::Idle;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::pin::Core;

pub use crate::config::commands::CommandsConfig;
pub use crate::config::fan_out::{
    FanOutConfig, LineConfig, ShmConfig, UdpConfig, VerbsConfig, VerbsLineConfig,
};
pub use crate::config::input::{
    CaptureConfig, InputConfig, InputFormat, InputLineConfig, OwnInputConfig, Pace,
    RecordsInputConfig, SimulatorInputConfig, UdpInputConfig, WaitForSubscribers,
};
pub use crate::config::journal::JournalConfig;
pub use crate::config::latency_log::LatencyLogConfig;
pub(crate) use crate::config::place::ConfigText;
use crate::config::schema::NAME_PATTERN;
pub use crate::config::standby::StandbyConfig;
use crate::error::ConfigError;
pub use tickcast_http::EndpointAddress;

/// Maximum length of a config file.
const FILE_LEN_MAX: u64 = 16 << 20;

/// A publisher: its channels, its inputs, and how it runs.
///
/// ```
/// # use tickcast_publisher::Config;
/// let config = Config::parse(
///     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// )?;
/// assert_eq!(config.channels[0].name, "all");
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tickcast-publisher")]
pub struct Config {
    /// Path of this file's schema, for editors.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Free text for readers of the file.
    #[serde(rename = "$comment", default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<serde_json::Value>,
    /// Name of this publisher for subscribers, logs and the state file: at most 64 bytes of
    /// letters, digits, `-`, `_` and `.`.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Address for subscriber connections; with port 0 the system chooses.
    #[serde(default = "control_default")]
    pub control: SocketAddr,
    /// Address that serves metrics; null: none. With port 0 the system chooses.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Further names and addresses of this host that HTTP clients may use in `Host`, beside
    /// `localhost`, the host's own name, and the address that a client connects to.
    #[serde(default)]
    #[schemars(inner(length(min = 1)))]
    pub admin_hosts: Vec<String>,
    /// The endpoints that take commands: a promotion, and a standby's request to hand over.
    #[serde(default)]
    pub commands: CommandsConfig,
    /// The default interface of lines and inputs.
    #[serde(default)]
    #[schemars(with = "String")]
    pub interface: Interface,
    /// Number of routers that a datagram may pass; 0 keeps it on this host.
    #[serde(default)]
    pub ttl: u8,
    /// Directory that keeps the last epoch; without it the clock alone gives the epoch.
    #[serde(default)]
    pub state_dir: Option<PathBuf>,
    /// Directory on tmpfs or hugetlbfs where the rings outlive the publisher, so a killed publisher
    /// continues its epoch. Needs `state_dir`. Without it every start opens a new epoch.
    #[serde(default)]
    pub ring_dir: Option<PathBuf>,
    /// File that names the banned subscribers. The publisher polls it. Each line is a name or an
    /// address, then the reason. Without it every subscriber may join.
    #[serde(default)]
    pub banned: Option<PathBuf>,
    /// Makes this the standby of another publisher; null: it publishes.
    #[serde(default)]
    pub standby: Option<StandbyConfig>,
    /// Names of the standbys that this publisher hands over to on request; default: none.
    #[serde(default)]
    #[schemars(inner(regex(pattern = NAME_PATTERN)))]
    pub hand_over_to: Vec<String>,
    /// Journals of publishing and repair; null: none.
    #[serde(default)]
    pub journal: Option<JournalConfig>,
    /// Interval log of the latency up to the sealed datagram; null: none.
    #[serde(default)]
    pub latency_log: Option<LatencyLogConfig>,
    /// Log lines to write, as in RUST_LOG: `debug`, or `warn,tickcast_publisher=info`; null: `info`.
    /// RUST_LOG takes its place.
    #[serde(default)]
    pub log: Option<String>,
    /// The channels that are published.
    #[schemars(length(min = 1, max = 64))]
    pub channels: Vec<ChannelConfig>,
    /// The sources of the messages.
    #[schemars(length(max = 16))]
    pub inputs: Vec<InputConfig>,
    /// The threads, their cores, and their idle strategy.
    #[serde(default)]
    pub threads: ThreadsConfig,
    /// The intervals of heartbeats, in microseconds.
    #[serde(default)]
    pub heartbeat: HeartbeatConfig,
    /// The limits of repair.
    #[serde(default)]
    pub repair: RepairConfig,
    /// RDMA verbs listener for NACKs and READ, beside TCP; null: none.
    #[serde(default)]
    pub repair_verbs: Option<RepairVerbsConfig>,
    /// Values of the subscribers' configs; only checks use them.
    #[serde(default)]
    pub subscribers: SubscribersConfig,
    /// Bytes per second of the slowest link, for the check that repair uses at most half of it;
    /// null: no check.
    #[serde(default)]
    pub link_bytes_per_s: Option<u64>,
    /// Time to wait after END for subscribers that have not reached it, in milliseconds.
    #[serde(default = "linger_default")]
    #[schemars(range(max = 3_600_000))]
    pub linger_ms: u64,
    /// Whether to take a digest of each channel's records (XXH3-128).
    #[serde(default)]
    pub digest: bool,
    /// Whether the session ends when all inputs have ended; otherwise a signal ends it.
    #[serde(default = "yes")]
    pub end_when_inputs_end: bool,
    /// The text of the config, for errors.
    #[serde(skip)]
    pub(crate) text: ConfigText,
}

/// RDMA verbs listener for NACKs and READ.
///
/// ```
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// assert!(config.repair_verbs.is_none(), "TCP alone");
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairVerbsConfig {
    /// The devices' interfaces, at most 16. By default those of the lines by verbs, or without such lines the
    /// publisher's. Subscribers connect to one, and to the next when their connection ends.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(max = REPAIR_OFFERS_MAX))]
    pub interfaces: Vec<Interface>,
    /// The rdma_cm port on each interface, independent of TCP ports; with 0 the system chooses.
    #[serde(default)]
    pub port: u16,
    /// Whether subscribers may READ the rings; if so, the rings are pinned as a whole.
    #[serde(default = "yes")]
    pub read: bool,
    /// Maximum number of cursors for each interface, one for each channel of each subscriber that READs: 0 to
    /// 4096. A subscriber reports its progress through its cursor, without a message.
    #[serde(default = "cursors_default")]
    #[schemars(range(max = 4_096))]
    pub cursors: u16,
    /// Maximum number of connections, 2 to 65,536. Each pins 512 KiB here. A subscriber has two: one for
    /// NACKs and one for READ.
    #[serde(default = "verbs_connections_default")]
    #[schemars(range(min = 2, max = 65_536))]
    pub connections_max: u32,
    /// File that names the subscribers that may not READ, in the format of `banned`.
    /// Their READ rights are revoked, and they continue with NACKs. The publisher does not write to
    /// a standby in the file either. Without the file everybody may READ.
    #[serde(default)]
    pub denied: Option<PathBuf>,
}

/// One sequence space with one ring.
///
/// ```
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// assert_eq!((config.channels[0].name.as_str(), config.channels[0].slots), ("all", 1024));
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Number of the channel.
    #[schemars(with = "u16")]
    pub id: ChannelId,
    /// Name of the channel; the rules for publisher names apply.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// The symbols of the channel: exact (`MSFT`), a prefix (`A*`), a range of first letters
    /// (`A-M`), or `*` for all symbols that no other channel carries.
    #[serde(default = "all_symbols")]
    #[schemars(length(min = 1))]
    pub symbols: Vec<String>,
    /// Bytes of a slot, the length of the longest datagram: a multiple of 64 from 1024 to 8960.
    #[serde(default = "slot_len_default")]
    #[schemars(range(min = 1_024, max = 8_960), extend("multipleOf" = 64))]
    pub slot_len: u32,
    /// Slots of the ring, a power of two.
    #[serde(default = "slots_default")]
    #[schemars(range(min = 16, max = 1_u64 << 31))]
    pub slots: u64,
    /// Peak datagrams per second; gives the number of seconds that the ring holds.
    #[serde(default = "peak_default")]
    #[schemars(range(min = 1))]
    pub peak_datagrams_per_s: u64,
    /// Margin in slots: a fan-out that leaves no more than this free is torn down; 0: an eighth.
    #[serde(default)]
    pub fan_out_margin_slots: u64,
    /// Whether every datagram carries a tag under a key that only subscribers get, so that nobody
    /// else on the network can forge one. Subscribers that do not check tags can't join.
    #[serde(default)]
    pub authentication: bool,
    /// Number of datagrams that one key authenticates, 1024 or more. The next key is announced before.
    #[serde(default = "datagrams_per_key_default")]
    #[schemars(range(min = 1_024))]
    pub datagrams_per_key: u64,
    /// All fan-outs, at least one.
    #[schemars(length(min = 1, max = 8))]
    pub fan_out: Vec<FanOutConfig>,
}

/// The threads, their cores, and their idle strategy.
///
/// ```
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// assert!(config.threads.queue_batches > 0);
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// Threading mode: one thread for feed and publishing, or separate threads.
    pub mode: ThreadMode,
    /// Core of the feed threads; several inputs share it.
    #[schemars(with = "Option<usize>")]
    pub feed_core: Option<Core>,
    /// Core of the publish thread; in `inline` mode, core of the only thread.
    #[schemars(with = "Option<usize>")]
    pub publish_core: Option<Core>,
    /// Core of the repair service.
    #[schemars(with = "Option<usize>")]
    pub repair_core: Option<Core>,
    /// Idle strategy of feed and publish threads.
    pub idle: Idle,
    /// Maximum number of batches queued between a feed thread and the publish thread; 2 or more.
    #[schemars(range(min = 2, max = 1 << 20))]
    pub queue_batches: usize,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            mode: ThreadMode::Threaded,
            feed_core: None,
            publish_core: None,
            repair_core: None,
            idle: Idle::Sleep { us: 50 },
            queue_batches: 1024,
        }
    }
}

/// The number of threads between an input and the wire.
///
/// ```
/// # use tickcast_publisher::config::ThreadMode;
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// assert_eq!(config.threads.mode, ThreadMode::default());
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadMode {
    /// A thread for each input, and one that publishes.
    #[default]
    Threaded,
    /// One thread for all.
    Inline,
}

/// The subscribers' settings that must fit the publisher.
///
/// ```
/// # use tickcast_publisher::Config;
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// # )?;
/// println!("{:?}", config.subscribers);
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SubscribersConfig {
    /// The longest deadline of any subscriber with `ordered within`, in microseconds.
    pub gap_deadline_us: u64,
    /// The shortest `nack_retry_us` of any subscriber.
    pub nack_retry_us: u64,
}

impl Default for SubscribersConfig {
    fn default() -> Self {
        Self {
            gap_deadline_us: 50_000,
            nack_retry_us: 50,
        }
    }
}

impl Config {
    /// Reads a config file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line, column and JSON path, the value, and the remedy.
    ///
    /// ```
    /// use tickcast_publisher::Config;
    ///
    /// let error = Config::read("/no/such/config.json".as_ref()).unwrap_err();
    /// assert!(error.to_string().contains("/no/such/config.json"));
    /// ```
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_text(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_text(ConfigText::new(Some(path), &text))
    }

    /// Returns the path of the command socket. Without a configured path there is one in `state_dir`
    /// if there are commands to take.
    ///
    /// ```
    /// # use tickcast_publisher::Config;
    /// # let config = Config::parse(
    /// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
    /// #         "id": 1, "name": "all", "slots": 1024,
    /// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
    /// # )?;
    /// assert_eq!(config.command_socket(), None, "it hands over to nobody");
    /// # Ok::<(), tickcast_publisher::ConfigError>(())
    /// ```
    #[must_use]
    pub fn command_socket(&self) -> Option<PathBuf> {
        let takes_commands = self.standby.is_some() || !self.hand_over_to.is_empty();
        let directory = self.state_dir.as_ref().filter(|_| takes_commands);
        let own = directory.map(|it| it.join(format!("{}.commands", self.name)));
        self.commands.socket.clone().or(own)
    }

    /// Returns the interfaces of `repair_verbs`: those that it names, else each of the lines by verbs, else
    /// the publisher's. Returns none if repair is over TCP alone.
    ///
    /// ```
    /// # use tickcast_publisher::Config;
    /// # let config = Config::parse(
    /// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
    /// #         "id": 1, "name": "all", "slots": 1024,
    /// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
    /// # )?;
    /// assert!(config.repair_interfaces().is_empty(), "TCP alone");
    /// # Ok::<(), tickcast_publisher::ConfigError>(())
    /// ```
    #[must_use]
    pub fn repair_interfaces(&self) -> Vec<Interface> {
        let Some(verbs) = &self.repair_verbs else {
            return Vec::new();
        };
        if !verbs.interfaces.is_empty() {
            return verbs.interfaces.clone();
        }
        let mut interfaces = Vec::new();
        for fan_out in self.channels.iter().flat_map(|it| &it.fan_out) {
            let FanOutConfig::Verbs(verbs) = fan_out else {
                continue;
            };
            for line in &verbs.lines {
                let interface = line.interface.as_ref().unwrap_or(&self.interface);
                if !interfaces.contains(interface) {
                    interfaces.push(interface.clone());
                }
            }
        }
        if interfaces.is_empty() {
            interfaces.push(self.interface.clone());
        }
        interfaces
    }

    /// Returns the log lines to write, as in RUST_LOG.
    ///
    /// ```
    /// # use tickcast_publisher::Config;
    /// # let config = Config::parse(
    /// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
    /// #         "id": 1, "name": "all", "slots": 1024,
    /// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
    /// # )?;
    /// assert_eq!(config.log(), "info");
    /// # Ok::<(), tickcast_publisher::ConfigError>(())
    /// ```
    #[must_use]
    pub fn log(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }

    /// Parses a config.
    ///
    /// # Errors
    /// Returns [`ConfigError`] under the conditions of [`Config::read`].
    ///
    /// ```
    /// use tickcast_publisher::Config;
    ///
    /// assert!(Config::parse("{}").is_err(), "it names what is missing");
    /// ```
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(ConfigText::new(None, text))
    }

    fn from_text(text: ConfigText) -> Result<Self, ConfigError> {
        if text.as_str().trim().is_empty() {
            let reason = "the file is empty; start from one of the files in configs/".into();
            let at = ".".into();
            return Err(text.locate(ConfigError::Shape { at, reason }));
        }
        let mut json = serde_json::Deserializer::from_str(text.as_str());
        let config = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| text.shape(error.path().to_string(), error.inner()))?;
        json.end().map_err(|error| text.shape(".".into(), &error))?;
        Ok(Self { text, ..config })
    }

    /// Returns the config as JSON, with all defaults filled in.
    ///
    /// ```
    /// # use tickcast_publisher::Config;
    /// # let config = Config::parse(
    /// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
    /// #         "id": 1, "name": "all", "slots": 1024,
    /// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
    /// # )?;
    /// assert_eq!(config.to_json()["channels"][0]["name"], "all");
    /// # Ok::<(), tickcast_publisher::ConfigError>(())
    /// ```
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        // This can't fail: every key is a string and every number is finite, because the config was
        // parsed.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Reads the text of a config file, which may be a pipe of another program.
fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_at_most(&File::open(path)?, path, FILE_LEN_MAX)?;
    let text = String::from_utf8(bytes);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

fn control_default() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7400))
}

fn all_symbols() -> Vec<String> {
    vec!["*".into()]
}

const fn slot_len_default() -> u32 {
    1472
}

const fn slots_default() -> u64 {
    65_536
}

const fn peak_default() -> u64 {
    50_000
}

/// Four seconds at a million datagrams a second.
const fn datagrams_per_key_default() -> u64 {
    1 << 22
}

const fn linger_default() -> u64 {
    2_000
}

const fn verbs_connections_default() -> u32 {
    256
}

const fn cursors_default() -> u16 {
    256
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn repair_interfaces_default_to_those_of_verbs_lines() {
        let of = |repair_verbs: Value, lines: &[Value]| {
            let fan_out = match lines.is_empty() {
                true => json!({ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }),
                false => json!({ "transport": "verbs", "lines": lines }),
            };
            let config = json!({
                "name": "mine", "control": "127.0.0.1:0", "interface": "10.0.0.1", "inputs": [],
                "channels": [{ "id": 1, "name": "all", "slots": 1024, "fan_out": [fan_out] }],
                "repair_verbs": repair_verbs,
            });
            let interfaces = Config::parse(&config.to_string())
                .unwrap()
                .repair_interfaces();
            interfaces
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let on = |interface: &str| json!({ "group": "239.255.90.3", "interface": interface });
        let lines = [on("eth0"), on("eth1"), on("eth0")];
        assert_eq!(of(json!({}), &lines), ["eth0", "eth1"]);
        assert_eq!(
            of(json!({}), &[json!({ "group": "239.255.90.3" })]),
            ["10.0.0.1"]
        );
        assert_eq!(of(json!({}), &[]), ["10.0.0.1"]);
        assert_eq!(of(json!({ "interfaces": ["eth1"] }), &lines), ["eth1"]);
        assert!(of(json!(null), &lines).is_empty(), "TCP alone");
    }
}
