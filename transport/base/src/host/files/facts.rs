//! The properties of a file that decide whether it is used.

use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::process::{getegid, geteuid, getgroups};

use super::error::FileError;

/// Bits of a mode by which others than the owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Identity of a process: its effective user and its groups.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) user: u32,
    groups: Vec<u32>,
}

impl Identity {
    /// Returns the identity of this process.
    pub(super) fn current() -> io::Result<Self> {
        let mut groups: Vec<u32> = getgroups()?.iter().map(|it| it.as_raw()).collect();
        groups.push(getegid().as_raw());
        Ok(Self {
            user: geteuid().as_raw(),
            groups,
        })
    }
}

/// Owners whose files a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    /// Its own user.
    User,
    /// Its own user, root, and whoever shares a file with one of its groups. A user who is not a member of a
    /// group can't give a file to it.
    Group,
}

/// The properties of a file that decide whether it is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    kind: FileType,
    owner: u32,
    group: u32,
    mode: u32,
    names: u64,
}

impl From<&Metadata> for Facts {
    fn from(found: &Metadata) -> Self {
        Self {
            kind: found.file_type(),
            owner: found.uid(),
            group: found.gid(),
            mode: found.mode() & 0o7777,
            names: found.nlink(),
        }
    }
}

impl Facts {
    /// Checks that this is a regular file of these owners under one name, which only its owner can write.
    pub(super) fn check(
        self,
        path: &Path,
        owners: Owners,
        process: &Identity,
    ) -> Result<(), FileError> {
        check_kind(path, self.kind)?;
        self.check_owner(path, owners, process)?;
        let path = || path.to_owned();
        if self.mode & WRITABLE_BY_OTHERS != 0 {
            return Err(FileError::Mode {
                path: path(),
                mode: self.mode,
            });
        }
        if self.names > 1 {
            return Err(FileError::Names {
                path: path(),
                names: self.names,
            });
        }
        Ok(())
    }

    fn check_owner(self, path: &Path, owners: Owners, process: &Identity) -> Result<(), FileError> {
        let (owner, group, user) = (self.owner, self.group, process.user);
        if owner == user {
            return Ok(());
        }
        let path = path.to_owned();
        match owners {
            Owners::User => Err(FileError::Owner { path, owner, user }),
            Owners::Group if owner == 0 || process.groups.contains(&group) => Ok(()),
            Owners::Group => Err(FileError::Stranger {
                path,
                owner,
                group,
                user,
            }),
        }
    }
}

/// Checks that this is the kind of a regular file.
pub(super) fn check_kind(path: &Path, kind: FileType) -> Result<(), FileError> {
    if kind.is_file() {
        return Ok(());
    }
    let kind = if kind.is_symlink() {
        "a link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(FileError::Kind {
        path: path.to_owned(),
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_other_owner_is_used_only_within_group() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let mut found = Facts::from(&file.as_file().metadata().unwrap());
        let process = Identity {
            user: 7,
            groups: vec![70, 71],
        };
        for (owner, group, is_own, is_shared) in [
            (7, 70, true, true),
            (7, 99, true, true),
            (8, 71, false, true),
            (8, 99, false, false),
            (0, 99, false, true),
        ] {
            (found.owner, found.group) = (owner, group);
            for (owners, is_used) in [(Owners::User, is_own), (Owners::Group, is_shared)] {
                let checked = found.check(path, owners, &process);
                assert_eq!(checked.is_ok(), is_used, "{owners:?} {owner} {group}");
                if let Err(error) = checked {
                    let text = error.to_string();
                    assert!(text.contains(&format!("belongs to user {owner}")), "{text}");
                    assert!(text.contains("runs as user 7"), "{text}");
                }
            }
        }
    }
}
