//! HTTP: endpoints, and a client for one request. One thread serves a group of endpoints.
//!
//! Each connection carries one request with a short body, and one answer. Every exchange has a deadline; a
//! stream of events goes on for as long as its peer reads it.
//! At its limits an endpoint closes the oldest idle connection, so silent peers take no place from others.
//!
//! Folders, from top to bottom:
//!
//! 1. `metrics_port`: a port that serves metrics on a thread of its own
//! 2. `renders`: a page that is rendered ten times a second at most
//! 3. `client`: one request
//! 4. `server`: endpoints and their answers
//! 5. `events`: streams of events
//! 6. `listener`: the sockets of endpoints
//! 7. `table`: the connections of an endpoint, within its limits
//! 8. `hosts`: the names under which an endpoint answers
//! 9. `address`: where an endpoint listens
//! 10. `token`: the secret of an endpoint
//! 11. `counters`: counts of an endpoint's connections

mod address;
mod client;
pub mod counters;
pub mod events;
pub mod hosts;
pub mod listener;
mod metrics_port;
mod renders;
pub mod server;
pub mod table;
mod token;

pub use address::EndpointAddress;
pub use client::ask;
pub use metrics_port::MetricsPort;
pub use renders::Renders;
pub use token::{Token, TokenError};
