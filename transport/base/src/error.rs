//! Transport errors, by fault: the configuration's, the caller's or the host's.

use std::io;

use thiserror::Error;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Sequence;

/// Why a fan-out can't send. The caller or the host is at fault, never the network.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FanOutError {
    /// The slot to send is not sealed, or is no longer held.
    #[error(
        "sequence {sequence} was to be sent but its slot holds nothing; post only what is sealed and held"
    )]
    NotSealed {
        /// Which.
        sequence: Sequence,
    },
    /// The datagram does not fit.
    #[error(
        "a datagram of {len} bytes was to be sent, this fan-out carries {max}; make the slots smaller or the fan-out's datagram_len_max larger"
    )]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit that fits.
        max: usize,
    },
    /// The slot lies outside the memory that the transport was given at the start.
    #[error(
        "the slot of sequence {sequence} is not in the memory that this fan-out sends from; open the fan-out with the ring's own mapping"
    )]
    NotRegistered {
        /// Which.
        sequence: Sequence,
    },
    /// The operating system refuses for good.
    #[error("line {line} can't send any more: {source}")]
    Io {
        /// On which line.
        line: LineId,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Why a receiver can't receive. The caller or the host is at fault, never the network.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// A line that this receiver does not have.
    #[error("line {line} does not exist, this receiver has {lines}")]
    NoSuchLine {
        /// Which was asked for.
        line: LineId,
        /// How many there are.
        lines: usize,
    },
    /// The group can't be joined or left.
    #[error(
        "line {line}: membership of its group can't be changed: {source}; is the interface up?"
    )]
    Membership {
        /// On which line.
        line: LineId,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refuses for good.
    #[error("line {line} can't receive any more: {source}")]
    Io {
        /// On which line.
        line: LineId,
        /// The operating system's error.
        source: io::Error,
    },
}
