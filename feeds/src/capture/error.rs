//! Capture errors: each names the fault, the file, the byte offset and the remedy.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::guess::Guess;

/// A capture that cannot be opened or read further. Datagrams before the fault have been returned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file does not exist. The caller's fault.
    #[error("there is no file {}: check the path", .path.display())]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// The path names a directory. The caller's fault.
    #[error("{} is a directory: name one capture file in it", .path.display())]
    Directory {
        /// The path as given.
        path: PathBuf,
    },
    /// The file is empty.
    #[error("{} is empty: record or copy it again", .path.display())]
    Empty {
        /// The path as given.
        path: PathBuf,
    },
    /// The file has another format; another reader may know it.
    #[error(
        "{} starts with {head:02x?}, which is neither pcap nor pcapng: {}",
        .path.display(),
        .guess.map_or_else(|| "name a capture file".to_owned(), |guess| guess.to_string())
    )]
    NotACapture {
        /// The path as given.
        path: PathBuf,
        /// A format that the first bytes look like.
        guess: Option<Guess>,
        /// The first bytes, after decompression, at most 4.
        head: Vec<u8>,
    },
    /// The capture uses a link type that the reader does not support.
    #[error(
        "{} holds frames of link type {link}, which is not read: record it as Ethernet, Linux \
         cooked or raw IP",
        .path.display()
    )]
    UnknownLink {
        /// The path as given.
        path: PathBuf,
        /// The number of the link type.
        link: i32,
    },
    /// The file breaks its format. The file is damaged.
    #[error(
        "{}: at byte {offset} {what}: the file is damaged there, copy or record it again",
        .path.display()
    )]
    Damaged {
        /// The path as given.
        path: PathBuf,
        /// Offset of the fault, in bytes after decompression.
        offset: u64,
        /// Description of the fault.
        what: &'static str,
    },
    /// The operating system, or the decompression, failed.
    #[error(
        "{} cannot be read at byte {offset}: {source}; check its permissions and its medium",
        .path.display()
    )]
    Read {
        /// The path as given.
        path: PathBuf,
        /// Offset of the failed read, in bytes after decompression.
        offset: u64,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A fault without its file and offset.
#[derive(Debug)]
pub(super) enum CaptureFault {
    Io(io::Error),
    UnknownLink(i32),
    Damaged(&'static str),
}

impl CaptureFault {
    /// Adds the file and the offset.
    pub(super) fn at(self, path: &Path, offset: u64) -> CaptureError {
        let path = path.into();
        match self {
            Self::Io(source) if source.kind() == ErrorKind::InvalidInput => CaptureError::Damaged {
                path,
                offset,
                what: "the compressed stream (gzip or zstd) is corrupt",
            },
            Self::Io(source) => CaptureError::Read {
                path,
                offset,
                source,
            },
            Self::UnknownLink(link) => CaptureError::UnknownLink { path, link },
            Self::Damaged(what) => CaptureError::Damaged { path, offset, what },
        }
    }
}

impl From<io::Error> for CaptureFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
