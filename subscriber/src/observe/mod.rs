//! The state of a subscriber, readable from any thread while it works. Each number is written by one
//! thread with plain stores.

pub(crate) mod clock;
pub(crate) mod directory;
pub(crate) mod latency;
pub(crate) mod metrics;
pub(crate) mod others;
pub(crate) mod polled;
pub(crate) mod reports;
pub(crate) mod sealed;
pub(crate) mod summary;
pub(crate) mod totals;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tickcast_hlog::{ClockOffset, Series};
use tickcast_metrics::PageFormat;
use tickcast_reliability::counters;
use tickcast_reliability::types::{ChannelId, Counter, Epoch, ReceiverCounters, Sequence};

use clock::PublisherClock;
use directory::Directory;
use latency::{ChannelLatency, LatencyRecorder};
use reports::Reports;

counters! {
    /// Counts of a channel's records and events on their way to the application. With `split`, the way ends
    /// in the local ring, and [`ReaderReport`](crate::ReaderReport) has the counts of each reader.
    ///
    /// ```
    /// # use tickcast_subscriber::HandedCounters;
    /// let counters = HandedCounters::default();
    /// counters.each(|name, help, value| println!("{name} {value}: {help}"));
    /// assert_eq!(counters.filtered_records.get(), 0);
    /// ```
    pub struct HandedCounters {
        /// Records passed to the closure, or to the readers of a split subscriber.
        handed_records,
        /// Events passed to the closure or readers.
        handed_events,
        /// Records of instruments that the filter excludes.
        filtered_records,
        /// Records replaced by a newer one of the same kind and instrument (`latest`, polled).
        conflated_records,
    }
}

/// The state of one channel.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let report = &subscriber.channels()[0];
/// assert_eq!((report.name.as_str(), report.channel, report.lag), ("equities", None, 0));
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChannelReport {
    /// The requested name.
    pub name: String,
    /// The channel's number; `None` before the publisher's welcome.
    pub channel: Option<ChannelId>,
    /// The followed epoch.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub delivered: Sequence,
    /// The highest sequence known.
    pub heard: Sequence,
    /// The number of sequences from the last delivered one to the newest that the publisher is known to
    /// have sent.
    pub lag: u64,
    /// Whether END was delivered.
    pub ended: bool,
    /// The counters of the protocol. They stay readable from any thread.
    pub counters: Arc<ReceiverCounters>,
    /// The counters of delivery to the application. They stay readable from any thread.
    pub handed: Arc<HandedCounters>,
}

/// Watches a subscriber from other threads, during its life and after it.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let monitor = subscriber.monitor();
/// let watch = std::thread::spawn(move || {
///     for channel in monitor.channels() {
///         println!("{} is {} sequences behind", channel.name, channel.lag);
///     }
///     monitor.is_joined()
/// });
/// assert!(!watch.join().unwrap());
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Monitor {
    pub(crate) shared: Arc<Shared>,
}

impl Monitor {
    /// Returns the recent state of every channel, in the order of the builder.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// for channel in monitor.channels() {
    ///     println!("{} lost {} records", channel.name, channel.counters.lost_records.get());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelReport> {
        self.shared
            .channels
            .iter()
            .map(ChannelShared::report)
            .collect()
    }

    /// Returns the number of a channel by its requested name. Returns `None` before the publisher's welcome,
    /// and for a name that was not requested.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if let Some(channel) = monitor.channel_id("equities") {
    ///     println!("equities are channel {channel}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn channel_id(&self, name: &str) -> Option<ChannelId> {
        let mut all = self.shared.channels.iter();
        all.find(|channel| channel.name == name)?.id()
    }

    /// Returns a copy of a channel's histograms. Returns `None` when there is no such channel (yet), and when
    /// latency is not measured.
    ///
    /// ```
    /// # use tickcast_subscriber::{Monitor, Stage, ChannelId};
    /// # fn f(monitor: &Monitor, channel: ChannelId) {
    /// if let Some(latency) = monitor.latency(channel) {
    ///     let repair = latency.stage(Stage::Repair);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn latency(&self, channel: ChannelId) -> Option<ChannelLatency> {
        self.shared
            .of(channel)?
            .latency
            .as_ref()
            .map(LatencyRecorder::snapshot)
    }

    /// Returns how far the publisher's clock is ahead of this host's, from the shortest recent round trip of
    /// PROGRESS and STATUS. Returns `None` before the first one. A latency below the offset's
    /// [limit](ClockOffset::limit_ns) is one that the clocks can't support.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if let Some(clock) = monitor.clock_offset() {
    ///     println!("{} ns ahead, by at most {} ns more or less", clock.offset_ns, clock.error_ns);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.shared.clock.offset()
    }

    /// Returns whether the publisher has welcomed us and the repair connection is up. Returns `false` after
    /// the subscriber has left, was dropped, or ended by a panic.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// let health = if monitor.is_joined() { "ready" } else { "not ready" };
    /// # }
    /// ```
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.shared.joined.load(Relaxed)
    }

    /// Returns whether every channel has delivered the end of its session.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if monitor.ended() {
    ///     println!("the session is over on every channel");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn ended(&self) -> bool {
        self.shared
            .channels
            .iter()
            .all(|channel| channel.ended.load(Relaxed))
    }

    /// Returns the reason why the subscriber does not work as configured, or `None`.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if let Some(problem) = monitor.problem() {
    ///     eprintln!("{problem}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        locked(&self.shared.problem).clone()
    }

    /// Returns the number of intervals that could not be written to the interval log. Their samples are in
    /// the next interval that was written.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if monitor.interval_log_failures() > 0 {
    ///     eprintln!("the interval log could not be written at times");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn interval_log_failures(&self) -> u64 {
        self.shared.interval_log_failures.get()
    }

    /// Returns all counters and latencies as text for Prometheus. It takes milliseconds, so call it at each
    /// scrape. docs/METRICS.md lists the series. Programs that serve a page of their own append their
    /// series to the text of [`PageFormat::Prometheus`].
    ///
    /// ```
    /// # use tickcast_subscriber::PageFormat;
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// let page = monitor.metrics_text(PageFormat::Prometheus);
    /// # }
    /// ```
    #[must_use]
    pub fn metrics_text(&self, format: PageFormat) -> String {
        metrics::page(&self.shared).encode(format)
    }

    /// Returns the address at which the metrics are served, with the port that the system chose. Returns
    /// `None` without [`metrics_listen`](crate::SubscriberBuilder::metrics_listen).
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// if let Some(address) = monitor.metrics_address() {
    ///     println!("scrape http://{address}/metrics");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.shared.metrics_address.get().copied()
    }

    /// Returns a copy of the known symbols and ids.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_subscriber::Monitor) {
    /// let symbols = monitor.directory();
    /// println!("{:?}", symbols.id("AAPL"));
    /// # }
    /// ```
    #[must_use]
    pub fn directory(&self) -> Directory {
        locked(&self.shared.directory).clone()
    }
}

/// State that the hot thread writes and other threads read. The two locks are taken only after a name was
/// learned or a problem occurred. The hot thread never waits for them.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) channels: Box<[ChannelShared]>,
    pub(crate) joined: AtomicBool,
    pub(crate) problem: Mutex<Option<String>>,
    /// Whether there is a problem; readable without the lock.
    pub(crate) has_problem: AtomicBool,
    pub(crate) directory: Mutex<Directory>,
    pub(crate) interval_log_failures: Arc<Counter>,
    pub(crate) clock: Arc<PublisherClock>,
    pub(crate) reports: Arc<Reports>,
    /// The address at which the metrics are served; unset where they are not.
    pub(crate) metrics_address: OnceLock<SocketAddr>,
}

impl Shared {
    /// Returns the series of an interval log, all stages of all channels.
    pub(crate) fn latency_series(&self) -> Vec<Series> {
        let channels = self.channels.iter();
        let measured = channels.filter_map(|it| Some((&it.name, it.latency.as_ref()?.snapshot())));
        let series = measured.flat_map(|(name, latency)| latency.into_series(name));
        series.collect()
    }

    pub(crate) fn of(&self, channel: ChannelId) -> Option<&ChannelShared> {
        self.channels.iter().find(|it| it.id() == Some(channel))
    }
}

#[derive(Debug)]
pub(crate) struct ChannelShared {
    pub(crate) name: String,
    /// [`NO_ID`] before the welcome.
    id: AtomicU32,
    pub(crate) epoch: Counter,
    pub(crate) delivered: Counter,
    pub(crate) heard: Counter,
    pub(crate) lag: Counter,
    pub(crate) ended: AtomicBool,
    pub(crate) counters: Arc<ReceiverCounters>,
    pub(crate) handed: Arc<HandedCounters>,
    pub(crate) latency: Option<LatencyRecorder>,
}

const NO_ID: u32 = u32::MAX;

impl ChannelShared {
    pub(crate) fn new(name: String, counters: Arc<ReceiverCounters>, latency: bool) -> Self {
        Self {
            name,
            id: AtomicU32::new(NO_ID),
            epoch: Counter::default(),
            delivered: Counter::default(),
            heard: Counter::default(),
            lag: Counter::default(),
            ended: AtomicBool::new(false),
            counters,
            handed: Arc::default(),
            latency: latency.then(LatencyRecorder::default),
        }
    }

    pub(crate) fn id(&self) -> Option<ChannelId> {
        u16::try_from(self.id.load(Relaxed)).ok().map(ChannelId)
    }

    pub(crate) fn set_id(&self, id: ChannelId) {
        self.id.store(id.0.into(), Relaxed);
    }

    pub(crate) fn report(&self) -> ChannelReport {
        ChannelReport {
            name: self.name.clone(),
            channel: self.id(),
            epoch: Epoch(self.epoch.get()),
            delivered: Sequence(self.delivered.get()),
            heard: Sequence(self.heard.get()),
            lag: self.lag.get(),
            ended: self.ended.load(Relaxed),
            counters: Arc::clone(&self.counters),
            handed: Arc::clone(&self.handed),
        }
    }
}

/// Locks a mutex and ignores poisoning. The guarded data is consistent after every statement, so a panic
/// of another thread leaves it valid.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
