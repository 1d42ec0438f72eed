//! The admin port, which only shows, and the command endpoints.

pub(crate) mod commands;
pub(crate) mod latency_log;
mod metrics;
pub(crate) mod monitor;
pub(crate) mod pages;
mod readiness;
pub mod summary;
