//! Error types of a subscriber. Each error is caused by the configuration, a call, or the host.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tickcast_journal::JournalError;
use tickcast_reliability::control::RejectCode;
use tickcast_reliability::receive::ReceiverConfigError;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::ReceiveError;
use tickcast_transport::faults::FaultConfigError;
use tickcast_transport::host::files::FileError;
use tickcast_transport::host::interface::InterfaceError;
use tickcast_transport::host::mapping::MappingError;
use tickcast_transport::host::pin::PinError;
use tickcast_transport::shm::ShmError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::verbs::VerbsError;
use tickcast_transport::xdp::XdpError;

const POISONED: &str = "a closure of this subscriber has panicked, and nothing more is delivered: \
                        drop the subscriber, and build another";

/// The reason why a subscriber can't be built, or can't continue as configured.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let error = Subscriber::builder("127.0.0.1:7400").build().err().unwrap();
/// assert_eq!(error.to_string(), "a subscriber needs a channel: call `.channel(name)` on the builder");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// No channel was named.
    #[error("a subscriber needs a channel: call `.channel(name)` on the builder")]
    NoChannel,
    /// A name that is too long or empty.
    #[error("the name {name:?} must have 1 to 64 bytes")]
    Name {
        /// The name.
        name: String,
    },
    /// No publisher was named.
    #[error("a subscriber needs a publisher: give the builder host:port, or several")]
    NoEndpoint,
    /// The publisher's address can't be looked up.
    #[error("the publisher {endpoint:?} can't be looked up: {source}; give host:port")]
    Endpoint {
        /// The endpoint as given.
        endpoint: String,
        /// The error of the name service.
        source: io::Error,
    },
    /// Settings of a channel contradict each other.
    #[error("channel {channel}: {source}")]
    Config {
        /// The name of the channel.
        channel: String,
        /// The contradiction.
        source: ReceiverConfigError,
    },
    /// Invalid fault settings.
    #[error("faults: {0}")]
    Faults(#[from] FaultConfigError),
    /// The journal file can't be created or mapped.
    #[error("can't create the journal: {0}")]
    JournalFile(#[from] MappingError),
    /// The file can't hold a journal.
    #[error("{path} can't hold the journal: {source}")]
    Journal {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: JournalError,
    },
    /// The interval log can't be opened.
    #[error("can't open the interval log: {source}")]
    IntervalLog {
        /// The reason.
        source: FileError,
    },
    /// A setting of the interval log is invalid or contradicts another.
    #[error("the interval log can't be written: {problem}")]
    IntervalLogSetting {
        /// The problem, and its remedy.
        problem: &'static str,
    },
    /// A thread that was asked for can't be started.
    #[error("can't start the thread of the {of}: {source}; raise the limit of threads")]
    Thread {
        /// The purpose of the thread.
        of: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The metrics can't be served at the address.
    #[error("the metrics can't listen at {address}: {source}; give another port, or 0 for any")]
    MetricsPort {
        /// The address as given.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// This host does not have the interface.
    #[error("interface {interface}: {source}")]
    Interface {
        /// The interface as given.
        interface: String,
        /// The reason.
        source: InterfaceError,
    },
    /// The publisher does not offer the requested transport, or offers no known transport at all.
    #[error(
        "channel {channel}: the publisher does not offer the requested transport; use `auto`, or \
         add the transport to the channel's fan_out in the publisher's config"
    )]
    NoTransport {
        /// The name of the channel.
        channel: String,
    },
    /// The multicast groups can't be joined.
    #[error("channel {channel}: {source}")]
    Udp {
        /// The name of the channel.
        channel: String,
        /// The reason.
        source: UdpError,
    },
    /// RDMA multicast can't be received.
    #[error("channel {channel}: {source}")]
    Verbs {
        /// The name of the channel.
        channel: String,
        /// The reason, and the remedy.
        source: VerbsError,
    },
    /// UDP multicast can't be received by AF_XDP.
    #[error("channel {channel}: {source}")]
    Xdp {
        /// The name of the channel.
        channel: String,
        /// The reason, and the remedy.
        source: XdpError,
    },
    /// The publisher's ring can't be read.
    #[error("channel {channel}: {source}")]
    Shm {
        /// The name of the channel.
        channel: String,
        /// The reason, and the remedy.
        source: ShmError,
    },
    /// A receiver failed.
    #[error("channel {channel}: {source}")]
    Receive {
        /// The name of the channel.
        channel: String,
        /// The failure.
        source: ReceiveError,
    },
    /// The operating system provides no descriptor to wait on.
    #[error(
        "can't open a descriptor to wait on: {source}; raise the limit of open files (ulimit -n, \
         LimitNOFILE=)"
    )]
    Descriptor {
        /// The error of the operating system.
        source: io::Error,
    },
    /// This process has no descriptor for a connection to the publisher. The subscriber keeps trying.
    #[error(
        "can't open a descriptor for a connection to the publisher: {source}; raise the limit of \
         open files (ulimit -n, LimitNOFILE=). The subscriber keeps trying"
    )]
    Unconnected {
        /// The error of the operating system.
        source: io::Error,
    },
    /// No publisher has welcomed us within the limit. The subscriber keeps trying.
    #[error(
        "no publisher at {endpoints} admitted this subscriber within {waited_ms} ms; is one \
         running there? The subscriber keeps trying"
    )]
    NotJoined {
        /// The endpoints that were tried.
        endpoints: String,
        /// The limit, in milliseconds.
        waited_ms: u64,
    },
    /// A filter names a symbol that the publisher has not announced.
    #[error(
        "channel {channel}: the filter names {symbol:?}, which the publisher has not announced; {known}"
    )]
    UnknownSymbol {
        /// The name of the channel.
        channel: String,
        /// The symbol.
        symbol: String,
        /// A text that lists known symbols.
        known: String,
    },
    /// A closure has panicked, so the subscriber delivers nothing more.
    #[error("{POISONED}")]
    Poisoned,
    /// The publisher rejected the JOIN.
    #[error("the publisher rejected this subscriber ({code}): {text:?}")]
    Rejected {
        /// The reason as a code.
        code: RejectCode,
        /// The reason in the publisher's words.
        text: String,
    },
}

/// The reason why a call on a channel failed. Nothing has changed.
///
/// ```
/// # use tickcast_subscriber::{Start, Subscriber, ChannelId};
/// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let error = subscriber.rejoin(ChannelId(9), Start::Oldest).unwrap_err();
/// assert!(error.to_string().starts_with("the subscriber does not follow channel 9"));
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The channel is rejoining, and the publisher has not answered yet.
    #[error("channel {channel} is joining again: wait for its event `joined`")]
    Rejoining {
        /// The channel number given.
        channel: ChannelId,
    },
    /// A closure of the subscriber has panicked.
    #[error("{POISONED}")]
    Poisoned,
    /// The channel is not followed, or no publisher has welcomed us to it yet.
    #[error(
        "the subscriber does not follow channel {channel}; it follows {followed}, each after its \
         event `joined`"
    )]
    Unknown {
        /// The channel number given.
        channel: ChannelId,
        /// The names of the followed channels, with their numbers where known.
        followed: String,
    },
}

/// The reason why a filter can't be set. The previous filter stays in force.
///
/// ```
/// # use tickcast_subscriber::{InstrumentFilter, Subscriber, ChannelId};
/// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let wanted = InstrumentFilter::symbols(["AAPL"]);
/// assert!(subscriber.set_filter(ChannelId(1), wanted).is_err(), "there is no such channel yet");
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FilterError {
    /// There is no such channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No publisher has announced this symbol. To filter on a symbol that is announced later, set the
    /// filter in the builder, or filter by id.
    #[error("channel {channel} has no instrument {symbol:?}: {known}")]
    UnknownSymbol {
        /// The channel.
        channel: ChannelId,
        /// The symbol.
        symbol: String,
        /// A text that lists known symbols.
        known: String,
    },
}

/// The reason why a [`Running`](crate::Running) subscriber rejected a command. Nothing has changed.
///
/// ```
/// # use tickcast_subscriber::{CommandError, Core, Idle, Start, Subscriber, ChannelId};
/// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let running = subscriber.run_pinned(Core(0), Idle::Yield, |_| {})?;
/// let error = running.rejoin(ChannelId(9), Start::Oldest).unwrap_err();
/// assert!(matches!(error, CommandError::Channel(_)), "there is no such channel");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The filter can't be set.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// Too many commands wait for the thread.
    #[error("{queued} calls already wait for the subscriber's thread: try again later")]
    Busy {
        /// The number of commands that wait.
        queued: usize,
    },
    /// The thread did not begin the command in time, and will not execute it. Either its closure computes for
    /// long, or the closure waits for something that the calling thread holds.
    #[error(
        "the subscriber's thread did not answer within {} ms: check that its closure does not \
         wait for this thread, and try again later", .limit.as_millis()
    )]
    Late {
        /// The time limit.
        limit: Duration,
    },
    /// The thread has ended or is ending, so it follows no channel any more.
    #[error("the subscriber's thread has ended: join it, and build another subscriber")]
    Ended,
    /// The command came from the thread's own closure.
    #[error(
        "the closure of a subscriber's thread can't wait for that thread: call from another one"
    )]
    OwnThread,
}

/// The reason why no thread could be started. The subscriber is gone and its connections are closed.
///
/// ```
/// # use tickcast_subscriber::{Core, Idle, SpawnError, Subscriber};
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let error = subscriber.run_pinned(Core(1 << 20), Idle::Yield, |_| {}).err().unwrap();
/// assert!(matches!(error, SpawnError::Pin(_)), "there is no such core");
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// A closure of the subscriber has panicked.
    #[error("{POISONED}")]
    Poisoned,
    /// The thread can't be pinned to that core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The operating system provides no thread.
    #[error("can't start the subscriber's thread: {source}; is the limit of threads reached?")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
    /// A local ring can't have this size.
    #[error("a local ring can't have {size_bytes} bytes: give 1 MiB to 64 GiB")]
    Size {
        /// The size as given, in bytes.
        size_bytes: usize,
    },
    /// The host does not have that much memory.
    #[error("can't allocate a local ring of {size_bytes} bytes: give a smaller size")]
    Memory {
        /// The size as given, in bytes.
        size_bytes: usize,
    },
}

/// The reason why a thread could not be joined.
///
/// ```
/// # use tickcast_subscriber::{JoinError, Running};
/// # fn f(running: Running) {
/// match running.join() {
///     Ok(summary) => println!("{summary}"),
///     Err(JoinError::Panicked(panicked)) => eprintln!("{}", panicked.message),
///     Err(error) => eprintln!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The thread ended by a panic.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// The join was called from the thread's own closure. The thread was asked to stop.
    #[error(
        "the closure of a subscriber's thread can't wait for that thread to end: the thread will \
         stop; join it from another thread"
    )]
    OwnThread,
}

/// The thread of a subscriber ended by a panic, usually of the application's closure. The publisher was
/// not notified that we leave; it finds the connection closed.
///
/// ```
/// # use tickcast_subscriber::{JoinError, Panicked, Running};
/// # fn f(running: Running) {
/// if let Err(JoinError::Panicked(Panicked { message })) = running.join() {
///     eprintln!("the closure panicked: {message}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the subscriber's thread panicked: {message}")]
pub struct Panicked {
    /// The message of the panic.
    pub message: String,
}
