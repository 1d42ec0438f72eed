//! The reasons why a recording can't be used, each with its remedy.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use super::survey::Feed;
use super::{LINES_MAX, SURVEY_PIPE_PACKETS};
use crate::capture::CaptureError;

/// A recording that can't be used as it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A file can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The files hold several feeds.
    #[error("{} holds {} feeds: {}", paths(.files), .feeds.len(), list(.feeds))]
    Choice {
        /// The files.
        files: Vec<PathBuf>,
        /// Their feeds.
        feeds: Vec<Feed>,
    },
    /// The files hold no feed that is wanted.
    #[error(
        "{} holds no feed at the destinations asked for; it holds {}",
        paths(.files), list(.feeds)
    )]
    NotThere {
        /// The files.
        files: Vec<PathBuf>,
        /// Their feeds.
        feeds: Vec<Feed>,
    },
    /// A file of messages has no packets, and what was asked for concerns packets.
    #[error(
        "{} holds ITCH 5.0 messages without packets, so {asked} does not apply: leave it out",
        .file.display()
    )]
    NoPackets {
        /// The file.
        file: PathBuf,
        /// The setting.
        asked: String,
    },
    /// A feed has more lines than can be merged.
    #[error(
        "{} make {lines} lines of one feed, but at most {LINES_MAX} are merged: choose fewer \
         destinations or files",
        paths(.files)
    )]
    TooManyLines {
        /// The files.
        files: Vec<PathBuf>,
        /// The lines.
        lines: usize,
    },
    /// A feed begins behind the packets of a pipe that are surveyed.
    #[error(
        "{} holds no feed among the first {SURVEY_PIPE_PACKETS} packets of a pipe, but later ones to {} \
         are of one: choose it by its destination, or read a regular file",
        paths(.files), addresses(.destinations)
    )]
    BeginsLate {
        /// The files.
        files: Vec<PathBuf>,
        /// The destinations of the feed.
        destinations: Vec<SocketAddr>,
    },
    /// No feed was recognised.
    #[error("{} holds no feed that is recognised: {}", paths(.files), .clues.join("; "))]
    Nothing {
        /// The files.
        files: Vec<PathBuf>,
        /// The content of the files, and remedies.
        clues: Vec<String>,
    },
}

fn paths(files: &[PathBuf]) -> String {
    let paths: Vec<_> = files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" with ")
}

fn addresses(destinations: &[SocketAddr]) -> String {
    let addresses: Vec<_> = destinations.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

fn list(feeds: &[Feed]) -> String {
    if feeds.is_empty() {
        return "none".into();
    }
    feeds
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
