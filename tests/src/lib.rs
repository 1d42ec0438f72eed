//! The protocol in virtual time: the shipped cores of publisher, repair and subscribers in one
//! process, with a network and a clock that one seed decides. Same seed, same event log, to the
//! byte.
//!
//! [`profiles`] says what goes wrong, [`world`] lets it happen, [`stream`] and [`balance`] check
//! after every step that nobody was told anything untrue, [`report`] adds up.

pub mod balance;
pub mod faults;
mod incidents;
mod network;
pub mod pipe;
pub mod profiles;
pub mod publisher;
pub mod report;
pub mod stream;
pub mod subscriber;
pub mod trace;
pub mod truth;
pub mod world;
