//! The publisher: exchange feeds in, numbered and repairable datagrams out, on every channel and
//! fan-out of a config; what a source or the publisher itself lost is told in the stream.
//!
//! ```text
//! input ─ feed thread ─ hop ─┐                       ┌ fan-outs (multicast)
//! your handler ─────── hop ─┴ publish thread ─ ring ┴ repair thread ─ TCP
//! ```
//!
//! [`Publisher`] is for handlers of one's own, in this process: open it, ask it for a
//! [`ChannelWriter`], publish DBN records. [`service::Service`] runs the inputs of a config; the
//! binary `tickcast-publisher` is that. Both are the same threads and the same pieces.

pub mod admin;
pub mod channels;
pub mod config;
pub mod digest;
pub mod epoch;
pub mod error;
pub mod hop;
mod host;
pub mod input;
pub mod input_config;
mod loss;
pub mod metrics;
mod monitor;
pub mod pipeline;
pub mod plan;
pub mod publish;
mod publisher;
pub mod records;
pub mod repair_service;
pub mod service;
mod session;
pub mod shared;
pub mod summary;
mod writer;

pub use config::Config;
pub use error::{ChannelError, ConfigError, PublisherError, WriteError};
pub use loss::{SourceLoss, SourceLossReason};
pub use monitor::{ChannelStatus, Monitor};
pub use publisher::Publisher;
pub use shared::SubscriberStatus;
pub use summary::Summary;
pub use tickcast_reliability::control::Instrument;
pub use tickcast_reliability::record;
pub use tickcast_reliability::units::{SourceId, SourcePosition};
pub use writer::ChannelWriter;
