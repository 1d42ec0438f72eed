//! Connects sockets and connections with the core.

mod channel_input;
mod connections;
pub(crate) mod driver;
mod inboxes;
mod problems;
mod transport_choice;

pub(crate) use channel_input::ChannelInput;
