//! The types that a firm's own handlers link.

mod channel_writer;
mod inline;
mod publisher;
mod ticks;

pub use crate::publish::direct::InlineChannel;
pub use channel_writer::ChannelWriter;
pub use inline::InlinePublisher;
pub use publisher::Publisher;
pub use ticks::{quote, trade};
