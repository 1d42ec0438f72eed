//! Files that a reader finds whole or not at all: summaries, plans, recordings' companions.
//!
//! A device, a pipe or a link is never replaced; it is written into as it stands.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Finds out before the work whether its result can be written in the end.
///
/// # Errors
/// The operating system's, as of the attempt.
pub fn check_writable(path: &Path) -> io::Result<()> {
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
}

/// Writes `bytes` beside the file, as `<name>.part`, and renames that.
///
/// # Errors
/// The operating system's. What stood there before is untouched then, and nothing stays beside it.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !is_replaced(path) {
        return fs::write(path, bytes);
    }
    let beside = unfinished(path);
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The error that matters is known; half a file helps nobody.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Whether a new file takes the place of what is there: never that of a device, pipe or link.
fn is_replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |target| target.is_file())
}

fn unfinished(path: &Path) -> PathBuf {
    let mut beside = OsString::from(path);
    beside.push(".part");
    beside.into()
}
