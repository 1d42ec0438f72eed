//! The library that a risk engine embeds. It delivers ticks in order and by reference, and one exact
//! event for each loss.
//!
//! ```no_run
//! use tickcast_subscriber::{Item, Subscriber};
//!
//! let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
//! loop {
//!     subscriber.poll(|item| match item {
//!         Item::Record(position, record) => println!("{} {:?}", position.record, record.header()),
//!         Item::Event(_, event) => println!("{event}"),
//!     });
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), tickcast_subscriber::SubscribeError>(())
//! ```
//!
//! The library starts no threads unless you ask for one:
//!
//! | thread | call | use it for |
//! |---|---|---|
//! | your thread | [`Subscriber::poll`] | your own loop: a poll is bounded and never blocks |
//! | your thread, asleep in between | [`Subscriber::wait`], or its descriptor in your `epoll` | shared cores |
//! | its own thread | [`Subscriber::run_pinned`] | programs that consist of the closure |
//! | its own thread and yours | [`Subscriber::split`] and a [`Reader`] each | applications that pause for milliseconds |
//!
//! [`Monitor`] watches a subscriber from any thread. After the start, a tick costs no allocation, no lock
//! and no system call except the receive itself. `tickcast-reliability` makes all decisions. This crate
//! connects it to sockets and clocks.
//!
//! Order of folders, top to bottom; each imports only those below it:
//!
//! 1. `split`: a subscriber on its own thread, and its readers
//! 2. `mirror`: a subscriber that keeps mirrors, for a standby
//! 3. `subscriber`: the subscriber and its polls
//! 4. `io`: sockets and connections to the core, and back
//! 5. `dispatch`: from the core to the application's closure
//! 6. `helper_threads`: threads that log, report and serve what is observed
//! 7. `config`: the description of a subscriber
//! 8. `observe`: monitors, reports, histograms
//! 9. `sync`: memory that threads share
//! 10. `error`: the reasons of failures

mod config;
mod dispatch;
mod error;
mod helper_threads;
mod io;
#[doc(hidden)]
pub mod mirror;
mod observe;
mod split;
mod subscriber;
mod sync;

pub use config::endpoints::Endpoints;
pub use config::filter::InstrumentFilter;
pub use config::{ChannelBuilder, LineOverride, RepairTransport, SubscriberBuilder, Transport};
pub use error::{
    ChannelError, CommandError, FilterError, JoinError, Panicked, SpawnError, SubscribeError,
};
pub use observe::directory::{Directory, InstrumentNames};
pub use observe::latency::{ChannelLatency, Stage};
pub use observe::polled::Polled;
pub use observe::summary::Summary;
pub use observe::{ChannelReport, HandedCounters, Monitor};
pub use split::{Reader, ReaderReport, Running};
pub use subscriber::Subscriber;
pub use sync::wake::Wake;

/// Parts for the publisher. They may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::observe::sealed::SealedLatency;
}

pub use hdrhistogram::Histogram;
pub use tickcast_hlog::ClockOffset;
pub use tickcast_metrics::PageFormat;
pub use tickcast_reliability::control::{ChannelName, Start};
pub use tickcast_reliability::delivery::{
    Deliver, Delivery, Event, Item, LineId, LinkDownReason, Loss, LossCause, Overrun, Place,
    Position, Quality, StreamState, Via,
};
pub use tickcast_reliability::receive::{ReceiverConfig, RepairOrder};
pub use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, ReceiverCounters, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
pub use tickcast_reliability::wire::{EpochReason, SourceLossReason, StreamEvent};
pub use tickcast_transport::host::idle::Idle;
pub use tickcast_transport::host::interface::Interface;
pub use tickcast_transport::host::pin::{Core, PinError};

/// DBN records, and the one checked cast to them.
pub mod record {
    pub use tickcast_reliability::record::{
        Action, BidAskPair, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg,
        RECORD_ALIGN, RECORD_LEN_MAX, RType, Record, RecordBatch, RecordBatches, RecordError,
        RecordHeader, RecordRef, RecordSlice, Records, SType, SecurityUpdateAction, Side, StatMsg,
        StatType, StatusAction, StatusMsg, StatusReason, SymbolMappingMsg, TradeMsg, TradingEvent,
        TriState, UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_TIMESTAMP, WireRecord, flags, record_len,
    };
}

/// Seeded faults between the network and a subscriber, for tests of applications.
#[cfg(feature = "testing")]
pub mod faults {
    pub use tickcast_transport::faults::{
        Burst, Delay, Entry, FaultConfig, FaultConfigError, FaultCounts, FaultInjector, FaultKind,
        FaultLog, FaultyReceiver, Reorder, Scripted,
    };
}

/// The code of the README, compiled without changes.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct ReadmeExamples;

/// The code of FIRST_DAY, compiled without changes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/FIRST_DAY.md")]
pub struct FirstDayExamples;

/// The code of EMBEDDING, compiled without changes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/EMBEDDING.md")]
pub struct EmbeddingExamples;
