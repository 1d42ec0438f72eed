//! What was typed: the JSON config with every default, and errors that name the JSON path. What
//! it means, and whether it goes together, is [`crate::plan`]'s part.

mod fan_out;
pub(crate) mod input;
pub(crate) mod journal;
mod standby;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tickcast_reliability::publish::HeartbeatConfig;
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::host::idle::Idle;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::pin::Core;

pub use crate::config::fan_out::{
    FanOutConfig, LineConfig, ShmConfig, UdpConfig, VerbsConfig, VerbsLineConfig,
};
pub use crate::config::input::{
    CaptureConfig, InputConfig, InputFormat, OwnInputConfig, Pace, RecordsInputConfig,
    SimulatorInputConfig, UdpInputConfig,
};
pub use crate::config::journal::FlightRecordConfig;
pub use crate::config::standby::StandbyConfig;
use crate::error::ConfigError;

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the schema of this file is; for editors.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// For people.
    #[serde(rename = "$comment", default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<serde_json::Value>,
    /// What subscribers, logs and the state file call this publisher, at most 64 bytes of
    /// letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Where subscribers connect; port 0 lets the system choose.
    #[serde(default = "control_default")]
    pub control: SocketAddr,
    /// Where metrics are served; null: nowhere. Port 0 lets the system choose.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// The interface of lines and inputs that name none.
    #[serde(default)]
    pub interface: Interface,
    /// How many routers a datagram may pass; 0 keeps it on this host.
    #[serde(default)]
    pub ttl: u8,
    /// Directory that keeps the last epoch; without one it is taken from the clock alone.
    #[serde(default)]
    pub state_dir: Option<PathBuf>,
    /// Directory on tmpfs or hugetlbfs where the rings outlive the publisher, so that one that was killed
    /// goes on in its epoch; needs `state_dir`. Without one every start opens an epoch of its own.
    #[serde(default)]
    pub ring_dir: Option<PathBuf>,
    /// File that names who may not subscribe, looked at while the publisher runs: a name or an address a
    /// line, then the reason. Without one everybody may.
    #[serde(default)]
    pub banned: Option<PathBuf>,
    /// Makes this the standby of another publisher; null: it publishes.
    #[serde(default)]
    pub standby: Option<StandbyConfig>,
    /// The standbys, by name, that this publisher hands over to when they ask; none where it is left out.
    #[serde(default)]
    pub hand_over_to: Vec<String>,
    /// Where flight records are kept of what was published and repaired; null: nowhere.
    #[serde(default)]
    pub flight_record: Option<FlightRecordConfig>,
    /// What is published.
    pub channels: Vec<ChannelConfig>,
    /// Where it comes from.
    pub inputs: Vec<InputConfig>,
    /// Which threads there are, and how they wait.
    #[serde(default)]
    pub threads: ThreadsConfig,
    /// The intervals of heartbeats, in microseconds.
    #[serde(default)]
    pub heartbeat: HeartbeatConfig,
    /// What repair may cost.
    #[serde(default)]
    pub repair: RepairConfig,
    /// Where connections for NACKs and for READ are taken over RDMA verbs beside TCP; null: nowhere.
    #[serde(default)]
    pub repair_verbs: Option<RepairVerbsConfig>,
    /// What the subscribers' configs say; only used for checks.
    #[serde(default)]
    pub subscribers: SubscribersConfig,
    /// Bytes per second of the slowest link, for the check that repair leaves it half; null: no
    /// check.
    #[serde(default)]
    pub link_bytes_per_s: Option<u64>,
    /// How long to wait after END for subscribers that have not reached it, in milliseconds.
    #[serde(default = "linger_default")]
    pub linger_ms: u64,
    /// Whether to take a digest of each channel's records (XXH3-128).
    #[serde(default)]
    pub digest: bool,
    /// Whether the session ends when all inputs have; otherwise a signal ends it.
    #[serde(default = "yes")]
    pub end_when_inputs_end: bool,
    /// The file that it was read from, for errors.
    #[serde(skip)]
    pub(crate) file: ConfigFile,
}

/// The file of a config, which is no part of what the config says: equal configs may come from two files.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFile(Option<PathBuf>);

impl ConfigFile {
    /// Returns the error with the file's path, where the config is of a file.
    pub(crate) fn locate(&self, error: ConfigError) -> ConfigError {
        match &self.0 {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

impl PartialEq for ConfigFile {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Where connections for NACKs and for READ are taken over RDMA verbs.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairVerbsConfig {
    /// The device's interface; null: that of the publisher.
    #[serde(default)]
    pub interface: Option<Interface>,
    /// The port of rdma_cm, no relative of TCP's; 0 lets the system choose.
    #[serde(default)]
    pub port: u16,
    /// Whether subscribers may READ the rings, which are pinned as a whole for that.
    #[serde(default = "yes")]
    pub read: bool,
    /// Cursors there are at most, one for each channel of each subscriber that READs: 0 to 4096. By its
    /// cursor a subscriber says how far it is without a message.
    #[serde(default = "cursors_default")]
    pub cursors: u16,
    /// File that names who may not READ, as [`Config::banned`] names who may not subscribe: its
    /// rights are taken back, and it goes on with NACKs; a standby is not written to either. Without one
    /// everybody may.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Its number.
    pub id: ChannelId,
    /// Its name, as for a publisher.
    pub name: String,
    /// The symbols it carries: exact (`MSFT`), a prefix (`A*`), a range of first letters (`A-M`),
    /// or `*`: those that no other channel carries.
    #[serde(default = "all_symbols")]
    pub symbols: Vec<String>,
    /// Bytes of a slot, the longest datagram: a multiple of 64 from 1024 to 8960.
    #[serde(default = "slot_len_default")]
    pub slot_len: u32,
    /// Slots of the ring, a power of two.
    #[serde(default = "slots_default")]
    pub slots: u64,
    /// Datagrams per second at the busiest, to say how many seconds the ring holds.
    #[serde(default = "peak_default")]
    pub peak_datagrams_per_s: u64,
    /// A fan-out that leaves no more than this many slots free is torn down; 0: an eighth.
    #[serde(default)]
    pub fan_out_margin_slots: u64,
    /// All the ways out, at least one.
    pub fan_out: Vec<FanOutConfig>,
}

/// Which threads there are, where they run, and how they wait.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// One thread for feed and publishing, or one each.
    pub mode: ThreadMode,
    /// Core of the feed threads; with several inputs they share it.
    pub feed_core: Option<Core>,
    /// Core of the publish thread; in `inline` mode of the only one.
    pub publish_core: Option<Core>,
    /// Core of the repair service.
    pub repair_core: Option<Core>,
    /// How feed and publish threads wait.
    pub idle: Idle,
    /// Batches that wait between a feed thread and the publish thread at most; 2 or more.
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

/// How many threads stand between an input and the wire.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadMode {
    /// A thread for each input, and one that publishes.
    #[default]
    Threaded,
    /// One thread for all.
    Inline,
}

/// What subscribers are configured with, as far as it must fit the publisher.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// [`ConfigError`] names the JSON path, the value, and what to do.
    ///
    /// ```
    /// use tickcast_publisher::Config;
    ///
    /// let error = Config::read("/no/such/config.json".as_ref()).unwrap_err();
    /// assert!(error.to_string().contains("/no/such/config.json"));
    /// ```
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::parse(&text).map_err(|error| error.in_file(path))?;
        config.file = ConfigFile(Some(path.to_owned()));
        Ok(config)
    }

    /// Reads a config.
    ///
    /// # Errors
    /// As [`Config::read`].
    ///
    /// ```
    /// use tickcast_publisher::Config;
    ///
    /// assert!(Config::parse("{}").is_err(), "it names what is missing");
    /// ```
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.trim().is_empty() {
            return Err(ConfigError::Shape {
                at: ".".into(),
                reason: "the file is empty; begin with one from configs/".into(),
            });
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let config = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (at, error) = (error.path().to_string(), error.into_inner());
            let mut reason = error.to_string();
            // The library's words do not say what would be right; names are no addresses.
            if reason.contains("socket address syntax") {
                reason += "; give an address and a port, as 127.0.0.1:7400";
            }
            ConfigError::Shape { at, reason }
        })?;
        json.end().map_err(|error| ConfigError::Shape {
            at: ".".into(),
            reason: error.to_string(),
        })?;
        Ok(config)
    }

    /// The config as JSON, with all defaults filled in.
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
        // Every key is a string and every number finite, or it could not have been read.
        serde_json::to_value(self).unwrap_or_default()
    }
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

const fn linger_default() -> u64 {
    2_000
}

const fn cursors_default() -> u16 {
    256
}

const fn yes() -> bool {
    true
}
