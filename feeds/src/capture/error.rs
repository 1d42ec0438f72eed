//! Capture errors: each names the fault, the file, the byte offset and the remedy.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{compression, guess::Guess};

/// Fault of a compressed file that ends too early.
pub(super) const CUT: &str = "the compressed stream (gzip or zstd) is cut off";

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
    /// A zstd frame needs more memory than is given to it. The file is sound.
    #[error(
        "{} holds zstd data with a window of {} MiB, and at most {} MiB are read: decompress it with \
         zstd -d --long=31",
        .path.display(),
        .window >> 20,
        .max >> 20
    )]
    Window {
        /// The path as given.
        path: PathBuf,
        /// Length of the window, in bytes.
        window: u64,
        /// The longest window that is read, in bytes.
        max: u64,
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
    Damaged(&'static str),
}

impl CaptureFault {
    /// Adds the file and the offset.
    pub(super) fn at(self, path: &Path, offset: u64) -> CaptureError {
        let path = path.into();
        match self {
            Self::Io(source) => io_error(source, path, offset),
            Self::Damaged(what) => CaptureError::Damaged { path, offset, what },
        }
    }
}

fn io_error(source: io::Error, path: PathBuf, offset: u64) -> CaptureError {
    if let Some((window, max)) = compression::window_too_long(&source) {
        return CaptureError::Window { path, window, max };
    }
    let what = match source.kind() {
        ErrorKind::InvalidInput => "the compressed stream (gzip or zstd) is corrupt",
        ErrorKind::UnexpectedEof => CUT,
        _ => {
            return CaptureError::Read {
                path,
                offset,
                source,
            };
        }
    };
    CaptureError::Damaged { path, offset, what }
}

impl From<io::Error> for CaptureFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
