//! Files that a reader finds complete or not at all: summaries, plans, companion files of recordings.
//!
//! A device or a pipe is never replaced. Its contents are written in place.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::files::{FileError, OutputTarget, Readers};

/// Checks, before the work starts, whether its result can be written.
///
/// # Errors
/// [`FileError`] of the attempt.
pub fn check_writable(path: &Path) -> Result<(), FileError> {
    match OutputTarget::find(path)? {
        OutputTarget::File(entry) => entry.create(Readers::Group).map(drop),
        // Opening a pipe would wait for its reader.
        OutputTarget::Stream(_) if fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo()) => {
            Ok(())
        }
        OutputTarget::Stream(entry) => entry.open_in_place().map(drop),
    }
}

/// Writes `bytes` to a file of a random name beside `path`, then renames that. Others than this user and its
/// group can't read the file.
///
/// # Errors
/// [`FileError`] if the file can't be written. The previous file is then untouched, and no partial file is
/// left.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let entry = match OutputTarget::find(path)? {
        OutputTarget::File(entry) => return entry.write(bytes, Readers::Group),
        OutputTarget::Stream(entry) => entry,
    };
    let mut stream = entry.open_in_place()?;
    let written = match stream.metadata() {
        // Standard output may lead to a file, whose previous contents the new ones replace.
        Ok(found) if found.is_file() => stream.set_len(0),
        _ => Ok(()),
    };
    let written = written.and_then(|()| stream.write_all(bytes));
    written.map_err(|error| entry.failed("write", error))
}
