//! The subscriber: one poll drives everything and never blocks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tickcast_reliability::control::Start;
#[cfg(feature = "testing")]
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::delivery::{Deliver, Delivery, Item};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::host::clock::{Clock, SystemClock};
#[cfg(feature = "testing")]
use tickcast_transport::{Receive, faults::FaultyReceiver};

use crate::config::endpoints::Endpoints;
use crate::config::filter::InstrumentFilter;
use crate::config::{Parts, SubscriberBuilder, display};
use crate::dispatch::Dispatcher;
use crate::dispatch::application::ToApplication;
use crate::dispatch::conflate::{CellWriter, LatestReader};
use crate::error::{ChannelError, FilterError, SubscribeError};
use crate::helper_threads::HelperThreads;
#[cfg(feature = "testing")]
use crate::io::channel_input::ChannelInput;
use crate::io::driver::Driver;
use crate::observe::directory::Directory;
use crate::observe::latency::ChannelLatency;
use crate::observe::polled::Polled;
use crate::observe::summary::Summary;
use crate::observe::totals::Totals;
use crate::observe::{ChannelReport, ChannelShared, Monitor, Shared};
use crate::sync::wake::Wake;

/// Follows channels of a publisher. It can be moved to another thread but not shared: its owner polls it.
/// Other threads watch it through a [`Monitor`].
///
/// A drop without [`Subscriber::leave`] is safe. Sockets and memory are released, and the publisher finds
/// the connection closed. Open gaps are never declared lost.
///
/// Two threads can't poll it:
/// ```compile_fail,E0277
/// # use tickcast_subscriber::Subscriber;
/// fn shared_between_threads<T: Sync>(_: T) {}
/// # fn f(subscriber: Subscriber) {
/// shared_between_threads(subscriber); // `Subscriber` is not `Sync`
/// # }
/// ```
/// The closure can't poll the subscriber that is calling it:
/// ```compile_fail,E0499
/// # fn f(mut subscriber: tickcast_subscriber::Subscriber) {
/// subscriber.poll(|_| {
///     subscriber.poll(|_| {});
/// });
/// # }
/// ```
/// No record outlives the call that lends it. Copy the records to keep:
/// ```compile_fail,E0521
/// # use tickcast_subscriber::Item;
/// # fn f(mut subscriber: tickcast_subscriber::Subscriber) {
/// let mut kept = None;
/// subscriber.poll(|item| {
///     if let Item::Record(_, record) = item {
///         kept = Some(record);
///     }
/// });
/// # }
/// ```
pub struct Subscriber {
    driver: Driver,
    dispatcher: Dispatcher,
    /// The records of `latest` channels that wait for the closure.
    latest: Vec<Option<LatestReader>>,
    /// Whether any channel is conflated.
    conflates: bool,
    /// The counts of items that the closure received from each channel.
    totals: Box<[Totals]>,
    /// Set while a poll runs. It stays set when the closure panics.
    poisoned: bool,
    /// Whether monitors show the current problem.
    problem_reported: bool,
    _helpers: HelperThreads,
}

/// Rounds of one poll on a conflated channel. More datagrams in one poll mean fewer records for the closure.
const LATEST_ROUNDS: usize = 16;

impl Subscriber {
    /// Describes a subscriber of the publisher at `host:port`, or of several publishers of the
    /// same channels.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let one = Subscriber::builder("md1:7400");
    /// let either = Subscriber::builder(["md1:7400", "md2:7400"]);
    /// ```
    pub fn builder(publishers: impl Into<Endpoints>) -> SubscriberBuilder {
        SubscriberBuilder::new(publishers.into())
    }

    pub(crate) fn new(builder: SubscriberBuilder, parts: Parts) -> Self {
        let driver = Driver::new(builder, parts, SystemClock.now());
        let builder = &driver.builder;
        let channels = builder.channels.iter().zip(driver.core.counters());
        let shared = Shared {
            channels: channels
                .map(|(channel, counters)| {
                    let name = display(&channel.channel);
                    ChannelShared::new(name, Arc::clone(counters), builder.latency)
                })
                .collect(),
            clock: Arc::clone(driver.clock()),
            reports: Arc::clone(driver.reports()),
            ..Shared::default()
        };
        let channels = builder.channels.iter().map(|channel| {
            let latest = channel.config.delivery == Delivery::Latest;
            let cells = latest.then(CellWriter::new);
            (channel.filter.clone(), cells, channel.lag_alarm)
        });
        let dispatcher = Dispatcher::new(channels, Arc::new(shared));
        let latest = dispatcher
            .cells()
            .map(|cells| cells.map(CellWriter::reader))
            .collect();
        let conflates = dispatcher.cells().any(|cells| cells.is_some());
        let totals = dispatcher.cells().map(|_| Totals::default()).collect();
        Self {
            conflates,
            driver,
            dispatcher,
            latest,
            totals,
            poisoned: false,
            problem_reported: false,
            _helpers: HelperThreads::default(),
        }
    }

    /// Receives datagrams, passes their items to `on`, and requests missing datagrams. Never blocks.
    /// A call is bounded by a batch of datagrams per line and a bounded read per connection.
    ///
    /// # How it can fail
    /// A poll returns no error. [`Subscriber::problem`] returns the reason why the subscriber does not work
    /// as configured. When `on` panics, the panic propagates to the caller and the subscriber is poisoned.
    /// The items that `on` has not received are lost. Every later call reports the poisoning
    /// ([`Polled::poisoned`], [`SubscribeError::Poisoned`]).
    ///
    /// ```
    /// # use tickcast_subscriber::{Item, Subscriber};
    /// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let mut records = 0;
    /// subscriber.poll(|item| match item {
    ///     Item::Record(_position, _record) => records += 1,
    ///     Item::Event(position, event) => println!("after {}: {event}", position.sequence),
    /// });
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[inline]
    pub fn poll(&mut self, mut on: impl FnMut(Item<'_>)) -> Polled {
        self.poll_batches(&mut on)
    }

    /// Polls as [`poll`](Subscriber::poll) does, but delivers the records of a datagram as one run. A run of
    /// one record type is available as a slice of that type
    /// ([`Records::all_of`](tickcast_reliability::record::Records::all_of)). Work that is common to all
    /// records of the run is then done once.
    ///
    /// # How it can fail
    /// It fails as [`poll`](Subscriber::poll) does: a panic of `to` poisons the subscriber.
    ///
    /// ```
    /// use tickcast_subscriber::record::{MboMsg, Records};
    /// use tickcast_subscriber::{Deliver, Item, Position, Subscriber};
    ///
    /// #[derive(Default)]
    /// struct Volume(u64);
    ///
    /// impl Deliver for Volume {
    ///     fn item(&mut self, item: Item<'_>) {
    ///         match item {
    ///             Item::Record(_, it) => self.0 += it.get::<MboMsg>().map_or(0, |it| it.size.into()),
    ///             Item::Event(position, event) => println!("after {}: {event}", position.sequence),
    ///         }
    ///     }
    ///
    ///     fn records(&mut self, first: &Position, records: Records<'_>) {
    ///         match records.all_of::<MboMsg>() {
    ///             Some(run) => self.0 += run.iter().map(|it| u64::from(it.size)).sum::<u64>(),
    ///             None => self.one_by_one(first, records),
    ///         }
    ///     }
    /// }
    ///
    /// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let mut volume = Volume::default();
    /// subscriber.poll_batches(&mut volume);
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[inline]
    pub fn poll_batches(&mut self, to: &mut impl Deliver) -> Polled {
        // Set the flag before the application's code runs, so that a panic leaves it set.
        if std::mem::replace(&mut self.poisoned, true) {
            return self.refuse_poll();
        }
        let now = SystemClock.now();
        let mut polled = self.receive(now, to);
        if self.conflates {
            self.receive_more(now, &mut polled, to);
        }
        self.poisoned = false;
        polled
    }

    #[cold]
    fn refuse_poll(&mut self) -> Polled {
        self.dispatcher.shared.joined.store(false, Relaxed);
        self.report_problem(Some(SubscribeError::Poisoned.to_string()));
        Polled::POISONED
    }

    /// Runs one round of the driver.
    #[inline]
    fn receive(&mut self, now: Nanos, to: &mut impl Deliver) -> Polled {
        let (driver, mut sink) = self.application_sink(to);
        let polled = driver.poll(now, &mut sink);
        self.finish_poll(now, polled)
    }

    #[inline]
    fn application_sink<'a, D>(
        &'a mut self,
        to: &'a mut D,
    ) -> (&'a mut Driver, ToApplication<'a, D>) {
        let sink = ToApplication {
            dispatcher: &mut self.dispatcher,
            latest: &mut self.latest,
            totals: &mut self.totals,
            to,
        };
        (&mut self.driver, sink)
    }

    /// Receives further rounds, so that their records can be conflated, and passes on the changed records of
    /// `latest` channels.
    fn receive_more(&mut self, now: Nanos, polled: &mut Polled, to: &mut impl Deliver) {
        let mut more = polled.datagrams;
        for _ in 1..LATEST_ROUNDS {
            if more == 0 {
                break;
            }
            let round = self.receive(now, to);
            more = round.datagrams;
            polled.datagrams += round.datagrams;
            polled.messages += round.messages;
        }
        let (driver, mut sink) = self.application_sink(to);
        sink.flush_all(now, &driver.core);
    }

    /// Returns the parts for a thread that polls into the local ring.
    #[inline]
    pub(crate) const fn parts(&mut self) -> (&mut Driver, &mut Dispatcher) {
        (&mut self.driver, &mut self.dispatcher)
    }

    /// Checks the filters, reports problems, and arms the timer of a waiting thread.
    #[inline]
    pub(crate) fn finish_poll(&mut self, now: Nanos, mut polled: Polled) -> Polled {
        self.dispatcher.check_filters();
        if polled.served {
            self.report_problem(self.configured_problem().map(ToString::to_string));
        }
        if self.driver.waker.is_used()
            && let Err(source) = self.driver.waker.arm(self.driver.due(), now)
        {
            self.driver.problems.descriptor = Some(SubscribeError::Descriptor { source });
        }
        polled.problem = self.configured_problem().is_some();
        polled
    }

    /// Publishes the text of the problem to the monitors.
    fn report_problem(&mut self, problem: Option<String>) {
        let shared = &self.dispatcher.shared;
        let is_problem = problem.is_some();
        shared.has_problem.store(is_problem, Relaxed);
        if is_problem || self.problem_reported {
            // locks: taken only while there is a problem; `try_lock` never waits.
            if let Ok(mut reported) = shared.problem.try_lock() {
                *reported = problem;
                self.problem_reported = is_problem;
            }
        }
    }

    /// Waits at most `timeout` for datagrams, messages of the publisher, or a protocol timer. After it
    /// returns, poll until a poll finds nothing to do.
    ///
    /// # Errors
    /// - [`SubscribeError::Poisoned`], inside the [`io::Error`], after a closure has panicked.
    /// - An error of `epoll_wait`, which does not occur on a working system.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tickcast_subscriber::Subscriber;
    /// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// while !subscriber.ended() {
    ///     subscriber.wait(Duration::from_millis(100))?;
    ///     while subscriber.poll(|item| println!("{item:?}")).worked() {}
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> io::Result<Wake> {
        if self.poisoned {
            return Err(io::Error::other(SubscribeError::Poisoned));
        }
        let waker = &self.driver.waker;
        waker.start(self.driver.due(), SystemClock.now())?;
        waker.wait(timeout)
    }

    /// Restarts a channel at `start` with the next poll. Its open gaps are declared lost (cause `left`), and
    /// the repair connection is rebuilt. Records may be delivered a second time.
    ///
    /// The closure receives [`Event::RepairLinkDown`](crate::Event::RepairLinkDown). Until the channel has
    /// joined again, the closure then receives no record and no liveness event of this channel.
    ///
    /// # Errors
    /// [`ChannelError`] when the channel is not followed, or has not joined (again) yet.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{Start, Subscriber};
    /// # let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// if let Some(channel) = subscriber.channel_id("equities") {
    ///     subscriber.rejoin(channel, Start::Oldest)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rejoin(&mut self, channel: ChannelId, start: Start) -> Result<(), ChannelError> {
        if self.poisoned {
            return Err(ChannelError::Poisoned);
        }
        if self.dispatcher.index_of(channel).is_none() {
            return Err(self.unknown(channel));
        }
        if self.driver.is_rejoining(channel) {
            return Err(ChannelError::Rejoining { channel });
        }
        self.driver.rejoin(channel, start);
        let waker = &self.driver.waker;
        if waker.is_used() {
            // Ignore a failure here: the next poll finds that the timer can't be set, and reports it.
            let _ = waker.arm(Nanos::ZERO, SystemClock.now());
        }
        Ok(())
    }

    /// Replaces the filter of a channel from the next record on.
    ///
    /// # Errors
    /// - [`FilterError::Channel`] when the channel is not followed.
    /// - [`FilterError::UnknownSymbol`] when the publisher has not announced a symbol of the filter. The text
    ///   lists the known symbols that are most similar.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{InstrumentFilter, Subscriber};
    /// # let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// if let Some(channel) = subscriber.channel_id("equities") {
    ///     subscriber.set_filter(channel, InstrumentFilter::symbols(["AAPL"]))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_filter(
        &mut self,
        channel: ChannelId,
        filter: InstrumentFilter,
    ) -> Result<(), FilterError> {
        if self.poisoned {
            return Err(ChannelError::Poisoned.into());
        }
        // While the channel rejoins, the core has no state of it, but the directory still has its names.
        let Some(index) = self.dispatcher.index_of(channel) else {
            return Err(self.unknown(channel).into());
        };
        let instruments = self.dispatcher.directory.channel_mut(channel);
        if let Some(symbol) = filter.unknown(instruments).into_iter().next() {
            let known = instruments.like(&symbol);
            return Err(FilterError::UnknownSymbol {
                channel,
                symbol,
                known,
            });
        }
        self.dispatcher.set_filter(index, filter);
        Ok(())
    }

    /// Returns the number of a channel by its requested name. Returns `None` before the publisher's welcome,
    /// and for a name that was not requested.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert_eq!(subscriber.channel_id("equities"), None, "nobody has welcomed us yet");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub fn channel_id(&self, name: &str) -> Option<ChannelId> {
        self.monitor().channel_id(name)
    }

    /// Returns the announced symbols and instrument ids.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert_eq!(subscriber.directory().id("AAPL"), None);
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.dispatcher.directory
    }

    /// Returns a monitor of this subscriber for other threads.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let monitor = subscriber.monitor();
    /// std::thread::spawn(move || println!("{:?}", monitor.channels()));
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor {
            shared: Arc::clone(&self.dispatcher.shared),
        }
    }

    /// Returns the state of every channel, in the order of the builder.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert_eq!(subscriber.channels()[0].name, "equities");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelReport> {
        let reports = self
            .dispatcher
            .shared
            .channels
            .iter()
            .map(ChannelShared::report);
        let with_state = reports
            .zip(self.driver.core.entries())
            .map(|(mut report, receiver)| {
                if let Some(receiver) = receiver {
                    (report.delivered, report.heard) = receiver.progress();
                    report.channel = Some(receiver.channel());
                    report.epoch = receiver.epoch();
                    report.lag = receiver.lag();
                    report.ended = receiver.ended();
                }
                report
            });
        with_state.collect()
    }

    /// Returns a copy of a channel's latency histograms. Returns `None` before the publisher's welcome, and
    /// when latency is not measured.
    ///
    /// ```
    /// # use tickcast_subscriber::{Stage, Subscriber};
    /// # fn f(subscriber: &Subscriber) {
    /// let channel = subscriber.channel_id("equities");
    /// if let Some(latency) = channel.and_then(|it| subscriber.latency(it)) {
    ///     let repair = latency.stage(Stage::Repair);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn latency(&self, channel: ChannelId) -> Option<ChannelLatency> {
        self.monitor().latency(channel)
    }

    /// Returns the faults injected into a channel, if the builder requested any.
    ///
    /// ```
    /// # use tickcast_subscriber::{Subscriber, ChannelId};
    /// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(subscriber.faults(ChannelId(1)).is_none(), "none were asked for");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn faults(&self, channel: ChannelId) -> Option<&FaultyReceiver<Box<dyn Receive>>> {
        self.driver
            .inputs
            .iter()
            .find(|it| it.channel == channel)
            .and_then(ChannelInput::faulty)
    }

    /// Returns whether the publisher has welcomed this subscriber and the repair connection is up. Returns
    /// `false` after a closure has panicked.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(!subscriber.is_joined());
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.driver.core.is_joined() && !self.poisoned
    }

    /// Returns whether every channel has delivered the end of its session. Returns `false` after a closure
    /// has panicked.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(!subscriber.ended());
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[must_use]
    pub fn ended(&self) -> bool {
        self.driver.core.ended() && !self.poisoned
    }

    /// Returns the reason why the subscriber does not work as configured, or `None`. The subscriber keeps
    /// trying.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// # fn f(subscriber: &Subscriber) {
    /// if let Some(problem) = subscriber.problem() {
    ///     eprintln!("{problem}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn problem(&self) -> Option<&SubscribeError> {
        if self.poisoned {
            return Some(&SubscribeError::Poisoned);
        }
        self.configured_problem()
    }

    /// Returns a problem of the configuration or the host. It may resolve later.
    fn configured_problem(&self) -> Option<&SubscribeError> {
        self.driver.problems.first().or(self.dispatcher.problem())
    }

    /// Drops the membership of one line's group, like a switch that loses its multicast state. The protocol
    /// has to detect and repair the loss.
    ///
    /// # Errors
    /// Returns an error when there is no such line, or when the system call fails.
    ///
    /// ```
    /// # use tickcast_subscriber::{LineId, Subscriber, ChannelId};
    /// # let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let refused = subscriber.drop_membership(ChannelId(1), LineId(0));
    /// assert!(refused.is_err(), "no group was joined yet");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[cfg(feature = "testing")]
    pub fn drop_membership(
        &mut self,
        channel: ChannelId,
        line: LineId,
    ) -> Result<(), SubscribeError> {
        if self.poisoned {
            return Err(SubscribeError::Poisoned);
        }
        let name = channel.to_string();
        let input = self
            .driver
            .inputs
            .iter_mut()
            .find(|it| it.channel == channel);
        let Some(input) = input else {
            return Err(SubscribeError::NoTransport { channel: name });
        };
        input.leave(line).map_err(|source| SubscribeError::Receive {
            channel: name,
            source,
        })
    }

    /// Leaves: notifies the publisher, declares open gaps lost, and returns the final counters.
    /// [`Subscriber::leave_with`] also passes each of these losses to a closure.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let summary = subscriber.leave();
    /// assert!(summary.is_whole() && summary.delivered_records() == 0);
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    pub fn leave(self) -> Summary {
        self.leave_with(|_| {})
    }

    /// Leaves, as [`Subscriber::leave`] does, and passes each loss of an open gap to `on`.
    ///
    /// ```
    /// # use tickcast_subscriber::{Event, Item, Subscriber};
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let summary = subscriber.leave_with(|item| {
    ///     if let Item::Event(_, Event::Lost(loss)) = item {
    ///         println!("{loss}");
    ///     }
    /// });
    /// println!("{summary}");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    pub fn leave_with(mut self, mut on: impl FnMut(Item<'_>)) -> Summary {
        // After a panic of the closure, the subscriber leaves without notifying the publisher.
        if !self.poisoned {
            let (driver, mut sink) = self.application_sink(&mut on);
            driver.leave(SystemClock.now(), &mut sink);
            sink.flush_all(Nanos::MAX, &driver.core);
        }
        self.summary()
    }

    /// Returns the final counters.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            channels: self.channels(),
            poisoned: self.poisoned,
        }
    }

    /// Returns the parts of a local-ring reader: its view of each `latest` channel, and the lag alarms.
    pub(crate) fn for_reader(&mut self) -> (Vec<Option<LatestReader>>, Vec<Option<u64>>) {
        let latest = std::mem::take(&mut self.latest);
        (latest, self.dispatcher.alarms().collect())
    }

    /// Returns the counts of items that the closure has received, where a local-ring reader starts.
    pub(crate) fn totals(&self) -> Box<[Totals]> {
        self.totals.clone()
    }

    /// Returns whether a closure has panicked.
    pub(crate) const fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Returns the error for a channel that is not followed. It lists the channels that are.
    fn unknown(&self, channel: ChannelId) -> ChannelError {
        let all = self.channels().into_iter();
        let followed: Vec<String> = all
            .map(|ChannelReport { name, channel, .. }| match channel {
                Some(id) => format!("{name:?} ({id})"),
                None => format!("{name:?} (not joined yet)"),
            })
            .collect();
        ChannelError::Unknown {
            channel,
            followed: followed.join(", "),
        }
    }
}

impl SubscriberBuilder {
    /// Builds the subscriber. It connects with the first poll and keeps trying until the publisher runs, so
    /// either side may start first.
    ///
    /// # Errors
    /// [`SubscribeError`] when the description is invalid, an interface is missing, or the publisher's
    /// host is unknown. The lookup of the host may block.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(!subscriber.is_joined(), "it connects with the first poll");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    pub fn build(self) -> Result<Subscriber, SubscribeError> {
        let mut parts = self.check()?;
        let interval_log = parts.interval_log.take();
        let mut subscriber = Subscriber::new(self, parts);
        let (builder, shared) = (&subscriber.driver.builder, &subscriber.dispatcher.shared);
        subscriber._helpers = HelperThreads::start(builder, interval_log, shared)?;
        Ok(subscriber)
    }
}

/// Marks the monitors as not joined, also after a panic.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.dispatcher.shared.joined.store(false, Relaxed);
    }
}

/// Provides one descriptor for your own `epoll`. It becomes readable when there is something to do, and
/// stays the same for the life of the subscriber. When it is readable, poll until a poll finds nothing.
///
/// ```
/// # use std::os::fd::AsFd;
/// # use tickcast_subscriber::Subscriber;
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let readable_when_there_is_work = subscriber.as_fd();
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
impl AsFd for Subscriber {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let waker = &self.driver.waker;
        // Ignore a failure here: the next poll finds that the timer can't be set, and reports it.
        let due = if self.poisoned {
            Nanos::ZERO
        } else {
            self.driver.due()
        };
        let _ = waker.start(due, SystemClock.now());
        waker.as_fd()
    }
}

impl AsRawFd for Subscriber {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Subscriber");
        all.field("channels", &self.channels())
            .finish_non_exhaustive()
    }
}
