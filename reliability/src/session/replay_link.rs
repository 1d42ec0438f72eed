//! The replay connection of a subscriber: wanted while history is missing, and closed when unused
//! (docs/PROTOCOL.md §5.4).

use serde::{Deserialize, Serialize};

use crate::session::link::{Link, LinkTimers};
use crate::types::Nanos;

/// An unused replay connection is closed after this time.
const IDLE_MAX: Nanos = Nanos::from_secs(2);
/// After this many failed attempts the repair connection requests history.
const ATTEMPTS_MAX: u32 = 3;

/// The replay connection and its use.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReplayLink {
    link: Link,
    failures: u32,
    used_at: Nanos,
}

impl ReplayLink {
    pub(crate) const fn new(timers: LinkTimers, seed: u64, now: Nanos) -> Self {
        Self {
            link: Link::new(timers, seed),
            failures: 0,
            used_at: now,
        }
    }

    /// Handles the WELCOME of the connection.
    pub(crate) const fn up(&mut self, now: Nanos) {
        self.link.up();
        self.link.settled();
        (self.failures, self.used_at) = (0, now);
    }

    /// Handles the loss of the connection, or a failed attempt.
    pub(crate) const fn failed(&mut self) {
        self.failures += 1;
    }

    /// Requests the connection for history.
    pub(crate) fn want(&mut self, now: Nanos) {
        self.used_at = now;
        self.link.want(now);
    }

    /// Records that history is requested or received over the connection, and returns its link.
    pub(crate) const fn use_link(&mut self, now: Nanos) -> &mut Link {
        self.used_at = now;
        &mut self.link
    }

    /// Stops the connection if it is unused for too long, and returns whether it does.
    pub(crate) fn stop_if_idle(&mut self, now: Nanos) -> bool {
        let is_idle = now >= self.idle_at();
        if is_idle {
            self.link.stop();
        }
        is_idle
    }

    /// Returns whether history is requested over this connection, and not over the repair connection.
    pub(crate) const fn is_apart(&self) -> bool {
        self.failures < ATTEMPTS_MAX
    }

    /// Returns whether history can be requested now.
    pub(crate) const fn is_open(&self) -> bool {
        !self.is_apart() || self.link.is_up()
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.link.is_wanted()
    }

    pub(crate) const fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Returns the next time at which something is due.
    pub(crate) fn next_due(&self) -> Nanos {
        self.link.next_due().min(self.idle_at())
    }

    fn idle_at(&self) -> Nanos {
        match self.link.is_up() {
            true => self.used_at.after(IDLE_MAX).after(Nanos(1)),
            false => Nanos::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_connection_stops_after_two_unused_seconds() {
        let mut replay = ReplayLink::new(LinkTimers::default(), 1, Nanos::ZERO);
        assert_eq!(replay.next_due(), Nanos::MAX);
        replay.want(Nanos::ZERO);
        assert!(replay.link.start_if_due(Nanos::ZERO) && replay.link.connected(Nanos::ZERO));
        replay.up(Nanos::ZERO);
        replay.use_link(Nanos::from_secs(1));
        let idle_at = Nanos::from_secs(3).after(Nanos(1));
        assert_eq!(replay.next_due(), idle_at);
        assert!(!replay.stop_if_idle(Nanos::from_secs(3)) && replay.is_wanted());
        assert!(replay.stop_if_idle(idle_at) && !replay.is_wanted());
    }

    #[test]
    fn history_moves_to_repair_connection_after_three_failures() {
        let mut replay = ReplayLink::new(LinkTimers::default(), 1, Nanos::ZERO);
        for failures in 0..ATTEMPTS_MAX {
            assert!(replay.is_apart() && !replay.is_open(), "{failures}");
            replay.failed();
        }
        assert!(!replay.is_apart() && replay.is_open());
        replay.up(Nanos::ZERO);
        assert!(replay.is_apart() && replay.is_open());
    }
}
