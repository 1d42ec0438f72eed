//! Errors that stop the publisher from starting or continuing, grouped by fault. Each states the
//! cause, the place and the remedy, and maps to an exit code.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use thiserror::Error;
use tickcast_feeds::capture::CaptureError;
use tickcast_feeds::recording::RecordingError;
use tickcast_feeds::simulator::SimulatorError;
use tickcast_reliability::publish::PublishError;
use tickcast_reliability::receive::MirrorError;
use tickcast_reliability::record::RecordError;
use tickcast_reliability::ring::RingError;
use tickcast_reliability::types::{ChannelId, Epoch};
use tickcast_transport::host::files::FileError;
use tickcast_transport::host::mapping::MappingError;
use tickcast_transport::host::pin::PinError;
use tickcast_transport::shm::ShmError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::verbs::VerbsError;
use tickcast_transport::{FanOutError, ReceiveError};

pub use tickcast_http::TokenError;

/// An error in a config. The author of the config must fix it.
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
        /// Path of the file, as given.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The text is no JSON, or does not have the shape of a config.
    #[error("{}{reason}", leading(.at))]
    Shape {
        /// Place in the config, as a JSON path; `.` is the whole config.
        at: String,
        /// Cause.
        reason: String,
    },
    /// The text of the config has an error at this place.
    #[error("{place}: {error}")]
    Placed {
        /// File, line and column.
        place: ConfigPlace,
        /// The cause.
        error: Box<Self>,
    },
    /// A value is not possible.
    #[error("{at}: {value} can't be used: {remedy}")]
    Value {
        /// Place in the config, as a JSON path.
        at: String,
        /// Value as written.
        value: String,
        /// Cause, and a value that would be right.
        remedy: String,
    },
}

/// A place in the text of a config.
///
/// ```
/// # use tickcast_publisher::{Config, ConfigError};
/// if let Err(ConfigError::Placed { place, .. }) = Config::parse("{\n  \"name\": 1 }") {
///     assert_eq!((place.line, place.column), (2, 11));
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPlace {
    /// Path of the file, as given; `None` for a text without a file.
    pub file: Option<PathBuf>,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        match file {
            Some(file) => write!(f, "{}:{line}:{column}", file.display()),
            None => write!(f, "line {line}, column {column}"),
        }
    }
}

/// Returns the path as the head of a line; nothing for the whole config.
fn leading(at: &str) -> String {
    match at {
        "." => String::new(),
        at => format!("{at}: "),
    }
}

impl ConfigError {
    /// Returns the error for a value that is not possible.
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
///     eprintln!("{other}; give each publisher its own groups");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPublisher {
    /// Group that the other publisher sends to; this config has the same group.
    pub group: SocketAddrV4,
    /// Channel of this config that has the group.
    pub name: String,
    /// Source address of the other publisher.
    pub sender: Ipv4Addr,
    /// Channel ID of the other publisher.
    pub channel: ChannelId,
    /// Epoch of the other publisher.
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

/// The reason why a handler gets no channel. Nothing was changed.
///
/// ```
/// # use tickcast_publisher::{ChannelClaimError, Publisher};
/// # fn f(publisher: &mut Publisher) {
/// if let Err(ChannelClaimError::Unknown { known, .. }) = publisher.channel("al") {
///     eprintln!("there are {known}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelClaimError {
    /// No channel has this name.
    #[error("there is no channel {name:?}; the config has: {known}")]
    Unknown {
        /// Name as requested.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// The channel already has a writer.
    #[error(
        "channel {name:?} already has a writer, and allows one at a time: move it to the thread \
         that publishes, or drop it first"
    )]
    Taken {
        /// Name as requested.
        name: String,
    },
    /// The config has no `own` source for this channel.
    #[error(
        "channel {name:?} has no input for handlers; add {{\"source\": N, \"kind\": \"own\"}} to \
         the config's inputs"
    )]
    NoSource {
        /// Name as requested.
        name: String,
    },
    /// The publisher has stopped by itself.
    #[error("the publisher has stopped; end_session says why")]
    Stopped,
}

/// The reason why a handler's message was not published as intended. The writer stays usable,
/// except after [`WriteError::Ended`].
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
    /// The queue to the publish thread is full: this message is lost and counted. The loss is
    /// reported in the stream in its place. Go on with the next message.
    #[error(
        "the publish thread can't keep up: the message is lost, and the stream reports it; give \
         the thread a core, or raise threads.queue_batches"
    )]
    Overflow,
    /// The message fits no datagram of this channel. It is lost, counted, and reported in the
    /// stream.
    #[error("a message of {len} bytes does not fit a datagram of {max}; use a larger slot_len")]
    TooLarge {
        /// Bytes of its records.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A record does not match its header, which is a bug of the handler. Nothing of the message is
    /// published, and nothing is counted or reported as lost.
    #[error("nothing was published: {source}")]
    Record {
        /// Index of the record in the message, and the cause.
        source: RecordError,
    },
    /// The welcome of new subscribers has all names that were set, but the stream has only some.
    /// The publish thread did not take the others in time. Nothing is lost.
    #[error(
        "the publish thread can't keep up: only the first {sent} of {all} names were published; \
         set the others again later"
    )]
    DirectoryIncomplete {
        /// Names that are in the stream.
        sent: usize,
        /// Names that were set.
        all: usize,
    },
    /// The session has ended, or the publisher stopped; it publishes nothing more.
    #[error("the session has ended, and nothing more can be published")]
    Ended,
}

/// The reason why a publisher does not start, or stops early.
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
    /// The config is wrong.
    #[error("config: {0}")]
    Config(#[from] ConfigError),
    /// The epoch of the last run can't be read or kept.
    #[error("state_dir: can't {what} {}: {source}; {}", .path.display(), remedy(.source))]
    State {
        /// Step that failed.
        what: &'static str,
        /// File of the step.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file that keeps the epoch holds something else.
    #[error(
        "state_dir: {} does not hold an epoch ({reason}); restore it, or remove it if \
         no subscriber remembers an earlier epoch",
        .path.display()
    )]
    StateDamaged {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// Another publisher uses the same state.
    #[error(
        "state_dir: {} belongs to a running publisher; stop that publisher, or give \
         this one another name or state_dir",
        .path.display()
    )]
    StateLocked {
        /// The lock file.
        path: PathBuf,
    },
    /// The publisher can't listen on a port.
    #[error(
        "{what} can't listen at {address}: {reason}; check that no other publisher runs there, \
         and that the address belongs to this host"
    )]
    Listen {
        /// "control", "admin", "commands" or "repair_verbs".
        what: &'static str,
        /// Address of the port.
        address: SocketAddr,
        /// The error of the operating system.
        reason: String,
    },
    /// No publisher shows its config at an admin port.
    #[error(
        "{address} shows no running config: {reason}; check that the publisher runs, and give the \
         address of its admin port with --diff=ADDRESS"
    )]
    Running {
        /// Address of the port.
        address: SocketAddr,
        /// The cause.
        reason: String,
    },
    /// A fan-out can't be opened.
    #[error("channel {channel}: {source}")]
    FanOut {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: UdpError,
    },
    /// A fan-out by verbs can't be opened.
    #[error("channel {channel}: {source}")]
    VerbsFanOut {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: VerbsError,
    },
    /// A fan-out by shared memory can't be opened.
    #[error("channel {channel}: {source}")]
    ShmFanOut {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: ShmError,
    },
    /// A fan-out can't go on.
    #[error("channel {channel}: {source}")]
    Send {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: FanOutError,
    },
    /// A ring can't have its memory.
    #[error("channel {channel}: {source}")]
    Memory {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: MappingError,
    },
    /// The journal can't be kept at this path.
    #[error("journal: {}: {reason}", .path.display())]
    Journal {
        /// Path of its file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A ring can't be made.
    #[error("channel {channel}: {source}")]
    Ring {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: RingError,
    },
    /// A channel can't publish any more.
    #[error("channel {channel}: {source}")]
    Publish {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: PublishError,
    },
    /// A file can't be read, or reading can't continue.
    #[error("source {source_id}: {source}")]
    Capture {
        /// Number of the source.
        source_id: u16,
        /// The cause.
        source: CaptureError,
    },
    /// The file holds no feed that is wanted, or several.
    #[error("source {source_id}: {source}{}", recording_remedy(.source))]
    Recording {
        /// Number of the source.
        source_id: u16,
        /// The cause.
        source: RecordingError,
    },
    /// The simulator can't start.
    #[error("source {source_id}: {source}")]
    Simulator {
        /// Number of the source.
        source_id: u16,
        /// The cause.
        source: SimulatorError,
    },
    /// The live input can't be opened.
    #[error("source {source_id}: {source}")]
    Listening {
        /// Number of the source.
        source_id: u16,
        /// The cause.
        source: UdpError,
    },
    /// The socket of a records input can't be opened.
    #[error(
        "source {source_id}: can't listen at {}: {source}; choose a path in a writable directory \
         where no other process listens", .path.display()
    )]
    Socket {
        /// Number of the source.
        source_id: u16,
        /// Path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The socket of a records input can't take connections any more.
    #[error("source {source_id}: can't take connections: {source}")]
    Accept {
        /// Number of the source.
        source_id: u16,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The live input can't continue.
    #[error("source {source_id}: {source}")]
    Receive {
        /// Number of the source.
        source_id: u16,
        /// The cause.
        source: ReceiveError,
    },
    /// This standby can't mirror its publisher.
    #[error("standby.of: {of} can't be mirrored: {reason}")]
    Mirroring {
        /// Address of the mirrored publisher, as given.
        of: String,
        /// The cause.
        reason: String,
    },
    /// The standby can't continue from the mirrored state.
    #[error(
        "channel {channel}: the standby can't continue from its mirror: {source}; start the \
         standby again"
    )]
    Promotion {
        /// Name of the channel.
        channel: String,
        /// The cause.
        source: MirrorError,
    },
    /// Another publisher sends to a group of the config.
    #[error(
        "{0}; give each publisher its own groups, stop the other publisher, or start with --force"
    )]
    OtherPublisher(OtherPublisher),
    /// A token for commands can't be used.
    #[error("{at}: {source}")]
    Token {
        /// Place in the config.
        at: &'static str,
        /// The cause.
        source: TokenError,
    },
    /// The command socket can't be used.
    #[error("commands.socket: {source}")]
    CommandSocket {
        /// The cause.
        source: FileError,
    },
    /// A thread can't run on its core.
    #[error("threads: {0}")]
    Pin(#[from] PinError),
    /// Another user can change or replace a file of this publisher, or it is not a file to use.
    #[error(transparent)]
    File(FileError),
    /// A requested file can't be written.
    #[error("can't write {}: {source}; {}", .path.display(), remedy(.source))]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The operating system refused a step that normally always works.
    #[error("can't {what}: {source}")]
    System {
        /// Step that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A thread of this process panicked: a bug.
    #[error("the {thread} thread panicked; this is a bug, please report it with the log")]
    Panicked {
        /// Name of the thread.
        thread: &'static str,
    },
}

/// Returns the remedy for a file that can't be written.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on its file system",
        _ => "check that its directory exists and is writable",
    }
}

impl PublisherError {
    /// Returns the error for a file of the state or ring directory that can't be used.
    pub(crate) fn state(error: FileError) -> Self {
        match error {
            FileError::Io { what, path, source } => Self::State { what, path, source },
            error => Self::File(error),
        }
    }

    /// Returns whether a config value is at fault and the text does not name the config's file.
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
                | Self::Recording { .. }
                | Self::Simulator { .. }
                | Self::Listening { .. }
                | Self::Socket { .. }
                | Self::Mirroring { .. }
                | Self::OtherPublisher(_)
                | Self::Pin(_)
        )
    }

    /// Returns the exit code of the service: 1 for a recording without a feed, 2 for configuration
    /// errors, 3 for unreachable resources, 4 for all others.
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
            Self::Recording {
                source: RecordingError::Nothing { .. },
                ..
            } => 1,
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
            | Self::Recording { .. }
            | Self::Simulator { .. }
            | Self::Listening { .. }
            | Self::Socket { .. }
            | Self::Mirroring { .. }
            | Self::OtherPublisher(_)
            | Self::Pin(_)
            | Self::Journal { .. }
            | Self::File(_)
            | Self::Token { .. }
            | Self::CommandSocket { .. }
            | Self::Write { .. } => 2,
            Self::Listen { .. } | Self::Running { .. } => 3,
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

/// Returns the part of a recording's error that concerns the config.
const fn recording_remedy(error: &RecordingError) -> &'static str {
    match error {
        RecordingError::Choice { .. } => {
            "; give each an input of its own, with its destination in \"only\", or set \"all_feeds\""
        }
        RecordingError::NotThere { .. } => "; correct \"only\"",
        _ => "",
    }
}
