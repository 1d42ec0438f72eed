//! Subscribers over loopback sockets, with a publisher in a thread of the test.

#[path = "../common/mod.rs"]
mod common;
mod latest;
mod polling;
mod splitting;
