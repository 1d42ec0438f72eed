//! The limit of file sizes of this process (`ulimit -f`).

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::error::FileError;

/// Checks that this process may write a file of `len` bytes. Otherwise a signal would end it.
///
/// # Errors
/// [`FileError::Limit`] with the limit.
pub fn check_limit(path: &Path, len: u64) -> Result<(), FileError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(FileError::Limit {
            path: path.to_owned(),
            len,
            limit,
        }),
        _ => Ok(()),
    }
}
