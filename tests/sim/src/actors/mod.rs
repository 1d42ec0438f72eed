//! Publishers, subscribers and standbys: the shipped cores and the state of their processes.

pub mod publisher;
mod standby;
pub mod subscriber;
