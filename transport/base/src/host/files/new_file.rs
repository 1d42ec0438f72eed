//! A new file under a random name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::entry::{ATTEMPTS, CREATION, DirectoryEntry, Readers};
use super::error::FileError;

/// A new file under a random name. Dropping it removes the file.
#[derive(Debug)]
pub struct NewFile<'a> {
    file: File,
    temporary: TemporaryName<'a>,
    entry: &'a DirectoryEntry,
}

impl<'a> NewFile<'a> {
    /// Creates an empty file beside the entry, readable and writable.
    pub(super) fn create(entry: &'a DirectoryEntry, readers: Readers) -> Result<Self, FileError> {
        for _ in 0..ATTEMPTS {
            let name = random_name(entry)?;
            let flags = OFlags::RDWR | CREATION;
            match openat(entry.directory(), name.as_os_str(), flags, readers.mode()) {
                Ok(file) => {
                    return Ok(Self {
                        file: File::from(file),
                        temporary: TemporaryName::new(entry.directory(), name),
                        entry,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(entry.failed("create", error)),
            }
        }
        Err(entry.failed("create", Errno::EXIST))
    }

    /// Returns the file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file, and gives it the entry's name in place of a previous file.
    ///
    /// # Errors
    /// [`FileError::Io`] if that fails. The previous file is unchanged, unless only the directory could not
    /// be synced.
    pub fn replace(self) -> Result<File, FileError> {
        let Self {
            file,
            temporary,
            entry,
        } = self;
        file.sync_all()
            .map_err(|error| entry.failed("sync", error))?;
        let directory = entry.directory();
        let renamed = renameat(directory, temporary.name(), directory, entry.name());
        renamed.map_err(|error| entry.failed("replace", error))?;
        temporary.keep();
        let synced = directory.sync_all();
        synced.map_err(|error| entry.failed("sync", error))?;
        Ok(file)
    }
}

/// The random name of a new file, removed on drop unless it is kept.
#[derive(Debug)]
pub(super) struct TemporaryName<'a> {
    directory: &'a File,
    name: OsString,
    is_kept: bool,
}

impl<'a> TemporaryName<'a> {
    /// Removes a file of this directory on drop. The caller has created the file.
    pub(super) const fn new(directory: &'a File, name: OsString) -> Self {
        Self {
            directory,
            name,
            is_kept: false,
        }
    }

    /// Returns the name.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Keeps the file, which has got its own name.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for TemporaryName<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = unlinkat(self.directory, self.name.as_os_str(), AtFlags::empty());
        }
    }
}

/// Returns a name that nothing is likely to have.
pub(super) fn random_name(entry: &DirectoryEntry) -> Result<OsString, FileError> {
    let number = random().map_err(|error| entry.failed("name", error))?;
    Ok(OsString::from(format!(".tickcast-{number:016x}")))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        let got = getrandom(&mut *rest, GetRandomFlags::empty())?;
        rest = &mut rest[got..];
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let all = fs::read_dir(folder).unwrap();
        all.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn new_file_is_unseen_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let entry = DirectoryEntry::new(&path).unwrap();
        let new = entry.create(Readers::Owner).unwrap();
        new.file().write_all(b"one").unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        let first = new.replace().unwrap();
        assert!(entry.is_name_of(&first));
        assert_eq!(names(folder.path()), ["kept"]);
        drop(entry.create(Readers::Owner).unwrap());
        assert_eq!(names(folder.path()), ["kept"]);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let second = entry.create(Readers::Owner).unwrap().replace().unwrap();
        assert!(entry.is_name_of(&second) && !entry.is_name_of(&first));
        assert_eq!(fs::read(&path).unwrap(), b"");
        entry.remove(&first);
        assert!(path.exists(), "the name belongs to another file");
        entry.remove(&second);
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
