//! A subscriber on its own thread. The thread is pinned, can be stopped and joined, and reports a panic as
//! an error of the join.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
use tickcast_reliability::record::{RecordRef, Records};
use tickcast_reliability::types::ChannelId;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::idle::Idle;
use tickcast_transport::host::pin::{Core, pin_to};

use super::commands::{Command, CommandReceiver, CommandSender, LIMIT, command_queue};
use super::reader::Reader;
use super::ring::{SIZE_MAX, SIZE_MIN, Writer};
use crate::config::filter::InstrumentFilter;
use crate::dispatch::{Batch, Dispatched, Dispatcher, Verdict};
use crate::error::{CommandError, JoinError, Panicked, SpawnError};
use crate::observe::Monitor;
use crate::observe::polled::Polled;
use crate::observe::summary::Summary;
use crate::subscriber::Subscriber;

/// A subscriber that runs on its own thread. Dropping it stops the thread without waiting for it.
///
/// # How it can fail
/// A panic of the closure ends the thread. [`Running::join`] returns it as an error.
///
/// ```no_run
/// # use tickcast_subscriber::{Core, Idle, Subscriber};
/// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let running = subscriber.run_pinned(Core(2), Idle::Spin, |item| println!("{item:?}"))?;
/// std::thread::sleep(std::time::Duration::from_secs(60));
/// running.stop();
/// println!("{}", running.join()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    commands: CommandSender,
    thread: Option<JoinHandle<Summary>>,
    monitor: Monitor,
}

impl Running {
    /// Rejoins a channel as [`Subscriber::rejoin`] does, on the subscriber's thread. The call waits for
    /// a round of the thread's loop, including the time its closure takes. Losses and later items come
    /// through the closure or the readers, in order.
    ///
    /// Do not call this while you hold something that the closure waits for. Otherwise both block until
    /// the command is withdrawn after 2 seconds with [`CommandError::Late`].
    ///
    /// # Errors
    /// [`CommandError`] in these cases:
    /// - The channel is not followed or has not joined yet.
    /// - The thread has ended.
    /// - The caller is the thread's own closure.
    /// - The closure took too long.
    /// - Too many commands are queued.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{Core, Idle, Start, Subscriber};
    /// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let (running, reader) = subscriber.split(Core(2), Idle::Spin, 64 << 20)?;
    /// // Later, when it has joined:
    /// if let Some(channel) = running.monitor().channel_id("equities") {
    ///     running.rejoin(channel, Start::Oldest)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rejoin(&self, channel: ChannelId, start: Start) -> Result<(), CommandError> {
        self.ask(Command::Rejoin(channel, start))
    }

    /// Replaces a filter as [`Subscriber::set_filter`] does, on the subscriber's thread. The filter applies
    /// from the next record that the thread receives.
    ///
    /// # Errors
    /// [`CommandError`] in the cases of [`Running::rejoin`], and for a symbol that the publisher has not
    /// announced. The text of the latter lists known symbols.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{Core, Idle, InstrumentFilter, Subscriber};
    /// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// # let (running, reader) = subscriber.split(Core(2), Idle::Spin, 64 << 20)?;
    /// if let Some(channel) = running.monitor().channel_id("equities") {
    ///     running.set_filter(channel, InstrumentFilter::symbols(["AAPL"]))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_filter(
        &self,
        channel: ChannelId,
        filter: InstrumentFilter,
    ) -> Result<(), CommandError> {
        self.ask(Command::SetFilter(channel, filter))
    }

    fn ask(&self, command: Command) -> Result<(), CommandError> {
        let thread = self.thread.as_ref().ok_or(CommandError::Ended)?;
        self.commands.ask(thread, command, LIMIT)
    }

    /// Asks the thread to leave. It leaves within a round of its loop.
    ///
    /// ```
    /// # fn f(running: tickcast_subscriber::Running) -> Result<(), tickcast_subscriber::JoinError> {
    /// running.stop();
    /// println!("{}", running.join()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Returns whether the thread has ended.
    ///
    /// ```
    /// # fn f(running: tickcast_subscriber::Running) {
    /// if running.is_finished() {
    ///     println!("{:?}", running.join());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns whether the caller is this subscriber's thread, inside its closure. There, a join and commands
    /// are not possible.
    ///
    /// ```
    /// # fn f(running: &tickcast_subscriber::Running) {
    /// assert!(!running.is_own_thread());
    /// # }
    /// ```
    #[must_use]
    pub fn is_own_thread(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|it| it.thread().id() == std::thread::current().id())
    }

    /// Returns a monitor of the subscriber.
    ///
    /// ```
    /// # fn f(running: tickcast_subscriber::Running) {
    /// println!("{}", running.monitor().is_joined());
    /// # }
    /// ```
    #[must_use]
    pub const fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Waits until the subscriber has left, which it does at the end of all sessions or after a stop.
    ///
    /// # Errors
    /// - [`JoinError::Panicked`] when the closure panicked.
    /// - Another [`JoinError`] when the caller is the thread's own closure.
    ///
    /// ```
    /// # fn f(running: tickcast_subscriber::Running) {
    /// match running.join() {
    ///     Ok(summary) => println!("{summary}"),
    ///     Err(panicked) => eprintln!("{panicked}"),
    /// }
    /// # }
    /// ```
    pub fn join(mut self) -> Result<Summary, JoinError> {
        if self.is_own_thread() {
            return Err(JoinError::OwnThread);
        }
        let Some(thread) = self.thread.take() else {
            // invariant: only `join` takes the thread, and `join` consumes `self`.
            unreachable!("a thread is joined once");
        };
        thread.join().map_err(|panic| {
            let message = message_of(&*panic);
            JoinError::Panicked(Panicked { message })
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is not text").to_owned()
}

/// The time for which the thread continues after the end, so that the publisher learns of it.
const AFTER_END: Duration = Duration::from_millis(250);

impl Subscriber {
    /// Starts a thread that polls, pinned to `core`, until all channels have ended or [`Running::stop`] is
    /// called. The subscriber then leaves.
    ///
    /// # Errors
    /// [`SpawnError`] when no such thread can be started. The subscriber is then gone.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{Core, Idle, Item, Subscriber};
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let mut records = 0;
    /// let running = subscriber.run_pinned(Core(2), Idle::Spin, move |item| {
    ///     records += u64::from(matches!(item, Item::Record(..)));
    /// })?;
    /// println!("{}", running.join()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_pinned(
        self,
        core: Core,
        idle: Idle,
        on: impl FnMut(Item<'_>) + Send + 'static,
    ) -> Result<Running, SpawnError> {
        run(self, core, idle, on)
    }

    /// Starts a thread that receives and repairs, pinned to `core`, and writes to a local ring. Slower
    /// threads read the ring at their own speed: clone the reader for each. The ring has at least
    /// `size_bytes` (1 MiB to 64 GiB, rounded up to a power of two).
    ///
    /// A reader that is overtaken receives the exact counts of its loss. It delays neither repair nor the
    /// other readers.
    ///
    /// # Errors
    /// [`SpawnError`] when the ring or the thread can't be created. The subscriber is then gone.
    ///
    /// ```no_run
    /// # use tickcast_subscriber::{Core, Idle, Subscriber};
    /// # use std::time::Duration;
    /// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let (running, mut reader) = subscriber.split(Core(2), Idle::Spin, 64 << 20)?;
    /// while !reader.is_over() {
    ///     reader.wait(Duration::from_millis(100));
    ///     reader.poll(|item| println!("{item:?}"));
    /// }
    /// println!("{}", running.join()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(
        self,
        core: Core,
        idle: Idle,
        size_bytes: usize,
    ) -> Result<(Running, Reader), SpawnError> {
        split(self, core, idle, size_bytes)
    }
}

/// Runs a subscriber as [`Subscriber::run_pinned`] describes.
fn run(
    subscriber: Subscriber,
    core: Core,
    idle: Idle,
    mut on: impl FnMut(Item<'_>) + Send + 'static,
) -> Result<Running, SpawnError> {
    spawn(subscriber, core, move |mut subscriber, control| {
        follow(&mut subscriber, control, idle, |it| {
            it.poll_batches(&mut on)
        });
        subscriber.leave_with(on)
    })
}

/// Splits a subscriber as [`Subscriber::split`] describes.
fn split(
    mut subscriber: Subscriber,
    core: Core,
    idle: Idle,
    size_bytes: usize,
) -> Result<(Running, Reader), SpawnError> {
    if !(SIZE_MIN..=SIZE_MAX).contains(&size_bytes) {
        return Err(SpawnError::Size { size_bytes });
    }
    let monitor = subscriber.monitor();
    let (latest, alarms) = subscriber.for_reader();
    let ring = Writer::open(size_bytes, subscriber.totals());
    let (mut writer, cursor) = ring.ok_or(SpawnError::Memory { size_bytes })?;
    let reader = Reader::new(cursor, latest, alarms, monitor);
    let running = spawn(subscriber, core, move |mut subscriber, control| {
        follow(&mut subscriber, control, idle, |it| {
            poll_to_ring(it, &mut writer)
        });
        let (driver, dispatcher) = subscriber.parts();
        let writer = &mut writer;
        driver.leave(SystemClock.now(), &mut ToRing { dispatcher, writer });
        subscriber.summary()
    })?;
    Ok((running, reader))
}

/// The thread's side of a [`Running`].
struct ThreadControl {
    stop: Arc<AtomicBool>,
    receiver: CommandReceiver,
}

/// Polls until all channels have ended and the publisher knows it, or until the thread must stop.
fn follow(
    subscriber: &mut Subscriber,
    control: &ThreadControl,
    mut idle: Idle,
    mut poll: impl FnMut(&mut Subscriber) -> Polled,
) {
    let mut ended_at = None;
    while !control.stop.load(Relaxed) {
        let polled = poll(subscriber);
        if polled.served {
            run_commands(subscriber, &control.receiver);
        }
        if polled.served && subscriber.ended() {
            let ended_at = *ended_at.get_or_insert_with(Instant::now);
            if ended_at.elapsed() >= AFTER_END {
                return;
            }
        } else if polled.served {
            ended_at = None;
        }
        idle.idle(polled.worked());
    }
}

/// Executes the queued commands.
#[inline]
fn run_commands(subscriber: &mut Subscriber, receiver: &CommandReceiver) {
    while let Some(mut pending) = receiver.next() {
        let outcome = match &mut pending.command {
            Command::Rejoin(channel, start) => {
                let outcome = subscriber.rejoin(*channel, *start);
                outcome.map_err(CommandError::from)
            }
            Command::SetFilter(channel, filter) => {
                let filter = std::mem::take(filter);
                let outcome = subscriber.set_filter(*channel, filter);
                outcome.map_err(CommandError::from)
            }
        };
        pending.answer(outcome);
    }
}

fn spawn(
    subscriber: Subscriber,
    core: Core,
    work: impl FnOnce(Subscriber, &ThreadControl) -> Summary + Send + 'static,
) -> Result<Running, SpawnError> {
    if subscriber.is_poisoned() {
        return Err(SpawnError::Poisoned);
    }
    let (stop, monitor) = (Arc::new(AtomicBool::new(false)), subscriber.monitor());
    let (commands, receiver) = command_queue();
    let (pinned, wait_pinned) = mpsc::sync_channel(1);
    let control = ThreadControl {
        stop: Arc::clone(&stop),
        receiver,
    };
    let thread = std::thread::Builder::new().name("tickcast".into());
    let thread = thread.spawn(move || {
        let outcome = pin_to(core);
        let is_pinned = outcome.is_ok();
        // The spawning thread waits for this result.
        let _ = pinned.send(outcome);
        if is_pinned {
            work(subscriber, &control)
        } else {
            subscriber.leave()
        }
    });
    let thread = thread.map_err(|source| SpawnError::Thread { source })?;
    if let Ok(Err(error)) = wait_pinned.recv() {
        // Wait for the thread, which only leaves, so that nothing of it remains.
        let _ = thread.join();
        return Err(error.into());
    }
    Ok(Running {
        stop,
        commands,
        thread: Some(thread),
        monitor,
    })
}

/// Polls once into the local ring.
#[inline]
fn poll_to_ring(subscriber: &mut Subscriber, writer: &mut Writer) -> Polled {
    let now = SystemClock.now();
    let (driver, dispatcher) = subscriber.parts();
    let polled = driver.poll(now, &mut ToRing { dispatcher, writer });
    writer.flush();
    subscriber.finish_poll(now, polled)
}

/// A sink that writes to the local ring. Each reader conflates `latest` channels by itself.
struct ToRing<'a> {
    dispatcher: &'a mut Dispatcher,
    writer: &'a mut Writer,
}

impl Dispatched for ToRing<'_> {
    fn dispatcher(&mut self) -> &mut Dispatcher {
        self.dispatcher
    }

    #[inline]
    fn record(&mut self, index: usize, position: &Position, record: RecordRef<'_>) {
        match self.dispatcher.record(index, position, record) {
            Verdict::Passes => self.writer.record(index, position, record),
            Verdict::Conflated(cell) => {
                self.dispatcher.handed(index).handed_records.increment();
                self.writer.changed(index, cell);
            }
            Verdict::LeftOut => {}
        }
    }

    fn event(&mut self, index: usize, position: &Position, event: &Event) {
        self.dispatcher.event(index, position, event);
        self.writer.event(index, position, event);
    }
}

impl Deliver for ToRing<'_> {
    fn item(&mut self, item: Item<'_>) {
        self.dispatch(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        match self.dispatcher.batch(first, records) {
            Batch::Passes(index) => first.each(records, |position, record| {
                self.writer.record(index, position, record);
            }),
            Batch::Mixed(index) => first.each(records, |position, record| {
                self.record(index, position, record);
            }),
            Batch::LeftOut => {}
        }
    }
}
