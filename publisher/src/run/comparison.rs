//! Compares a config with that of a running publisher, which its admin port shows.

use std::net::SocketAddr;
use std::time::Duration;

use tickcast_http::{EndpointAddress, ask};

use crate::config::Config;
use crate::config::settings::{Setting, compare, shown};
use crate::error::{ConfigError, PublisherError};
use crate::plan::Plan;

/// Time limit of the request.
const WAIT: Duration = Duration::from_secs(10);

/// Compares all settings of a config with those of the publisher behind this admin port, or behind that of
/// the config.
///
/// # Errors
/// Returns [`PublisherError::Config`] if the config is wrong or names no admin port, and
/// [`PublisherError::Running`] if no publisher shows its config.
pub fn compare_with_running(
    config: Config,
    address: Option<SocketAddr>,
) -> Result<Vec<Setting>, PublisherError> {
    let config = Plan::new(config)?.config;
    let Some(address) = address.or(config.admin) else {
        let remedy =
            "the admin port shows the running config; give its address with --diff=ADDRESS";
        let error = ConfigError::value("admin", "null", remedy);
        return Err(config.text.locate(error).into());
    };
    let failed = |reason: String| PublisherError::Running { address, reason };
    let (status, body) = ask(&EndpointAddress::Port(address), None, "/config", None, WAIT)
        .map_err(|error| failed(error.to_string()))?;
    if status != 200 {
        return Err(failed(format!("it answered {status} {}", body.trim())));
    }
    let running = serde_json::from_str(&body).map_err(|error| failed(error.to_string()))?;
    Ok(compare(&running, &shown(&config)))
}
