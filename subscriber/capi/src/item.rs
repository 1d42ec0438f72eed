//! What a callback is given: a record in place, or an event, each with its position.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{from_ref, null};

use tickcast_subscriber as rust;
use tickcast_subscriber::{Polled, Via};

use crate::arguments::Context;
use crate::error::{Error, STOPPED, Stop};
use crate::event::Event;
use crate::record::RecordHeader;

/// What an item is.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum ItemKind {
    /// `record` is there.
    Record = 1,
    /// `event` is there.
    Event = 2,
}

/// One thing handed to the application. It, and what it points to, is valid within the callback.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Item {
    /// A TickcastItemKind.
    pub kind: u32,
    /// The record's size in bytes, 0 for an event.
    pub record_size: u32,
    /// Where it stands.
    pub position: *const Position,
    /// The record, by its `rtype` one of the Tickcast...Msg; NULL for an event.
    pub record: *const RecordHeader,
    /// The event; NULL for a record.
    pub event: *const Event,
}

/// `via` of what came over the repair connection.
pub const VIA_REPAIR: u8 = 255;
/// In `quality`: it was missing before it came.
pub const QUALITY_REPAIRED: u8 = 1;
/// In `quality`: an earlier sequence had not been delivered when this was (mode ARRIVAL only).
pub const QUALITY_OUT_OF_ORDER: u8 = 2;
/// In `quality`: something of this channel was lost since the application last saw it whole.
pub const QUALITY_AFTER_LOSS: u8 = 4;

/// Where an item stands, and how it came here.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Position {
    /// The publisher's incarnation.
    pub epoch: u64,
    /// The datagram. For an event that is no datagram: the last one delivered before it.
    pub sequence: u64,
    /// Number of the record; for an event, of the next one to come.
    pub record: u64,
    /// Position of the last complete source message in its datagram.
    pub source_position: u64,
    /// When its datagram was sealed, UTC by the publisher's clock.
    pub sent_at_ns: u64,
    /// When its datagram was received, monotonic.
    pub received_at_ns: u64,
    /// How long it had been missing; 0 when it never was.
    pub missing_for_ns: u64,
    /// How many older records this one stands for as well (mode LATEST only).
    pub conflated: u32,
    /// Whose sequence space.
    pub channel: u16,
    /// Whose message it is.
    pub source: u16,
    /// The line it came on, 0 for A and 1 for B, or TICKCAST_VIA_REPAIR.
    pub via: u8,
    /// What to know beside it: TICKCAST_QUALITY_ bits.
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

/// Given every item, in order. 0 goes on; anything else ends the call that it comes from with
/// TICKCAST_STATUS_STOPPED, and poisons the handle: the items that it was not given are gone, and
/// every later call gets TICKCAST_STATUS_POISONED. It must not throw.
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

    /// Gives it an item; whether it goes on.
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
        // SAFETY: who gave it promised that it can be called with this context, from this thread,
        // for as long as the call or the thread that it was given to; `item` and what it points to
        // live until it returns. Exercised by `the_same_powers_from_c_as_from_rust`.
        unsafe { (self.on)(self.context.0, from_ref(item)) == 0 }
    }

    /// As a closure that stops by a panic of its own kind, which poisons the subscriber.
    pub(crate) fn on_caller(self) -> impl FnMut(rust::Item<'_>) {
        move |item| {
            if !self.goes_on(item) {
                resume_unwind(Box::new(Stop));
            }
        }
    }

    /// As a closure that gives it nothing more once it has stopped.
    pub(crate) fn until_it_stops(self) -> impl FnMut(rust::Item<'_>) {
        let mut goes_on = true;
        move |item| goes_on = goes_on && self.goes_on(item)
    }

    /// As a closure for a thread of ours, which ends so.
    pub(crate) fn on_thread(self) -> impl FnMut(rust::Item<'_>) + Send + 'static {
        move |item| {
            if !self.goes_on(item) {
                resume_unwind(Box::new(STOPPED));
            }
        }
    }
}

/// In what poll gives: there was something to do; poll again before waiting.
pub const POLL_WORKED: i32 = 1;
/// In what poll gives: something keeps the subscriber from working as configured; ask what.
pub const POLL_PROBLEM: i32 = 2;
/// What a poll came to, as bits. A callback that stops is as one that panics: what it was not given
/// is gone, and so the handle is poisoned.
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
