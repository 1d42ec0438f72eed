//! Files of JSON: read with an error that names the place, written whole or not at all.

use std::fs;
use std::path::Path;

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

/// Writes a value so that a reader never sees half of it.
///
/// # Errors
/// [`CommandError::Write`].
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CommandError> {
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".part");
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| CommandError::Write {
        path: path.into(),
        source,
    })
}
