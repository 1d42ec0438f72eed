//! A reliable connection of a subscriber beside TCP, for NACKs or for READs: a rung of the repair
//! ladder for as long as it answers (docs/PROTOCOL.md §5.4, §6.1).
//!
//! It exists within a session: the publisher offers it in WELCOME, and it ends with the repair
//! connection. An unanswered request moves to the next rung, gap by gap. After too many late answers in
//! a row, the connection counts as down, and the core builds a new one with back-off.

use serde::{Deserialize, Serialize};

use crate::control::{REPAIR_OFFERS_MAX, RepairOffer};
use crate::session::link::{Link, LinkTimers};
use crate::types::Nanos;

/// The longest time between attempts, as a multiple of the time over TCP. An attempt costs both sides a
/// queue and its memory, a crowd is served one by one, and the rungs below answer meanwhile.
const RETRY_MAX_TIMES: u64 = 8;
/// The timeout of an attempt, as a multiple of the timeout over TCP.
const JOIN_TIMEOUT_TIMES: u64 = 2;

/// An offer of the publisher.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Offer {
    offer: RepairOffer,
    /// Whether the last attempt did not come up. The others are tried first then.
    failed: bool,
}

/// The NACK connection, its offers and its unanswered requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NackLink {
    /// Whether the driver can make a NACK connection.
    usable: bool,
    /// The publisher's offers, each with an address to connect to. They are tried in turn.
    #[serde(with = "crate::types::as_json")]
    offers: Vec<Offer>,
    /// Index of the current offer.
    turn: usize,
    /// The offer that answered last, with which the next session begins.
    #[serde(with = "crate::types::as_json")]
    served: Option<RepairOffer>,
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
            offers: Vec::new(),
            turn: 0,
            served: None,
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
    pub(crate) fn offer(&self) -> Option<RepairOffer> {
        self.offers.get(self.turn).map(|it| it.offer)
    }

    /// Takes the offers of a WELCOME. The one that answered last comes first.
    pub(crate) fn offered(&mut self, now: Nanos, offers: impl Iterator<Item = RepairOffer>) {
        let before = std::mem::take(&mut self.offers);
        let failed = |offer| before.iter().any(|it| it.failed && it.offer == offer);
        let taken = offers.take(REPAIR_OFFERS_MAX).map(|offer| Offer {
            offer,
            failed: failed(offer),
        });
        self.offers = taken.collect();
        let served = self
            .offers
            .iter()
            .position(|it| Some(it.offer) == self.served);
        self.turn = served.unwrap_or(0);
        self.want_if(now, !self.offers.is_empty());
    }

    /// Requests the connection if there is an offer for it and the driver can make it.
    pub(crate) fn want_if(&mut self, now: Nanos, is_offered: bool) {
        if is_offered && self.usable {
            self.link.want(now);
        }
    }

    /// The connection to the current offer ended, or the attempt failed. Moves on to the next offer whose
    /// last attempt came up, or to the next one if none did.
    pub(crate) fn next_offer(&mut self, was_up: bool) {
        if let Some(current) = self.offers.get_mut(self.turn) {
            current.failed = !was_up;
        }
        if self.offers.iter().all(|it| it.failed) {
            self.offers.iter_mut().for_each(|it| it.failed = false);
        }
        let count = self.offers.len().max(1);
        let mut others = (1..=count).map(|ahead| (self.turn + ahead) % count);
        let next = others.find(|at| self.offers.get(*at).is_some_and(|it| !it.failed));
        self.turn = next.unwrap_or(0);
    }

    /// Drops the current offer, because the driver has no device for it. Returns whether it was wanted and
    /// others are left.
    pub(crate) fn drop_offer(&mut self) -> bool {
        if self.turn < self.offers.len() {
            self.offers.remove(self.turn);
        }
        self.turn %= self.offers.len().max(1);
        self.link.is_wanted() && !self.offers.is_empty()
    }

    /// Handles the established connection. Only an answer shows that it works.
    pub(crate) const fn up(&mut self) {
        self.link.up();
        (self.unanswered, self.late_at) = (0, Nanos::ZERO);
    }

    /// Handles an answer, in time or late.
    pub(crate) fn answered(&mut self) {
        self.link.settled();
        self.unanswered = 0;
        self.served = self.offer();
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
