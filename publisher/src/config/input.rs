//! Inputs as written in the config: each has one kind, and only that kind's fields.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tickcast_feeds::arbiter::Holding;
use tickcast_feeds::capture::PacketTime;
use tickcast_feeds::recording::FeedDestination;
use tickcast_feeds::simulator::SimulatorConfig;
use tickcast_feeds::venues::Format;
use tickcast_reliability::types::SourceId;
use tickcast_transport::host::interface::Interface;

use crate::config::schema::{DATE_PATTERN, of_default, packet_times};

/// Longest socket path that the operating system accepts, with room for a suffix.
pub(crate) const PATH_LEN_MAX: usize = 100;

/// One input of the publisher.
///
/// ```
/// use tickcast_publisher::config::InputConfig;
///
/// let json = r#"{ "source": 3, "kind": "own" }"#;
/// let input: InputConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(input.source().0, 3);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum InputConfig {
    /// Recorded files.
    Capture(CaptureConfig),
    /// A simulated market.
    Simulator(SimulatorInputConfig),
    /// Live packets.
    Udp(UdpInputConfig),
    /// Records of another process.
    Records(RecordsInputConfig),
    /// A handler in the process that holds the publisher.
    Own(OwnInputConfig),
}

/// Recorded files: pcap or pcapng, or one of Nasdaq's BinaryFILE or SoupBinTCP; gzip, zstd or neither.
///
/// ```
/// use tickcast_publisher::config::InputConfig;
///
/// let json = r#"{ "source": 3, "kind": "capture", "file": "day.pcapng.gz" }"#;
/// let input: InputConfig = serde_json::from_str(json).unwrap();
/// assert!(matches!(input, InputConfig::Capture(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureConfig {
    /// The source's number; each input has its own.
    #[schemars(with = "u16")]
    pub source: SourceId,
    /// Path of the file, or a list of captures, which are merged by time.
    #[serde(rename = "file", deserialize_with = "one_or_more")]
    #[schemars(with = "Paths")]
    pub files: Vec<PathBuf>,
    /// Destinations of the feed in captures, as `239.1.2.3:26400`, or `239.1.2.3:26400#2` for one
    /// channel of IEX; empty: those of the only feed there is. Each, in each file, is a line.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub only: Vec<FeedDestination>,
    /// Whether each feed of the captures becomes an input: the first has this source's number, and
    /// the others have those behind it.
    #[serde(default)]
    pub all_feeds: bool,
    /// Origin of the times of captured packets: their records, or the stamps of a device.
    #[serde(default)]
    #[schemars(schema_with = "packet_times")]
    pub time: PacketTime,
    /// How long a line may deliver a packet out of order, in microseconds; null: the limit for files.
    #[serde(default)]
    #[schemars(range(max = 60_000_000))]
    pub reorder_us: Option<u32>,
    /// How far one line may lag behind another, in microseconds; null: the limit for files.
    #[serde(default)]
    #[schemars(range(max = 60_000_000))]
    pub line_skew_us: Option<u32>,
    /// Format of the packets.
    #[serde(default)]
    pub format: InputFormat,
    /// The day of ITCH's midnight, as `2019-01-30`; null: the day of the capture.
    #[serde(default)]
    #[schemars(regex(pattern = DATE_PATTERN))]
    pub trade_date: Option<String>,
    /// Speed at which the file is read.
    #[serde(default)]
    pub pace: Pace,
    /// Subscribers that must have joined and be listening before the input begins.
    #[serde(default)]
    pub wait_for_subscribers: WaitForSubscribers,
    /// Stop after this many records; null: read all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub records_max: Option<u64>,
}

impl CaptureConfig {
    /// Returns the limits of the arbiter.
    pub(crate) fn holding(&self) -> Holding {
        limited(Holding::RECORDED, self.reorder_us, self.line_skew_us)
    }
}

/// A path, or a list of paths.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a path, or a list of paths")]
enum Paths {
    One(PathBuf),
    More(#[schemars(length(min = 1, max = 8))] Vec<PathBuf>),
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    Ok(match Paths::deserialize(from)? {
        Paths::One(path) => vec![path],
        Paths::More(paths) => paths,
    })
}

/// A simulated market; its settings are in the same JSON object.
///
/// ```
/// use tickcast_publisher::config::InputConfig;
///
/// let json = r#"{ "source": 3, "kind": "simulator", "seed": 1, "messages": 100 }"#;
/// let input: InputConfig = serde_json::from_str(json).unwrap();
/// assert!(matches!(input, InputConfig::Simulator(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SimulatorInputConfig {
    /// The source's number; each input has its own.
    #[schemars(with = "u16")]
    pub source: SourceId,
    /// The same seed and settings give the same packets.
    #[schemars(default = "seed_default")]
    pub seed: u64,
    /// The simulated day, as `2026-01-02`.
    #[schemars(default = "simulated_day", regex(pattern = DATE_PATTERN))]
    pub trade_date: String,
    /// Speed at which the simulation runs.
    #[schemars(default)]
    pub pace: Pace,
    /// Subscribers that must have joined and be listening before the input begins.
    #[schemars(default)]
    pub wait_for_subscribers: WaitForSubscribers,
    /// Stop after this many records; null: the whole day.
    #[schemars(default, range(min = 1))]
    pub records_max: Option<u64>,
    /// The market.
    #[serde(flatten)]
    #[schemars(schema_with = "of_default::<SimulatorConfig>")]
    pub market: SimulatorConfig,
}

/// Live packets of a feed, multicast or unicast.
///
/// ```
/// use tickcast_publisher::config::{InputConfig, UdpInputConfig};
///
/// fn lines(input: &InputConfig) -> Option<&UdpInputConfig> {
///     match input {
///         InputConfig::Udp(udp) => Some(udp),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpInputConfig {
    /// The source's number; each input has its own.
    #[schemars(with = "u16")]
    pub source: SourceId,
    /// The lines, which carry the same messages.
    #[schemars(length(min = 1, max = 8))]
    pub lines: Vec<InputLineConfig>,
    /// How long a line may deliver a packet out of order, in microseconds; null: the venue's limit.
    #[serde(default)]
    #[schemars(range(max = 60_000_000))]
    pub reorder_us: Option<u32>,
    /// How far one line may lag behind another, in microseconds; null: the venue's limit.
    #[serde(default)]
    #[schemars(range(max = 60_000_000))]
    pub line_skew_us: Option<u32>,
    /// Format of the packets.
    #[serde(default)]
    pub format: InputFormat,
    /// The day of ITCH's midnight, as `2019-01-30`; null: today in New York.
    #[serde(default)]
    #[schemars(regex(pattern = DATE_PATTERN))]
    pub trade_date: Option<String>,
    /// Receive buffer to request from the kernel, in bytes; null: the system's default.
    #[serde(default)]
    pub receive_buffer_bytes: Option<usize>,
    /// How long a read asks the device for packets in place of waiting for its interrupt, in microseconds;
    /// 0: not at all; null: the system's default. Needs CAP_NET_ADMIN.
    #[serde(default)]
    #[schemars(range(max = 1_000_000))]
    pub busy_poll_us: Option<u32>,
}

/// One line of a live feed.
///
/// ```
/// use tickcast_publisher::config::InputLineConfig;
///
/// let json = r#"{ "listen": "239.1.2.3:26400" }"#;
/// let line: InputLineConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(line.from, None, "from any address");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputLineConfig {
    /// A multicast group or an address of this host, and the port; port 0 (unicast only) lets the
    /// system choose.
    pub listen: SocketAddrV4,
    /// The interface to join the group on; null: the publisher's.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub interface: Option<Interface>,
    /// The only address to take packets from; null: any.
    #[serde(default)]
    pub from: Option<Ipv4Addr>,
}

impl UdpInputConfig {
    /// Returns the limits of the arbiter for a format.
    pub(crate) fn holding(&self, format: Format) -> Holding {
        limited(format.holding(), self.reorder_us, self.line_skew_us)
    }
}

fn limited(holding: Holding, reorder_us: Option<u32>, line_skew_us: Option<u32>) -> Holding {
    Holding {
        reorder_us: reorder_us.unwrap_or(holding.reorder_us),
        skew_us: line_skew_us.unwrap_or(holding.skew_us),
        ..holding
    }
}

/// DBN records that another process writes into a Unix stream socket (docs/PROTOCOL.md §12).
///
/// ```
/// use tickcast_publisher::config::InputConfig;
///
/// let json = r#"{ "source": 3, "kind": "records", "socket": "/run/md.sock" }"#;
/// let input: InputConfig = serde_json::from_str(json).unwrap();
/// assert!(matches!(input, InputConfig::Records(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordsInputConfig {
    /// The source's number; each input has its own.
    #[schemars(with = "u16")]
    pub source: SourceId,
    /// Path of the socket. The publisher creates it at the start, for this user only, and removes
    /// it at the end.
    #[schemars(with = "String", length(min = 1, max = 100))]
    pub socket: PathBuf,
    /// The channel that receives all its records; null: their symbols select the channels.
    #[serde(default)]
    pub channel: Option<String>,
}

/// An input that [`crate::Publisher::channel`] publishes for; available in the library only.
///
/// ```
/// use tickcast_publisher::config::InputConfig;
///
/// let json = r#"{ "source": 3, "kind": "own", "channel": "all" }"#;
/// let input: InputConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(input.channel(), Some("all"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnInputConfig {
    /// The source's number; each input has its own.
    #[schemars(with = "u16")]
    pub source: SourceId,
    /// The channel that it is for; null: the channels that no other `own` input names.
    #[serde(default)]
    pub channel: Option<String>,
}

/// The format of an input's packets.
///
/// ```
/// use tickcast_publisher::config::InputFormat;
///
/// let format: InputFormat = serde_json::from_str("\"iex-tp\"").unwrap();
/// assert_eq!(format, InputFormat::IexTp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InputFormat {
    /// Detect the format from the first packets.
    #[default]
    Auto,
    /// IEX-TP with TOPS or DEEP.
    IexTp,
    /// MoldUDP64 with ITCH 5.0.
    #[serde(rename = "moldudp64-itch50")]
    MoldUdp64Itch50,
    /// Nasdaq's BinaryFILE of ITCH 5.0; files only.
    BinaryFile,
}

impl InputFormat {
    /// Returns the packets' format, if the config names one.
    ///
    /// ```
    /// # use tickcast_publisher::config::InputFormat;
    /// # fn f(format: InputFormat) {
    /// println!("{:?}", format.of_packets());
    /// # }
    /// ```
    #[must_use]
    pub const fn of_packets(self) -> Option<Format> {
        match self {
            Self::IexTp => Some(Format::IexTp),
            Self::MoldUdp64Itch50 => Some(Format::MoldUdp64Itch50),
            Self::Auto | Self::BinaryFile => None,
        }
    }
}

/// The speed of a file or a simulation.
///
/// ```
/// use tickcast_publisher::config::Pace;
///
/// let pace: Pace = serde_json::from_str(r#"{ "messages_per_s": 20000 }"#).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as the publisher can publish.
    Max,
    /// This multiple of the recorded or simulated speed.
    Times(#[schemars(extend("exclusiveMinimum" = 0))] f64),
    /// This many venue messages per second.
    MessagesPerS(#[schemars(range(min = 1))] u64),
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("as fast as it is published"),
            Self::Times(times) => write!(f, "{times} times as fast as it was recorded"),
            Self::MessagesPerS(messages) => write!(f, "{messages} messages/s"),
        }
    }
}

impl Default for Pace {
    /// Returns the recorded or simulated speed.
    fn default() -> Self {
        Self::Times(1.0)
    }
}

/// The subscribers that an input waits for. A name is the subscriber's own claim, so a stranger must know it.
///
/// ```
/// use tickcast_publisher::config::WaitForSubscribers;
///
/// let names: WaitForSubscribers = serde_json::from_str(r#"["risk-a", "risk-b"]"#).unwrap();
/// assert_ne!(names, WaitForSubscribers::Count(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number or names of subscribers")]
pub enum WaitForSubscribers {
    /// This many, under any names.
    Count(u32),
    /// One of each of these names.
    Names(#[schemars(length(min = 1), inner(length(min = 1, max = 64)))] Vec<String>),
}

impl Default for WaitForSubscribers {
    /// Returns that it waits for nobody.
    fn default() -> Self {
        Self::Count(0)
    }
}

impl InputConfig {
    /// Returns the source's number.
    ///
    /// ```
    /// use tickcast_publisher::config::InputConfig;
    ///
    /// let json = r#"{ "source": 3, "kind": "own" }"#;
    /// let input: InputConfig = serde_json::from_str(json).unwrap();
    /// assert_eq!(input.source().0, 3);
    /// ```
    #[must_use]
    pub const fn source(&self) -> SourceId {
        match self {
            Self::Capture(input) => input.source,
            Self::Simulator(input) => input.source,
            Self::Udp(input) => input.source,
            Self::Records(input) => input.source,
            Self::Own(input) => input.source,
        }
    }

    /// Returns the channel that the input names, if it names one.
    ///
    /// ```
    /// use tickcast_publisher::config::InputConfig;
    ///
    /// let json = r#"{ "source": 3, "kind": "own" }"#;
    /// let input: InputConfig = serde_json::from_str(json).unwrap();
    /// assert_eq!(input.channel(), None, "for every channel");
    /// ```
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        match self {
            Self::Records(input) => input.channel.as_deref(),
            Self::Own(input) => input.channel.as_deref(),
            _ => None,
        }
    }

    /// Returns the subscribers that the input waits for, if its kind waits.
    pub(crate) const fn wait_for_subscribers(&self) -> Option<&WaitForSubscribers> {
        match self {
            Self::Capture(input) => Some(&input.wait_for_subscribers),
            Self::Simulator(input) => Some(&input.wait_for_subscribers),
            Self::Udp(_) | Self::Records(_) | Self::Own(_) => None,
        }
    }

    /// Returns whether the input gives the same messages from its beginning each time it is opened.
    pub(crate) const fn is_replayed(&self) -> bool {
        matches!(self, Self::Capture(_) | Self::Simulator(_))
    }

    /// Returns whether a restart can continue this input: it replays its messages, or they have
    /// numbers.
    pub(crate) const fn is_gone_on_with(&self) -> bool {
        !matches!(self, Self::Records(_))
    }
}

/// The part of a simulator input that is not the market.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulatorHead {
    source: SourceId,
    #[serde(default = "seed_default")]
    seed: u64,
    #[serde(default = "simulated_day")]
    trade_date: String,
    #[serde(default)]
    pace: Pace,
    #[serde(default)]
    wait_for_subscribers: WaitForSubscribers,
    #[serde(default)]
    records_max: Option<u64>,
}

const SIMULATOR_HEAD: [&str; 6] = [
    "source",
    "seed",
    "trade_date",
    "pace",
    "wait_for_subscribers",
    "records_max",
];

const fn seed_default() -> u64 {
    1
}

fn simulated_day() -> String {
    "2026-01-02".into()
}

impl<'de> Deserialize<'de> for InputConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(from)?;
        let kind = match fields.remove("kind") {
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(D::Error::custom(UnknownKind(other.to_string()))),
            None => {
                let text = format_args!("missing field `kind`: write {KINDS}");
                return Err(D::Error::custom(text));
            }
        };
        match kind.as_str() {
            "capture" => part(fields).map(Self::Capture),
            "udp" => part(fields).map(Self::Udp),
            "records" => part(fields).map(Self::Records),
            "own" => part(fields).map(Self::Own),
            "simulator" => {
                let (head, market) = (fields.into_iter())
                    .partition(|(key, _)| SIMULATOR_HEAD.contains(&key.as_str()));
                let head: SimulatorHead = part(head)?;
                Ok(Self::Simulator(SimulatorInputConfig {
                    source: head.source,
                    seed: head.seed,
                    trade_date: head.trade_date,
                    pace: head.pace,
                    wait_for_subscribers: head.wait_for_subscribers,
                    records_max: head.records_max,
                    market: part(market)?,
                }))
            }
            _ => Err(D::Error::custom(UnknownKind(kind))),
        }
    }
}

/// Reads fields of a JSON object, and names the field that is wrong.
pub(crate) fn part<T: DeserializeOwned, E: Error>(fields: Map<String, Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner();
        if path == "." {
            E::custom(reason)
        } else {
            E::custom(format_args!("{path}: {reason}"))
        }
    })
}

const KINDS: &str =
    "\"capture\", \"simulator\", \"udp\" or \"records\" (or \"own\", with the library)";

struct UnknownKind(String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(kind) = self;
        write!(f, "no input has the kind {kind:?}: write {KINDS}")
    }
}
