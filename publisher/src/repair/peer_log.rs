//! The limit for log lines about single connections. Each address has its own, so that the connections of one
//! host take no lines of others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;

use tickcast_log::LogLimit;
use tickcast_reliability::types::{Nanos, PeerOrigin};

/// Lines of one address at once: several subscribers of a host may join together.
const BURST: u64 = 100;
/// Lines of one address sustained. Several addresses together stay below the limit of a call site.
const PER_SECOND: f64 = 0.25;
/// Interval at which addresses with an unused limit are forgotten.
const FORGETS_EVERY: Nanos = Nanos::from_secs(1);

/// The limits of the addresses that lines were about lately.
#[derive(Debug, Default)]
pub(crate) struct PeerLog {
    limits: RefCell<BTreeMap<PeerOrigin, LogLimit>>,
    suppressed: Cell<u64>,
    now: Nanos,
    forgets_at: Nanos,
}

impl PeerLog {
    /// Returns whether a line about a connection from this address may be logged. Counts it as suppressed
    /// otherwise.
    pub(crate) fn allow(&self, address: IpAddr) -> bool {
        let mut limits = self.limits.borrow_mut();
        let limit = limits.entry(PeerOrigin::of(address));
        let limit = limit.or_insert_with(|| LogLimit::new(BURST, PER_SECOND));
        let allowed = limit.allow_at(self.now);
        self.suppressed.update(|it| it + u64::from(!allowed));
        allowed
    }

    /// Advances time.
    pub(crate) fn advance(&mut self, now: Nanos) {
        self.now = now;
        if now >= self.forgets_at {
            self.forgets_at = now.after(FORGETS_EVERY);
            (self.limits.get_mut()).retain(|_, limit| !limit.is_unused_at(now));
        }
    }

    /// Returns the number of suppressed lines.
    pub(crate) const fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }

    /// Returns the number of lines suppressed since the last call.
    pub(crate) const fn take_suppressed(&self) -> u64 {
        self.suppressed.replace(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flapping_host_takes_no_log_lines_of_others() {
        let mut log = PeerLog::default();
        let of = |number: u8| IpAddr::from([10, 0, 0, number]);
        let allowed_of = |log: &PeerLog, address, count: u64| {
            (0..count).filter(|_| log.allow(address)).count() as u64
        };
        let now = Nanos::from_secs;
        log.advance(now(100));
        for host in 1..=8 {
            assert_eq!(allowed_of(&log, of(host), 1_000), BURST);
        }
        assert_eq!(allowed_of(&log, of(9), 20), 20);
        assert_eq!(log.take_suppressed(), 8 * (1_000 - BURST));
        log.advance(now(108));
        assert_eq!((allowed_of(&log, of(1), 9), log.suppressed()), (2, 7));
        // An address is remembered until its burst is whole again.
        log.advance(now(187));
        assert_eq!(log.limits.borrow().len(), 8);
        log.advance(now(600));
        assert_eq!(log.limits.borrow().len(), 0);
        assert_eq!(allowed_of(&log, of(1), 1_000), BURST);
    }
}
