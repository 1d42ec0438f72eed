//! Why a capture cannot be read: what is wrong, in which file, at which byte, and what to do.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Why a capture cannot be read, or not further. What stood before has been given out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such file. The caller's fault.
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
    /// The file holds nothing.
    #[error("{} is empty: record or copy it again", .path.display())]
    Empty {
        /// The path as given.
        path: PathBuf,
    },
    /// The file is something else; another reader may know it.
    #[error(
        "{} starts with {head:02x?}, which is neither pcap nor pcapng: name a capture file",
        .path.display()
    )]
    NotACapture {
        /// The path as given.
        path: PathBuf,
        /// The first bytes, after decompression, at most 4.
        head: Vec<u8>,
    },
    /// The capture's frames are of a link type that we do not read.
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
    /// A length in the file is absurd. The file is damaged, or was made to do harm.
    #[error(
        "{}: the {what} at byte {offset} says it is {len} bytes long, more than the {max} that \
         make sense: the file is damaged there, copy or record it again",
        .path.display()
    )]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Where it starts, in bytes after decompression.
        offset: u64,
        /// What says so.
        what: &'static str,
        /// What it says, in bytes.
        len: u64,
        /// The most we take, in bytes.
        max: u64,
    },
    /// The file breaks its format. The file is damaged.
    #[error(
        "{}: at byte {offset} {what}: the file is damaged there, copy or record it again",
        .path.display()
    )]
    Damaged {
        /// The path as given.
        path: PathBuf,
        /// Where, in bytes after decompression.
        offset: u64,
        /// What is wrong.
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
        /// Where, in bytes after decompression.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// An error before it knows its file and place.
#[derive(Debug)]
pub(super) enum CaptureFault {
    Io(io::Error),
    UnknownLink(i32),
    TooLong {
        what: &'static str,
        len: u64,
        max: u64,
    },
    Damaged(&'static str),
}

impl CaptureFault {
    /// Gives it its file and place.
    pub(super) fn at(self, path: &Path, offset: u64) -> CaptureError {
        let path = path.into();
        match self {
            Self::Io(source) if source.kind() == ErrorKind::InvalidInput => CaptureError::Damaged {
                path,
                offset,
                what: "the gzip stream is corrupt",
            },
            Self::Io(source) => CaptureError::Read {
                path,
                offset,
                source,
            },
            Self::UnknownLink(link) => CaptureError::UnknownLink { path, link },
            Self::TooLong { what, len, max } => CaptureError::TooLong {
                path,
                offset,
                what,
                len,
                max,
            },
            Self::Damaged(what) => CaptureError::Damaged { path, offset, what },
        }
    }
}

impl From<io::Error> for CaptureFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
