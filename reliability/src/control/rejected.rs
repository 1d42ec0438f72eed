//! REJECTED: why a JOIN was rejected, or a connection is being closed (docs/PROTOCOL.md §6).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::Nanos;

/// The reason why a JOIN was rejected or a connection is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RejectCode {
    /// No wire version in common.
    WireVersion,
    /// A channel that does not exist.
    UnknownChannel,
    /// A session that does not exist.
    UnknownSession,
    /// Too many connections; a later retry may succeed.
    TooMany,
    /// The peer violated the protocol.
    Protocol,
    /// The peer did not read its answers.
    Overflow,
    /// The publisher is shutting down.
    ShuttingDown,
    /// The publisher's operator has banned this peer.
    Banned,
    /// A channel is authenticated, and the peer does not check tags.
    Authentication,
    /// A reason that this build does not know.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for RejectCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WireVersion => "no common wire version",
            Self::UnknownChannel => "unknown channel",
            Self::UnknownSession => "unknown session",
            Self::TooMany => "too many connections",
            Self::Protocol => "protocol error",
            Self::Overflow => "answers not read",
            Self::ShuttingDown => "shutting down",
            Self::Banned => "banned",
            Self::Authentication => "channel is authenticated",
            Self::Unknown => "unknown code",
        })
    }
}

/// REJECTED: the publisher's last message on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The reason for programs.
    pub code: RejectCode,
    /// The reason for people: the error and the remedy.
    pub text: String,
    /// Delay after which a retry makes sense; 0 when none does without a change.
    #[serde(default)]
    pub retry_after_ms: u64,
}

impl Rejected {
    /// The longest wait that a subscriber keeps, in milliseconds. Without this bound, one REJECTED by whoever
    /// has the publisher's port would silence the subscriber for ever.
    pub const WAIT_MAX_MS: u64 = 8_000;
    /// Bytes of the text that a receiver keeps.
    pub(crate) const TEXT_LEN_MAX: usize = 1_024;
    /// The text for the further connections of a session whose subscriber is gone.
    pub(crate) const SESSION_OVER: &str = "the session of this connection is over";

    /// Returns how long a subscriber waits before its next attempt: `retry_after_ms`, at most
    /// [`WAIT_MAX_MS`](Self::WAIT_MAX_MS). Returns 0 where the publisher announced no wait
    /// (docs/PROTOCOL.md §6.1).
    #[must_use]
    pub fn wait(&self) -> Nanos {
        Nanos::from_ms(self.retry_after_ms.min(Self::WAIT_MAX_MS))
    }

    /// Returns whether the connection only ends with the publisher or its session: the peer made no error.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.code == RejectCode::ShuttingDown || self.text == Self::SESSION_OVER
    }
}
