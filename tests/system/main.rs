//! The whole system as processes: a publisher, its standby, subscribers, and their faults.
//!
//! Tests run side by side. A test that needs the machine for itself takes the machine lock
//! ([`tickcast_test_support::machine`]).

mod authentication;
mod end_to_end;
mod hostile;
mod hostile_publisher;
mod impostor;
mod interval_logs;
mod isolation;
mod log_floods;
mod metrics;
mod own_handler;
mod resources;
mod restart;
mod scraped;
mod shared_memory;
mod standby;
mod strangers;
mod top;
