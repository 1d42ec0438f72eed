//! The protocol of tickcast, without I/O, clock or threads.
pub mod asking;
pub mod budget;
pub mod control;
pub mod counters;
pub mod delivery;
pub mod gaps;
pub mod heartbeat;
pub mod joining;
pub mod lines;
pub mod link;
pub mod liveness;
pub mod loss;
pub mod nack;
mod nack_path;
pub mod order;
pub mod peers;
pub mod pending;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod publisher_core;
pub mod receiver;
pub mod receiver_config;
pub mod record;
pub mod repair;
mod repair_channel;
pub mod repair_config;
pub mod repair_core;
pub mod ring;
pub mod ring_layout;
pub mod sequencer;
mod settling;
pub mod stream_state;
pub mod subscriber_core;
pub mod units;
pub mod window;
pub mod wire;
