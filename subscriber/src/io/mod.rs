//! Connects sockets and connections with the core.

pub(crate) mod channel_input;
mod connections;
pub(crate) mod driver;
mod inboxes;
mod problems;
mod transport_choice;
