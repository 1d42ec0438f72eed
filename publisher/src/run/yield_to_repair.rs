//! Lets the repair thread run before a thread that never sleeps on its core, as soon as a
//! subscriber waits. Otherwise the scheduler interrupts that thread only at the end of its time
//! slice, after milliseconds. If the repair thread has a short slice (`set_short_slice`), the
//! core that received the request interrupts the spinning thread instead, after microseconds.

use tickcast_reliability::types::Nanos;
use tickcast_transport::control::BacklogHint;

/// Interval between two polls for waiting subscribers: each takes a system call.
const LOOK_EVERY: Nanos = Nanos::from_us(2);
/// Additional delay before a poll while there is something to send. The poll is still needed for two
/// reasons:
/// - a repair thread that relies on our polls to wake it would sleep on;
/// - a repair thread that was just woken would wait for the end of our time slice, which is
///   milliseconds.
const BUSY: Nanos = Nanos::from_us(48);

/// The publish thread's part in yielding to repair.
pub(crate) struct YieldToRepair {
    /// Whether a subscriber waits; `None` if repair has its own core. A repair thread without its own
    /// core may run on ours at any time, without notice, so we always poll for it.
    backlog_hint: Option<BacklogHint>,
    look_at: Nanos,
}

impl YieldToRepair {
    pub(crate) const fn to(backlog_hint: Option<BacklogHint>) -> Self {
        Self {
            backlog_hint,
            look_at: Nanos::ZERO,
        }
    }

    /// Yields the core if a poll is due and a subscriber waits. Returns whether it yielded.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos) -> bool {
        now >= self.look_at && self.check(now)
    }

    /// Yields like [`idle`](Self::idle), when there was something to send.
    #[inline]
    pub(crate) fn busy(&mut self, now: Nanos) -> bool {
        now >= self.look_at.after(BUSY) && self.check(now)
    }

    #[cold]
    fn check(&mut self, now: Nanos) -> bool {
        let Some(backlog_hint) = &self.backlog_hint else {
            self.look_at = Nanos::MAX;
            return false;
        };
        self.look_at = now.after(LOOK_EVERY);
        let waits = backlog_hint.has_backlog();
        if waits {
            std::thread::yield_now();
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use tickcast_transport::control::{ControlServer, ServerConfig};

    use super::*;

    #[test]
    fn yield_waits_only_while_repair_is_due() {
        let mut server =
            ControlServer::bind("127.0.0.1:0".parse().unwrap(), ServerConfig::default()).unwrap();
        let mut yield_to_repair = YieldToRepair::to(Some(server.backlog_hint().unwrap()));
        let mut now = Nanos::from_ms(1);
        assert!(!yield_to_repair.idle(now), "nobody is there");
        let _stream = TcpStream::connect(server.local_address().unwrap()).unwrap();
        for ns in 0..LOOK_EVERY.0 {
            assert!(
                !yield_to_repair.idle(now.after(Nanos(ns))),
                "it looks again"
            );
        }
        while !yield_to_repair.idle(now) {
            now = now.after(LOOK_EVERY);
        }
        now = now.after(LOOK_EVERY);
        assert!(yield_to_repair.idle(now), "somebody waits still");
        let looks_at = now.after(LOOK_EVERY).after(BUSY);
        assert!(
            !yield_to_repair.busy(Nanos(looks_at.0 - 1)),
            "it looks too often"
        );
        assert!(yield_to_repair.busy(looks_at), "however busy");
        let mut come = false;
        while !come {
            server.poll(None, |_| come = true).unwrap();
        }
        // A new connection becomes writable once; take that event.
        server.poll(Some(Duration::ZERO), |_| ()).unwrap();
        assert!(!yield_to_repair.idle(now.after(LOOK_EVERY)), "nobody waits");
    }

    #[test]
    fn dedicated_repair_core_disables_yielding() {
        let mut yield_to_repair = YieldToRepair::to(None);
        assert!(!yield_to_repair.idle(Nanos::ZERO) && !yield_to_repair.busy(Nanos::from_secs(1)));
        assert_eq!(yield_to_repair.look_at, Nanos::MAX, "nor looks");
    }
}
