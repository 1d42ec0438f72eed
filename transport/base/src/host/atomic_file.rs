//! Files that a reader finds complete or not at all: summaries, plans, companion files of recordings.
//!
//! A device, a pipe or a link is never replaced. Its contents are written in place.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Checks, before the work starts, whether its result can be written.
///
/// # Errors
/// The operating system's error of the attempt.
pub fn check_writable(path: &Path) -> io::Result<()> {
    if is_replaced(path) {
        let beside = unfinished(path);
        File::create(&beside)?;
        return fs::remove_file(beside);
    }
    match fs::metadata(path) {
        // Opening a pipe would wait for its reader.
        Ok(target) if target.file_type().is_fifo() => Ok(()),
        _ => (OpenOptions::new().append(true).create(true).open(path)).map(drop),
    }
}

/// Writes `bytes` to `<name>.part` beside the file, then renames that.
///
/// # Errors
/// The operating system's error. The previous file is then untouched, and no partial file is left.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !is_replaced(path) {
        return fs::write(path, bytes);
    }
    let beside = unfinished(path);
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Return the first error, and remove the partial file because nobody can use it.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Returns whether a new file replaces the existing one. Devices, pipes and links are not replaced.
fn is_replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |target| target.is_file())
}

fn unfinished(path: &Path) -> PathBuf {
    let mut beside = OsString::from(path);
    beside.push(".part");
    beside.into()
}
