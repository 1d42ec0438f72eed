//! Renewal of a sender's membership: when to request it again, while the old address still sends.
//!
//! On InfiniBand any event of the subnet manager ends a membership, at all hosts at once, and the route to
//! the group usually still works. So requests are spread by a random delay, and repeated with back-off.

use std::time::{Duration, Instant};

use tickcast_reliability::types::split_mix;

/// Limit for the answer to a request.
pub(super) const JOIN_MAX: Duration = Duration::from_secs(5);
/// Longest delay of the first request.
const SPREAD: Duration = Duration::from_millis(100);
/// Delay after the first failure. It doubles with each further one, up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(16);

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing yet.
    Wait,
    /// Request the membership.
    Ask,
    /// Take the answer, if there is one.
    Listen,
    /// Drop the request, which was not answered in time.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Settled,
    Due(Instant),
    Asked(Instant),
}

/// The renewal of one membership.
#[derive(Debug)]
pub(crate) struct Renewal {
    state: State,
    /// Failures since the membership was lost.
    failures: u32,
    /// State of the random numbers.
    random: u64,
}

impl Renewal {
    /// Creates the state of a good membership. Other seeds spread the requests of other senders.
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            state: State::Settled,
            failures: 0,
            random: seed,
        }
    }

    /// Notes that the membership is lost. A renewal that is under way continues.
    pub(crate) fn lost(&mut self, now: Instant) {
        if self.state == State::Settled {
            self.failures = 0;
            self.state = State::Due(now + self.up_to(SPREAD));
        }
    }

    /// Returns the next action. A port that is down is asked for nothing.
    pub(crate) fn advance(&mut self, now: Instant, is_active: bool) -> Action {
        match self.state {
            State::Due(at) if now >= at && is_active => {
                self.state = State::Asked(now);
                Action::Ask
            }
            // All ports behind a switch come up at once.
            State::Due(at) if now >= at => {
                self.state = State::Due(now + RETRY_MIN / 2 + self.up_to(RETRY_MIN / 2));
                Action::Wait
            }
            State::Asked(since) if now.duration_since(since) >= JOIN_MAX => {
                self.failed(now);
                Action::Abandon
            }
            State::Asked(_) => Action::Listen,
            State::Due(_) | State::Settled => Action::Wait,
        }
    }

    /// Notes that a request failed. Another one follows.
    pub(crate) fn failed(&mut self, now: Instant) {
        let doubled = RETRY_MIN.saturating_mul(1 << self.failures.min(16));
        let delay = doubled.min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Due(now + delay / 2 + self.up_to(delay / 2));
    }

    /// Notes that the membership is good, or that the line joins in another way.
    pub(crate) const fn settle(&mut self) {
        self.state = State::Settled;
    }

    /// Returns a random time below `limit`.
    fn up_to(&mut self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(split_mix(&mut self.random) % nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Advances in steps of 1 ms until something is to be done. Returns the action and the time passed.
    fn next(renewal: &mut Renewal, now: &mut Instant, is_active: bool) -> (Action, Duration) {
        let begun = *now;
        for _ in 0..60_000 {
            match renewal.advance(*now, is_active) {
                Action::Wait | Action::Listen => *now += MS,
                action => return (action, now.duration_since(begun)),
            }
        }
        (Action::Wait, now.duration_since(begun))
    }

    #[test]
    fn good_membership_is_not_renewed() {
        let (mut renewal, mut now) = (Renewal::new(1), Instant::now());
        assert_eq!(next(&mut renewal, &mut now, true).0, Action::Wait);
    }

    #[test]
    fn first_requests_of_senders_are_spread_within_bound() {
        let delays: Vec<_> = (0..64)
            .map(|seed| {
                let (mut renewal, mut now) = (Renewal::new(seed), Instant::now());
                renewal.lost(now);
                let (action, delay) = next(&mut renewal, &mut now, true);
                assert_eq!(action, Action::Ask);
                delay
            })
            .collect();
        assert!(delays.iter().all(|delay| *delay <= SPREAD), "{delays:?}");
        for quarter in 0..4 {
            let within = SPREAD / 4 * quarter..=SPREAD / 4 * (quarter + 1);
            let count = delays
                .iter()
                .filter(|delay| within.contains(*delay))
                .count();
            assert!((4..=32).contains(&count), "{quarter}: {delays:?}");
        }
    }

    #[test]
    fn failed_requests_are_repeated_with_bounded_back_off() {
        let (mut renewal, mut now) = (Renewal::new(7), Instant::now());
        renewal.lost(now);
        assert_eq!(next(&mut renewal, &mut now, true).0, Action::Ask);
        for failures in 0..12 {
            renewal.failed(now);
            let (action, delay) = next(&mut renewal, &mut now, true);
            let most = RETRY_MIN.saturating_mul(1 << failures).min(RETRY_MAX);
            assert_eq!(action, Action::Ask);
            assert!(
                (most / 2..=most + MS).contains(&delay),
                "{failures}: {delay:?}"
            );
        }
        // Another loss begins anew.
        renewal.settle();
        renewal.lost(now);
        assert!(next(&mut renewal, &mut now, true).1 <= SPREAD);
    }

    #[test]
    fn further_losses_do_not_delay_a_renewal() {
        let (mut renewal, mut now) = (Renewal::new(3), Instant::now());
        renewal.lost(now);
        for _ in 0..100 {
            now += MS;
            renewal.lost(now);
        }
        assert_eq!(renewal.advance(now, true), Action::Ask);
        renewal.lost(now);
        assert_eq!(renewal.advance(now, true), Action::Listen);
    }

    #[test]
    fn unanswered_request_is_abandoned_and_repeated() {
        let (mut renewal, mut now) = (Renewal::new(4), Instant::now());
        renewal.lost(now);
        next(&mut renewal, &mut now, true);
        let (action, waited) = next(&mut renewal, &mut now, true);
        assert_eq!((action, waited), (Action::Abandon, JOIN_MAX));
        assert_eq!(next(&mut renewal, &mut now, true).0, Action::Ask);
    }

    #[test]
    fn port_that_is_down_is_asked_for_nothing() {
        let (mut renewal, mut now) = (Renewal::new(5), Instant::now());
        renewal.lost(now);
        assert_eq!(next(&mut renewal, &mut now, false).0, Action::Wait);
        let (action, delay) = next(&mut renewal, &mut now, true);
        assert_eq!(action, Action::Ask);
        assert!(delay <= RETRY_MIN, "{delay:?}");
    }
}
