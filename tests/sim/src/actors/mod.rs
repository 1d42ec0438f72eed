//! Publishers, subscribers and standbys: the shipped cores, and what their processes hold.

pub mod publisher;
mod standby;
pub mod subscriber;
