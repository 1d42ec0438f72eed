//! Reasons that a file is not used.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Reason that a file is not used. The configuration or another user of the host is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path ends in no name.
    #[error("{path} names no file; give the path of a file")]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// Every user may rename the files of a directory.
    #[error(
        "every user can replace files in {directory}; set its sticky bit (chmod +t), or choose another directory"
    )]
    Directory {
        /// The directory.
        directory: PathBuf,
    },
    /// A directory belongs to another user, who can rename the files in it.
    #[error(
        "{directory} belongs to user {owner}, who can replace files in it, but this process runs as user {user}; choose a directory of user {user} or root"
    )]
    DirectoryOwner {
        /// The directory.
        directory: PathBuf,
        /// The owner's user ID.
        owner: u32,
        /// The effective user ID of this process.
        user: u32,
    },
    /// The file is not a regular one.
    #[error("{path} is {kind}, not a regular file; remove it, or choose another path")]
    Kind {
        /// The path.
        path: PathBuf,
        /// The kind of the file, with its article.
        kind: &'static str,
    },
    /// The file belongs to another user, who can change it at any time.
    #[error(
        "{path} belongs to user {owner}, but this process runs as user {user}; remove it, give it to user {user} (chown), or choose another path"
    )]
    Owner {
        /// The path.
        path: PathBuf,
        /// The owner's user ID.
        owner: u32,
        /// The effective user ID of this process.
        user: u32,
    },
    /// The file belongs to a user and a group that this process does not trust.
    #[error(
        "{path} belongs to user {owner} and group {group}, but this process runs as user {user}; run it as user {owner}, or as a member of group {group}"
    )]
    Stranger {
        /// The path.
        path: PathBuf,
        /// The owner's user ID.
        owner: u32,
        /// The group ID.
        group: u32,
        /// The effective user ID of this process.
        user: u32,
    },
    /// The file has further names, which may lie in directories of other users.
    #[error(
        "{path} is one of {names} names (hard links) of its file; remove the others, or copy the file and remove this one"
    )]
    Names {
        /// The path.
        path: PathBuf,
        /// The number of names.
        names: u64,
    },
    /// Others than the owner may write the file.
    #[error(
        "{path} has mode {mode:04o}, so others than its owner can write it; check its contents and revoke that right (chmod go-w), or remove it"
    )]
    Mode {
        /// The path.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// Others than the owner may read a secret.
    #[error(
        "{path} has mode {mode:04o}, so others than its owner can read it; revoke that right (chmod go=), and replace the secret"
    )]
    Secret {
        /// The path.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// The name of a socket belongs to another file.
    #[error("{path} is not a socket; remove it, or choose another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// A process listens at the socket.
    #[error("a process listens at {path} already; stop it, or choose another path")]
    Listening {
        /// The path.
        path: PathBuf,
    },
    /// The file is longer than any valid one.
    #[error("{path} has more than {max} bytes, so it holds something else; choose another path")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// The largest valid length, in bytes.
        max: u64,
    },
    /// The file would exceed the limit of this process. Exceeding it ends the process by a signal.
    #[error(
        "{path} needs {len} bytes, but this process may write at most {limit} bytes a file; raise that limit (ulimit -f)"
    )]
    Limit {
        /// The path.
        path: PathBuf,
        /// The needed length, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A call failed.
    #[error("can't {what} {path}: {source}; {}", remedy(.source))]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl From<FileError> for io::Error {
    /// Returns the operating system's error, if that is the reason, or an error with the text of this one.
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { source, .. } => source,
            error => Self::other(error),
        }
    }
}

/// Returns the remedy for a call that failed.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on its file system",
        ErrorKind::NotFound => "check that it exists",
        _ => "check that its directory exists, and that this user may use it",
    }
}

/// Returns the error of a call on a path.
pub(super) fn failed(what: &'static str, path: &Path, source: impl Into<io::Error>) -> FileError {
    FileError::Io {
        what,
        path: path.to_owned(),
        source: source.into(),
    }
}
