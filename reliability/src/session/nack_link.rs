//! A reliable connection of a subscriber beside TCP, for NACKs or for READs: a rung of the repair
//! ladder for as long as it answers (docs/PROTOCOL.md §5.4, §6.1).
//!
//! It exists within a session: the publisher offers it in WELCOME, and it ends with the repair
//! connection. An unanswered request moves to the next rung, gap by gap. After too many late answers in
//! a row, the connection counts as down, and the core builds a new one with back-off.

use serde::{Deserialize, Serialize};

use crate::control::RepairOffer;
use crate::session::link::{Link, LinkTimers};
use crate::types::Nanos;

/// The longest time between attempts, as a multiple of the time over TCP. An attempt costs both sides a
/// queue and its memory, a crowd is served one by one, and the rungs below answer meanwhile.
const RETRY_MAX_TIMES: u64 = 8;
/// The timeout of an attempt, as a multiple of the timeout over TCP.
const JOIN_TIMEOUT_TIMES: u64 = 2;

/// The NACK connection, its offer and its unanswered requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NackLink {
    /// Whether the driver can make a NACK connection.
    usable: bool,
    /// The publisher's offer, with the address to connect to.
    #[serde(with = "crate::types::as_json")]
    offer: Option<RepairOffer>,
    pub(crate) link: Link,
    /// Requests in a row that were not answered in time, each sent after the one before was known to be
    /// late.
    unanswered: u32,
    /// The time at which the last of them was known to be late.
    late_at: Nanos,
}

impl NackLink {
    pub(crate) const fn new(timers: LinkTimers, seed: u64) -> Self {
        Self {
            usable: false,
            offer: None,
            link: Link::new(
                LinkTimers {
                    retry_max: timers.retry_max.times(RETRY_MAX_TIMES),
                    join_timeout: timers.join_timeout.times(JOIN_TIMEOUT_TIMES),
                    ..timers
                },
                seed,
            ),
            unanswered: 0,
            late_at: Nanos::ZERO,
        }
    }

    /// Sets whether the driver can make such a connection.
    pub(crate) const fn set_usable(&mut self, usable: bool) {
        self.usable = usable;
    }

    /// Returns the offer to connect to.
    pub(crate) const fn offer(&self) -> Option<RepairOffer> {
        self.offer
    }

    /// Takes the offer of a WELCOME.
    pub(crate) fn offered(&mut self, now: Nanos, offer: Option<RepairOffer>) {
        self.offer = offer;
        if self.usable && self.offer.is_some() {
            self.link.want(now);
        }
    }

    /// Handles the established connection. Only an answer shows that it works.
    pub(crate) const fn up(&mut self) {
        self.link.up();
        (self.unanswered, self.late_at) = (0, Nanos::ZERO);
    }

    /// Handles an answer, in time or late.
    pub(crate) const fn answered(&mut self) {
        self.link.settled();
        self.unanswered = 0;
    }

    /// Handles a request sent at `requested_at` that was not answered in time. Returns whether too many were
    /// late in a row. Requests that were in flight together count once.
    pub(crate) fn unanswered(
        &mut self,
        requested_at: Nanos,
        now: Nanos,
        attempts_max: u32,
    ) -> bool {
        if requested_at >= self.late_at {
            self.unanswered += 1;
            self.late_at = now;
        }
        self.unanswered >= attempts_max
    }
}
