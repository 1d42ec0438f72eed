//! On which way what a receiver takes comes, and how its patience with a way is found too short.

use serde::{Deserialize, Serialize};

use crate::types::Nanos;

/// On which way a datagram comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ArrivalPath {
    /// Any but those below.
    Other,
    /// As an answer on the NACK connection.
    Nack,
    /// By READ.
    Read,
    /// The publisher wrote it to our inbox, unasked.
    Written,
}

/// How the patience with a rung of the ladder is found too short.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lateness {
    pub(crate) fallback_at: Nanos,
    late_at: Nanos,
}

impl Lateness {
    /// An answer came that was given up. Whether that is news: once for all that gave way before.
    pub(crate) fn is_first_late_reply(&mut self, now: Nanos) -> bool {
        let news = self.fallback_at > self.late_at;
        if news {
            self.late_at = now;
        }
        news
    }
}
