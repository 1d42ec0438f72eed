//! One connection to the publisher: when to try, when to give up, how long to wait before the next
//! attempt, and the frames that wait for it. Attempts back off with jitter, so that subscribers do not all
//! reconnect at once after a restart (docs/PROTOCOL.md §6.1).

use serde::{Deserialize, Serialize};

use crate::control::{Message, Rejected};
use crate::planted::{Bug, planted};
use crate::timing::NackTimer;
use crate::types::{ChannelId, Nanos};

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTimers {
    /// Wait before the second attempt; doubles with each failure.
    pub retry_min: Nanos,
    /// Longest wait between attempts.
    pub retry_max: Nanos,
    /// Maximum time from the start of the attempt to WELCOME.
    pub join_timeout: Nanos,
}

impl Default for LinkTimers {
    fn default() -> Self {
        Self {
            retry_min: Nanos::from_ms(10),
            retry_max: Nanos::from_secs(1),
            join_timeout: Nanos::from_secs(2),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// The connection is not wanted.
    Unwanted,
    /// The next attempt starts at this time.
    Waiting(Nanos),
    /// The attempt started at this time.
    Connecting(Nanos),
    /// The transport is connected and JOIN is sent; the attempt started at this time.
    Joining(Nanos),
    Up,
}

/// The state of one connection, its retries and its frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Link {
    timers: LinkTimers,
    state: State,
    failures: u32,
    not_before: Nanos,
    jitter: NackTimer,
    /// Frames that wait until the driver takes them.
    frames: Vec<u8>,
}

impl Link {
    /// Returns a connection that is not wanted yet.
    #[must_use]
    pub(crate) const fn new(timers: LinkTimers, seed: u64) -> Self {
        Self {
            timers,
            state: State::Unwanted,
            failures: 0,
            not_before: Nanos::ZERO,
            jitter: NackTimer::new(Nanos::ZERO, seed),
            frames: Vec::new(),
        }
    }

    /// Requests the connection, if it is not wanted already.
    pub(crate) fn want(&mut self, now: Nanos) {
        if self.state == State::Unwanted {
            self.state = State::Waiting(now.max(self.not_before));
        }
    }

    /// Returns whether the connection is wanted.
    #[must_use]
    pub(crate) fn is_wanted(&self) -> bool {
        self.state != State::Unwanted
    }

    /// Ends the wish for the connection. Returns whether it was wanted.
    pub(crate) fn stop(&mut self) -> bool {
        let was_wanted = self.is_wanted();
        self.state = State::Unwanted;
        self.failures = 0;
        self.frames.clear();
        was_wanted
    }

    /// Starts an attempt if it is due, and returns whether it does: the driver must then connect.
    pub(crate) fn start_if_due(&mut self, now: Nanos) -> bool {
        let due = matches!(self.state, State::Waiting(at) if now >= at);
        if due {
            self.state = State::Connecting(now);
        }
        due
    }

    /// Records that the transport is connected, so JOIN goes next. Returns `false` when no attempt runs.
    pub(crate) fn connected(&mut self, now: Nanos) -> bool {
        let State::Connecting(since) = self.state else {
            return false;
        };
        self.state = State::Joining(since.min(now));
        true
    }

    /// Puts JOIN before all frames that wait already.
    pub(crate) fn join(&mut self, join: &Message<'_>) {
        let waiting = std::mem::take(&mut self.frames);
        join.write(ChannelId(0), &mut self.frames);
        self.frames.extend(waiting);
    }

    /// Returns the frames that wait, to append others.
    pub(crate) const fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.frames
    }

    /// Moves the frames to `out` if they can be sent, and returns whether there were any.
    pub(crate) fn take_frames(&mut self, out: &mut Vec<u8>) -> bool {
        let can = self.is_connected() && !self.frames.is_empty();
        if can {
            out.append(&mut self.frames);
        }
        can
    }

    /// Records that WELCOME arrived.
    pub(crate) const fn up(&mut self) {
        self.state = State::Up;
    }

    /// Records that the connection proved useful: the back-off restarts at its minimum.
    pub(crate) const fn settled(&mut self) {
        self.failures = 0;
    }

    /// Records that the publisher rejected the JOIN: the next attempt comes after its bounded wait.
    pub(crate) fn rejected(&mut self, now: Nanos, rejected: &Rejected) {
        let wait = match rejected.wait() {
            Nanos::ZERO => self.timers.retry_max,
            wait => wait,
        };
        self.not_before = now.after(wait);
    }

    /// Records that the attempt failed or the connection ended, drops the frames, and schedules the next
    /// attempt.
    pub(crate) fn failed(&mut self, now: Nanos) {
        self.frames.clear();
        if self.state == State::Unwanted {
            return;
        }
        let doubled = self.timers.retry_min.times(1 << self.failures.min(16));
        let wait = doubled.min(self.timers.retry_max);
        self.failures += 1;
        // The jitter is from half to one and a half times, so that subscribers do not reconnect together.
        let jittered = Nanos(wait.0 / 2).after(self.jitter.up_to(wait));
        self.state = State::Waiting(now.after(jittered).max(self.not_before));
        if planted(Bug::ReconnectForgotten) {
            self.state = State::Waiting(Nanos::MAX);
        }
    }

    /// Returns whether an attempt exceeds its timeout.
    #[must_use]
    pub(crate) fn is_late(&self, now: Nanos) -> bool {
        matches!(self.state, State::Connecting(since) | State::Joining(since)
            if now >= since.after(self.timers.join_timeout))
    }

    /// Returns whether frames can be sent.
    #[must_use]
    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, State::Joining(_) | State::Up)
    }

    /// Returns whether there is a connection or an attempt at one.
    #[must_use]
    pub(crate) const fn is_begun(&self) -> bool {
        !matches!(self.state, State::Unwanted | State::Waiting(_))
    }

    /// Returns whether WELCOME arrived.
    #[must_use]
    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Returns when the next timer is due.
    #[must_use]
    pub(crate) const fn next_due(&self) -> Nanos {
        match self.state {
            State::Waiting(at) => at,
            State::Connecting(since) | State::Joining(since) => {
                since.after(self.timers.join_timeout)
            }
            State::Unwanted | State::Up => Nanos::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::RejectCode;

    #[test]
    fn attempts_back_off_with_jitter_up_to_a_bound() {
        let timers = LinkTimers::default();
        let mut link = Link::new(timers, 7);
        let mut now = Nanos(0);
        link.want(now);
        for failure in 0..20u32 {
            assert!(link.start_if_due(now));
            assert!(!link.start_if_due(now), "one attempt at a time");
            link.failed(now);
            let wait = link.next_due().since(now);
            let full = timers
                .retry_min
                .times(1 << failure.min(16))
                .min(timers.retry_max);
            assert!(
                wait.0 >= full.0 / 2 && wait.0 < full.0 * 3 / 2 + 1,
                "{failure}: {wait}"
            );
            now = link.next_due();
        }
        assert!(link.start_if_due(now));
        assert!(link.connected(now));
        link.up();
        link.failed(now);
        assert!(
            link.next_due().since(now) >= timers.retry_max.times(1).since(timers.retry_max),
            "a welcome alone proves nothing"
        );
        now = link.next_due();
        assert!(link.start_if_due(now) && link.connected(now));
        link.up();
        link.settled();
        link.failed(now);
        assert!(
            link.next_due().since(now) < Nanos::from_ms(16),
            "success starts over"
        );
    }

    #[test]
    fn attempt_without_welcome_is_late_after_timeout() {
        let mut link = Link::new(LinkTimers::default(), 7);
        link.want(Nanos(5));
        assert!(link.start_if_due(Nanos(5)));
        assert!(link.connected(Nanos::from_secs(1)));
        assert!(!link.is_late(Nanos::from_secs(2)));
        assert!(link.is_late(Nanos(5).after(Nanos::from_secs(2))));
        link.rejected(Nanos(9), &full(6_000));
        link.failed(Nanos(9));
        assert_eq!(link.next_due(), Nanos(9).after(Nanos::from_secs(6)));
    }

    fn full(retry_after_ms: u64) -> Rejected {
        Rejected {
            code: RejectCode::TooMany,
            text: "full".into(),
            retry_after_ms,
        }
    }

    /// A process that takes the port of a dead publisher answers once, and then goes.
    #[test]
    fn endless_wait_of_rejection_is_kept_for_eight_seconds() {
        for announced in [8_001, u64::MAX / 1_000_000, u64::MAX] {
            let mut link = Link::new(LinkTimers::default(), 7);
            let now = Nanos::from_secs(5);
            link.want(now);
            assert!(link.start_if_due(now));
            link.rejected(now, &full(announced));
            link.failed(now);
            assert_eq!(link.next_due(), now.after(Nanos::from_secs(8)));
            link.stop();
            link.want(now);
            assert_eq!(link.next_due(), now.after(Nanos::from_secs(8)));
        }
    }

    fn down(link: &mut Link, now: Nanos) {
        assert!(link.start_if_due(now) && link.connected(now));
        link.failed(now);
    }

    #[test]
    fn unwanted_link_is_never_tried() {
        let mut link = Link::new(LinkTimers::default(), 7);
        assert!(!link.is_wanted() && !link.start_if_due(Nanos::MAX));
        assert_eq!(link.next_due(), Nanos::MAX);
        link.failed(Nanos(5));
        assert_eq!(link.next_due(), Nanos::MAX, "there was nothing to fail");
        assert!(!link.connected(Nanos(5)));
        link.want(Nanos(5));
        assert!(link.is_wanted() && !link.is_connected() && !link.is_up());
        assert_eq!(link.next_due(), Nanos(5));
        link.want(Nanos(9));
        assert_eq!(link.next_due(), Nanos(5), "it is wanted already");
        assert!(!link.start_if_due(Nanos(4)) && link.start_if_due(Nanos(5)));
        assert!(!link.is_connected());
        assert_eq!(link.next_due(), Nanos(5).after(Nanos::from_secs(2)));
        assert!(link.connected(Nanos(6)) && link.is_connected() && !link.is_up());
        link.up();
        assert!(link.is_up() && link.is_connected() && !link.is_late(Nanos::MAX));
        assert_eq!(link.next_due(), Nanos::MAX);
        link.stop();
        assert!(!link.is_wanted() && !link.is_up());
    }

    #[test]
    fn rejection_is_waited_out_after_stop_and_start() {
        let mut link = Link::new(LinkTimers::default(), 7);
        link.want(Nanos(0));
        assert!(link.start_if_due(Nanos(0)));
        link.rejected(Nanos(0), &full(0));
        link.failed(Nanos(0));
        assert_eq!(link.next_due(), Nanos::from_secs(1), "the longest wait");
        link.stop();
        link.want(Nanos(3));
        assert_eq!(link.next_due(), Nanos::from_secs(1));
    }

    #[test]
    fn stopping_forgets_the_failures_before() {
        let mut link = Link::new(LinkTimers::default(), 7);
        link.want(Nanos(0));
        for _ in 0..10 {
            let now = link.next_due();
            down(&mut link, now);
        }
        let now = link.next_due();
        link.stop();
        link.want(now);
        down(&mut link, now);
        let wait = link.next_due().since(now);
        assert!(wait < Nanos::from_ms(16), "{wait}");
    }
}
