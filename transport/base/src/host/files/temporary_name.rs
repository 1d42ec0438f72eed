//! The random name that a new file has until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, unlinkat};
use rustix::rand::{GetRandomFlags, getrandom};

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
pub(super) fn random_name() -> io::Result<OsString> {
    Ok(OsString::from(format!(".tickcast-{:016x}", random()?)))
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
