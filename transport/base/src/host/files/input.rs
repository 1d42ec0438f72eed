//! Files that a user wrote as input.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::error::{FileError, failed};
use super::facts::check_kind;

/// Opens a regular file that a user wrote as input, also through links. Its owner and mode do not matter.
///
/// # Errors
/// [`FileError`] if the file does not exist, is not a regular one, or can't be opened.
pub fn open_input(path: &Path) -> Result<File, FileError> {
    // Opening a pipe would otherwise wait for a writer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| failed("open", path, error))?;
    let found = file.metadata();
    let found = found.map_err(|error| failed("inspect", path, error))?;
    check_kind(path, found.file_type())?;
    Ok(file)
}

/// Returns whether the path is a pipe, also through links. Opening one waits for its writer, and what is read
/// from it is gone.
#[must_use]
pub fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.file_type().is_fifo())
}

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// [`FileError`] if the file can't be read or is longer.
pub fn read_at_most(file: &File, path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = file.take(max.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| failed("read", path, error))?;
    if bytes.len() as u64 > max {
        return Err(FileError::TooLong {
            path: path.to_owned(),
            max,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn input_is_a_regular_file_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        fs::write(&path, b"abc").unwrap();
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let file = open_input(&link).unwrap();
        assert_eq!(read_at_most(&file, &link, 3).unwrap(), b"abc");
        let error = read_at_most(&open_input(&path).unwrap(), &path, 2).unwrap_err();
        assert!(
            matches!(error, FileError::TooLong { max: 2, .. }),
            "{error}"
        );
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(is_pipe(&pipe) && !is_pipe(&link) && !is_pipe(&folder.path().join("none")));
        for (path, kind) in [(&*pipe, "a pipe"), (Path::new("/dev/zero"), "a device")] {
            let error = open_input(path).unwrap_err().to_string();
            assert!(error.contains(kind), "{error}");
        }
    }
}
