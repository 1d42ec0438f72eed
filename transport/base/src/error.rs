//! Transport errors, by fault: the configuration's, the caller's or the host's.

use std::io;

use thiserror::Error;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Sequence;

/// Reason that a fan-out can't send. The caller or the host is at fault, never the network.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FanOutError {
    /// The slot to send is not sealed, or is no longer held.
    #[error(
        "sequence {sequence} can't be sent: the ring does not hold it; post only sealed sequences that the ring holds"
    )]
    NotSealed {
        /// Sequence of the slot.
        sequence: Sequence,
    },
    /// The datagram is too long.
    #[error(
        "a datagram of {len} bytes can't be sent: this fan-out carries at most {max}; make the slots smaller or raise the fan-out's datagram_len_max"
    )]
    TooLong {
        /// Length of the datagram, in bytes.
        len: usize,
        /// The longest datagram that fits, in bytes.
        max: usize,
    },
    /// The slot lies outside the memory that the transport was opened with.
    #[error(
        "the slot of sequence {sequence} is not in the memory that this fan-out sends from; open the fan-out with the ring's own mapping"
    )]
    NotRegistered {
        /// Sequence of the slot.
        sequence: Sequence,
    },
}

/// Reason that a receiver can't receive. The caller or the host is at fault, never the network.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The receiver does not have this line.
    #[error("line {line} does not exist, this receiver has {lines}")]
    NoSuchLine {
        /// The requested line.
        line: LineId,
        /// Number of lines.
        lines: usize,
    },
    /// The group can't be joined or left.
    #[error(
        "line {line}: membership of its group can't be changed: {source}; is the interface up?"
    )]
    Membership {
        /// The line.
        line: LineId,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refuses permanently.
    #[error("line {line} can't receive any more: {source}")]
    Io {
        /// The line.
        line: LineId,
        /// The operating system's error.
        source: io::Error,
    },
}
