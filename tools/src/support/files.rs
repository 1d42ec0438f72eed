//! Files of JSON: read with an error that names the place, written whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tickcast_transport::host::atomic_file;

use crate::exit::CommandError;

/// Reads a file that holds one value; `what` is what it should be, for the error.
///
/// # Errors
/// [`CommandError::Read`] or [`CommandError::Json`].
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, CommandError> {
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
pub fn check_writable(path: &Path) -> Result<(), CommandError> {
    atomic_file::check_writable(path).map_err(|source| not_written(path, source))
}

/// Writes a value so that a reader never sees half of it; into a device, a pipe or a link as it
/// stands.
///
/// # Errors
/// [`CommandError::Write`].
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CommandError> {
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        atomic_file::write_atomic(path, &text)
    };
    write().map_err(|source| not_written(path, source))
}

/// Writes a text, as [`write_json`] does.
///
/// # Errors
/// [`CommandError::Write`].
pub fn write_text(path: &Path, text: &str) -> Result<(), CommandError> {
    atomic_file::write_atomic(path, text.as_bytes()).map_err(|source| not_written(path, source))
}

fn not_written(path: &Path, source: io::Error) -> CommandError {
    CommandError::Write {
        path: path.into(),
        source,
    }
}

/// Where the files of a run's processes are.
pub enum Folder {
    /// A folder that stays.
    Kept(PathBuf),
    /// One that goes with this.
    Temporary(tempfile::TempDir),
}

impl Folder {
    /// Makes the folder to keep, or one for as long as this lives.
    ///
    /// # Errors
    /// [`CommandError`] when it can't be made.
    pub fn new(run: &str, keep: Option<&Path>) -> Result<Self, CommandError> {
        let Some(path) = keep else {
            let prefix = format!("tickcast-{run}-");
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir();
            return folder
                .map(Self::Temporary)
                .map_err(|source| CommandError::Host {
                    what: "make a temporary folder",
                    source,
                });
        };
        let made = fs::create_dir_all(path);
        made.map(|()| Self::Kept(path.into()))
            .map_err(|source| not_written(path, source))
    }

    /// Makes a temporary one stay.
    pub fn keep(&mut self) {
        let kept = Self::Kept(self.path().into());
        if let Self::Temporary(folder) = std::mem::replace(self, kept) {
            let _ = folder.keep();
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}
