//! Watching a subscriber from any thread, while it works and after.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

use tickcast_subscriber as rust;
use tickcast_subscriber::Stage;

use crate::arguments::{fill, range, text, write_text};
use crate::directory::{Directory, Symbols};
use crate::error::{Error, handle, number, status};
use crate::handle::{Handle, Kind, free, give, shared};

/// Watches a subscriber. It can be used by all threads at once.
pub struct Monitor(());

impl Handle for Monitor {
    type Behind = rust::Monitor;
    const KIND: Kind = Kind::Monitor;
}

/// A channel's name, NUL-terminated.
pub type Name = [c_char; 72];

/// `channel` of what has no number yet.
pub const NO_CHANNEL: u32 = u32::MAX;

/// A name as C has it; one of ours has 64 bytes at most.
pub(crate) fn name(name: &str) -> Name {
    let mut out = [0; 72];
    for (to, from) in out[..71].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    out
}

/// One of several by its index.
pub(crate) fn at<T>(all: &[T], index: usize) -> Result<&T, Error> {
    all.get(index).ok_or_else(|| Error::Unknown {
        what: "channel",
        name: index.to_string(),
        known: format!("there are {}, counted from 0", all.len()),
    })
}

/// Ends a monitor. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_free(monitor: *mut Monitor) -> i32 {
    status(|| free(monitor))
}

fn watch(monitor: *const Monitor) -> Result<rust::Monitor, Error> {
    shared(monitor, rust::Monitor::clone)
}

/// Whether the publisher has welcomed us and the repair connection is up: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_is_joined(monitor: *const Monitor) -> i32 {
    number(|| Ok(i32::from(watch(monitor)?.is_joined())))
}

/// Whether every channel has delivered the end of its session: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_ended(monitor: *const Monitor) -> i32 {
    number(|| Ok(i32::from(watch(monitor)?.ended())))
}

/// What keeps the subscriber from working as configured, in words; length 0 when nothing does.
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

/// How many channels there are.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_monitor_channels(monitor: *const Monitor) -> i32 {
    number(|| Ok(watch(monitor)?.channels().len() as i32))
}

/// One channel as it stands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ChannelReport {
    /// As it was asked for.
    pub name: Name,
    /// Its number; TICKCAST_NO_CHANNEL before the publisher's welcome.
    pub channel: u32,
    /// 1 when the end of its session was delivered.
    pub ended: u32,
    /// The epoch followed.
    pub epoch: u64,
    /// The last sequence delivered or declared lost.
    pub delivered: u64,
    /// The highest sequence heard of.
    pub heard: u64,
    /// Sequences from the last one delivered to the newest known to have been sent.
    pub lag: u64,
    /// Records that the protocol delivered.
    pub delivered_records: u64,
    /// Records declared lost, where their number is known.
    pub lost_records: u64,
    /// Sequences found missing.
    pub missing_datagrams: u64,
    /// Of those, sequences that came after all.
    pub missing_recovered: u64,
    /// Of those, sequences declared lost.
    pub missing_lost: u64,
    /// Of those, sequences still open.
    pub missing_open: u64,
}

/// Channel `index` as it stands, in the order they were asked for.
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

/// Given every counter: its name, what it counts, and its value. The texts are valid within the
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
                // SAFETY: the caller promises that it can be called; the texts live until it
                // returns. Exercised by `the_same_powers_from_c_as_from_rust`.
                unsafe { on(context, name.as_ptr(), help.as_ptr(), value) };
            }
        };
        report.counters.each(each);
        report.handed.each(each);
        Ok(())
    })
}

/// One counter of channel `index` by its name.
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

/// From where to where a latency is measured.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LatencyStage {
    /// The exchange's event until the publisher received it.
    EventToReceived = 0,
    /// Received by the publisher until sealed.
    ReceivedToSealed = 1,
    /// Sealed until handed to the callback.
    SealedToDelivered = 2,
    /// Found missing until it came.
    Repair = 3,
}

/// A histogram in short, in nanoseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Latency {
    /// How many samples; the others are 0 when there is none.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half are no longer.
    pub p50_ns: u64,
    /// 90% are no longer.
    pub p90_ns: u64,
    /// 99% are no longer.
    pub p99_ns: u64,
    /// 99.9% are no longer.
    pub p999_ns: u64,
    /// 99.99% are no longer.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Samples of all stages that clocks which agree don't make: negative ones, which count as zero, and
    /// ones of more than an hour, which are in no histogram. A capture that is replayed has stamps of its
    /// own day, and makes them too.
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
    const ALL: [(LatencyStage, Stage); 4] = [
        (LatencyStage::EventToReceived, Stage::EventToReceived),
        (LatencyStage::ReceivedToSealed, Stage::ReceivedToSealed),
        (LatencyStage::SealedToDelivered, Stage::SealedToDelivered),
        (LatencyStage::Repair, Stage::Repair),
    ];
    let found = ALL.into_iter().find(|(code, _)| *code as u32 == stage);
    found.map_or_else(
        || range("stage", stage, "a TickcastLatencyStage"),
        |it| Ok(it.1),
    )
}

/// The histogram of a TickcastLatencyStage of channel `index`, in short. It is copied first: ask
/// once a second, not once a tick.
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

/// The value that this share (0 to 1) of a histogram's samples is not above, in nanoseconds.
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

/// Copies what is known of symbols and ids by now; nothing before the event JOINED.
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
