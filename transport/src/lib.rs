//! The sockets, devices and shared memory that datagrams and repairs pass. All code above uses the traits
//! [`FanOut`] and [`Receive`] and does not depend on a particular transport.
//!
//! Order of folders, top to bottom; each imports only those below it:
//!
//! 1. `memory`: the transport for tests, which completes late, runs out of buffers, stalls on demand
//! 2. `control`: join, repair and replay over TCP, NACK and READ connections over verbs; never blocks
//! 3. `shm`: the ring itself, mapped read-only by subscribers in the publisher's host
//! 4. `udp`: multicast on one line or two, batched; and the live input of a feed
//! 5. `faults`: seeded loss, reordering and damage around any [`Receive`]
//! 6. `journal_file`: the file that a journal is kept in
//!
//! `memory` needs the feature `testing`.
//!
//! Three crates lie below these folders: [`verbs`] (`tickcast-verbs`, all of RDMA), [`xdp`]
//! (`tickcast-xdp`, the UDP receiver by AF_XDP), and `tickcast-transport-base` with the traits and the
//! [`host`].

pub mod control;
pub mod faults;
pub mod journal_file;
#[cfg(feature = "testing")]
pub mod memory;
pub mod shm;
pub mod udp;

pub use tickcast_transport_base::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
    host,
};
pub use tickcast_verbs as verbs;
pub use tickcast_xdp as xdp;
