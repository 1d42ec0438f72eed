//! Directories: who may rename the files in them.

use std::fs::{DirBuilder, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

use super::error::{FileError, failed};

/// Mode of a created directory. Its owner alone may create and rename files in it.
const DIRECTORY_MODE: u32 = 0o750;

/// Creates a directory and its parents, if they do not exist. Only their owner may create files in them.
///
/// # Errors
/// [`FileError`] if it can't be created, or every user can rename the files in it.
pub fn create_directory(path: &Path) -> Result<(), FileError> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path);
    made.map_err(|error| failed("create", path, error))?;
    open_directory(path).map(drop)
}

/// Opens a directory. Refuses one in which every user can rename the files of others.
///
/// # Errors
/// [`FileError`] with the reason.
pub fn open_directory(path: &Path) -> Result<File, FileError> {
    open_inspected(path).map(|(directory, _)| directory)
}

/// Opens a directory as [`open_directory`] does. Refuses one of another user than root and this one, because
/// its owner can rename the files in it.
///
/// # Errors
/// [`FileError`] with the reason.
pub fn open_trusted_directory(path: &Path) -> Result<File, FileError> {
    let (directory, found) = open_inspected(path)?;
    check_owner(path, found.uid(), geteuid().as_raw())?;
    Ok(directory)
}

fn open_inspected(path: &Path) -> Result<(File, Metadata), FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::empty());
    let directory = File::from(opened.map_err(|error| failed("open", path, error))?);
    let found = directory.metadata();
    let found = found.map_err(|error| failed("inspect", path, error))?;
    let (is_writable_by_all, is_sticky) = (found.mode() & 0o002 != 0, found.mode() & 0o1000 != 0);
    if is_writable_by_all && !is_sticky {
        return Err(FileError::Directory {
            directory: path.to_owned(),
        });
    }
    Ok((directory, found))
}

fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), FileError> {
    if owner == 0 || owner == user {
        return Ok(());
    }
    Err(FileError::DirectoryOwner {
        directory: path.to_owned(),
        owner,
        user,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;
    use crate::host::files::DirectoryEntry;

    #[test]
    fn directory_open_to_all_needs_sticky_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        for (mode, is_used) in [
            (0o700, true),
            (0o770, true),
            (0o777, false),
            (0o703, false),
            (0o1777, true),
        ] {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            for entry in [DirectoryEntry::new(&path), DirectoryEntry::trusted(&path)] {
                assert_eq!(entry.is_ok(), is_used, "{mode:o}");
                if let Err(error) = entry {
                    assert!(matches!(error, FileError::Directory { .. }), "{error}");
                    assert!(error.to_string().contains("chmod +t"), "{error}");
                }
            }
            assert_eq!(create_directory(folder.path()).is_ok(), is_used);
        }
    }

    #[test]
    fn directory_of_other_user_is_not_trusted() {
        let path = Path::new("/d");
        for (owner, user, is_trusted) in [(0, 0, true), (0, 7, true), (7, 7, true)] {
            assert_eq!(check_owner(path, owner, user).is_ok(), is_trusted);
        }
        for (owner, user) in [(7, 0), (7, 8)] {
            let error = check_owner(path, owner, user).unwrap_err();
            assert!(
                error.to_string().contains("/d belongs to user 7"),
                "{error}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        if chown(folder.path(), Some(7), None).is_err() {
            println!("SKIPPED: only root can give a directory away");
            return;
        }
        let kept = folder.path().join("kept");
        let error = DirectoryEntry::trusted(&kept).unwrap_err();
        assert!(matches!(error, FileError::DirectoryOwner { .. }), "{error}");
        DirectoryEntry::new(&kept).unwrap();
    }
}
