//! The directory and the size of journals.

use std::fmt::Display;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickcast_transport::host::mapping::SharedMapping;

use crate::config::Config;
use crate::error::ConfigError;

/// The directory and the size of journals.
///
/// ```
/// # use tickcast_publisher::Config;
/// let config = Config::parse(
///     r#"{ "name": "mine", "journal": { "directory": "/dev/shm" }, "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// )?;
/// assert_eq!(config.journal.map(|it| it.mib), Some(64));
/// # Ok::<(), tickcast_publisher::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JournalConfig {
    /// Directory on tmpfs: it holds `NAME.1.journal`, the journal of channel 1, and
    /// `NAME.repair.journal`, the journal of repair. An existing file is kept with `.before` appended
    /// to its name.
    pub directory: PathBuf,
    /// Size of each journal, in MiB.
    #[serde(default = "mib_default")]
    #[schemars(range(min = 2, max = 65536))]
    pub mib: u32,
}

const fn mib_default() -> u32 {
    64
}

impl JournalConfig {
    pub(crate) fn path(&self, config: &Config, of: impl Display) -> PathBuf {
        self.directory.join(format!("{}.{of}.journal", config.name))
    }

    pub(crate) const fn bytes(&self) -> u64 {
        (self.mib as u64) << 20
    }

    /// Returns the files of all journals, and the size of each in bytes.
    pub(crate) fn files(&self, config: &Config) -> Vec<(PathBuf, u64)> {
        let of_channels = config.channels.iter().map(|it| self.path(config, it.id));
        let all = of_channels.chain([self.path(config, REPAIR)]);
        all.map(|path| (path, self.bytes())).collect()
    }
}

/// Replaces the channel in the name of repair's journal.
pub(crate) const REPAIR: &str = "repair";

/// Checks that the directory can hold journals.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(journal) = &config.journal else {
        return Ok(());
    };
    if !(2..=65_536).contains(&journal.mib) {
        let remedy = "it must be from 2 to 65536";
        return Err(ConfigError::value("journal.mib", journal.mib, remedy));
    }
    SharedMapping::check_directory(&journal.directory).map_err(|error| {
        let directory = journal.directory.display();
        ConfigError::value("journal.directory", directory, error)
    })
}
