//! Checks that this host meets the config's needs: memory for all rings, cores, the state
//! directory, and room for the files in memory. Changes nothing.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use tickcast_transport::host::files::{open_directory, open_trusted_directory};
use tickcast_transport::host::memory_limit::available_bytes;
use tickcast_transport::host::pin;
use tickcast_transport::journal_file::before;
use tickcast_transport::shm::tail_len;

use crate::config::Config;
use crate::error::ConfigError;
use crate::plan::{ChannelPlan, Plan};
use crate::recovery;

/// Plans a config for the service, and checks that this host meets the plan's needs. Opens what
/// [`Plan::new`] opens.
///
/// # Errors
/// Returns [`ConfigError`] with the JSON path, the value, and the remedy, if the config or the host
/// does not fit.
pub fn preflight(config: Config) -> Result<Plan, ConfigError> {
    checked(Plan::new(config)?)
}

/// Checks a config like [`preflight`], for a publisher whose handlers run in this process.
pub(crate) fn preflight_for_handlers(config: Config) -> Result<Plan, ConfigError> {
    checked(Plan::for_handlers(config)?)
}

fn checked(mut plan: Plan) -> Result<Plan, ConfigError> {
    check(&plan.config, &plan.channels).map_err(|error| plan.config.text.locate(error))?;
    plan.warnings
        .extend(too_small(&plan.config, &plan.channels));
    Ok(plan)
}

/// # Errors
/// Returns [`ConfigError::Value`] with the missing and the available resource.
fn check(config: &Config, channels: &[ChannelPlan]) -> Result<(), ConfigError> {
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
            let remedy = format!("{error}; give a directory that is writable or can be created");
            ConfigError::value("state_dir", directory.display(), remedy)
        })?;
    }
    Ok(())
}

/// Returns the file systems without room for their rings and journals.
fn too_small(config: &Config, channels: &[ChannelPlan]) -> Vec<String> {
    let rings = channels.iter().filter_map(|channel| {
        let bytes = channel.geometry.bytes() as u64;
        let kept = |at: &PathBuf| recovery::path_of(at, config, channel);
        match channel.shared_at() {
            Some(path) => Some((path.to_owned(), bytes + tail_len(channel.geometry) as u64)),
            None => Some((config.ring_dir.as_ref().map(kept)?, bytes)),
        }
    });
    let rings = rings.map(|(path, bytes)| {
        // An existing ring is reused or removed.
        let there = bytes_of(&path);
        (path, bytes.saturating_sub(there))
    });
    let records = config.journal.iter().flat_map(|it| it.files(config));
    let records = records.map(|(path, bytes)| {
        // The previous record is kept, in place of the one before it.
        let goes = if path.exists() {
            bytes_of(&before(&path))
        } else {
            0
        };
        (path, bytes.saturating_sub(goes))
    });
    without_room(rings.chain(records))
}

/// Returns the bytes that a file occupies on its file system.
fn bytes_of(path: &Path) -> u64 {
    path.metadata()
        .map_or(0, |it| it.blocks().saturating_mul(512))
}

/// Returns the file systems without room for all these files, each with the bytes still needed.
fn without_room(files: impl Iterator<Item = (PathBuf, u64)>) -> Vec<String> {
    let mut by_device = BTreeMap::<u64, (PathBuf, u64)>::new();
    for (path, bytes) in files {
        // A missing directory will be on the file system of its nearest existing parent.
        let mut above = path.ancestors().skip(1).filter(|it| it.is_dir());
        let directory = above.next().unwrap_or(Path::new(".")).to_owned();
        let Ok(metadata) = directory.metadata() else {
            continue;
        };
        let (_, needed) = (by_device.entry(metadata.dev())).or_insert((directory, 0));
        *needed = needed.saturating_add(bytes);
    }
    let by_device = by_device.into_values();
    let lacking = by_device.filter_map(|(directory, needed)| {
        let there = statvfs(&directory).ok()?;
        let left = there.f_bavail.saturating_mul(there.f_frsize);
        // A file system without a limit reports zero blocks.
        let is_too_small = there.f_blocks > 0 && left < needed;
        is_too_small.then(|| {
            format!(
                "{}: its file system has {left} bytes left, and the rings and journals \
                 there need {needed} more: enlarge it, free space, or configure less (slots, \
                 journal.mib)",
                directory.display()
            )
        })
    });
    lacking.collect()
}

/// Checks that a directory, or its nearest existing parent, is writable, and that other users can't
/// replace files in it.
fn can_be_created(directory: &Path) -> io::Result<()> {
    for path in directory.ancestors() {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match path.metadata() {
            Ok(there) if there.is_dir() => {
                access(path, Access::WRITE_OK | Access::EXEC_OK)?;
                let opened = if path == directory {
                    open_trusted_directory(path)
                } else {
                    open_directory(path)
                };
                return Ok(opened.map(drop)?);
            }
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn state_dir_open_to_all_is_refused_before_start() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_refused) in [(0o700, false), (0o777, true), (0o1777, false)] {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            for directory in [folder.path().to_owned(), folder.path().join("later")] {
                let checked = can_be_created(&directory);
                assert_eq!(checked.is_err(), is_refused, "{mode:o}");
                if let Err(error) = checked {
                    assert!(error.to_string().contains("chmod +t"), "{error}");
                }
            }
        }
    }

    #[test]
    fn files_too_large_together_are_reported_once() {
        let at = Path::new("/dev/shm");
        let there = statvfs(at).unwrap();
        if there.f_blocks == 0 {
            return println!("SKIPPED: /dev/shm has no limit");
        }
        let left = there.f_bavail * there.f_frsize;
        let file = |name: &str, bytes| (at.join("tickcast-no-such-folder").join(name), bytes);
        let fits = || without_room([file("a", left / 4), file("b", left / 4)].into_iter());
        assert_eq!(fits(), Vec::<String>::new());
        let needed = 2 * left + 2;
        let reported = without_room([file("a", left + 1), file("b", left + 1)].into_iter());
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(
            reported[0].starts_with("/dev/shm: its file system has "),
            "{reported:?}"
        );
        assert!(
            reported[0].contains(&format!("need {needed} more")),
            "{reported:?}"
        );
    }
}
