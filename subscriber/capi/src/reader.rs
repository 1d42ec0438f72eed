//! A subscriber on a thread of ours: run with a callback, or split from readers that poll at their
//! own speed.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use tickcast_subscriber as rust;
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::{CommandError, InstrumentFilter, Wake};

use crate::arguments::{fill, ids, start, symbols};
use crate::error::{Error, handle, number, status};
use crate::handle::{Handle, Kind, free, give, take, with};
use crate::item::{Callback, OnItem, polled};
use crate::monitor::{Monitor, NO_CHANNEL, Name, at, name};

/// A subscriber on a thread of its own.
pub struct Running(());

impl Handle for Running {
    type Behind = rust::Running;
    const KIND: Kind = Kind::Running;
}

/// Reads what a split subscriber receives.
pub struct Reader(());

impl Handle for Reader {
    type Behind = rust::Reader;
    const KIND: Kind = Kind::Reader;
}

/// What a subscriber leaves behind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Summary {
    /// Records that the protocol delivered, on all channels.
    pub delivered_records: u64,
    /// Records declared lost, where their number is known.
    pub lost_records: u64,
    /// Events handed over.
    pub events: u64,
    /// 1 when nothing was lost, neither on the way to us nor at the source.
    pub is_whole: u32,
    /// How many channels there were.
    pub channels: u32,
}

impl From<&rust::Summary> for Summary {
    fn from(summary: &rust::Summary) -> Self {
        Self {
            delivered_records: summary.delivered_records(),
            lost_records: summary.lost_records(),
            events: summary.events(),
            is_whole: u32::from(summary.is_whole()),
            channels: summary.channels.len() as u32,
        }
    }
}

/// Fills a summary, where one is wanted; its size is always looked at.
pub(crate) fn fill_summary(
    out: Option<(&mut MaybeUninit<Summary>, &rust::Summary)>,
    size: usize,
) -> Result<(), Error> {
    let mut unwanted = MaybeUninit::uninit();
    let value = out.as_ref().map(|(_, summary)| Summary::from(*summary));
    let out = out.map_or(&mut unwanted, |(out, _)| out);
    fill(Some(out), size, "sizeof(TickcastSummary)", || {
        Ok(value.unwrap_or(Summary {
            delivered_records: 0,
            lost_records: 0,
            events: 0,
            is_whole: 0,
            channels: 0,
        }))
    })
}

/// As tickcast_subscriber_rejoin, done by the thread: waits until it was, a round of its loop and what its
/// callback takes. A callback of the thread itself gets TICKCAST_STATUS_BUSY.
///
/// Hold nothing meanwhile that the callback waits for: then neither gets on, until after 2 seconds
/// the command is taken back, and this gives TICKCAST_STATUS_BUSY. It is so for the filters too.
///
/// ```c
/// TickcastReader *reader = NULL;
/// TickcastRunning *running =
///     tickcast_subscriber_split(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, 64 << 20, &reader);
/// TickcastMonitor *monitor = tickcast_running_monitor(running);
/// while (tickcast_monitor_is_joined(monitor) == 0 && tickcast_running_is_finished(running) == 0) {
///     tickcast_reader_wait(reader, 100);
///     tickcast_reader_poll(reader, on_item, context);
/// }
/// // From the beginning, and of one instrument.
/// const char *wanted[] = {"AAPL"};
/// if (tickcast_running_set_filter_symbols(running, 1, wanted, 1) < 0 ||
///     tickcast_running_rejoin(running, 1, TICKCAST_START_AT_OLDEST, 0, 0) < 0)
///     puts(tickcast_last_error());
/// tickcast_monitor_free(monitor);
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_rejoin(
    running: *mut Running,
    channel: u16,
    at: u32,
    epoch: u64,
    sequence: u64,
) -> i32 {
    status(|| {
        let start = start(at, epoch, sequence)?;
        with(running, |it| Ok(it.rejoin(ChannelId(channel), start)?))
    })
}

fn set_filter(
    running: *const Running,
    channel: u16,
    filter: Result<InstrumentFilter, Error>,
) -> i32 {
    status(|| {
        let filter = filter?;
        with(running, |it| Ok(it.set_filter(ChannelId(channel), filter)?))
    })
}

/// As tickcast_subscriber_set_filter_all, done by the thread: from the next record that it takes on.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_set_filter_all(running: *mut Running, channel: u16) -> i32 {
    set_filter(running, channel, Ok(InstrumentFilter::all()))
}

/// As tickcast_subscriber_set_filter_symbols, likewise.
///
/// # Safety
/// `all` has `count` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_running_set_filter_symbols(
    running: *mut Running,
    channel: u16,
    all: *const *const c_char,
    count: usize,
) -> i32 {
    // SAFETY: as for `array` and `text`.
    set_filter(running, channel, unsafe { symbols(all, count) })
}

/// As tickcast_subscriber_set_filter_ids, likewise.
///
/// # Safety
/// `all` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_running_set_filter_ids(
    running: *mut Running,
    channel: u16,
    all: *const u32,
    count: usize,
) -> i32 {
    // SAFETY: as for `array`.
    set_filter(running, channel, unsafe { ids(all, count) })
}

/// Watches a subscriber that runs on a thread of ours.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_monitor(running: *mut Running) -> *mut Monitor {
    handle(|| give(with(running, |it| Ok(it.monitor().clone()))?))
}

/// Asks the thread to leave, which it does within a round of its loop.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_stop(running: *mut Running) -> i32 {
    status(|| {
        with(running, |it| {
            it.stop();
            Ok(())
        })
    })
}

/// Whether the thread has ended: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_is_finished(running: *mut Running) -> i32 {
    number(|| with(running, |it| Ok(i32::from(it.is_finished()))))
}

/// Waits until the thread has left, at the end of all sessions or once it was asked to stop, and
/// ends the handle. `out` may be NULL. A callback of the thread itself gets TICKCAST_STATUS_BUSY,
/// as does who comes while another thread uses the handle: it is not ended then.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_join(
    running: *mut Running,
    out: Option<&mut MaybeUninit<Summary>>,
    size: usize,
) -> i32 {
    status(|| {
        fill_summary(None, size)?;
        // First, so that it can still be joined by another one.
        if with(running, |it| Ok(it.is_own_thread()))? {
            return Err(CommandError::OwnThread.into());
        }
        let summary = take(running)?.join()?;
        fill_summary(out.map(|out| (out, &summary)), size)
    })
}

/// Asks the thread to leave and does not wait for it: its callback may still be called. NULL is
/// fine.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_free(running: *mut Running) -> i32 {
    status(|| free(running))
}

/// Hands over what was received since, as tickcast_subscriber_poll does. Never blocks, and never delays the
/// thread that receives.
///
/// # Safety
/// `on` can be called with `context` until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_reader_poll(
    reader: *mut Reader,
    on: OnItem,
    context: *mut c_void,
) -> i32 {
    number(|| {
        let on = Callback::new(on, context)?;
        with(reader, |it| polled(|| it.poll(on.on_caller())))
    })
}

/// Waits until there is something to read or the thread has left (1), at most for so long (0).
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_wait(reader: *mut Reader, timeout_ms: u32) -> i32 {
    number(|| {
        with(reader, |it| {
            let wake = it.wait(Duration::from_millis(timeout_ms.into()));
            Ok(i32::from(wake == Wake::Ready))
        })
    })
}

/// Whether the thread has left and all that it delivered was read: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_is_over(reader: *mut Reader) -> i32 {
    number(|| with(reader, |it| Ok(i32::from(it.is_over()))))
}

/// Another reader, which begins where this one stands and goes its own way.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_clone(reader: *mut Reader) -> *mut Reader {
    handle(|| give(with(reader, |it| Ok(it.clone()))?))
}

/// What a reader has made of one channel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReaderReport {
    /// As it was asked for.
    pub name: Name,
    /// Its number; TICKCAST_NO_CHANNEL before the publisher's welcome.
    pub channel: u32,
    /// Zero.
    pub reserved: u32,
    /// Records that its callback was given.
    pub records: u64,
    /// Events that it was given; those about the reader itself are not among them.
    pub events: u64,
    /// Records that a newer one replaced (mode LATEST).
    pub conflated_records: u64,
    /// Times that it was overrun.
    pub overruns: u64,
    /// Records that were overwritten before it came to them.
    pub overrun_records: u64,
    /// Events likewise.
    pub overrun_events: u64,
    /// Sequences that the thread is ahead of it.
    pub lag: u64,
}

/// What this reader has made of channel `index`, in the order they were asked for.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_report(
    reader: *mut Reader,
    index: usize,
    out: Option<&mut MaybeUninit<ReaderReport>>,
    size: usize,
) -> i32 {
    status(|| {
        let reports = with(reader, |it| Ok(it.reports()))?;
        fill(out, size, "sizeof(TickcastReaderReport)", || {
            let report: &rust::ReaderReport = at(&reports, index)?;
            Ok(ReaderReport {
                name: name(&report.name),
                channel: report.channel.map_or(NO_CHANNEL, |id| id.0.into()),
                reserved: 0,
                records: report.records,
                events: report.events,
                conflated_records: report.conflated_records,
                overruns: report.overruns,
                overrun_records: report.overrun_records,
                overrun_events: report.overrun_events,
                lag: report.lag,
            })
        })
    })
}

/// Watches the thread that a reader reads from.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_monitor(reader: *mut Reader) -> *mut Monitor {
    handle(|| give(with(reader, |it| Ok(it.monitor().clone()))?))
}

/// Ends a reader. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_free(reader: *mut Reader) -> i32 {
    status(|| free(reader))
}
