//! What can go wrong: whoever configured or calls a subscriber is at fault, or the host.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tickcast_journal::RecorderError;
use tickcast_reliability::control::RejectCode;
use tickcast_reliability::receive::ReceiverConfigError;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::ReceiveError;
use tickcast_transport::faults::FaultConfigError;
use tickcast_transport::host::interface::InterfaceError;
use tickcast_transport::host::mapping::MappingError;
use tickcast_transport::host::pin::PinError;
use tickcast_transport::shm::ShmError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::verbs::VerbsError;

const POISONED: &str = "a closure of this subscriber has panicked: nothing more is handed over; \
                        drop it and build another one";

/// Why a subscriber can't be built, or can't go on as it was configured.
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
        /// What was given.
        endpoint: String,
        /// What the name service says.
        source: io::Error,
    },
    /// Settings of a channel that do not fit each other.
    #[error("channel {channel}: {source}")]
    Config {
        /// Which channel.
        channel: String,
        /// What does not fit.
        source: ReceiverConfigError,
    },
    /// Fault settings that make no sense.
    #[error("faults: {0}")]
    Faults(#[from] FaultConfigError),
    /// The file that a record was to be kept in can't be.
    #[error("no record: {0}")]
    Recording(#[from] MappingError),
    /// It can't hold a record.
    #[error("no record in {path}: {source}")]
    Recorder {
        /// Where.
        path: PathBuf,
        /// Why.
        source: RecorderError,
    },
    /// An interface that this host does not have.
    #[error("interface {interface}: {source}")]
    Interface {
        /// As it was given.
        interface: String,
        /// What is wrong with it.
        source: InterfaceError,
    },
    /// The publisher does not offer the transport that was asked for, or none at all that is known.
    #[error(
        "channel {channel}: the publisher does not offer the transport that was asked for; take `auto`, or add it to the channel's fan_out there"
    )]
    NoTransport {
        /// Which channel.
        channel: String,
    },
    /// The groups can't be joined.
    #[error("channel {channel}: {source}")]
    Udp {
        /// Which channel.
        channel: String,
        /// Why not.
        source: UdpError,
    },
    /// RDMA multicast can't be received.
    #[error("channel {channel}: {source}")]
    Verbs {
        /// Which channel.
        channel: String,
        /// Why not, and what to do.
        source: VerbsError,
    },
    /// The publisher's ring can't be read.
    #[error("channel {channel}: {source}")]
    Shm {
        /// Which channel.
        channel: String,
        /// Why not, and what to do.
        source: ShmError,
    },
    /// A receiver failed.
    #[error("channel {channel}: {source}")]
    Receive {
        /// Which channel.
        channel: String,
        /// How.
        source: ReceiveError,
    },
    /// The operating system gives no descriptor to wait on.
    #[error("no descriptor to wait on: {source}; is the limit of open files reached?")]
    Descriptor {
        /// What it says.
        source: io::Error,
    },
    /// This process has no descriptor for a connection to the publisher. It is tried further.
    #[error(
        "no descriptor for a connection to the publisher: {source}; raise the limit of open files \
         (ulimit -n, LimitNOFILE=). It is tried further"
    )]
    Unconnected {
        /// What the operating system says.
        source: io::Error,
    },
    /// Nobody welcomed us within the limit. It is tried further.
    #[error(
        "no publisher at {endpoints} welcomed us within {waited_ms} ms; is one running there? It is tried further"
    )]
    NotJoined {
        /// Who was tried.
        endpoints: String,
        /// The limit.
        waited_ms: u64,
    },
    /// A filter names a symbol that the publisher has not announced.
    #[error(
        "channel {channel}: the filter names {symbol:?}, which the publisher has not announced; {known}"
    )]
    UnknownSymbol {
        /// Which channel.
        channel: String,
        /// The symbol.
        symbol: String,
        /// What is known instead, in words.
        known: String,
    },
    /// A closure panicked: the subscriber hands over nothing any more.
    #[error("{POISONED}")]
    Poisoned,
    /// The publisher rejected the JOIN.
    #[error("the publisher rejected us ({code:?}): {text}")]
    Rejected {
        /// For programs.
        code: RejectCode,
        /// In its words.
        text: String,
    },
}

/// Why a call about a channel can't be done; nothing has changed.
///
/// ```
/// # use tickcast_subscriber::{Start, Subscriber, ChannelId};
/// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let error = subscriber.rejoin(ChannelId(9), Start::Oldest).unwrap_err();
/// assert!(error.to_string().starts_with("channel 9 is not followed"));
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// It is being joined anew, and the publisher has not answered yet.
    #[error("channel {channel} is being joined anew: wait for its event `joined`")]
    Rejoining {
        /// The number given.
        channel: ChannelId,
    },
    /// A closure of the subscriber has panicked.
    #[error("{POISONED}")]
    Poisoned,
    /// It is not one that is followed, or no publisher has welcomed us to it yet.
    #[error(
        "channel {channel} is not followed; followed are {followed}, each from its event `joined` on"
    )]
    Unknown {
        /// The number given.
        channel: ChannelId,
        /// Names, and numbers where they are known.
        followed: String,
    },
}

/// Why a filter can't be set; the one before it goes on.
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
    /// A symbol that nobody has announced. To wait for one that is announced later, give the
    /// filter to the builder, or filter by id.
    #[error("channel {channel} has no instrument {symbol:?}: {known}")]
    UnknownSymbol {
        /// The channel.
        channel: ChannelId,
        /// The symbol.
        symbol: String,
        /// What is known instead, in words.
        known: String,
    },
}

/// Why a [`Running`](crate::Running) subscriber did not do what it was asked; nothing has changed.
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
    /// Others ask more than the thread gets to.
    #[error("{queued} calls wait for the subscriber's thread already: try again later")]
    Busy {
        /// How many.
        queued: usize,
    },
    /// The thread did not begin it in time: its closure computes for long, or waits for what the
    /// thread that asks holds. It will not be done.
    #[error(
        "the subscriber's thread did not get to it within {limit:?}: does its closure wait for \
         this thread? try again later"
    )]
    Late {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The thread has ended, or is about to: it follows nothing any more.
    #[error("the subscriber's thread has ended: join it, and build another subscriber")]
    Ended,
    /// Called from the thread's own closure.
    #[error(
        "the closure of a subscriber's thread can't wait for that thread: call from another one"
    )]
    OwnThread,
}

/// Why no thread could be started; the subscriber is gone, its connections closed.
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
    /// It can't run on that core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The operating system gives no thread.
    #[error("no thread for the subscriber: {source}; is the limit of threads reached?")]
    Thread {
        /// What it says.
        source: io::Error,
    },
    /// A local ring of this size can't be.
    #[error("a local ring of {size_bytes} bytes can't be: give 1 MiB to 64 GiB")]
    Size {
        /// As given.
        size_bytes: usize,
    },
    /// There is not so much memory.
    #[error("there is no memory for a local ring of {size_bytes} bytes: give it less")]
    Memory {
        /// As given.
        size_bytes: usize,
    },
}

/// Why a thread could not be joined.
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
    /// It ended by a panic.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// Called from the thread's own closure. The thread was asked to stop.
    #[error(
        "the closure of a subscriber's thread can't wait for that thread to end: it was asked to \
         stop; join from another thread"
    )]
    OwnThread,
}

/// The thread of a subscriber ended by a panic, in the application's closure if not in ours. The
/// publisher was not told that we leave; it finds the connection closed.
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
    /// What the panic said.
    pub message: String,
}
