//! The directory and the size of flight records.

use std::fmt::Display;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tickcast_transport::host::mapping::SharedMapping;

use crate::config::Config;
use crate::error::ConfigError;

/// The directory and the size of flight records.
///
/// ```
/// # use tickcast_publisher::Config;
/// let config = Config::parse(
///     r#"{ "name": "mine", "flight_record": { "directory": "/dev/shm" }, "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// )?;
/// assert_eq!(config.flight_record.map(|it| it.mib), Some(64));
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlightRecordConfig {
    /// Directory on tmpfs: it holds `NAME.1.flight`, the record of channel 1, and
    /// `NAME.repair.flight`, the record of repair. An existing file is kept with `.before` appended
    /// to its name.
    pub directory: PathBuf,
    /// Size of each record, in MiB: 2 to 65536.
    #[serde(default = "mib_default")]
    pub mib: u32,
}

const fn mib_default() -> u32 {
    64
}

impl FlightRecordConfig {
    pub(crate) fn path(&self, config: &Config, of: impl Display) -> PathBuf {
        self.directory.join(format!("{}.{of}.flight", config.name))
    }

    pub(crate) const fn bytes(&self) -> u64 {
        (self.mib as u64) << 20
    }

    /// Returns the files of all records, and the size of each in bytes.
    pub(crate) fn files(&self, config: &Config) -> Vec<(PathBuf, u64)> {
        let of_channels = config.channels.iter().map(|it| self.path(config, it.id));
        let all = of_channels.chain([self.path(config, REPAIR)]);
        all.map(|path| (path, self.bytes())).collect()
    }
}

/// Replaces the channel in the name of repair's record.
pub(crate) const REPAIR: &str = "repair";

/// Checks that the directory can hold flight records.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(flight) = &config.flight_record else {
        return Ok(());
    };
    if !(2..=65_536).contains(&flight.mib) {
        let remedy = "it must be from 2 to 65536";
        return Err(ConfigError::value("flight_record.mib", flight.mib, remedy));
    }
    SharedMapping::check_directory(&flight.directory).map_err(|error| {
        let directory = flight.directory.display();
        ConfigError::value("flight_record.directory", directory, error)
    })
}
