//! Files of JSON: read with an error that names the place, written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::CommandError;

/// Reads a file that holds one value; `what` is what it should be, for the error.
///
/// # Errors
/// [`CommandError::Read`] or [`CommandError::Json`].
pub(crate) fn read_json<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
) -> Result<T, CommandError> {
    let text = fs::read(path).map_err(|source| CommandError::Read {
        path: path.into(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|source| CommandError::Json {
        path: path.into(),
        what,
        source,
    })
}

/// Finds out before the work whether its result can be written in the end.
///
/// # Errors
/// [`CommandError::Write`].
pub(crate) fn check_writable(path: &Path) -> Result<(), CommandError> {
    let check = || {
        if is_replaced(path) {
            let beside = unfinished(path);
            File::create(&beside)?;
            return fs::remove_file(beside);
        }
        match fs::metadata(path) {
            // Opening a pipe waits for whoever reads it.
            Ok(target) if target.file_type().is_fifo() => Ok(()),
            _ => (OpenOptions::new().append(true).create(true).open(path)).map(drop),
        }
    };
    check().map_err(|source| CommandError::Write {
        path: path.into(),
        source,
    })
}

/// Writes a value so that a reader never sees half of it; into a device, a pipe or a link as it
/// stands.
///
/// # Errors
/// [`CommandError::Write`].
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CommandError> {
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        if !is_replaced(path) {
            return fs::write(path, text);
        }
        let beside = unfinished(path);
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        if written.is_err() {
            // The error that matters is known; half a file helps nobody.
            let _ = fs::remove_file(&beside);
        }
        written
    };
    write().map_err(|source| CommandError::Write {
        path: path.into(),
        source,
    })
}

/// Whether a new file takes the place of what is there: never that of a device, pipe or link.
fn is_replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |target| target.is_file())
}

fn unfinished(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    beside.into()
}
