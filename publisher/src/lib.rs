//! The publisher: exchange feeds in, numbered and repairable datagrams out, on every channel and
//! fan-out of a config; what a source or the publisher itself lost is told in the stream.
//!
//! ```text
//! input ─ feed thread ─ hop ─┐                       ┌ fan-outs (multicast)
//! your handler ─────── hop ─┴ publish thread ─ ring ┴ repair thread ─ TCP
//! ```
//!
//! [`Publisher`] is for handlers of one's own, in this process: open it, ask it for a
//! [`ChannelWriter`], publish DBN records. `service::Service` runs the inputs of a config; the
//! binary `tickcast-publisher` is that. Both are the same threads and the same pieces, which are
//! public for that binary and for tests, and hidden from these pages: they may change at any time.

#[doc(hidden)]
pub mod admin;
mod audit;
#[doc(hidden)]
pub mod audit_file;
mod bans;
mod building;
#[doc(hidden)]
pub mod channel_driver;
#[doc(hidden)]
pub mod channels;
pub mod config;
mod crowded;
mod denied;
#[doc(hidden)]
pub mod digest;
#[doc(hidden)]
pub mod epoch;
pub mod error;
mod fan_out_config;
mod flight;
mod given_again;
mod giving_way;
#[doc(hidden)]
pub mod hand_over;
#[doc(hidden)]
pub mod hop;
mod host;
#[doc(hidden)]
pub mod http;
#[doc(hidden)]
pub mod inline;
#[doc(hidden)]
pub mod input;
pub mod input_config;
mod loss;
#[doc(hidden)]
pub mod metrics;
mod monitor;
mod peers;
#[doc(hidden)]
pub mod pipeline;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod publish;
mod publisher;
#[doc(hidden)]
pub mod records;
#[doc(hidden)]
pub mod repair_service;
mod restart;
mod rights;
mod seldom;
#[doc(hidden)]
pub mod service;
mod session;
#[doc(hidden)]
pub mod shared;
#[doc(hidden)]
pub mod standby;
mod standby_config;
#[doc(hidden)]
pub mod straight;
pub mod summary;
mod talk;
mod ticks;
mod writer;

pub use config::Config;
pub use error::{ChannelError, ConfigError, PublisherError, WriteError};
pub use loss::{SourceLoss, SourceLossReason, Unread};
pub use monitor::{ChannelStatus, Monitor};
pub use publisher::Publisher;
pub use shared::SubscriberStatus;
pub use summary::Summary;
pub use tickcast_reliability::control::Instrument;
pub use tickcast_reliability::record;
pub use tickcast_reliability::types::{SourceId, SourcePosition};
pub use ticks::{quote, trade};
pub use writer::ChannelWriter;
