//! Everything in flight between publishers and subscribers, and when it arrives.

pub(crate) mod clock_queue;
pub(crate) mod cursors;
pub(crate) mod inboxes;
pub mod packet;
pub(crate) mod reads;
pub mod stream;
