//! The path and the interval of the latency log.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickcast_transport::host::files::OutputTarget;

use crate::config::Config;
use crate::error::ConfigError;

/// The path and the interval of the latency log.
///
/// ```
/// # use tickcast_publisher::Config;
/// let config = Config::parse(
///     r#"{ "name": "mine", "latency_log": { "path": "mine.hlog" }, "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// )?;
/// assert_eq!(config.latency_log.map(|it| it.interval_ms), Some(10_000));
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencyLogConfig {
    /// The interval log (HdrHistogram log 1.3). A file of an earlier process is continued.
    pub path: PathBuf,
    /// Length of an interval, in milliseconds.
    #[serde(default = "interval_default")]
    #[schemars(range(min = 100, max = 86_400_000))]
    pub interval_ms: u64,
}

const fn interval_default() -> u64 {
    10_000
}

impl LatencyLogConfig {
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }
}

/// Checks that the log can be in its directory.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(log) = &config.latency_log else {
        return Ok(());
    };
    if !(100..=86_400_000).contains(&log.interval_ms) {
        let (at, remedy) = ("latency_log.interval_ms", "it must be from 100 to 86400000");
        return Err(ConfigError::value(at, log.interval_ms, remedy));
    }
    OutputTarget::find(&log.path).map(drop).map_err(|error| {
        let path = log.path.display();
        ConfigError::value("latency_log.path", path, error)
    })
}
