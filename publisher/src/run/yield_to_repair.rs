//! Lets the thread that repairs run before one that never sleeps on its core, as soon as anybody waits
//! for it. Such a thread is else not interrupted before its turn is over, which takes milliseconds, or,
//! where the scheduler knows that repair is prompt, by an interrupt from the core that the question came
//! in on, which takes microseconds.

use tickcast_reliability::types::Nanos;
use tickcast_transport::control::BacklogHint;

/// It is looked this often whether anybody waits: each time takes a system call.
const LOOK_EVERY: Nanos = Nanos::from_us(2);
/// And so much later while there is something to send: who sleeps because we look would sleep on, and who
/// was woken would wait for the end of our turn, which is milliseconds.
const BUSY: Nanos = Nanos::from_us(48);

/// What a publishing thread does for the one that repairs.
pub(crate) struct YieldToRepair {
    /// Whether anybody waits; `None` where repair has a core of its own. Where it has none, it may run on
    /// ours whenever the scheduler has it so, and nobody tells: so it is looked for all the same.
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

    /// Gives up the core for a moment, if it is time to look and somebody waits. Whether it did.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos) -> bool {
        now >= self.look_at && self.check(now)
    }

    /// As [`idle`](Self::idle), where there was something to send.
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
        // That it can be written to is news of its own.
        server.poll(Some(Duration::ZERO), |_| ()).unwrap();
        assert!(!yield_to_repair.idle(now.after(LOOK_EVERY)), "nobody waits");
    }

    #[test]
    fn where_repair_has_a_core_of_its_own_nobody_gives_way() {
        let mut yield_to_repair = YieldToRepair::to(None);
        assert!(!yield_to_repair.idle(Nanos::ZERO) && !yield_to_repair.busy(Nanos::from_secs(1)));
        assert_eq!(yield_to_repair.look_at, Nanos::MAX, "nor looks");
    }
}
