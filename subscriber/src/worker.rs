//! A subscriber on a thread of its own: pinned, stopped and joined; a panic in it is an error to
//! whoever joins.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tickcast_reliability::delivery::{Event, Item, Position};
use tickcast_reliability::record::RecordRef;
use tickcast_transport::clock::{Clock, SystemClock};
use tickcast_transport::idle::Idle;
use tickcast_transport::pin::{Core, pin_to};

use crate::error::{Panicked, SpawnError};
use crate::hand::Hand;
use crate::latest::Cell;
use crate::local_ring::{SIZE_MAX, SIZE_MIN, Writer};
use crate::monitor::{Monitor, Shared};
use crate::split::Reader;
use crate::subscriber::{Polled, Subscriber};
use crate::summary::Summary;

/// A subscriber that runs on a thread of its own. Dropping it stops the thread without waiting
/// for it.
///
/// # How it can fail
/// A panic of the closure ends the thread; [`Running::join`] tells it.
///
/// The subscriber is the thread's: [`Subscriber::rejoin`] and [`Subscriber::set_filter`] are called
/// before [`Subscriber::run_pinned`] or [`Subscriber::split`].
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
    thread: Option<JoinHandle<Summary>>,
    monitor: Monitor,
}

impl Running {
    /// Asks it to leave. It does so within a round of its loop.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Watches it.
    #[must_use]
    pub const fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Waits until it has left: at the end of all sessions, or once it was asked to stop.
    ///
    /// # Errors
    /// [`Panicked`] when the closure did.
    pub fn join(mut self) -> Result<Summary, Panicked> {
        let Some(thread) = self.thread.take() else {
            // invariant: only joining takes it, and joining consumes us.
            unreachable!("a thread is joined once");
        };
        thread.join().map_err(|panic| Panicked {
            message: message_of(&*panic),
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
    text.unwrap_or("a value that is no text").to_owned()
}

/// How long to go on after the end, so that the publisher hears that we have reached it.
const AFTER_END: Duration = Duration::from_millis(250);

/// See [`Subscriber::run_pinned`].
pub(crate) fn run(
    subscriber: Subscriber,
    core: Core,
    idle: Idle,
    mut on: impl FnMut(Item<'_>) + Send + 'static,
) -> Result<Running, SpawnError> {
    spawn(subscriber, core, move |mut subscriber, stop| {
        follow(&mut subscriber, stop, idle, |it| it.poll(&mut on));
        subscriber.leave_with(on)
    })
}

/// See [`Subscriber::split`].
pub(crate) fn split(
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
    let (mut writer, cursor) = Writer::new(size_bytes, latest.len());
    // Counted as handed over when it was kept.
    subscriber.drain_backlog(|index, item| match item {
        Item::Record(position, record) => writer.record(index, position, record),
        Item::Event(position, event) => writer.event(index, position, event),
    });
    writer.flush();
    let reader = Reader::new(cursor, latest, alarms, monitor.clone());
    let running = spawn(subscriber, core, move |mut subscriber, stop| {
        let shared = monitor.shared;
        let mut hand = ToRing { writer, shared };
        follow(&mut subscriber, stop, idle, |it| {
            let polled = it.poll_into(SystemClock.now(), &mut hand);
            hand.writer.flush();
            polled
        });
        subscriber.leave_into(&mut hand);
        Summary {
            channels: subscriber.channels(),
        }
    })?;
    Ok((running, reader))
}

/// Polls until all channels have ended and the publisher knows, or until it is asked to stop.
fn follow(
    subscriber: &mut Subscriber,
    stop: &AtomicBool,
    mut idle: Idle,
    mut poll: impl FnMut(&mut Subscriber) -> Polled,
) {
    let mut ended_at = None;
    while !stop.load(Relaxed) {
        let polled = poll(subscriber);
        if polled.looked && subscriber.ended() {
            let ended_at = *ended_at.get_or_insert_with(Instant::now);
            if ended_at.elapsed() >= AFTER_END {
                return;
            }
        } else if polled.looked {
            ended_at = None;
        }
        idle.idle(polled.worked());
    }
}

fn spawn(
    subscriber: Subscriber,
    core: Core,
    work: impl FnOnce(Subscriber, &AtomicBool) -> Summary + Send + 'static,
) -> Result<Running, SpawnError> {
    let (stop, monitor) = (Arc::new(AtomicBool::new(false)), subscriber.monitor());
    let (pinned, wait_pinned) = mpsc::sync_channel(1);
    let asked = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("tickcast".into());
    let thread = thread.spawn(move || {
        let outcome = pin_to(core);
        let is_pinned = outcome.is_ok();
        // Who spawns us waits for it.
        let _ = pinned.send(outcome);
        if is_pinned {
            work(subscriber, &asked)
        } else {
            subscriber.leave()
        }
    });
    let thread = thread.map_err(|source| SpawnError::Thread { source })?;
    if let Ok(outcome) = wait_pinned.recv() {
        outcome?;
    }
    Ok(Running {
        stop,
        thread: Some(thread),
        monitor,
    })
}

/// Hands items to the readers of a local ring.
struct ToRing {
    writer: Writer,
    shared: Arc<Shared>,
}

impl Hand for ToRing {
    #[inline]
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>) {
        self.shared.channels[channel]
            .handed
            .handed_records
            .increment();
        self.writer.record(channel, position, record);
    }

    fn event(&mut self, channel: usize, position: &Position, event: &Event) {
        self.shared.channels[channel]
            .handed
            .handed_events
            .increment();
        self.writer.event(channel, position, event);
    }

    #[inline]
    fn changed(&mut self, channel: usize, cell: Cell) {
        self.shared.channels[channel]
            .handed
            .handed_records
            .increment();
        self.writer.changed(channel, cell);
    }
}
