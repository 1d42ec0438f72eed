//! How far the publisher is, and when to report how far we are (docs/PROTOCOL.md §5.2, §6.2).

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::types::{Nanos, RecordNumber, Sequence, SequenceRange};

/// Reports that may wait for their STATUS. While as many wait, the next report comes no sooner than
/// one interval after the last.
const UNANSWERED_MAX: u8 = 4;
/// The longest wait after the publisher denied to have sent a sequence.
const REFUSAL_WAIT_MAX: Nanos = Nanos::from_ms(100);

/// How far the publisher is, as multicast and the repair connection say, and the timer of PROGRESS.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProgressState {
    /// Interval between reports.
    every: Nanos,
    /// Interval between reports while multicast is silent.
    follow: Nanos,
    /// The highest sequence known to have been sent.
    highest_seen: Sequence,
    /// The newest sequence that the publisher confirmed over the repair connection, and the number
    /// of the record after it.
    confirmed: Option<(Sequence, RecordNumber)>,
    /// Since when the publisher denies to have sent what we saw, and the highest sequence seen then.
    refused_ahead_since: Option<(Nanos, Sequence)>,
    /// Whether a datagram jumped too far and waits for the publisher's confirmation.
    jumped: bool,
    due_at: Nanos,
    /// When a report was last due, sent or held back.
    checked_at: Nanos,
    reported_at: Nanos,
    /// Reports that no STATUS has answered.
    unanswered: u8,
}

impl ProgressState {
    /// A channel of which nothing was seen; the first report is due at once.
    #[must_use]
    pub(crate) fn new(config: &ReceiverConfig, now: Nanos) -> Self {
        Self {
            every: Nanos::from_us(config.progress_us.into()),
            follow: Nanos::from_us(config.follow_us.into()),
            highest_seen: Sequence::NONE,
            confirmed: None,
            refused_ahead_since: None,
            jumped: false,
            due_at: now,
            checked_at: Nanos::ZERO,
            reported_at: Nanos::ZERO,
            unanswered: 0,
        }
    }

    /// The highest sequence known to have been sent.
    #[must_use]
    #[inline]
    pub(crate) const fn highest_seen(&self) -> Sequence {
        self.highest_seen
    }

    /// The newest sequence that multicast or the publisher's confirmation names.
    #[must_use]
    pub(crate) fn newest(&self) -> Sequence {
        let confirmed = self.confirmed.map_or(Sequence::NONE, |(newest, _)| newest);
        confirmed.max(self.highest_seen)
    }

    /// Starts over in another epoch, of which everything up to `highest_seen` is passed.
    pub(crate) const fn restart(&mut self, highest_seen: Sequence) {
        (self.highest_seen, self.confirmed, self.jumped) = (highest_seen, None, false);
    }

    /// Another epoch continues this one behind `last`: nothing beyond counts any more.
    pub(crate) fn continue_behind(&mut self, last: Sequence) {
        self.restart(self.highest_seen.min(last));
    }

    /// An impostor sent everything beyond `last`: only what STATUS confirmed counts.
    pub(crate) fn roll_back(&mut self, last: Sequence) {
        self.highest_seen = self.highest_seen.min(last);
        self.confirmed.take_if(|(newest, _)| *newest > last);
        self.refused_ahead_since = None;
    }

    /// Notes a datagram with this sequence, which is higher than any seen before.
    #[inline]
    pub(crate) const fn note_seen(&mut self, sequence: Sequence) {
        self.highest_seen = sequence;
    }

    /// Notes that everything up to `last` has been sent. Returns the sequences that this is news of.
    pub(crate) fn note_sent(&mut self, last: Sequence) -> Option<SequenceRange> {
        if planted(Bug::BackwardJumpBelieved) {
            self.highest_seen = self.highest_seen.min(last);
        }
        let range = SequenceRange::new(self.highest_seen.next(), last);
        let range = range.filter(|_| last > self.highest_seen)?;
        self.highest_seen = last;
        Some(range)
    }

    /// Notes that everything up to `last` is passed.
    pub(crate) fn pass(&mut self, last: Sequence) {
        self.highest_seen = self.highest_seen.max(last);
    }

    /// Notes that nothing was sent beyond `last`, the end of the session.
    pub(crate) fn end_at(&mut self, last: Sequence) {
        self.highest_seen = last;
    }

    /// Notes a datagram that jumped too far: the publisher's next confirmation counts at once.
    pub(crate) const fn note_jump(&mut self) {
        self.jumped = true;
    }

    /// Notes the publisher's confirmation, over the repair connection, that it has sent up to
    /// `newest`. Returns the confirmation that counts now.
    ///
    /// A confirmation may be ahead of datagrams that lie in our own socket. While multicast is heard
    /// it counts only when the next one comes, unless a datagram had jumped or `believed` says so.
    pub(crate) fn confirm(
        &mut self,
        newest: Sequence,
        next_record: RecordNumber,
        believed: bool,
    ) -> Option<(Sequence, RecordNumber)> {
        let before = self.confirmed.replace((newest, next_record));
        let at_once = std::mem::take(&mut self.jumped) || believed;
        if at_once { self.confirmed } else { before }
    }

    /// Returns how long to wait before a request for sequences that the publisher denies to have
    /// sent. The wait is half of the time since it first denied them, at most 100 ms, until it has
    /// sent them. A forged heartbeat can make us request such sequences.
    pub(crate) fn refusal_wait(&mut self, now: Nanos, delivered: Sequence) -> Nanos {
        let confirmed = self.confirmed.map_or(Sequence::NONE, |(newest, _)| newest);
        let known = confirmed.max(delivered);
        let (since, _) = *match &mut self.refused_ahead_since {
            Some(denied) if denied.1 > known => denied,
            denied => denied.insert((now, self.highest_seen)),
        };
        Nanos(now.since(since).0 / 2).min(REFUSAL_WAIT_MAX)
    }

    /// The repair connection is new: a report is due at once, and none waits for its STATUS.
    pub(crate) const fn restart_reports(&mut self, now: Nanos) {
        (self.due_at, self.unanswered, self.refused_ahead_since) = (now, 0, None);
    }

    /// A STATUS came that answers the report sent at `echo`, and perhaps those before it.
    pub(crate) fn note_status(&mut self, echo: Nanos) {
        self.unanswered = match echo == self.reported_at {
            true => 0,
            false => self.unanswered.saturating_sub(1),
        };
    }

    /// When the next report is due.
    #[must_use]
    pub(crate) const fn due_at(&self) -> Nanos {
        self.due_at
    }

    /// Makes the next report due at this time.
    pub(crate) const fn report_at(&mut self, at: Nanos) {
        self.due_at = at;
    }

    /// Makes a report due soon, but not more often than the config allows: its STATUS says how far
    /// the publisher is.
    pub(crate) fn query_soon(&mut self, now: Nanos) {
        let soonest = match planted(Bug::StatusWithoutLimit) {
            true => now,
            false => self.query_from().max(now),
        };
        self.due_at = self.due_at.min(soonest);
    }

    /// From when on [`ProgressState::query_soon`] makes a report due at once.
    pub(crate) fn query_from(&self) -> Nanos {
        self.checked_at.after(self.follow)
    }

    /// Returns whether to send a report now, and schedules the next one.
    ///
    /// No report is sent while too many wait for their STATUS. The connection is then slower than the
    /// reports, and more of them would leave repairs no room on it.
    pub(crate) fn take_report(&mut self, now: Nanos, following: bool) -> bool {
        if now < self.due_at {
            return false;
        }
        self.checked_at = now;
        let regular = self.reported_at.after(self.every);
        let limited = !planted(Bug::StatusWithoutLimit);
        if limited && self.unanswered >= UNANSWERED_MAX && now < regular {
            self.due_at = now.after(self.follow).min(regular);
            return false;
        }
        let next = if following { self.follow } else { self.every };
        self.due_at = now.after(next);
        self.reported_at = now;
        self.unanswered = self.unanswered.saturating_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u64 = 1_000_000;
    const FOLLOW: u64 = 10_000;

    fn state() -> ProgressState {
        let config = ReceiverConfig {
            progress_us: 1_000,
            follow_us: 10,
            ..ReceiverConfig::default()
        };
        ProgressState::new(&config, Nanos(0))
    }

    fn range(first: u64, last: u64) -> Option<SequenceRange> {
        SequenceRange::new(Sequence(first), Sequence(last))
    }

    #[test]
    fn sent_sequences_are_news_once() {
        let mut state = state();
        assert_eq!(state.note_sent(Sequence(0)), None);
        assert_eq!(state.note_sent(Sequence(3)), range(1, 3));
        assert_eq!(state.note_sent(Sequence(3)), None);
        assert_eq!(state.note_sent(Sequence(2)), None);
        state.note_seen(Sequence(4));
        assert_eq!(state.note_sent(Sequence(6)), range(5, 6));
        assert_eq!(state.note_sent(Sequence(u64::MAX)), range(7, u64::MAX));
        assert_eq!(state.note_sent(Sequence(u64::MAX)), None);
    }

    #[test]
    fn passed_sequences_are_no_news() {
        let mut state = state();
        state.pass(Sequence(5));
        state.pass(Sequence(4));
        assert_eq!(state.highest_seen(), Sequence(5));
        assert_eq!(state.note_sent(Sequence(6)), range(6, 6));
        state.end_at(Sequence(5));
        assert_eq!(state.highest_seen(), Sequence(5));
    }

    #[test]
    fn confirmation_counts_when_next_one_comes() {
        let mut state = state();
        let (first, second) = (Sequence(5), Sequence(9));
        assert_eq!(state.confirm(first, RecordNumber(50), false), None);
        assert_eq!(state.newest(), first);
        let counts = state.confirm(second, RecordNumber(90), false);
        assert_eq!(counts, Some((first, RecordNumber(50))));
        assert_eq!(state.newest(), second);
    }

    #[test]
    fn confirmation_counts_at_once_after_jump_or_if_believed() {
        let mut state = state();
        let confirmed = Some((Sequence(5), RecordNumber(50)));
        assert_eq!(
            state.confirm(Sequence(5), RecordNumber(50), true),
            confirmed
        );
        state.note_jump();
        let next = Some((Sequence(6), RecordNumber(60)));
        assert_eq!(state.confirm(Sequence(6), RecordNumber(60), false), next);
        let later = state.confirm(Sequence(7), RecordNumber(70), false);
        assert_eq!(later, next, "the jump counts once");
    }

    #[test]
    fn restart_forgets_confirmation_and_jump() {
        let mut state = state();
        assert_eq!(state.confirm(Sequence(5), RecordNumber(50), false), None);
        state.note_jump();
        state.note_seen(Sequence(8));
        state.continue_behind(Sequence(6));
        assert_eq!(
            (state.highest_seen(), state.newest()),
            (Sequence(6), Sequence(6))
        );
        assert_eq!(state.confirm(Sequence(7), RecordNumber(70), false), None);
        state.continue_behind(Sequence(9));
        assert_eq!(state.highest_seen(), Sequence(6));
    }

    #[test]
    fn refusal_wait_grows_until_publisher_has_sent() {
        let mut state = state();
        state.note_seen(Sequence(10));
        let mut wait = |at: u64, delivered: u64| state.refusal_wait(Nanos(at), Sequence(delivered));
        assert_eq!(wait(1_000, 3), Nanos(0));
        assert_eq!(wait(1_400, 9), Nanos(200));
        assert_eq!(wait(1_000_000_000, 9), REFUSAL_WAIT_MAX);
        assert_eq!(wait(1_000_000_100, 10), Nanos(0), "it has sent them");
        assert_eq!(state.confirm(Sequence(20), RecordNumber(1), false), None);
        state.note_seen(Sequence(30));
        assert_eq!(
            state.refusal_wait(Nanos(2_000_000_000), Sequence(10)),
            Nanos(0)
        );
        state.restart_reports(Nanos(0));
        assert_eq!(
            state.refusal_wait(Nanos(2_000_000_900), Sequence(10)),
            Nanos(0)
        );
    }

    #[test]
    fn report_is_due_each_interval_and_sooner_while_following() {
        let mut state = state();
        assert!(state.take_report(Nanos(0), false));
        assert_eq!(state.due_at(), Nanos(EVERY));
        assert!(!state.take_report(Nanos(EVERY - 1), false));
        assert!(state.take_report(Nanos(EVERY), true));
        assert_eq!(state.due_at(), Nanos(EVERY + FOLLOW));
    }

    #[test]
    fn query_keeps_distance_from_last_report() {
        let mut state = state();
        assert!(state.take_report(Nanos(100), false));
        state.query_soon(Nanos(200));
        assert_eq!(state.due_at(), Nanos(100 + FOLLOW));
        state.query_soon(Nanos(300 + FOLLOW));
        assert_eq!(state.due_at(), Nanos(100 + FOLLOW), "never later");
        state.report_at(Nanos(EVERY));
        state.query_soon(Nanos(300 + FOLLOW));
        assert_eq!(state.due_at(), Nanos(300 + FOLLOW));
    }

    #[test]
    fn unanswered_reports_hold_next_one_back_for_interval() {
        let mut state = state();
        for report in 0..u64::from(UNANSWERED_MAX) {
            assert!(state.take_report(Nanos(report * FOLLOW), true));
        }
        let last = (u64::from(UNANSWERED_MAX) - 1) * FOLLOW;
        assert!(!state.take_report(Nanos(last + FOLLOW), true));
        assert_eq!(state.due_at(), Nanos(last + 2 * FOLLOW));
        // One STATUS for an earlier report makes room for one more.
        state.note_status(Nanos(FOLLOW));
        assert!(state.take_report(Nanos(last + 2 * FOLLOW), true));
        assert!(!state.take_report(Nanos(last + 3 * FOLLOW), true));
        // The STATUS of the last report answers those before it as well.
        state.note_status(Nanos(last + 2 * FOLLOW));
        for report in 4..4 + u64::from(UNANSWERED_MAX) {
            assert!(state.take_report(Nanos(last + report * FOLLOW), true));
        }
        let last = last + (3 + u64::from(UNANSWERED_MAX)) * FOLLOW;
        assert!(!state.take_report(Nanos(last + EVERY - 1), true));
        assert!(
            state.take_report(Nanos(last + EVERY), true),
            "an interval is over"
        );
    }
}
