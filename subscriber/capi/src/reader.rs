//! A subscriber on a thread of the library: run with a callback, or split so that readers poll at their
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

/// A subscriber on its own thread.
pub struct Running(());

impl Handle for Running {
    type Behind = rust::Running;
    const KIND: Kind = Kind::Running;
}

/// Reads the items that a split subscriber receives.
pub struct Reader(());

impl Handle for Reader {
    type Behind = rust::Reader;
    const KIND: Kind = Kind::Reader;
}

/// The final counters of a subscriber.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Summary {
    /// Records that the protocol delivered, on all channels.
    pub delivered_records: u64,
    /// Records declared lost, without losses of unknown size.
    pub lost_records: u64,
    /// Events delivered.
    pub events: u64,
    /// 1 when nothing was lost, neither on the way to us nor at the source.
    pub is_whole: u32,
    /// The number of channels.
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

/// Fills a summary if `out` is given. The size is checked in any case.
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

/// Rejoins a channel as tickcast_subscriber_rejoin does, on the subscriber's thread. The call waits for
/// a round of the thread's loop, including the time its callback takes. Inside a callback of that thread
/// it returns TICKCAST_STATUS_BUSY.
///
/// Do not call this while you hold something that the callback waits for. Otherwise both block until
/// the command is withdrawn after 2 seconds with TICKCAST_STATUS_BUSY. This also applies to the filters.
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

/// Passes all instruments from the next record that the thread receives. Waits like
/// tickcast_running_rejoin.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_set_filter_all(running: *mut Running, channel: u16) -> i32 {
    set_filter(running, channel, Ok(InstrumentFilter::all()))
}

/// Passes only these symbols from the next record that the thread receives. Waits like
/// tickcast_running_rejoin.
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

/// Passes only these instrument ids from the next record that the thread receives. Waits like
/// tickcast_running_rejoin.
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

/// Returns a monitor of a subscriber that runs on a thread of the library.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_monitor(running: *mut Running) -> *mut Monitor {
    handle(|| give(with(running, |it| Ok(it.monitor().clone()))?))
}

/// Asks the thread to leave. It leaves within a round of its loop.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_stop(running: *mut Running) -> i32 {
    status(|| {
        with(running, |it| {
            it.stop();
            Ok(())
        })
    })
}

/// Returns 1 when the thread has ended, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_is_finished(running: *mut Running) -> i32 {
    number(|| with(running, |it| Ok(i32::from(it.is_finished()))))
}

/// Waits until the thread has left, at the end of all sessions or after a stop, and ends the handle.
/// `out` may be NULL. Returns TICKCAST_STATUS_BUSY, without ending the handle, inside a callback of
/// that thread and while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_join(
    running: *mut Running,
    out: Option<&mut MaybeUninit<Summary>>,
    size: usize,
) -> i32 {
    status(|| {
        fill_summary(None, size)?;
        // Check this before taking the handle, so that another thread can still join it.
        if with(running, |it| Ok(it.is_own_thread()))? {
            return Err(CommandError::OwnThread.into());
        }
        let summary = take(running)?.join()?;
        fill_summary(out.map(|out| (out, &summary)), size)
    })
}

/// Asks the thread to leave and does not wait for it, so its callback may still be called. NULL is
/// allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_running_free(running: *mut Running) -> i32 {
    status(|| free(running))
}

/// Delivers the new items, as tickcast_subscriber_poll does. Never blocks, and never delays the thread
/// that receives.
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

/// Waits until there is something to read or the thread has left (1), at most `timeout_ms` (0).
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_wait(reader: *mut Reader, timeout_ms: u32) -> i32 {
    number(|| {
        with(reader, |it| {
            let wake = it.wait(Duration::from_millis(timeout_ms.into()));
            Ok(i32::from(wake == Wake::Ready))
        })
    })
}

/// Returns 1 when the thread has left and everything that it delivered was read, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_is_over(reader: *mut Reader) -> i32 {
    number(|| with(reader, |it| Ok(i32::from(it.is_over()))))
}

/// Returns another reader. It starts at this reader's place and then reads independently.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_clone(reader: *mut Reader) -> *mut Reader {
    handle(|| give(with(reader, |it| Ok(it.clone()))?))
}

/// Counts of one channel, as one reader saw it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReaderReport {
    /// The requested name.
    pub name: Name,
    /// The channel's number; TICKCAST_NO_CHANNEL before the publisher's welcome.
    pub channel: u32,
    /// Zero.
    pub reserved: u32,
    /// Records that the callback received.
    pub records: u64,
    /// Events that the callback received, without events about the reader itself.
    pub events: u64,
    /// Records that a newer one replaced (mode LATEST).
    pub conflated_records: u64,
    /// Overruns of this reader.
    pub overruns: u64,
    /// Records that were overwritten before the reader reached them.
    pub overrun_records: u64,
    /// Events that were overwritten before the reader reached them.
    pub overrun_events: u64,
    /// The number of sequences by which the thread is ahead.
    pub lag: u64,
}

/// Gets this reader's counts of channel `index`, in the order of the builder.
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

/// Returns a monitor of the thread that a reader reads from.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_monitor(reader: *mut Reader) -> *mut Monitor {
    handle(|| give(with(reader, |it| Ok(it.monitor().clone()))?))
}

/// Frees a reader. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_reader_free(reader: *mut Reader) -> i32 {
    status(|| free(reader))
}
