//! A subscriber that its own thread polls.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tickcast_subscriber as rust;
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::{InstrumentFilter, Wake};

use crate::abi::{fill, text, write_text};
use crate::builder::{ids, start, symbols};
use crate::error::{Error, number, status};
use crate::handle::{free, take, with};
use crate::item::{Callback, OnItem, polled};

/// Follows channels of a publisher.
pub struct Subscriber(());

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

/// Takes what has come, hands it to `on`, and asks for what is missing. Bounded, and never blocks.
/// Gives TICKCAST_POLL_ bits, or a status below 0.
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
        with(subscriber, |it| Ok(polled(|| it.poll(on.on_caller()))))
    })
}

/// Waits until there is something to do (1), at most for so long (0). Then poll, until there was
/// nothing left to do.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_wait(subscriber: *mut Subscriber, timeout_ms: u32) -> i32 {
    number(|| {
        with(subscriber, |it| {
            let wake = it.wait(Duration::from_millis(timeout_ms.into()))?;
            Ok(i32::from(wake == Wake::Ready))
        })
    })
}

/// A descriptor that becomes readable when there is something to do, for an epoll of your own. It
/// stays the subscriber's: do not close it.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_fd(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(it.as_raw_fd())))
}

/// Whether every channel has delivered the end of its session: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_ended(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(i32::from(it.ended()))))
}

/// Whether the publisher has welcomed us: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_is_joined(subscriber: *mut Subscriber) -> i32 {
    number(|| with(subscriber, |it| Ok(i32::from(it.is_joined()))))
}

/// What keeps the subscriber from working as configured, in words; length 0 when nothing does.
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

/// The number of a channel by the name it was asked for, from its event JOINED on.
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
                    known: format!("followed are {known}, each from its event `joined` on"),
                }
            })
        })
    })
}

/// Begins a channel anew; `at` is a TickcastStartAt. What is open of it is declared lost.
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

/// From the next record on, all instruments.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_set_filter_all(
    subscriber: *mut Subscriber,
    channel: u16,
) -> i32 {
    set_filter(subscriber, channel, Ok(InstrumentFilter::all()))
}

/// From the next record on, only these symbols, which the publisher must have announced.
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

/// From the next record on, only these instrument ids.
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

/// Says good-bye to the publisher, and ends the subscriber. What is still open is declared lost
/// through `on`, which may be NULL; so may `out`, which is filled with what was delivered and lost.
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
        // Before anything ends.
        fill_summary(None, size)?;
        let on = on.map(|on| Callback::new(Some(on), context)).transpose()?;
        let it = take(subscriber)?;
        let summary = match on {
            None => it.leave(),
            // A callback that wants no more need not be asked again.
            Some(on) => it.leave_with(on.until_it_stops()),
        };
        fill_summary(out.map(|out| (out, &summary)), size)
    })
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

/// Ends a subscriber without a word to the publisher, which finds the connection closed. NULL is
/// fine.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_subscriber_free(subscriber: *mut Subscriber) -> i32 {
    status(|| free(subscriber))
}
