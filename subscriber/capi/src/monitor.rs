//! Watches a subscriber from any thread, during its life and after it.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

use tickcast_subscriber as rust;
use tickcast_subscriber::Stage;

use crate::arguments::{fill, range, text, write_text};
use crate::directory::{Directory, Symbols};
use crate::error::{Error, handle, number, status};
use crate::handle::{Handle, Kind, free, give, shared};

/// Watches a subscriber. All threads can use it at once.
pub struct Monitor(());

impl Handle for Monitor {
    type Behind = rust::Monitor;
    const KIND: Kind = Kind::Monitor;
}

/// A channel's name, NUL-terminated.
pub type Name = [c_char; 72];

/// The value of `channel` for a channel without a number.
pub const NO_CHANNEL: u32 = u32::MAX;

/// Converts a name to the form of C. The library's names have at most 64 bytes.
pub(crate) fn name(name: &str) -> Name {
    let mut out = [0; 72];
    for (to, from) in out[..71].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    out
}

/// Returns the element at an index, or an error.
pub(crate) fn at<T>(all: &[T], index: usize) -> Result<&T, Error> {
    all.get(index).ok_or_else(|| Error::Unknown {
        what: "channel",
        name: index.to_string(),
        known: format!("there are {}, and indices start at 0", all.len()),
    })
}

/// Frees a monitor. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_free(monitor: *mut Monitor) -> i32 {
    status(|| free(monitor))
}

fn watch(monitor: *const Monitor) -> Result<rust::Monitor, Error> {
    shared(monitor, rust::Monitor::clone)
}

/// Returns 1 when the publisher has welcomed us and the repair connection is up, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_is_joined(monitor: *const Monitor) -> i32 {
    number(|| Ok(i32::from(watch(monitor)?.is_joined())))
}

/// Returns 1 when every channel has delivered the end of its session, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_ended(monitor: *const Monitor) -> i32 {
    number(|| Ok(i32::from(watch(monitor)?.ended())))
}

/// Returns the port at which the metrics are served, which the system may have chosen; 0 without
/// tickcast_builder_metrics_listen.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_metrics_port(monitor: *const Monitor) -> i32 {
    number(|| {
        Ok(watch(monitor)?
            .metrics_address()
            .map_or(0, |it| it.port().into()))
    })
}

/// Writes the reason why the subscriber does not work as configured. The length is 0 when there is none.
///
/// # Safety
/// `out` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_monitor_problem(
    monitor: *const Monitor,
    out: *mut c_char,
    size: usize,
) -> i64 {
    number(|| {
        let problem = watch(monitor)?.problem().unwrap_or_default();
        // SAFETY: as for `write_text`.
        Ok(unsafe { write_text(&problem, out, size) })
    })
}

/// Writes all counters and latencies as text for Prometheus: in OpenMetrics if `open_metrics` is not 0,
/// else in the text format 0.0.4. Returns the length of the whole text. It takes milliseconds, so call it
/// at each scrape.
///
/// ```c
/// char page[1 << 16];
/// if (tickcast_monitor_metrics_text(monitor, 0, page, sizeof page) > 0) puts(page);
/// ```
///
/// # Safety
/// `out` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_monitor_metrics_text(
    monitor: *const Monitor,
    open_metrics: u32,
    out: *mut c_char,
    size: usize,
) -> i64 {
    number(|| {
        let format = match open_metrics {
            0 => rust::PageFormat::Prometheus,
            _ => rust::PageFormat::OpenMetrics,
        };
        let text = watch(monitor)?.metrics_text(format);
        // SAFETY: as for `write_text`.
        Ok(unsafe { write_text(&text, out, size) })
    })
}

/// Returns the number of channels.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_channels(monitor: *const Monitor) -> i32 {
    number(|| Ok(watch(monitor)?.channels().len() as i32))
}

/// The state of one channel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ChannelReport {
    /// The requested name.
    pub name: Name,
    /// The channel's number; TICKCAST_NO_CHANNEL before the publisher's welcome.
    pub channel: u32,
    /// 1 when the end of the session was delivered.
    pub ended: u32,
    /// The followed epoch.
    pub epoch: u64,
    /// The last sequence delivered or declared lost.
    pub delivered: u64,
    /// The highest sequence known.
    pub heard: u64,
    /// The number of sequences from the last delivered one to the newest known to have been sent.
    pub lag: u64,
    /// Records that the protocol delivered.
    pub delivered_records: u64,
    /// Records declared lost, without losses of unknown size.
    pub lost_records: u64,
    /// Sequences that were found missing.
    pub missing_datagrams: u64,
    /// Missing sequences that arrived after all.
    pub missing_recovered: u64,
    /// Missing sequences that were declared lost.
    pub missing_lost: u64,
    /// Missing sequences that are still open.
    pub missing_open: u64,
}

/// Gets the state of channel `index`, in the order of the builder.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_channel(
    monitor: *const Monitor,
    index: usize,
    out: Option<&mut MaybeUninit<ChannelReport>>,
    size: usize,
) -> i32 {
    status(|| {
        let channels = watch(monitor)?.channels();
        fill(out, size, "sizeof(TickcastChannelReport)", || {
            let report = at(&channels, index)?;
            let counters = &report.counters;
            Ok(ChannelReport {
                name: name(&report.name),
                channel: report.channel.map_or(NO_CHANNEL, |id| id.0.into()),
                ended: u32::from(report.ended),
                epoch: report.epoch.0,
                delivered: report.delivered.0,
                heard: report.heard.0,
                lag: report.lag,
                delivered_records: counters.delivered_records.get(),
                lost_records: counters.lost_records.get(),
                missing_datagrams: counters.missing_datagrams.get(),
                missing_recovered: counters.missing_recovered.get(),
                missing_lost: counters.missing_lost.get(),
                missing_open: counters.missing_open.get(),
            })
        })
    })
}

/// Receives every counter: its name, its help text, and its value. The texts are valid during the
/// call. It must not throw.
pub type OnCounter = Option<
    unsafe extern "C-unwind" fn(
        context: *mut c_void,
        name: *const c_char,
        help: *const c_char,
        value: u64,
    ),
>;

/// Calls `on` with every counter of channel `index`.
///
/// # Safety
/// `on` can be called with `context` until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_monitor_counters(
    monitor: *const Monitor,
    index: usize,
    on: OnCounter,
    context: *mut c_void,
) -> i32 {
    status(|| {
        let on = on.ok_or(Error::Null { what: "on" })?;
        let channels = watch(monitor)?.channels();
        let report = at(&channels, index)?;
        let each = |name: &'static str, help: &'static str, value: u64| {
            let texts = (CString::new(name), CString::new(help));
            if let (Ok(name), Ok(help)) = texts {
                // SAFETY: the caller promises that the callback can be called. The texts live until it
                // returns. Exercised by `c_program_follows_by_poll_split_and_run`.
                unsafe { on(context, name.as_ptr(), help.as_ptr(), value) };
            }
        };
        report.counters.each(each);
        report.handed.each(each);
        Ok(())
    })
}

/// Gets one counter of channel `index` by its name.
///
/// # Safety
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_monitor_counter(
    monitor: *const Monitor,
    index: usize,
    name: *const c_char,
    out: Option<&mut MaybeUninit<u64>>,
) -> i32 {
    status(|| {
        // SAFETY: as for `text`.
        let name = unsafe { text(name, "name") }?;
        let channels = watch(monitor)?.channels();
        let report = at(&channels, index)?;
        let mut found = None;
        let mut known = Vec::new();
        let mut each = |counter: &'static str, _: &'static str, value: u64| {
            known.push(counter);
            found = found.or((counter == name).then_some(value));
        };
        report.counters.each(&mut each);
        report.handed.each(&mut each);
        let value = found.ok_or_else(|| Error::Unknown {
            what: "counter",
            name: name.to_owned(),
            known: format!("there are {}", known.join(", ")),
        })?;
        out.ok_or(Error::Null { what: "out" })?.write(value);
        Ok(())
    })
}

/// A stage of latency.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LatencyStage {
    /// From the exchange's event until the publisher received it.
    EventToReceived = 0,
    /// From the publisher's reception until the datagram was sealed.
    ReceivedToSealed = 1,
    /// From the sealed datagram until delivery to the callback.
    SealedToDelivered = 2,
    /// From the detection of a missing datagram until it arrived.
    Repair = 3,
    /// From the sealed datagram until delivery, for records sealed before the subscriber had caught up with
    /// the live stream. This is the age of replayed records, not a latency.
    Replayed = 4,
}

/// A summary of a histogram, in nanoseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Latency {
    /// The number of samples. The other fields are 0 when there is none.
    pub count: u64,
    /// The lowest sample.
    pub min_ns: u64,
    /// The upper bound of 50% of the samples.
    pub p50_ns: u64,
    /// The upper bound of 90% of the samples.
    pub p90_ns: u64,
    /// The upper bound of 99% of the samples.
    pub p99_ns: u64,
    /// The upper bound of 99.9% of the samples.
    pub p999_ns: u64,
    /// The upper bound of 99.99% of the samples.
    pub p9999_ns: u64,
    /// The highest sample.
    pub max_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Samples of all stages that show a difference of clocks. Negative samples count as zero, and samples
    /// of more than an hour are in no histogram. A replayed capture also causes them, because its stamps
    /// are of the day of the capture.
    pub clock_skewed: u64,
}

fn histograms(monitor: *const Monitor, index: usize) -> Result<rust::ChannelLatency, Error> {
    let monitor = watch(monitor)?;
    let channels = monitor.channels();
    let channel = at(&channels, index)?;
    let latency = channel.channel.and_then(|id| monitor.latency(id));
    latency.ok_or_else(|| Error::Unknown {
        what: "latency of channel",
        name: channel.name.clone(),
        known: "it is not joined yet, or latency is not measured".into(),
    })
}

fn stage(stage: u32) -> Result<Stage, Error> {
    const ALL: [(LatencyStage, Stage); 5] = [
        (LatencyStage::EventToReceived, Stage::EventToReceived),
        (LatencyStage::ReceivedToSealed, Stage::ReceivedToSealed),
        (LatencyStage::SealedToDelivered, Stage::SealedToDelivered),
        (LatencyStage::Repair, Stage::Repair),
        (LatencyStage::Replayed, Stage::Replayed),
    ];
    let found = ALL.into_iter().find(|(code, _)| *code as u32 == stage);
    found.map_or_else(
        || range("stage", stage, "a TickcastLatencyStage"),
        |it| Ok(it.1),
    )
}

/// Gets a summary of the histogram of a TickcastLatencyStage of channel `index`. The call copies the
/// histogram, so call it once a second rather than once a tick.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_latency(
    monitor: *const Monitor,
    index: usize,
    latency_stage: u32,
    out: Option<&mut MaybeUninit<Latency>>,
    size: usize,
) -> i32 {
    status(|| {
        fill(out, size, "sizeof(TickcastLatency)", || {
            let all = histograms(monitor, index)?;
            let histogram = all.stage(stage(latency_stage)?);
            let at = |quantile| histogram.value_at_quantile(quantile);
            Ok(Latency {
                count: histogram.len(),
                min_ns: histogram.min(),
                p50_ns: at(0.5),
                p90_ns: at(0.9),
                p99_ns: at(0.99),
                p999_ns: at(0.999),
                p9999_ns: at(0.9999),
                max_ns: histogram.max(),
                mean_ns: histogram.mean(),
                clock_skewed: all.clock_skewed,
            })
        })
    })
}

/// Gets the upper bound of this share (0 to 1) of a histogram's samples, in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_quantile(
    monitor: *const Monitor,
    index: usize,
    latency_stage: u32,
    quantile: f64,
    out: Option<&mut MaybeUninit<u64>>,
) -> i32 {
    status(|| {
        let all = histograms(monitor, index)?;
        let histogram = all.stage(stage(latency_stage)?);
        if !(0.0..=1.0).contains(&quantile) {
            return range("quantile", quantile, "0 to 1");
        }
        let value = histogram.value_at_quantile(quantile);
        out.ok_or(Error::Null { what: "out" })?.write(value);
        Ok(())
    })
}

/// Copies the known symbols and ids. The copy is empty before the event JOINED.
///
/// ```c
/// TickcastDirectory *directory = tickcast_monitor_directory(monitor);
/// const char *symbol = tickcast_directory_symbol(directory, item->record->instrument_id);
/// puts(symbol ? symbol : "not announced");
/// tickcast_directory_free(directory);
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_directory(monitor: *const Monitor) -> *mut Directory {
    handle(|| give(Symbols::new(&watch(monitor)?)))
}
