//! Relations between counters that hold at every moment, and budgets that hold in every window.

use tickcast_reliability::counters::{ReceiverCounters, RepairCounters};
use tickcast_reliability::units::Nanos;

use crate::stream::Stream;

/// Holds bytes against a rate with a burst, over all windows at once: what the bytes of any window
/// exceed `rate × time` by is at most `burst`.
#[derive(Clone, Debug)]
pub struct Meter {
    bytes_per_s: u128,
    burst: u128,
    debt: u128,
    at: Nanos,
}

/// Nanoseconds in a second: debts are kept in billionths of a byte.
const SCALE: u128 = 1_000_000_000;

impl Meter {
    /// Nothing has passed yet.
    #[must_use]
    pub fn new(bytes_per_s: u64, burst_bytes: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.into(),
            burst: u128::from(burst_bytes) * SCALE,
            debt: 0,
            at: Nanos::ZERO,
        }
    }

    /// Bytes passed; tells whether that was too much.
    pub fn pass(&mut self, now: Nanos, bytes: u64) -> bool {
        let paid = u128::from(now.since(self.at).0) * self.bytes_per_s;
        self.debt = self.debt.saturating_sub(paid) + u128::from(bytes) * SCALE;
        self.at = now;
        self.debt > self.burst
    }
}

fn equal(left: (&str, u64), right: (&str, u64)) -> Result<(), String> {
    if left.1 == right.1 {
        return Ok(());
    }
    Err(format!(
        "{} is {}, {} is {}",
        left.0, left.1, right.0, right.1
    ))
}

/// Checks what a subscriber counted, against itself and against what its application was told.
///
/// # Errors
/// Which relation does not hold.
pub fn receiver(c: &ReceiverCounters, stream: &Stream) -> Result<(), String> {
    let gaps = c.gaps_recovered.get() + c.gaps_lost.get() + c.gaps_open.get();
    equal(
        ("gaps_detected", c.gaps_detected.get()),
        ("recovered + lost + open", gaps),
    )?;
    let history = c.history_received.get() + c.history_lost.get() + c.history_open.get();
    equal(
        ("history_wanted", c.history_wanted.get()),
        ("received + lost + open", history),
    )?;
    equal(
        ("delivered_records", c.delivered_records.get()),
        ("records told", stream.records),
    )?;
    equal(
        ("lost_records", c.lost_records.get()),
        ("records told lost", stream.lost_records),
    )?;
    equal(
        ("loss_events", c.loss_events.get()),
        ("losses told", stream.losses),
    )?;
    equal(
        ("losses_of_unknown_size", c.losses_of_unknown_size.get()),
        ("told", stream.losses_of_unknown_size),
    )
}

/// Checks what the repair service counted.
///
/// # Errors
/// Which relation does not hold.
pub fn repair(c: &RepairCounters) -> Result<(), String> {
    let settled = c.answered.get()
        + c.answered_by_multicast.get()
        + c.refused_window.get()
        + c.refused_ahead.get()
        + c.refused_budget.get()
        + c.refused_too_slow.get()
        + c.refused_epoch.get()
        + c.refused_malformed.get()
        + c.abandoned.get()
        + c.pending.get();
    equal(
        ("nacked", c.nacked.get()),
        ("answered + refused + abandoned + pending", settled),
    )
}
