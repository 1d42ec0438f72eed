//! The base of every transport: the two traits that each implements, and the host it runs on.
//!
//! A transport sends *slots*: bytes that stay in place until it reports them completed ([`FanOut`]).
//! It receives into its own buffers, of which there are finitely many, and lends each for the length
//! of one call ([`Receive`]). It does not order, repair or validate datagrams: that is the task of
//! `tickcast-reliability`.
//!
//! This crate stands below `tickcast-verbs`, `tickcast-xdp` and `tickcast-transport`, because all implement
//! the traits. Order of modules, top to bottom; each imports only those below it:
//!
//! 1. `host`: clock, cores, memory, files and network interfaces of this host
//! 2. `send`: [`FanOut`], [`Slots`] and their counters
//! 3. `receive`: [`Receive`] and its counters
//! 4. `error`: why a transport can't send or receive

pub mod host;

mod error;
mod receive;
mod send;

pub use error::{FanOutError, ReceiveError};
pub use receive::{Receive, ReceiveStats, Received};
pub use send::{FanOut, Posted, SendStats, Slots};
