//! The description of a subscriber, from which it is built.

pub(crate) mod endpoints;
pub(crate) mod filter;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tickcast_hlog::IntervalLog;
use tickcast_journal::{JournalOrigin, JournalSide, JournalWriter};
use tickcast_reliability::control::{ChannelName, NAME_LEN_MAX, Start};
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{ChannelWanted, LinkTimers, SubscriberSettings};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::faults::FaultConfig;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::journal_file::JournalFile;
use tickcast_transport::shm::{boot_id, boot_id_text};

use endpoints::Endpoints;
use filter::InstrumentFilter;

use crate::error::SubscribeError;
use crate::sync::wake::Waker;

/// Receives a line from another group than the publisher's, for example a relay's.
///
/// ```
/// # use tickcast_subscriber::{ChannelBuilder, LineOverride};
/// let group = "239.255.1.2:7000".parse().unwrap();
/// let sender = "127.0.0.1".parse().unwrap();
/// let channel = ChannelBuilder::new("equities").line_override(LineOverride { group, sender });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOverride {
    /// Group and port.
    pub group: SocketAddrV4,
    /// Sender address.
    pub sender: Ipv4Addr,
}

/// The description of one channel.
///
/// ```
/// use tickcast_subscriber::{ChannelBuilder, Delivery, InstrumentFilter, Start, Subscriber};
///
/// let equities = ChannelBuilder::new("equities")
///     .start(Start::Oldest)
///     .delivery(Delivery::Latest)
///     .filter(InstrumentFilter::symbols(["AAPL", "MSFT"]))
///     .lag_alarm(1_000);
/// let builder = Subscriber::builder("md1:7400,md2:7400").channel(equities).channel("futures");
/// ```
#[derive(Clone, Debug)]
pub struct ChannelBuilder {
    pub(crate) channel: ChannelName,
    pub(crate) start: Start,
    pub(crate) config: ReceiverConfig,
    pub(crate) line_overrides: Vec<LineOverride>,
    pub(crate) filter: InstrumentFilter,
    pub(crate) lag_alarm: Option<u64>,
}

impl ChannelBuilder {
    /// Creates a channel by name, or by number if the text is a number. Defaults: live, ordered, repaired.
    ///
    /// ```
    /// # use tickcast_subscriber::ChannelBuilder;
    /// let by_name = ChannelBuilder::new("equities");
    /// let by_number = ChannelBuilder::new("7");
    /// ```
    pub fn new(channel: impl Into<String>) -> Self {
        let name: String = channel.into();
        let channel = name
            .parse()
            .map_or(ChannelName::Name(name), |id| ChannelName::Id(ChannelId(id)));
        Self {
            channel,
            start: Start::default(),
            config: ReceiverConfig::default(),
            line_overrides: Vec::new(),
            filter: InstrumentFilter::all(),
            lag_alarm: None,
        }
    }

    /// Sets the start of delivery.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelBuilder, Start};
    /// let channel = ChannelBuilder::new("equities").start(Start::Oldest);
    /// ```
    #[must_use]
    pub const fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the order of delivery and its deadline.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelBuilder, Delivery};
    /// let channel = ChannelBuilder::new("equities").delivery(Delivery::Latest);
    /// ```
    #[must_use]
    pub const fn delivery(mut self, delivery: Delivery) -> Self {
        self.config.delivery = delivery;
        self
    }

    /// Sets all settings of the protocol at once ([`ReceiverConfig`]).
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelBuilder, ReceiverConfig};
    /// let config = ReceiverConfig { repair: false, ..ReceiverConfig::default() };
    /// let channel = ChannelBuilder::new("equities").config(config);
    /// ```
    #[must_use]
    pub const fn config(mut self, config: ReceiverConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the multicast silence after which [`Event::Stale`](crate::Event::Stale) is emitted; 30 ms by
    /// default. At least three of the publisher's announced intervals must pass. The time until the
    /// publisher counts as dead is always longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::ChannelBuilder;
    /// let channel = ChannelBuilder::new("equities").stale_after(Duration::from_millis(200));
    /// ```
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        let stale_us = u32::try_from(silence.as_micros()).unwrap_or(u32::MAX);
        self.config.stale_us = stale_us;
        self.config.dead_us = self.config.dead_us.max(stale_us.saturating_add(1));
        self
    }

    /// Sets the filter of instruments; all instruments by default.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelBuilder, InstrumentFilter};
    /// let channel = ChannelBuilder::new("equities").filter(InstrumentFilter::symbols(["AAPL"]));
    /// ```
    #[must_use]
    pub fn filter(mut self, filter: InstrumentFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets the lag alarm. [`Event::Lagging`](crate::Event::Lagging) is emitted once the application is
    /// more than this many sequences behind the publisher. `CaughtUp` is emitted when the lag is at most
    /// half of that.
    ///
    /// ```
    /// # use tickcast_subscriber::ChannelBuilder;
    /// let channel = ChannelBuilder::new("equities").lag_alarm(1_000);
    /// ```
    #[must_use]
    pub const fn lag_alarm(mut self, sequences: u64) -> Self {
        self.lag_alarm = Some(sequences);
        self
    }

    /// Receives line A (first call) or B (second call) from another group than the publisher announces.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelBuilder, LineOverride};
    /// let group = "239.255.1.2:7000".parse().unwrap();
    /// let sender = "127.0.0.1".parse().unwrap();
    /// let line = LineOverride { group, sender };
    /// let channel = ChannelBuilder::new("equities").line_override(line);
    /// ```
    #[must_use]
    pub fn line_override(mut self, line: LineOverride) -> Self {
        self.line_overrides.push(line);
        self
    }
}

/// The transport of datagrams from the publisher.
///
/// ```
/// # use tickcast_subscriber::{Subscriber, Transport};
/// let builder = Subscriber::builder("127.0.0.1:7400").transport(Transport::Udp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The best transport that both sides have. A log line names the transport and the reason.
    #[default]
    Auto,
    /// UDP multicast.
    Udp,
    /// RDMA multicast (docs/RDMA.md).
    Verbs,
    /// The publisher's ring in this host's memory.
    Shm,
    /// UDP multicast, taken from the network device before the kernel's network stack (AF_XDP, docs/XDP.md).
    Xdp,
}

impl Transport {
    /// Returns the name used in logs.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Auto => "the best there is",
            Self::Udp => "udp multicast",
            Self::Verbs => "verbs multicast",
            Self::Shm => "shared memory",
            Self::Xdp => "udp multicast by AF_XDP",
        }
    }
}

/// The transport of repair requests.
///
/// ```
/// # use tickcast_subscriber::{RepairTransport, Subscriber};
/// let builder = Subscriber::builder("md1:7400").repair(RepairTransport::Tcp);
/// assert_eq!(RepairTransport::default(), RepairTransport::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairTransport {
    /// RDMA verbs if the publisher offers them, this build has the feature `rdma`, and a device reaches the
    /// publisher. TCP when verbs does not answer.
    #[default]
    Auto,
    /// TCP.
    Tcp,
}

/// The lengths that an interval of an interval log may have.
const INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);

/// The parts of a checked description.
pub(crate) struct Parts {
    pub(crate) settings: SubscriberSettings,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) waker: Waker,
    pub(crate) journal: Option<JournalWriter>,
    pub(crate) interval_log: Option<IntervalLog>,
}

/// Describes a subscriber; see [`Subscriber::builder`](crate::Subscriber::builder).
///
/// ```
/// use std::time::Duration;
/// use tickcast_subscriber::Subscriber;
///
/// let subscriber = Subscriber::builder(["127.0.0.1:7400", "127.0.0.1:7401"])
///     .name("risk-1")
///     .channel("equities")
///     .join_limit(Duration::from_secs(10))
///     .build()?;
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    pub(crate) publishers: Endpoints,
    pub(crate) name: String,
    pub(crate) channels: Vec<ChannelBuilder>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) receive_buffer_bytes: Option<usize>,
    pub(crate) busy_poll_us: Option<u32>,
    pub(crate) receive_depth: u32,
    pub(crate) repair_traffic_class: u8,
    pub(crate) source_specific: bool,
    pub(crate) gro: bool,
    pub(crate) faults: Option<FaultConfig>,
    pub(crate) latency: bool,
    latency_reports: bool,
    metrics: Option<SocketAddr>,
    metrics_hosts: Vec<String>,
    pub(crate) transport: Transport,
    pub(crate) join_limit: Option<Duration>,
    pub(crate) repair: RepairTransport,
    journal: Option<(PathBuf, usize)>,
    pub(crate) interval_log: Option<(PathBuf, Duration)>,
    link: LinkTimers,
    seed: Option<u64>,
}

impl SubscriberBuilder {
    pub(crate) fn new(publishers: Endpoints) -> Self {
        Self {
            publishers,
            name: format!("subscriber-{}", std::process::id()),
            channels: Vec::new(),
            interfaces: Vec::new(),
            receive_buffer_bytes: Some(4 << 20),
            busy_poll_us: None,
            receive_depth: 2_048,
            repair_traffic_class: 0,
            source_specific: true,
            gro: true,
            faults: None,
            latency: true,
            latency_reports: false,
            metrics: None,
            metrics_hosts: Vec::new(),
            transport: Transport::Auto,
            join_limit: None,
            repair: RepairTransport::Auto,
            journal: None,
            interval_log: None,
            link: LinkTimers::default(),
            seed: None,
        }
    }

    /// Sets the transport of repair requests; the fastest available by default.
    ///
    /// ```
    /// # use tickcast_subscriber::{RepairTransport, Subscriber};
    /// let builder = Subscriber::builder("md1:7400").repair(RepairTransport::Tcp);
    /// ```
    #[must_use]
    pub const fn repair(mut self, repair: RepairTransport) -> Self {
        self.repair = repair;
        self
    }

    /// Keeps a journal of the inputs in a file on tmpfs, which outlives the process. The journal is a ring of
    /// this many bytes and holds the last seconds or minutes. `tickcast explain` reads it. It costs
    /// some 200 instructions a datagram (docs/PERFORMANCE.md), and allocates nothing while ticks arrive.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").journal("/dev/shm/risk-1.journal", 64 << 20);
    /// ```
    #[must_use]
    pub fn journal(mut self, path: impl Into<PathBuf>, bytes: usize) -> Self {
        self.journal = Some((path.into(), bytes));
        self
    }

    /// Appends the latency histograms to an interval log (HdrHistogram log 1.3): a line an interval, channel
    /// and stage with samples, of 100 ms to a day. A thread of its own writes the log. It inherits the
    /// cores of the caller of [`build`](Self::build), so build before you pin. A drop of the subscriber
    /// writes the last interval and waits for that.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").interval_log("risk-1.hlog", Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn interval_log(mut self, path: impl Into<PathBuf>, interval: Duration) -> Self {
        self.interval_log = Some((path.into(), interval));
        self
    }

    /// Sets the name in the publisher's logs and metrics.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").name("risk-1");
    /// ```
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a channel, by name or number or as a [`ChannelBuilder`].
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").channel("equities").channel("futures");
    /// ```
    #[must_use]
    pub fn channel(mut self, channel: impl Into<ChannelBuilder>) -> Self {
        self.channels.push(channel.into());
        self
    }

    /// Sets the interface of line A (first call) and B (second call). The default is found anew with each
    /// connection: the sender's own interface if the sender is this host, else the one whose network contains
    /// the sender, else the one that carries the connection to the publisher.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let a = "10.1.0.7".parse().unwrap();
    /// let b = "10.2.0.7".parse().unwrap();
    /// let builder = Subscriber::builder("md1:7400").interface(a).interface(b);
    /// ```
    #[must_use]
    pub fn interface(mut self, interface: Interface) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// Sets the requested socket buffer per line and channel, in bytes; 4 MiB by default.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").receive_buffer_bytes(32 << 20);
    /// ```
    #[must_use]
    pub const fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Sets the time for which a poll asks the device for packets (`SO_BUSY_POLL`), in place of waiting for
    /// its interrupt; rounded up to microseconds. Zero turns that off. By default, `net.core.busy_read`
    /// applies. It has an effect over UDP only, and needs CAP_NET_ADMIN. A log line reports a refusal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").busy_poll(Duration::from_micros(50));
    /// ```
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        let us = time.as_nanos().div_ceil(1_000);
        self.busy_poll_us = Some(u32::try_from(us).unwrap_or(u32::MAX));
        self
    }

    /// Sets the number of receive buffers per line and channel over verbs, 32 to 32768; 2048 by default. It
    /// limits the datagrams that may arrive between two polls.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").receive_depth(8_192);
    /// ```
    #[must_use]
    pub const fn receive_depth(mut self, buffers: u32) -> Self {
        self.receive_depth = buffers;
        self
    }

    /// Sets the traffic class of repair over verbs, in both directions; 0 by default. The upper six bits are
    /// the DSCP, which selects the queue, the priority and the congestion control of NIC and switch.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").repair_traffic_class(104);
    /// ```
    #[must_use]
    pub const fn repair_traffic_class(mut self, class: u8) -> Self {
        self.repair_traffic_class = class;
        self
    }

    /// Sets whether to join only the sender's own tree (the default). Without it, the subscriber drops and
    /// counts datagrams of unknown senders.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").source_specific(false);
    /// ```
    #[must_use]
    pub const fn source_specific(mut self, source_specific: bool) -> Self {
        self.source_specific = source_specific;
        self
    }

    /// Sets whether the kernel returns datagrams that arrived together as one buffer (GRO, the default).
    /// A log line reports a kernel without GRO. With GRO, the receive buffers of a line take 2 MiB.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").gro(false);
    /// ```
    #[must_use]
    pub const fn gro(mut self, gro: bool) -> Self {
        self.gro = gro;
        self
    }

    /// Injects seeded faults between the network and this subscriber.
    ///
    /// ```
    /// # use tickcast_subscriber::{Subscriber, faults::FaultConfig};
    /// let five_percent = FaultConfig { seed: 1, drop: 0.05, ..FaultConfig::default() };
    /// let builder = Subscriber::builder("md1:7400").faults(five_percent);
    /// ```
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn faults(mut self, faults: FaultConfig) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Sets whether to keep latency histograms; on by default, at a few nanoseconds per record.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").latency(false);
    /// ```
    #[must_use]
    pub const fn latency(mut self, latency: bool) -> Self {
        self.latency = latency;
        self
    }

    /// Sets whether to report the percentiles of latency to the publisher, once a second and channel; off by
    /// default. The publisher shows them in its metrics, in `tickcast top` and on its page. A thread of its
    /// own computes them, and the receiving thread sends them with its next message. The thread inherits the
    /// cores of the caller of [`build`](Self::build), so build before you pin. It takes 1.4 MB a channel.
    /// Without [`latency`](Self::latency) there is nothing to report.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").latency_reports(true);
    /// ```
    #[must_use]
    pub const fn latency_reports(mut self, reports: bool) -> Self {
        self.latency_reports = reports;
        self
    }

    /// Serves the metrics for Prometheus at `http://ADDRESS/metrics`, and `/healthz`, on a thread of its own;
    /// port 0 lets the system choose ([`metrics_address`](crate::Monitor::metrics_address)). The port
    /// closes when the subscriber is dropped, which waits up to half a second for that. Requests need no
    /// password, so give an address of loopback, or of a network that you trust.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").metrics_listen("127.0.0.1:9464".parse().unwrap());
    /// ```
    #[must_use]
    pub const fn metrics_listen(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self
    }

    /// Adds a name of this host under which the metrics are asked, such as a DNS alias. Requests to other
    /// names than `localhost`, the host's own, its addresses and these are refused.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").metrics_host("risk-1.example");
    /// ```
    #[must_use]
    pub fn metrics_host(mut self, name: impl Into<String>) -> Self {
        self.metrics_hosts.push(name.into());
        self
    }

    /// Returns the address at which the metrics are served.
    pub(crate) const fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Returns the further names under which the metrics are asked.
    pub(crate) fn metrics_hosts(&self) -> &[String] {
        &self.metrics_hosts
    }

    /// Returns whether it reports the percentiles of latency.
    pub(crate) const fn reports_latency(&self) -> bool {
        self.latency && self.latency_reports
    }

    /// Sets the transport of datagrams; by default the best one that both sides have.
    ///
    /// ```
    /// # use tickcast_subscriber::{Transport, Subscriber};
    /// let builder = Subscriber::builder("md1:7400").transport(Transport::Udp);
    /// ```
    #[must_use]
    pub const fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the time after which a missing welcome is a [`Subscriber::problem`](crate::Subscriber::problem),
    /// which every [`Polled`](crate::Polled) then reports. The subscriber keeps trying, because either side
    /// may start first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").join_limit(Duration::from_secs(10));
    /// ```
    #[must_use]
    pub const fn join_limit(mut self, limit: Duration) -> Self {
        self.join_limit = Some(limit);
        self
    }

    /// Sets the duration of one attempt to join, after which the next one begins; 2 s by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").join_timeout(Duration::from_millis(500));
    /// ```
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.link.join_timeout = nanos(timeout);
        self
    }

    /// Sets the seed of everything random (jitter of timers); by default the clock provides it.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let builder = Subscriber::builder("md1:7400").seed(1);
    /// ```
    #[cfg(feature = "testing")]
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks the description and returns the parts of a driver.
    pub(crate) fn check(&self) -> Result<Parts, SubscribeError> {
        if self.channels.is_empty() {
            return Err(SubscribeError::NoChannel);
        }
        check_name(&self.name)?;
        for channel in &self.channels {
            let name = display(&channel.channel);
            check_name(&name)?;
            channel
                .config
                .check()
                .map_err(|source| SubscribeError::Config {
                    channel: name,
                    source,
                })?;
        }
        if let Some(faults) = &self.faults {
            faults.check()?;
        }
        for interface in &self.interfaces {
            (interface.resolve()).map_err(|source| SubscribeError::Interface {
                interface: interface.to_string(),
                source,
            })?;
        }
        let addresses = self.publishers.resolve()?;
        let waker = Waker::new().map_err(|source| SubscribeError::Descriptor { source })?;
        let settings = SubscriberSettings {
            name: self.name.clone(),
            channels: self.channels.iter().map(ChannelBuilder::wanted).collect(),
            link: self.link,
            seed: self.seed.unwrap_or_else(|| SystemClock.utc().0),
        };
        let journal = self
            .journal
            .as_ref()
            .map(|(path, bytes)| self.open_journal(path, *bytes));
        Ok(Parts {
            settings,
            addresses,
            waker,
            journal: journal.transpose()?,
            interval_log: self.open_interval_log()?,
        })
    }
}

impl SubscriberBuilder {
    /// Opens the interval log.
    fn open_interval_log(&self) -> Result<Option<IntervalLog>, SubscribeError> {
        let Some((path, interval)) = &self.interval_log else {
            return Ok(None);
        };
        let refused = |problem| Err(SubscribeError::IntervalLogSetting { problem });
        if !INTERVALS.contains(interval) {
            return refused("its interval must be from 100 ms to a day");
        }
        if !self.latency {
            return refused("it has the latency, so leave `latency` on");
        }
        let log = IntervalLog::open(path, &self.name, SystemClock.utc());
        let log = log.map_err(|source| SubscribeError::IntervalLog { source })?;
        Ok(Some(log))
    }

    /// Returns the writer of a journal in this file.
    fn open_journal(&self, path: &Path, bytes: usize) -> Result<JournalWriter, SubscribeError> {
        let origin = JournalOrigin {
            name: self.name.clone(),
            process: std::process::id(),
            boot_id: boot_id_text(boot_id().unwrap_or_default()),
            began: SystemClock.now(),
            began_utc: SystemClock.utc(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            side: JournalSide::Subscriber,
        };
        let file = JournalFile::create(path, bytes)?;
        let journal = JournalWriter::new(Box::new(file), &origin);
        journal.map_err(|source| SubscribeError::Journal {
            path: path.to_owned(),
            source,
        })
    }
}

impl ChannelBuilder {
    fn wanted(&self) -> ChannelWanted {
        let overrides = self.line_overrides.len();
        ChannelWanted {
            channel: self.channel.clone(),
            start: self.start,
            config: self.config,
            lines: (overrides > 0).then_some(overrides),
        }
    }
}

impl From<&str> for ChannelBuilder {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for ChannelBuilder {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<ChannelId> for ChannelBuilder {
    fn from(channel: ChannelId) -> Self {
        Self {
            channel: ChannelName::Id(channel),
            ..Self::new("")
        }
    }
}

/// Returns a channel's name as users write it.
pub(crate) fn display(channel: &ChannelName) -> String {
    match channel {
        ChannelName::Id(id) => id.to_string(),
        ChannelName::Name(name) => name.clone(),
    }
}

/// Converts a duration to nanoseconds; saturates.
pub(crate) fn nanos(span: Duration) -> Nanos {
    Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

fn check_name(name: &str) -> Result<(), SubscribeError> {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(SubscribeError::Name {
            name: name.to_owned(),
        });
    }
    Ok(())
}
