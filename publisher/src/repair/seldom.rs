//! What goes on for long is said in the log now and then, and not each time that it is seen.

use tickcast_reliability::types::Nanos;

/// It is said this often at most.
const EVERY: Nanos = Nanos::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// Not before this it is said again.
    next_at: Nanos,
}

impl Seldom {
    /// Whether it may be said.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next_at
    }

    /// It is said.
    pub(crate) const fn said(&mut self, now: Nanos) {
        self.next_at = now.after(EVERY);
    }
}
