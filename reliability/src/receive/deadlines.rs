//! When a gap is given up, and when that needs a STATUS (docs/PROTOCOL.md §5.5, §7).

use serde::{Deserialize, Serialize};

use crate::delivery::{Delivery, LossCause};
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::{CONFIRM_WAIT, LossLimit};
use crate::receive::gaps::{Gap, Gaps, Origin};
use crate::types::{Nanos, Sequence, SequenceRange};

/// The settings of a receiver that decide when a gap is given up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    is_repaired: bool,
    delivery: Delivery,
    /// Without repair: how long a gap may still fill by itself.
    unrepaired_wait: Nanos,
}

impl Deadlines {
    /// Takes the settings from a config.
    pub(crate) fn of(config: &ReceiverConfig) -> Self {
        Self {
            is_repaired: config.repair,
            delivery: config.delivery,
            unrepaired_wait: Nanos::from_us(config.unrepaired_wait_us.into()),
        }
    }

    /// Returns missing sequences whose time is over, and the cause of their loss.
    pub(crate) fn overdue(
        &self,
        gaps: &Gaps,
        now: Nanos,
        limit: &LossLimit,
    ) -> Option<(SequenceRange, LossCause)> {
        let wait = self.patience()?;
        if planted(Bug::DeadlineForgotten) {
            return None;
        }
        let is_over = |gap: &&Gap| now >= lost_at(gap, wait, limit, gap.range.first);
        let gap = self.limited(gaps).find(is_over)?;
        let mut range = gap.range;
        if now < lost_at(gap, wait, limit, range.last) {
            range.last = limit.confirmed;
        }
        let cause = match self.is_repaired != planted(Bug::WrongCause) {
            true => LossCause::Deadline,
            false => LossCause::RepairOff,
        };
        Some((range, cause))
    }

    /// Returns when [`Deadlines::overdue`] finds a gap if nothing arrives until then.
    pub(crate) fn next(&self, gaps: &Gaps, limit: &LossLimit) -> Nanos {
        let Some(wait) = self.patience() else {
            return Nanos::MAX;
        };
        let gap = self.limited(gaps).next();
        gap.map_or(Nanos::MAX, |gap| lost_at(gap, wait, limit, gap.range.first))
    }

    /// Returns when a STATUS is wanted, so that a gap need not wait for it at its deadline: once half of its
    /// time is over, unless a PROGRESS was sent since it was found that says as much.
    pub(crate) fn next_confirmation(&self, gaps: &Gaps, limit: &LossLimit) -> Nanos {
        let Some(wait) = self.patience() else {
            return Nanos::MAX;
        };
        if planted(Bug::DeadlineNotAsked) {
            return Nanos::MAX;
        }
        let (reported_at, reported) = limit.reported;
        let is_claimed = |gap: &&Gap| {
            let is_reported = gap.found_at < reported_at && gap.range.last <= reported;
            gap.range.last > limit.confirmed && !is_reported
        };
        let gap = self.limited(gaps).find(is_claimed);
        gap.map_or(Nanos::MAX, |gap| gap.found_at.after(Nanos(wait.0 / 2)))
    }

    /// How long a gap may stay open at all; `None` without a limit.
    fn patience(&self) -> Option<Nanos> {
        match self.delivery {
            Delivery::OrderedWithin(deadline) if planted(Bug::DeadlineStretched) => {
                Some(deadline.times(10))
            }
            Delivery::OrderedWithin(deadline) if self.is_repaired => Some(deadline),
            _ if !self.is_repaired => Some(self.unrepaired_wait),
            _ => None,
        }
    }

    /// Returns the gaps that have a deadline. A joiner's history has none while repair is on.
    fn limited<'a>(&self, gaps: &'a Gaps) -> impl Iterator<Item = &'a Gap> {
        let is_repaired = self.is_repaired;
        gaps.iter()
            .filter(move |gap| gap.origin == Origin::Live || !is_repaired)
    }
}

/// Returns when this sequence of a gap is lost: `wait` after it was found, but no sooner than a STATUS could
/// say whether it was sent at all.
fn lost_at(gap: &Gap, wait: Nanos, limit: &LossLimit, sequence: Sequence) -> Nanos {
    let at = gap.found_at.after(wait);
    if sequence <= limit.confirmed || planted(Bug::DeadlineUnconfirmed) {
        return at;
    }
    let lifted_at = match planted(Bug::DeadlineNotLifted) {
        true => Nanos::MAX,
        false => limit.lifted_at.min(at.after(CONFIRM_WAIT)),
    };
    at.max(lifted_at)
}
