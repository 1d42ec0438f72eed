//! The subscriber: one poll moves everything along, and never blocks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Deliver, Delivery, Item, LineId};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::Receive;
use tickcast_transport::faults::Faulty;
use tickcast_transport::host::clock::{Clock, SystemClock};

use crate::config::endpoints::Endpoints;
use crate::config::filter::InstrumentFilter;
use crate::config::{Parts, SubscriberBuilder, display};
use crate::dispatch::Dispatcher;
use crate::dispatch::application::ToApplication;
use crate::dispatch::conflate::{CellWriter, LatestReader};
use crate::error::{ChannelError, FilterError, SubscribeError};
use crate::io::ChannelInput;
use crate::io::driver::Driver;
use crate::observe::directory::Directory;
use crate::observe::latency::ChannelLatency;
use crate::observe::polled::Polled;
use crate::observe::summary::Summary;
use crate::observe::totals::Totals;
use crate::observe::{ChannelReport, ChannelShared, Monitor, Shared};
use crate::sync::wake::Wake;

/// Follows channels of a publisher. It can be moved to another thread but not shared: whoever has
/// it polls it. Other threads watch it through a [`Monitor`].
///
/// Dropping it without [`Subscriber::leave`] is safe: sockets and memory are given back, the
/// publisher finds the connection closed, and what was still missing is never declared lost.
///
/// Two threads can't poll it:
/// ```compile_fail,E0277
/// # use tickcast_subscriber::Subscriber;
/// fn shared_between_threads<T: Sync>(_: T) {}
/// # fn f(subscriber: Subscriber) {
/// shared_between_threads(subscriber); // `Subscriber` is not `Sync`
/// # }
/// ```
/// Nor can the closure poll, for it is being polled:
/// ```compile_fail,E0499
/// # fn f(mut subscriber: tickcast_subscriber::Subscriber) {
/// subscriber.poll(|_| {
///     subscriber.poll(|_| {});
/// });
/// # }
/// ```
/// And no record outlives the call that it is lent for; copy what is to be kept:
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
    /// What of `latest` channels the closure has not been given.
    latest: Vec<Option<LatestReader>>,
    /// Whether there is such a channel.
    conflates: bool,
    /// What the closure was given of each channel.
    totals: Box<[Totals]>,
    /// Whether a poll has begun and not ended: then its closure panicked.
    poisoned: bool,
    /// Whether others know of the problem that there is.
    problem_reported: bool,
}

/// Rounds of one poll, where a channel is conflated: the more is taken at once, the less is
/// handed over.
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
        }
    }

    /// Takes what has come, hands it to `on`, and asks for what is missing. Bounded: at most a
    /// batch of datagrams per line and a bounded read per connection. Never blocks.
    ///
    /// # How it can fail
    /// It goes on whatever happens; what keeps it from working as configured is its
    /// [`Subscriber::problem`]. When `on` panics, the panic goes on to the caller, and the
    /// subscriber is poisoned: the items that `on` was not given are gone, and every later call
    /// reports that ([`Polled::poisoned`], [`SubscribeError::Poisoned`]).
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

    /// As [`poll`](Subscriber::poll), where records are handed over by the run: those of a datagram, as a
    /// slice of their type where they are all of one ([`Records::all_of`]). What is the
    /// same for all of them is then looked at once.
    ///
    /// # How it can fail
    /// As there.
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
        // Where the application's code panics, this stays set.
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

    /// Takes what has come, once.
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

    /// Takes what else has come, so that it can be conflated, and hands over what has changed of
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

    /// For a thread that polls into the local ring.
    #[inline]
    pub(crate) const fn parts(&mut self) -> (&mut Driver, &mut Dispatcher) {
        (&mut self.driver, &mut self.dispatcher)
    }

    /// Checks the filters, reports problems, and sets the timer of whoever waits.
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

    /// Lets others see the problem that there is, in words.
    fn report_problem(&mut self, problem: Option<String>) {
        let shared = &self.dispatcher.shared;
        let is_problem = problem.is_some();
        shared.has_problem.store(is_problem, Relaxed);
        if is_problem || self.problem_reported {
            // locks: while there is a problem, and waits for nobody.
            if let Ok(mut reported) = shared.problem.try_lock() {
                *reported = problem;
                self.problem_reported = is_problem;
            }
        }
    }

    /// Waits until there is something to do, at most for so long: datagrams, messages of the
    /// publisher, or a timer of the protocol. Then poll, until nothing was left to do.
    ///
    /// # Errors
    /// [`SubscribeError::Poisoned`] within, after a closure has panicked; and those of
    /// `epoll_wait`, which a working system does not give.
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

    /// Begins a channel anew at `start`, with the next poll: what is open of it is declared lost
    /// (cause `left`), and the repair connection is built anew. What was delivered before may be
    /// delivered again.
    ///
    /// The channel is told [`Event::RepairLinkDown`](crate::Event::RepairLinkDown), and then nothing
    /// at all before it has joined: neither records nor that the publisher is silent or dead.
    ///
    /// # Errors
    /// [`ChannelError`] when the channel is not followed, or is not joined (again) yet.
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
            // As in `as_fd`.
            let _ = waker.arm(Nanos::ZERO, SystemClock.now());
        }
        Ok(())
    }

    /// Replaces the filter of a channel, from the next record on.
    ///
    /// # Errors
    /// [`FilterError`] when the channel is not followed, or the filter names a symbol that the
    /// publisher has not announced; the text says what is known.
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
        // While it is joined anew the core has nothing of it, and its names are here.
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

    /// The number of a channel by the name it was asked for; `None` before the publisher's
    /// welcome, and for a name that was not asked for.
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

    /// Symbols and instrument ids, as far as they were announced.
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

    /// Watches this subscriber from other threads.
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

    /// Every channel as it stands, in the order they were asked for.
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

    /// A copy of a channel's latency histograms; `None` before the publisher's welcome, or when
    /// latency is not measured.
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

    /// The faults injected into a channel, where the builder asked for some.
    ///
    /// ```
    /// # use tickcast_subscriber::{Subscriber, ChannelId};
    /// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(subscriber.faults(ChannelId(1)).is_none(), "none were asked for");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn faults(&self, channel: ChannelId) -> Option<&Faulty<Box<dyn Receive>>> {
        self.driver
            .inputs
            .iter()
            .find(|it| it.channel == channel)
            .and_then(ChannelInput::faulty)
    }

    /// Whether the publisher has welcomed us and the repair connection is up; not after a closure
    /// has panicked.
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

    /// Whether every channel has delivered the end of its session; not after a closure has panicked.
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

    /// What keeps the subscriber from working as it was configured, if anything does. It goes on
    /// trying all the same.
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

    /// A problem of configuration or host, which may go away.
    fn configured_problem(&self) -> Option<&SubscribeError> {
        self.driver.problems.first().or(self.dispatcher.problem())
    }

    /// Drops the membership of one line's group, as a switch that forgets us would: what follows
    /// is the protocol's to find and mend.
    ///
    /// # Errors
    /// When there is no such line, or the system refuses.
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

    /// Leaves: the publisher is told, and the final counters come back. What is still open is
    /// declared lost in them; [`Subscriber::leave_with`] tells it one by one.
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

    /// As [`Subscriber::leave`], with a last call for what is declared lost.
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
        // A closure that panicks takes the subscriber with it.
        if !self.poisoned {
            let (driver, mut sink) = self.application_sink(&mut on);
            driver.leave(SystemClock.now(), &mut sink);
            sink.flush_all(Nanos::MAX, &driver.core);
        }
        self.summary()
    }

    /// What it leaves behind.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            channels: self.channels(),
            poisoned: self.poisoned,
        }
    }

    /// For a reader of the local ring: its own view of each `latest` channel, and the alarms.
    pub(crate) fn for_reader(&mut self) -> (Vec<Option<LatestReader>>, Vec<Option<u64>>) {
        let latest = std::mem::take(&mut self.latest);
        (latest, self.dispatcher.alarms().collect())
    }

    /// For a reader of the local ring: what the closure was given before.
    pub(crate) fn totals(&self) -> Box<[Totals]> {
        self.totals.clone()
    }

    /// Whether a closure has panicked.
    pub(crate) const fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// A channel that is not followed, and those that are.
    fn unknown(&self, channel: ChannelId) -> ChannelError {
        let all = self.channels().into_iter();
        let followed: Vec<String> = all
            .map(|report| match report.channel {
                Some(id) => format!("{:?} ({id})", report.name),
                None => format!("{:?} (not joined yet)", report.name),
            })
            .collect();
        ChannelError::Unknown {
            channel,
            followed: followed.join(", "),
        }
    }
}

impl SubscriberBuilder {
    /// Builds the subscriber. It connects with the first poll, and goes on trying for as long as
    /// the publisher is not there: either may start first.
    ///
    /// # Errors
    /// [`SubscribeError`] when the description makes no sense, an interface is not there, or the
    /// publisher's host is unknown.
    /// Looking up the host may block.
    ///
    /// ```
    /// # use tickcast_subscriber::Subscriber;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// assert!(!subscriber.is_joined(), "it connects with the first poll");
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    pub fn build(self) -> Result<Subscriber, SubscribeError> {
        let parts = self.check()?;
        Ok(Subscriber::new(self, parts))
    }
}

/// However it ends, by a panic too: its monitors say that nobody is joined any more.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.dispatcher.shared.joined.store(false, Relaxed);
    }
}

/// One descriptor that becomes readable when there is something to do, for an `epoll` of your own.
/// It stays the same for as long as the subscriber lives. When it is readable, poll until nothing
/// was left to do.
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
        // A timer that can't be set is met again, and said, at the next poll.
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
