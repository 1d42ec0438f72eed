//! What a risk engine embeds: ticks in order, by reference, and an honest word about every one
//! that is lost.
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
//! No threads unless asked for:
//!
//! | whose thread | call | for |
//! |---|---|---|
//! | yours | [`Subscriber::poll`] | a loop of your own; bounded, never blocks |
//! | yours, asleep in between | [`Subscriber::wait`], or its descriptor in your `epoll` | shared cores |
//! | one of its own | [`Subscriber::run_pinned`] | the closure is all there is |
//! | one of its own, and yours | [`Subscriber::split`] and a [`Reader`] each | applications that pause for milliseconds |
//!
//! [`Monitor`] watches it from anywhere. After the start a tick costs no allocation, no lock and
//! no system call but the receiving itself. Everything that decides anything is in
//! `tickcast-reliability`; this crate connects it to sockets and clocks.

mod atomics;
mod bell;
mod builder;
mod choices;
mod commands;
mod directory;
mod driver;
mod endpoints;
mod error;
mod filter;
mod hand;
mod inboxes;
mod latency;
mod latest;
mod listening;
mod local_ring;
#[doc(hidden)]
pub mod mirroring;
mod monitor;
mod packed;
mod polled;
mod problems;
mod runs;
mod session;
mod sift;
mod split;
mod subscriber;
mod summary;
mod wake;
mod worker;

pub use builder::{ChannelBuilder, LineOverride, Repair, SubscriberBuilder};
pub use directory::{Directory, Instruments};
pub use endpoints::Endpoints;
pub use error::{
    ChannelError, CommandError, FilterError, JoinError, Panicked, SpawnError, SubscribeError,
};
pub use filter::InstrumentFilter;
pub use latency::{ChannelLatency, Stage};
pub use listening::Transport;
pub use monitor::{ChannelReport, HandedCounters, Monitor};
pub use polled::Polled;
pub use split::{Reader, ReaderReport};
pub use subscriber::Subscriber;
pub use summary::Summary;
pub use wake::Wake;
pub use worker::Running;

pub use tickcast_reliability::control::{ChannelName, Start};
pub use tickcast_reliability::delivery::{
    Deliver, Delivery, Event, Item, LineId, LinkDownReason, Loss, LossCause, Overrun, Place,
    Position, Quality, StreamState, Via,
};
pub use tickcast_reliability::receive::{ReceiverConfig, RepairOrder};
pub use tickcast_reliability::record;
pub use tickcast_reliability::types as units;
pub use tickcast_reliability::types::ReceiverCounters;
pub use tickcast_reliability::wire::{EpochReason, SourceLossReason, StreamEvent};
pub use tickcast_transport::faults;
pub use tickcast_transport::host::idle::Idle;
pub use tickcast_transport::host::interface::Interface;
pub use tickcast_transport::host::pin::{Core, PinError};

/// The code of the README, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct ReadmeExamples;
