//! HTTP: endpoints, and a client for one request. One thread serves a group of endpoints.
//!
//! Each connection carries one request with a short body, and one answer. Every exchange has a deadline; a
//! stream of events goes on for as long as its peer reads it.
//! At its limits an endpoint closes the oldest idle connection, so silent peers take no place from others.

mod address;
mod client;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod hosts;
pub(crate) mod listener;
mod metrics_port;
pub(crate) mod server;
pub(crate) mod table;
mod token;

pub use address::EndpointAddress;
pub use client::ask;
pub use metrics_port::MetricsPort;
pub use token::{Token, TokenError};

/// Content type of JSON.
const JSON: &str = "application/json";
