//! A subscriber that the caller's thread polls.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tickcast_subscriber as rust;
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::{Core, Idle, InstrumentFilter, Wake};

use crate::arguments::{ids, range, start, symbols, text, write_text};
use crate::error::{Error, handle, number, status};
use crate::handle::{Handle, Kind, free, give, take, with};
use crate::item::{Callback, OnItem, polled};
use crate::monitor::Monitor;
use crate::reader::{Reader, Running, Summary, fill_summary};

/// Follows channels of a publisher.
pub struct Subscriber(());

impl Handle for Subscriber {
    type Behind = rust::Subscriber;
    const KIND: Kind = Kind::Subscriber;
}

/// The behaviour of a thread of the library when there is nothing to do.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum IdleWith {
    /// Never yields the core: lowest latency, for a dedicated core.
    Spin = 0,
    /// Yields the core when other threads wait for it.
    Yield = 1,
    /// Sleeps for `idle_us`, for hosts with shared cores.
    Sleep = 2,
}

fn idle(with: u32, us: u32) -> Result<Idle, Error> {
    const SPIN: u32 = IdleWith::Spin as u32;
    const YIELD: u32 = IdleWith::Yield as u32;
    const SLEEP: u32 = IdleWith::Sleep as u32;
    Ok(match with {
        SPIN => Idle::Spin,
        YIELD => Idle::Yield,
        SLEEP => Idle::Sleep { us },
        _ => range("idle", with, "a TickcastIdleWith")?,
    })
}

/// Receives datagrams, passes their items to `on`, and requests missing datagrams. Bounded, and never
/// blocks. Returns TICKCAST_POLL_ bits, or a status below 0.
///
/// ```c
/// while (tickcast_subscriber_ended(subscriber) == 0 && tickcast_subscriber_wait(subscriber, 100) >= 0)
///     if (tickcast_subscriber_poll(subscriber, on_item, context) < 0) puts(tickcast_last_error());
/// ```
///
/// # Safety
/// `on` can be called with `context` until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_poll(
    subscriber: *mut Subscriber,
    on: OnItem,
    context: *mut c_void,
) -> i32 {
    number(|| {
        let on = Callback::new(on, context)?;
        with(subscriber, |it| polled(|| it.poll(on.on_caller())))
    })
}

/// Waits until there is something to do (1), at most `timeout_ms` (0). Then poll until a poll finds
/// nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_wait(subscriber: *mut Subscriber, timeout_ms: u32) -> i32 {
    number(|| {
        with(subscriber, |it| {
            let wake = it.wait(Duration::from_millis(timeout_ms.into()))?;
            Ok(i32::from(wake == Wake::Ready))
        })
    })
}

/// Returns a descriptor for your own epoll. It becomes readable when there is something to do. The
/// subscriber owns it: do not close it.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_fd(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(it.as_raw_fd())))
}

/// Returns 1 when every channel has delivered the end of its session, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_ended(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(i32::from(it.ended()))))
}

/// Returns 1 when the publisher has welcomed us, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_is_joined(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(i32::from(it.is_joined()))))
}

/// Writes the reason why the subscriber does not work as configured. The length is 0 when there is none.
///
/// # Safety
/// `out` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_problem(
    subscriber: *mut Subscriber,
    out: *mut c_char,
    size: usize,
) -> i64 {
    number(|| {
        with(subscriber, |it| {
            let problem = it.problem().map(ToString::to_string).unwrap_or_default();
            // SAFETY: as for `write_text`.
            Ok(unsafe { write_text(&problem, out, size) })
        })
    })
}

/// Returns the number of a channel by its requested name. It is known from its event JOINED on.
///
/// # Safety
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_channel_id(
    subscriber: *mut Subscriber,
    name: *const c_char,
) -> i32 {
    number(|| {
        // SAFETY: as for `text`.
        let name = unsafe { text(name, "name") }?;
        with(subscriber, |it| {
            let id = it.channel_id(name).map(|id| id.0.into());
            id.ok_or_else(|| {
                let all = it.channels().into_iter().map(|channel| channel.name);
                let known = all.collect::<Vec<_>>().join(", ");
                Error::Unknown {
                    what: "channel",
                    name: name.to_owned(),
                    known: format!("the subscriber follows {known}, each after its event `joined`"),
                }
            })
        })
    })
}

/// Restarts a channel; `at` is a TickcastStartAt. Its open gaps are declared lost.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_rejoin(
    subscriber: *mut Subscriber,
    channel: u16,
    at: u32,
    epoch: u64,
    sequence: u64,
) -> i32 {
    status(|| {
        let start = start(at, epoch, sequence)?;
        with(subscriber, |it| Ok(it.rejoin(ChannelId(channel), start)?))
    })
}

fn set_filter(
    subscriber: *const Subscriber,
    channel: u16,
    filter: Result<InstrumentFilter, Error>,
) -> i32 {
    status(|| {
        let filter = filter?;
        with(subscriber, |it| {
            Ok(it.set_filter(ChannelId(channel), filter)?)
        })
    })
}

/// Passes all instruments from the next record on.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_set_filter_all(
    subscriber: *mut Subscriber,
    channel: u16,
) -> i32 {
    set_filter(subscriber, channel, Ok(InstrumentFilter::all()))
}

/// Passes only these symbols from the next record on. The publisher must have announced them.
///
/// # Safety
/// `all` has `count` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_set_filter_symbols(
    subscriber: *mut Subscriber,
    channel: u16,
    all: *const *const c_char,
    count: usize,
) -> i32 {
    // SAFETY: as for `array` and `text`.
    set_filter(subscriber, channel, unsafe { symbols(all, count) })
}

/// Passes only these instrument ids from the next record on.
///
/// # Safety
/// `all` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_set_filter_ids(
    subscriber: *mut Subscriber,
    channel: u16,
    all: *const u32,
    count: usize,
) -> i32 {
    // SAFETY: as for `array`.
    set_filter(subscriber, channel, unsafe { ids(all, count) })
}

/// Returns a monitor of a subscriber that is polled.
///
/// ```c
/// TickcastMonitor *monitor = tickcast_subscriber_monitor(subscriber);
/// TickcastChannelReport report;
/// if (tickcast_monitor_channel(monitor, 0, &report, sizeof report) == 0)
///     printf("%s: %llu behind\n", report.name, (unsigned long long)report.lag);
/// tickcast_monitor_free(monitor);
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_monitor(subscriber: *mut Subscriber) -> *mut Monitor {
    handle(|| give(with(subscriber, |it| Ok(it.monitor()))?))
}

/// Polls on a thread pinned to `core` until all channels have ended or tickcast_running_stop is called.
/// `idle_with` is a TickcastIdleWith. Ends the subscriber handle, even on failure. A callback that returns
/// anything but 0 ends the thread without notifying the publisher.
///
/// ```c
/// TickcastRunning *running =
///     tickcast_subscriber_run_pinned(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, on_item, context);
/// if (!running || tickcast_running_join(running, NULL, sizeof(TickcastSummary)) < 0)
///     puts(tickcast_last_error());
/// ```
///
/// # Safety
/// `on` can be called with `context` from another thread, until tickcast_running_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_run_pinned(
    subscriber: *mut Subscriber,
    core: u32,
    idle_with: u32,
    idle_us: u32,
    on: OnItem,
    context: *mut c_void,
) -> *mut Running {
    handle(|| {
        // Take it first, so that the handle ends even if an argument is invalid.
        let it = take(subscriber)?;
        let on = Callback::new(on, context)?.on_thread();
        let idle = idle(idle_with, idle_us)?;
        give(it.run_pinned(Core(core as usize), idle, on)?)
    })
}

/// Receives and repairs on a thread pinned to `core`, into a local ring of at least `size_bytes`
/// (1 MiB to 64 GiB). `reader` reads the ring at its own speed. Ends the subscriber handle, even on
/// failure.
///
/// ```c
/// TickcastReader *reader = NULL;
/// TickcastRunning *running =
///     tickcast_subscriber_split(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, 64 << 20, &reader);
/// while (running && tickcast_reader_is_over(reader) == 0) {
///     tickcast_reader_wait(reader, 100);
///     tickcast_reader_poll(reader, on_item, context);
/// }
/// tickcast_reader_free(reader);
/// tickcast_running_join(running, NULL, sizeof(TickcastSummary));
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_split(
    subscriber: *mut Subscriber,
    core: u32,
    idle_with: u32,
    idle_us: u32,
    size_bytes: usize,
    reader: Option<&mut MaybeUninit<*mut Reader>>,
) -> *mut Running {
    handle(|| {
        let it = take(subscriber)?;
        let reader = reader.ok_or(Error::Null { what: "reader" })?;
        reader.write(std::ptr::null_mut());
        let idle = idle(idle_with, idle_us)?;
        let (running, first) = it.split(Core(core as usize), idle, size_bytes)?;
        reader.write(give(first)?);
        give(running)
    })
}

/// Notifies the publisher and ends the subscriber. Open gaps are declared lost through `on`, which may
/// be NULL. `out` receives the final counters, and may be NULL as well.
///
/// ```c
/// TickcastSummary summary;
/// if (tickcast_subscriber_leave(subscriber, on_item, context, &summary, sizeof summary) == 0)
///     puts(summary.is_whole ? "whole" : "something was lost");
/// ```
///
/// # Safety
/// `on` can be called with `context` until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_subscriber_leave(
    subscriber: *mut Subscriber,
    on: OnItem,
    context: *mut c_void,
    out: Option<&mut MaybeUninit<Summary>>,
    size: usize,
) -> i32 {
    status(|| {
        // Check the size before anything ends.
        fill_summary(None, size)?;
        let on = on.map(|on| Callback::new(Some(on), context)).transpose()?;
        let it = take(subscriber)?;
        let summary = match on {
            None => it.leave(),
            // A callback that has stopped is not called again.
            Some(on) => it.leave_with(on.until_it_stops()),
        };
        fill_summary(out.map(|out| (out, &summary)), size)
    })
}

/// Frees a subscriber without notifying the publisher, which finds the connection closed. NULL is
/// allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_free(subscriber: *mut Subscriber) -> i32 {
    status(|| free(subscriber))
}
