//! The arguments of a callback: a record in place, or an event, each with its position.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{from_ref, null};

use tickcast_subscriber as rust;
use tickcast_subscriber::{Polled, Via};

use crate::arguments::Context;
use crate::error::{Error, STOPPED, Stop};
use crate::event::Event;
use crate::record::RecordHeader;

/// The kind of an item.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum ItemKind {
    /// The item has a `record`.
    Record = 1,
    /// The item has an `event`.
    Event = 2,
}

/// One item delivered to the application. It and its pointers are valid during the callback.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Item {
    /// A TickcastItemKind.
    pub kind: u32,
    /// The record's size in bytes, 0 for an event.
    pub record_size: u32,
    /// The position of the item.
    pub position: *const Position,
    /// The record, of the Tickcast...Msg type that its `rtype` states. NULL for an event.
    pub record: *const RecordHeader,
    /// The event. NULL for a record.
    pub event: *const Event,
}

/// The value of `via` for items that came over the repair connection.
pub const VIA_REPAIR: u8 = 255;
/// In `quality`: the datagram was missing before it arrived.
pub const QUALITY_REPAIRED: u8 = 1;
/// In `quality`: an earlier sequence was not delivered yet (mode ARRIVAL only).
pub const QUALITY_OUT_OF_ORDER: u8 = 2;
/// In `quality`: records of this channel were lost since the application last had it complete.
pub const QUALITY_AFTER_LOSS: u8 = 4;

/// The position of an item, and the path on which it arrived.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Position {
    /// The epoch of the publisher.
    pub epoch: u64,
    /// The sequence of the datagram. For an event without a datagram: the last one delivered before it.
    pub sequence: u64,
    /// The number of the record. For an event: the number of the next record.
    pub record: u64,
    /// The position of the last complete source message in the datagram.
    pub source_position: u64,
    /// The time at which the datagram was sealed, UTC by the publisher's clock.
    pub sent_at_ns: u64,
    /// The time at which the datagram was received, by the monotonic clock.
    pub received_at_ns: u64,
    /// The time for which the datagram was missing; 0 when it was not.
    pub missing_for_ns: u64,
    /// The number of older records that this one replaced (mode LATEST only).
    pub conflated: u32,
    /// The channel, which is the sequence space.
    pub channel: u16,
    /// The source of the message.
    pub source: u16,
    /// The line on which it arrived, 0 for A and 1 for B, or TICKCAST_VIA_REPAIR.
    pub via: u8,
    /// TICKCAST_QUALITY_ bits.
    pub quality: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

impl From<&rust::Position> for Position {
    #[inline]
    fn from(position: &rust::Position) -> Self {
        let quality = position.quality;
        Self {
            epoch: position.epoch.0,
            sequence: position.sequence.0,
            record: position.record.0,
            source_position: position.source_position.0,
            sent_at_ns: position.sent_at.0,
            received_at_ns: position.received_at.0,
            missing_for_ns: position.missing_for.0,
            conflated: quality.conflated,
            channel: position.channel.0,
            source: position.source.0,
            via: match position.via {
                Via::Line(line) => line.0,
                Via::Repair => VIA_REPAIR,
            },
            quality: u8::from(quality.repaired) * QUALITY_REPAIRED
                + u8::from(quality.out_of_order) * QUALITY_OUT_OF_ORDER
                + u8::from(quality.after_loss) * QUALITY_AFTER_LOSS,
            reserved: [0; 6],
        }
    }
}

/// Receives every item, in order. It returns 0 to continue. Any other value ends the current call with
/// TICKCAST_STATUS_STOPPED and poisons the handle: the remaining items are lost, and every later
/// call returns TICKCAST_STATUS_POISONED. It must not throw.
///
/// ```c
/// if (item->record && item->record->rtype == TICKCAST_RECORD_TYPE_TRADE) {
///     const TickcastTradeMsg *trade = (const TickcastTradeMsg *)item->record;
///     printf("%u: %lld\n", trade->hd.instrument_id, (long long)trade->price);
/// }
/// ```
pub type OnItem =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, item: *const Item) -> i32>;

/// A callback with its context.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    on: unsafe extern "C-unwind" fn(*mut c_void, *const Item) -> i32,
    context: Context,
}

impl Callback {
    pub(crate) fn new(on: OnItem, context: *mut c_void) -> Result<Self, Error> {
        let on = on.ok_or(Error::Null { what: "on" })?;
        let context = Context(context);
        Ok(Self { on, context })
    }

    /// Passes an item to the callback. Returns whether the callback continues.
    #[inline]
    fn goes_on(self, item: rust::Item<'_>) -> bool {
        match item {
            rust::Item::Record(position, record) => {
                let bytes: &[u8] = record.as_ref();
                self.call(&Item {
                    kind: ItemKind::Record as u32,
                    record_size: bytes.len() as u32,
                    position: &Position::from(position),
                    record: bytes.as_ptr().cast(),
                    event: null(),
                })
            }
            rust::Item::Event(position, event) => self.call(&Item {
                kind: ItemKind::Event as u32,
                record_size: 0,
                position: &Position::from(position),
                record: null(),
                event: &Event::from(event),
            }),
        }
    }

    #[inline]
    fn call(self, item: &Item) -> bool {
        // SAFETY: the caller promised that the callback can be called with this context, from this
        // thread. The promise covers the call or the thread that received the callback. `item` and its
        // pointers live until it returns. Exercised by `c_program_follows_by_poll_split_and_run`.
        unsafe { (self.on)(self.context.0, from_ref(item)) == 0 }
    }

    /// Returns a closure that stops by a panic with its own payload, which poisons the subscriber.
    pub(crate) fn on_caller(self) -> impl FnMut(rust::Item<'_>) {
        move |item| {
            if !self.goes_on(item) {
                resume_unwind(Box::new(Stop));
            }
        }
    }

    /// Returns a closure that passes no more items after the callback has stopped.
    pub(crate) fn until_it_stops(self) -> impl FnMut(rust::Item<'_>) {
        let mut goes_on = true;
        move |item| goes_on = goes_on && self.goes_on(item)
    }

    /// Returns a closure for a thread of the library. A stop ends that thread.
    pub(crate) fn on_thread(self) -> impl FnMut(rust::Item<'_>) + Send + 'static {
        move |item| {
            if !self.goes_on(item) {
                resume_unwind(Box::new(STOPPED));
            }
        }
    }
}

/// In the result of a poll: there was something to do, so poll again before waiting.
pub const POLL_WORKED: i32 = 1;
/// In the result of a poll: a problem keeps the subscriber from working as configured.
pub const POLL_PROBLEM: i32 = 2;
/// Returns the result of a poll as bits. A callback that stops counts as one that panics: the remaining
/// items are lost, so the handle is poisoned.
#[inline]
pub(crate) fn polled(poll: impl FnOnce() -> Polled) -> Result<i32, Error> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(polled) if polled.poisoned => Err(Error::Poisoned),
        Ok(polled) => {
            let (worked, problem) = (polled.worked(), polled.problem);
            Ok(i32::from(worked) * POLL_WORKED + i32::from(problem) * POLL_PROBLEM)
        }
        Err(panic) if panic.is::<Stop>() => Err(Error::Stopped),
        Err(panic) => resume_unwind(panic),
    }
}
