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
//! No threads unless asked for: [`Subscriber::poll`] runs on yours, is bounded and never blocks.
//! Everything that decides anything is in `tickcast-reliability`; this crate connects it to
//! sockets and clocks.

mod builder;
mod driver;
mod error;
mod latency;
mod listening;
mod session;
mod subscriber;

pub use builder::{ChannelBuilder, LineOverride, SubscriberBuilder};
pub use error::SubscribeError;
pub use latency::{ChannelLatency, Stage};
pub use subscriber::{ChannelReport, Polled, Subscriber};

pub use tickcast_reliability::control::ChannelName;
pub use tickcast_reliability::counters::ReceiverCounters;
pub use tickcast_reliability::delivery::{
    Delivery, Event, Item, LineId, LinkDownReason, Position, Quality, Start, Via,
};
pub use tickcast_reliability::loss::{Loss, LossCause};
pub use tickcast_reliability::receiver_config::ReceiverConfig;
pub use tickcast_reliability::record;
pub use tickcast_reliability::units;
pub use tickcast_reliability::wire::StreamEvent;
pub use tickcast_transport::faults;
pub use tickcast_transport::idle::Idle;
pub use tickcast_transport::pin::{Core, PinError};
pub use tickcast_transport::udp::Interface;

/// The code of the README, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct ReadmeExamples;
