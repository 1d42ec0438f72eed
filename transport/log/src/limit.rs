//! A bound on how often something is logged, so that a flapping or hostile peer cannot fill the disk.

use std::cell::Cell;

use tickcast_reliability::types::Nanos;

/// Allows a burst of lines at once, and a sustained rate of lines. Counts the suppressed lines.
#[derive(Debug)]
pub struct LogLimit {
    burst: u64,
    /// Time that one line costs.
    interval: Nanos,
    left: Cell<u64>,
    suppressed: Cell<u64>,
    refilled_at: Nanos,
}

impl LogLimit {
    /// Allows `burst` lines at once, and `per_second` lines sustained.
    pub const fn new(burst: u64, per_second: f64) -> Self {
        Self {
            burst,
            interval: Nanos((1e9 / per_second) as u64),
            left: Cell::new(burst),
            suppressed: Cell::new(0),
            refilled_at: Nanos::ZERO,
        }
    }

    /// Returns whether a line may be logged. Counts it as suppressed otherwise.
    pub fn allow(&self) -> bool {
        let left = self.left.get();
        match left {
            0 => self.suppressed.update(|it| it + 1),
            _ => self.left.set(left - 1),
        }
        left > 0
    }

    /// Adds the lines earned up to `now`, then returns the result of [`allow`](Self::allow).
    pub fn allow_at(&mut self, now: Nanos) -> bool {
        self.refill(now);
        self.allow()
    }

    /// Adds the lines earned up to `now`.
    pub fn refill(&mut self, now: Nanos) {
        let lines = now.since(self.refilled_at).0 / self.interval.0;
        let left = self.left.get().saturating_add(lines);
        if left >= self.burst {
            // Unused time does not accumulate beyond one burst.
            self.left.set(self.burst);
            self.refilled_at = now;
        } else {
            self.left.set(left);
            self.refilled_at = self.refilled_at.after(Nanos(lines * self.interval.0));
        }
    }

    /// Returns whether the whole burst is left at `now`.
    pub fn is_unused_at(&mut self, now: Nanos) -> bool {
        self.refill(now);
        self.left.get() == self.burst
    }

    /// Returns the number of suppressed lines.
    pub const fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }

    /// Returns the number of lines suppressed since the last call.
    pub const fn take_suppressed(&self) -> u64 {
        self.suppressed.replace(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_limit_allows_burst_then_sustained_rate() {
        let mut limit = LogLimit::new(400, 10.0);
        let log = |limit: &LogLimit, count: u64| (0..count).filter(|_| limit.allow()).count();
        let now = Nanos::from_secs;
        limit.refill(now(100));
        assert_eq!(log(&limit, 407), 400);
        assert_eq!(limit.take_suppressed(), 7);
        limit.refill(now(101));
        assert_eq!(log(&limit, 1_000), 10);
        limit.refill(now(111));
        assert_eq!(log(&limit, 1_000), 100);
        assert_eq!(limit.take_suppressed(), 1_000 - 10 + 1_000 - 100);
        limit.refill(now(10_000));
        assert_eq!(log(&limit, 800), 400, "however long it was quiet");
    }

    #[test]
    fn log_limit_of_one_allows_one_line_per_interval() {
        let mut limit = LogLimit::new(1, 0.1);
        let allowed = [2, 3, 10_001, 10_002, 19_000, 20_002].map(Nanos::from_ms);
        let allowed = allowed.map(|now| limit.allow_at(now));
        assert_eq!(allowed, [true, false, false, true, false, true]);
    }
}
