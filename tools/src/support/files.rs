//! Files: reading within bounds and with errors that name the place, and atomic writing.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tickcast_log::PlainLines;
use tickcast_transport::host::atomic_file;
use tickcast_transport::host::files::{
    FileError, create_directory, is_pipe, open_input, read_at_most,
};

use crate::exit::ToolError;

/// Maximum length of a JSON file that is read.
const JSON_LEN_MAX: u64 = 64 << 20;

/// Opens a regular file to read it. A pipe or device could keep the command waiting, or never end.
///
/// # Errors
/// Returns [`ToolError::Read`] or [`ToolError::File`] if the file can't be opened, or is no regular one.
pub fn open_regular(path: &Path) -> Result<File, ToolError> {
    open_input(path).map_err(|error| not_read(path, error))
}

/// Says on standard error that a file is a pipe: opening it waits until a program writes into it.
pub fn name_pipe(path: &Path) {
    if is_pipe(path) {
        let path = path.display();
        eprintln!(
            "waiting for the writer of the pipe {}",
            PlainLines(&path.to_string())
        );
    }
}

/// Reads a file that holds one value. Errors name its kind as `what`.
///
/// # Errors
/// Returns [`ToolError::Read`] or [`ToolError::File`] if the file can't be read, or [`ToolError::Json`] if it
/// holds no such value.
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, ToolError> {
    // A user may give a pipe, as a shell makes it of a command.
    let file = File::open(path).map_err(|source| ToolError::Read {
        path: path.into(),
        source,
    })?;
    let text = read_at_most(&file, path, JSON_LEN_MAX).map_err(|error| not_read(path, error))?;
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

/// Returns the error for an input file that can't be read.
fn not_read(path: &Path, error: FileError) -> ToolError {
    match error {
        FileError::Io { source, .. } => ToolError::Read {
            path: path.into(),
            source,
        },
        error => ToolError::File(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn endless_json_file_is_refused_in_bounded_memory() {
        let read = read_json::<serde_json::Value>(Path::new("/dev/zero"), "a fault plan");
        let error = read.unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(
            error.to_string().contains("/dev/zero has more than"),
            "{error}"
        );
    }
}
