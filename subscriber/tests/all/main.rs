//! Subscribers over loopback sockets, with a publisher in a thread of the test.

mod allocations;
mod common;
mod latency_reports;
mod latest;
mod metrics_port;
mod polling;
mod splitting;
