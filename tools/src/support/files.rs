//! JSON files: reading with errors that name the place, and atomic writing.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tickcast_transport::host::atomic_file;
use tickcast_transport::host::files::{FileError, create_directory};

use crate::exit::ToolError;

/// Reads a file that holds one value. Errors name its kind as `what`.
///
/// # Errors
/// Returns [`ToolError::Read`] if the file can't be read, or [`ToolError::Json`] if it holds no
/// such value.
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, ToolError> {
    let text = fs::read(path).map_err(|source| ToolError::Read {
        path: path.into(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|source| ToolError::Json {
        path: path.into(),
        what,
        source,
    })
}

/// Checks before the work that its result can be written at the end.
///
/// # Errors
/// Returns [`ToolError::Write`] or [`ToolError::File`] if it can't.
pub fn check_writable(path: &Path) -> Result<(), ToolError> {
    atomic_file::check_writable(path).map_err(|error| not_written(path, error))
}

/// Writes a value as JSON, atomically: a reader never sees a part of it. A device or pipe is written
/// in place.
///
/// # Errors
/// Returns [`ToolError::Write`] or [`ToolError::File`] if the file can't be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ToolError> {
    let text = serde_json::to_vec_pretty(value);
    let mut text = text.map_err(|error| ToolError::Write {
        path: path.into(),
        source: error.into(),
    })?;
    text.push(b'\n');
    atomic_file::write_atomic(path, &text).map_err(|error| not_written(path, error))
}

/// Writes a text in the same way as [`write_json`].
///
/// # Errors
/// Returns [`ToolError::Write`] or [`ToolError::File`] if the file can't be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), ToolError> {
    atomic_file::write_atomic(path, text.as_bytes()).map_err(|error| not_written(path, error))
}

/// Returns the error for an output file that can't be written.
pub fn not_written(path: &Path, error: FileError) -> ToolError {
    match error {
        FileError::Io { source, .. } => ToolError::Write {
            path: path.into(),
            source,
        },
        error => ToolError::File(error),
    }
}

/// The directory for the files of a run's processes.
pub enum Folder {
    /// A directory that is kept.
    Kept(PathBuf),
    /// A directory that is removed on drop.
    Temporary(tempfile::TempDir),
}

impl Folder {
    /// Creates the directory to keep, or a temporary one.
    ///
    /// # Errors
    /// Returns [`ToolError`] if it can't be created.
    pub fn new(run: &str, keep: Option<&Path>) -> Result<Self, ToolError> {
        let Some(path) = keep else {
            let prefix = format!("tickcast-{run}-");
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir();
            return folder
                .map(Self::Temporary)
                .map_err(|source| ToolError::Host {
                    what: "make a temporary folder",
                    source,
                });
        };
        let made = create_directory(path);
        made.map(|()| Self::Kept(path.into()))
            .map_err(|error| not_written(path, error))
    }

    /// Keeps a temporary directory beyond the drop.
    pub fn keep(&mut self) {
        let kept = Self::Kept(self.path().into());
        if let Self::Temporary(folder) = std::mem::replace(self, kept) {
            let _ = folder.keep();
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}
