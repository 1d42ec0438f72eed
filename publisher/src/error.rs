//! Why the publisher can't start or go on, by whose fault; each says what was wrong, where, and
//! what to do, and knows its exit code.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tickcast_feeds::capture::CaptureError;
use tickcast_feeds::simulator::SimulatorError;
use tickcast_reliability::publish::PublishError;
use tickcast_reliability::receive::MirrorError;
use tickcast_reliability::record::RecordError;
use tickcast_reliability::ring::RingError;
use tickcast_reliability::types::{ChannelId, Epoch};
use tickcast_transport::host::mapping::MappingError;
use tickcast_transport::host::pin::PinError;
use tickcast_transport::shm::ShmError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::verbs::VerbsError;
use tickcast_transport::{FanOutError, ReceiveError};

/// What is wrong with a config. Whoever wrote it is at fault.
///
/// ```
/// # use tickcast_publisher::{Config, ConfigError};
/// let error: ConfigError = Config::parse("{").unwrap_err();
/// eprintln!("{error}");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("the config {} can't be read: {source}; check the path", .path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The text is no JSON, or does not have the shape of a config.
    #[error("at {at}: {reason}")]
    Shape {
        /// Where in the config, as a JSON path; `.` is the whole.
        at: String,
        /// What is wrong, with line and column where they are known.
        reason: String,
    },
    /// What is wrong with the config of a file.
    #[error("{}: {error}", .path.display())]
    InFile {
        /// The file, as given.
        path: PathBuf,
        /// What is wrong.
        error: Box<Self>,
    },
    /// A value that is not possible.
    #[error("at {at}: {value} can't be used: {remedy}")]
    Value {
        /// Where in the config, as a JSON path.
        at: String,
        /// What was written.
        value: String,
        /// What is wrong with it, and what would be right.
        remedy: String,
    },
}

impl ConfigError {
    /// The same, with the file that it is of.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Read { .. } | Self::InFile { .. } => self,
            error => Self::InFile {
                path: path.to_owned(),
                error: Box::new(error),
            },
        }
    }

    /// A value that is not possible.
    pub(crate) fn value(
        at: impl Into<String>,
        value: impl ToString,
        remedy: impl ToString,
    ) -> Self {
        Self::Value {
            at: at.into(),
            value: value.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

/// Another publisher that sends to a group of this config.
///
/// ```
/// # use tickcast_publisher::internal::{Plan, find_others};
/// # fn f(plan: &Plan) {
/// for other in find_others(plan) {
///     eprintln!("{other}; give each publisher groups of its own");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPublisher {
    /// The group that it sends to, which is one of the config's.
    pub group: SocketAddrV4,
    /// The channel of the config that has the group.
    pub name: String,
    /// The address that it sends from.
    pub sender: Ipv4Addr,
    /// Its channel.
    pub channel: ChannelId,
    /// Its epoch.
    pub epoch: Epoch,
}

impl fmt::Display for OtherPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "channel {}: another publisher sends to {} from {} (its channel {}, epoch {})",
            self.name, self.group, self.sender, self.channel, self.epoch
        )
    }
}

/// Why a handler gets no channel. Nothing was changed.
///
/// ```
/// # use tickcast_publisher::{ChannelError, Publisher};
/// # fn f(publisher: &mut Publisher) {
/// if let Err(ChannelError::Unknown { known, .. }) = publisher.channel("al") {
///     eprintln!("there are {known}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// There is no channel of this name.
    #[error("there is no channel {name:?}; the config has: {known}")]
    Unknown {
        /// As asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The channel has a writer.
    #[error(
        "channel {name:?} has a writer; a channel has one at a time: move it to the thread that publishes, or drop it first"
    )]
    Taken {
        /// As asked for.
        name: String,
    },
    /// No source of the config is for handlers on this channel.
    #[error(
        "no source is for own handlers on channel {name:?}; add {{\"source\": N, \"kind\": \"own\"}} to the config's inputs"
    )]
    NoSource {
        /// As asked for.
        name: String,
    },
    /// The publisher has stopped by itself.
    #[error("the publisher has stopped; end_session says why")]
    Stopped,
}

/// Why a handler's message was not published as it was meant. The writer stays usable, except
/// after [`WriteError::Ended`].
///
/// ```
/// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, trade};
/// # fn f(channel: &mut ChannelWriter, at: SourcePosition) {
/// match channel.publish(&trade(7, 101_500_000_000, 200), at) {
///     Ok(()) => {}
///     // Counted, and told to subscribers.
///     Err(WriteError::Overflow) => {}
///     Err(WriteError::Ended) => println!("the session is over"),
///     Err(error) => eprintln!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The publish thread could not keep up and there was no room: this message is lost, counted,
    /// and told in the stream in its place. Go on with the next one.
    #[error(
        "the publish thread can't keep up: the message is lost and told so in the stream; give it a core, or raise threads.queue_batches"
    )]
    Overflow,
    /// The message fits no datagram of this channel: it is lost, counted, and told in the stream.
    #[error("a message of {len} bytes does not fit a datagram of {max}; use a larger slot_len")]
    TooLarge {
        /// Bytes of its records.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A record is not what its header says: nothing of the message was published, and nothing is
    /// counted or told as lost. A bug of the handler.
    #[error("nothing was published: {source}")]
    Record {
        /// Which record of the message, and what is wrong with it.
        source: RecordError,
    },
    /// The welcome of new subscribers has all names that were set, but the stream only has some: the
    /// publish thread did not take the others in time. Nothing is lost.
    #[error(
        "the publish thread can't keep up: only the first {sent} of {all} names went into the stream; set the others again later"
    )]
    DirectoryIncomplete {
        /// Names that are in the stream.
        sent: usize,
        /// Names that were set.
        all: usize,
    },
    /// The session has ended, or the publisher stopped; nothing is published any more.
    #[error("the session has ended; nothing can be published any more")]
    Ended,
}

/// Why a publisher does not start, or stops early.
///
/// ```
/// # use tickcast_publisher::{Config, Publisher, PublisherError};
/// # fn f(config: Config) {
/// if let Err(error) = Publisher::open(config) {
///     let error: PublisherError = error;
///     eprintln!("{error}");
/// }
/// # }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// The config.
    #[error("config: {0}")]
    Config(#[from] ConfigError),
    /// The epoch of the last run can't be read or kept.
    #[error("state_dir: can't {what} {}: {source}; {}", .path.display(), remedy(.source))]
    State {
        /// The step.
        what: &'static str,
        /// Of which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file that keeps the epoch holds something else.
    #[error("state_dir: {} does not hold an epoch ({reason}); restore it, or remove it if no subscriber remembers the epochs of before", .path.display())]
    StateDamaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another publisher uses the same state.
    #[error("state_dir: {} belongs to a running publisher; stop it, or give this one another name or state_dir", .path.display())]
    StateLocked {
        /// The lock file.
        path: PathBuf,
    },
    /// A port can't be listened at.
    #[error(
        "{what} can't listen at {address}: {reason}; is another publisher running, or is the address not this host's?"
    )]
    Listen {
        /// "control", "admin" or "repair_verbs".
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the operating system said.
        reason: String,
    },
    /// A fan-out can't be opened.
    #[error("channel {channel}: {source}")]
    FanOut {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: UdpError,
    },
    /// A fan-out by verbs can't be opened.
    #[error("channel {channel}: {source}")]
    VerbsFanOut {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: VerbsError,
    },
    /// A fan-out by shared memory can't be opened.
    #[error("channel {channel}: {source}")]
    ShmFanOut {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: ShmError,
    },
    /// A fan-out can't go on.
    #[error("channel {channel}: {source}")]
    Send {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: FanOutError,
    },
    /// A ring can't have its memory.
    #[error("channel {channel}: {source}")]
    Memory {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: MappingError,
    },
    /// No flight record can be kept there.
    #[error("flight_record: {}: {reason}", .path.display())]
    FlightRecord {
        /// Its file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A ring can't be made.
    #[error("channel {channel}: {source}")]
    Ring {
        /// Name of the channel.
        channel: String,
        /// What is wrong.
        source: RingError,
    },
    /// A channel can't take any more.
    #[error("channel {channel}: {source}")]
    Publish {
        /// Name of the channel.
        channel: String,
        /// Why.
        source: PublishError,
    },
    /// A file can't be read, or not further.
    #[error("source {source_id}: {source}")]
    Capture {
        /// Which source.
        source_id: u16,
        /// What is wrong.
        source: CaptureError,
    },
    /// A file in which no known feed was found.
    #[error(
        "source {source_id}: no feed format was recognised in {what}; set \"format\" to one of iex-tp, moldudp64-itch50, binary-file"
    )]
    Unrecognised {
        /// Which source.
        source_id: u16,
        /// Where it was looked for.
        what: String,
    },
    /// The simulator can't start.
    #[error("source {source_id}: {source}")]
    Simulator {
        /// Which source.
        source_id: u16,
        /// What is wrong.
        source: SimulatorError,
    },
    /// The live input can't be opened.
    #[error("source {source_id}: {source}")]
    Listening {
        /// Which source.
        source_id: u16,
        /// What is wrong.
        source: UdpError,
    },
    /// The socket of a records input can't be opened.
    #[error(
        "source {source_id}: can't listen at {}: {source}; it must be a path of our own in a writable directory, that no other process listens at", .path.display()
    )]
    Socket {
        /// Which source.
        source_id: u16,
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The socket of a records input can't take connections any more.
    #[error("source {source_id}: can't take connections: {source}")]
    Accept {
        /// Which source.
        source_id: u16,
        /// What the operating system said.
        source: io::Error,
    },
    /// The live input can't go on.
    #[error("source {source_id}: {source}")]
    Receive {
        /// Which source.
        source_id: u16,
        /// What is wrong.
        source: ReceiveError,
    },
    /// There can be no mirror of the publisher that this is the standby of.
    #[error("standby.of: {of} can't be mirrored: {reason}")]
    Mirroring {
        /// Where it is, as it was given.
        of: String,
        /// What is wrong.
        reason: String,
    },
    /// What was mirrored can't be gone on with.
    #[error("channel {channel} can't be gone on with: {source}")]
    Promotion {
        /// Which channel.
        channel: String,
        /// What is wrong.
        source: MirrorError,
    },
    /// Another publisher sends to a group of the config.
    #[error("{0}; give each publisher groups of its own, end that one, or start with --force")]
    OtherPublisher(OtherPublisher),
    /// A thread can't run on its core.
    #[error("threads: {0}")]
    Pin(#[from] PinError),
    /// A file that was asked for can't be written.
    #[error("can't write {}: {source}; {}", .path.display(), remedy(.source))]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system refused something that always works.
    #[error("can't {what}: {source}")]
    System {
        /// The step.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// A thread of this process panicked: a bug.
    #[error("the {thread} thread panicked; this is a bug, please report it with the log")]
    Panicked {
        /// Which thread.
        thread: &'static str,
    },
}

/// What to do about a file that can't be written.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on its file system",
        _ => "check that its directory exists and is writable",
    }
}

impl PublisherError {
    /// Whether a value of the config is at fault, and the text does not name the config's file.
    ///
    /// ```
    /// # use tickcast_publisher::{Config, Publisher};
    /// # fn f(config: Config) {
    /// if let Err(error) = Publisher::open(config)
    ///     && error.is_of_config()
    /// {
    ///     eprintln!("my.json: {error}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub const fn is_of_config(&self) -> bool {
        matches!(
            self,
            Self::FanOut { .. }
                | Self::VerbsFanOut { .. }
                | Self::ShmFanOut { .. }
                | Self::Capture { .. }
                | Self::Unrecognised { .. }
                | Self::Simulator { .. }
                | Self::Listening { .. }
                | Self::Socket { .. }
                | Self::Mirroring { .. }
                | Self::OtherPublisher(_)
                | Self::Pin(_)
        )
    }

    /// The exit code of the service: 2 for what the operator configured, 3 for what can't be
    /// reached, 4 for the rest.
    ///
    /// ```
    /// # use tickcast_publisher::{Config, Publisher};
    /// # fn f(config: Config) {
    /// if let Err(error) = Publisher::open(config) {
    ///     std::process::exit(error.exit_code().into());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::State { .. }
            | Self::StateDamaged { .. }
            | Self::StateLocked { .. }
            | Self::FanOut { .. }
            | Self::VerbsFanOut { .. }
            | Self::ShmFanOut { .. }
            | Self::Memory { .. }
            | Self::Ring { .. }
            | Self::Capture { .. }
            | Self::Unrecognised { .. }
            | Self::Simulator { .. }
            | Self::Listening { .. }
            | Self::Socket { .. }
            | Self::Mirroring { .. }
            | Self::OtherPublisher(_)
            | Self::Pin(_)
            | Self::FlightRecord { .. }
            | Self::Write { .. } => 2,
            Self::Listen { .. } => 3,
            Self::Send { .. }
            | Self::Receive { .. }
            | Self::Accept { .. }
            | Self::Publish { .. }
            | Self::Promotion { .. }
            | Self::System { .. }
            | Self::Panicked { .. } => 4,
        }
    }
}
