//! A reliable connection of a subscriber beside TCP, for NACKs or for READs: a rung of the repair
//! ladder for as long as it answers (docs/PROTOCOL.md §5.4, §6.1).
//!
//! It exists within a session: the publisher offers it in WELCOME, and it goes with the repair
//! connection. What it does not answer is asked for on the next rung, gap by gap; when so many
//! questions in a row were not answered in time, it counts as down and is built anew, with back-off.

use serde::{Deserialize, Serialize};

use crate::control::RepairOffer;
use crate::timing::{Link, LinkTimers};
use crate::types::Nanos;

/// So many times as long as over TCP may pass between attempts: each costs both sides a queue and its
/// memory, a crowd has to be served one by one, and the rungs below answer meanwhile.
const RETRY_MAX_TIMES: u64 = 8;
/// As [`RETRY_MAX_TIMES`], for an attempt itself.
const JOIN_TIMEOUT_TIMES: u64 = 2;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NackLink {
    /// Whether the driver can make one.
    usable: bool,
    /// Where it leads.
    #[serde(with = "crate::types::as_json")]
    offer: Option<RepairOffer>,
    pub(crate) link: Link,
    /// Frames that wait for the driver.
    pub(crate) out: Vec<u8>,
    /// Questions in a row that were not answered in time, each asked after the one before was
    /// known to be late.
    unanswered: u32,
    /// When the last of them was known to be late.
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
            out: Vec::new(),
            unanswered: 0,
            late_at: Nanos::ZERO,
        }
    }

    /// Whether the driver can make such a connection at all.
    pub(crate) const fn set_usable(&mut self, usable: bool) {
        self.usable = usable;
    }

    /// Where it is to be made.
    pub(crate) const fn offer(&self) -> Option<RepairOffer> {
        self.offer
    }

    /// A publisher welcomed us and offers this.
    pub(crate) fn offered(&mut self, now: Nanos, offer: Option<RepairOffer>) {
        self.offer = offer;
        if self.usable && self.offer.is_some() {
            self.link.want(now);
        }
    }

    /// It is up. Only an answer shows that it is of use.
    pub(crate) const fn up(&mut self) {
        self.link.up();
        (self.unanswered, self.late_at) = (0, Nanos::ZERO);
    }

    /// An answer came on it, in time or not.
    pub(crate) const fn answered(&mut self) {
        self.link.settled();
        self.unanswered = 0;
    }

    /// A question that was asked at `asked_at` was not answered in time. Whether that was one too
    /// many: of questions that were under way together one counts.
    pub(crate) fn unanswered(&mut self, asked_at: Nanos, now: Nanos, tries_max: u32) -> bool {
        if asked_at >= self.late_at {
            self.unanswered += 1;
            self.late_at = now;
        }
        self.unanswered >= tries_max
    }

    /// It is not wanted any more. Whether it was.
    pub(crate) fn stop(&mut self) -> bool {
        let wanted = self.link.is_wanted();
        self.link.stop();
        self.out.clear();
        wanted
    }

    /// When something is due.
    pub(crate) const fn next_due(&self) -> Nanos {
        self.link.next_due()
    }
}
