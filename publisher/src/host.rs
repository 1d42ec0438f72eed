//! What a config wants of this host is there: memory for all its rings together, cores, and a place
//! for its state. Looks only, changes nothing.

use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, access};
use tickcast_transport::available::available_bytes;
use tickcast_transport::pin;

use crate::config::Config;
use crate::error::ConfigError;
use crate::plan::ChannelPlan;

/// # Errors
/// [`ConfigError::Value`] names what is missing, and what there is.
pub(crate) fn check(config: &Config, channels: &[ChannelPlan]) -> Result<(), ConfigError> {
    let sizes = channels.iter().map(|c| c.geometry.bytes() as u64);
    let needed = sizes.fold(0, u64::saturating_add);
    if let Some(available) = available_bytes().filter(|available| needed > *available) {
        let value = format!("rings of {needed} bytes in all");
        let remedy = format!(
            "{available} bytes of memory are available; give the channels fewer slots, free \
             memory, or widen the memory limit"
        );
        return Err(ConfigError::value("channels", value, remedy));
    }
    let threads = &config.threads;
    for (name, core) in [
        ("feed_core", threads.feed_core),
        ("publish_core", threads.publish_core),
        ("repair_core", threads.repair_core),
    ] {
        if let Some(core) = core {
            pin::check(core)
                .map_err(|e| ConfigError::value(format!("threads.{name}"), core.0, e))?;
        }
    }
    if let Some(directory) = &config.state_dir {
        can_be_created(directory).map_err(|error| {
            let remedy = format!("{error}; name a directory that is writable or can be created");
            ConfigError::value("state_dir", directory.display(), remedy)
        })?;
    }
    Ok(())
}

/// Whether a directory is there and writable, or the one it would be made in is.
fn can_be_created(directory: &Path) -> io::Result<()> {
    for path in directory.ancestors() {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match path.metadata() {
            Ok(there) if there.is_dir() => {
                return Ok(access(path, Access::WRITE_OK | Access::EXEC_OK)?);
            }
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::NotFound.into())
}
