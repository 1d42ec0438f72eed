//! HTTP: endpoints, and a client for one request. One thread serves a group of endpoints.
//!
//! Each connection carries one request with a short body, and one answer. Every exchange has a deadline; a
//! stream of events goes on for as long as its peer reads it.
//! At its limits an endpoint closes the oldest idle connection, so silent peers take no place from others.
//!
//! Folders, from top to bottom:
//!
//! 1. `metrics_port`: a port that serves metrics on a thread of its own
//! 2. `client`: one request
//! 3. `server`: endpoints and their answers
//! 4. `events`: streams of events
//! 5. `listener`: the sockets of endpoints
//! 6. `table`: the connections of an endpoint, within its limits
//! 7. `hosts`: the names under which an endpoint answers
//! 8. `address`: where an endpoint listens
//! 9. `token`: the secret of an endpoint
//! 10. `counters`: counts of an endpoint's connections

mod address;
mod client;
pub mod counters;
pub mod events;
pub mod hosts;
pub mod listener;
mod metrics_port;
pub mod server;
pub mod table;
mod token;

pub use address::EndpointAddress;
pub use client::ask;
pub use metrics_port::MetricsPort;
pub use token::{Token, TokenError};
