//! Checks the times and numbers of one subscriber's NACKs on one channel against the formulas of
//! docs/PROTOCOL.md §5.4 and §5.5. A NACK is never sent before its back-off ends, and never later
//! than promised. In a large group only the scouts send NACKs at once.
//!
//! The round trip in these formulas is the subscriber's own estimate. The check bounds it from both
//! sides, by the shortest and the longest response time.

use std::collections::BTreeMap;

use tickcast_reliability::control::{RefusalReason, Refused};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{Nanos, Sequence};

type Checked = Result<(), String>;

/// Tolerance for a late timer and for rounding of the smoothed round trip.
const SLACK: Nanos = Nanos(5_000);
/// Number of PROGRESS messages without a STATUS after which the next one is delayed.
const UNANSWERED_MAX: u64 = 4;
/// Longest time after which a sequence that was refused as ahead is requested again.
const DENIED_MAX: Nanos = Nanos::from_ms(100);
/// Round trip assumed before the first measurement.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// Longest round trip that counts.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Maximum number of doublings of the retry timeout.
const DOUBLINGS_MAX: u32 = 8;
/// Longest hold-off that is accepted.
const HOLD_OFF_MAX: Nanos = Nanos::from_ms(10);

/// The requests for one sequence since the connection was established.
#[derive(Clone, Copy, Debug)]
struct Question {
    first: Nanos,
    /// Time of the last NACK; `None` after a refusal or a request on another path.
    at: Option<Nanos>,
    /// After a refusal, the earliest and the latest time of the next request.
    again: Option<(Nanos, Nanos)>,
    /// Number of NACKs that count as attempts, and those of them since the last refusal.
    attempts: u32,
    sure: u32,
}

/// First NACKs in a large group: those expected at once, and those sent at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scouts {
    /// Expected number of immediate NACKs.
    pub expected: f64,
    /// Variance of that number.
    pub variance: f64,
    /// Number of immediate NACKs.
    pub at_once: u64,
    /// Number of immediate READs.
    pub read_at_once: u64,
}

impl Scouts {
    /// Adds the numbers of another subscriber.
    pub fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.variance += other.variance;
        self.at_once += other.at_once;
        self.read_at_once += other.read_at_once;
    }

    /// Checks that no more requests were immediate than chance explains (six standard deviations).
    ///
    /// # Errors
    /// More immediate NACKs or READs than that.
    pub fn check(&self) -> Checked {
        let most = self.expected + 6.0 * self.variance.sqrt() + 3.0;
        if self.at_once as f64 > most {
            return Err(format!(
                "{} asked at once where a hold-off was advised, {:.0} are scouts",
                self.at_once, self.expected
            ));
        }
        // Some immediate READs are expected: sequences are READ together with an earlier run that
        // they belong to.
        let most = self.expected / 4.0 + 6.0 * self.variance.sqrt() + 3.0;
        if self.read_at_once as f64 > most {
            return Err(format!(
                "{} READ at once where a hold-off was advised, {:.0} scouts are to ask by NACK",
                self.read_at_once, self.expected
            ));
        }
        Ok(())
    }
}

/// Check on the rate of one subscriber's NACKs on one channel.
#[derive(Clone, Debug)]
pub struct NackRateCheck {
    config: ReceiverConfig,
    questions: BTreeMap<u64, Question>,
    /// Requests of the previous connection. Until the next connection is up, a multicast repair may
    /// still be their response.
    over: BTreeMap<u64, Question>,
    rtt_least: Nanos,
    rtt_most: Nanos,
    /// Response times by sequence; only those after which no lower sequence had a response. A
    /// request waits for its turn while responses are below it.
    answered: BTreeMap<u64, Nanos>,
    /// Time at which the application last resumed polling, and time of the last WELCOME.
    awake_at: Nanos,
    welcomed_at: Nanos,
    /// Whether missing sequences may be READ, and so wait for a READ.
    may_read: bool,
    /// Whether a WELCOME arrived, and the time since which multicast is silent.
    is_up: bool,
    stale_at: Option<Nanos>,
    /// Time of the last PROGRESS, and whether the next one may be sent at any time.
    progress_at: Option<Nanos>,
    progress_free: bool,
    /// Number of PROGRESS messages without a STATUS.
    unanswered: u64,
    answered_at: Nanos,
    /// Advised hold-off and group size, the time of the advice, and the number of runs found
    /// missing.
    advice: (Nanos, u32),
    advised_at: Nanos,
    episodes: u64,
    counted: Nanos,
    /// Number of PROGRESS messages that were sent in time.
    pub said: u64,
    /// Number of requests that waited as long as a refusal demanded.
    pub refusals_heeded: u64,
    /// Immediate requests of this subscriber.
    pub scouts: Scouts,
}

impl NackRateCheck {
    /// Returns a check without requests.
    #[must_use]
    pub const fn new(config: ReceiverConfig) -> Self {
        Self {
            config,
            questions: BTreeMap::new(),
            over: BTreeMap::new(),
            rtt_least: RTT_UNKNOWN,
            rtt_most: RTT_UNKNOWN,
            answered: BTreeMap::new(),
            may_read: false,
            is_up: false,
            stale_at: None,
            said: 0,
            refusals_heeded: 0,
            awake_at: Nanos::ZERO,
            welcomed_at: Nanos::ZERO,
            progress_at: None,
            progress_free: true,
            unanswered: 0,
            answered_at: Nanos::ZERO,
            advice: (Nanos::ZERO, 0),
            advised_at: Nanos::ZERO,
            episodes: 0,
            counted: Nanos::ZERO,
            scouts: Scouts {
                expected: 0.0,
                variance: 0.0,
                at_once: 0,
                read_at_once: 0,
            },
        }
    }

    /// Returns the longest response time.
    #[must_use]
    pub const fn rtt_most(&self) -> Nanos {
        self.rtt_most
    }

    fn base(&self, rtt: Nanos) -> u64 {
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        rtt.min(RTT_MAX).times(4).max(least).0
    }

    /// Checks a NACK of class repair for this sequence.
    ///
    /// # Errors
    /// A NACK that is too early or too late.
    pub fn asks(&mut self, sequence: Sequence, now: Nanos) -> Checked {
        let (least, most) = (self.base(self.rtt_least), self.base(self.rtt_most));
        let awake_at = self.awake_at;
        let below = self.answered.range(..sequence.0).next_back();
        let answered_at = below.map_or(Nanos::ZERO, |(_, at)| *at);
        self.waited_as_told(sequence, now)?;
        let question = (self.questions.entry(sequence.0)).or_insert(Question {
            first: now,
            at: None,
            again: None,
            attempts: 0,
            sure: 0,
        });
        if let Some(before) = question.at {
            let doubled = |base: u64, attempts: u32| {
                base.saturating_mul(1 << attempts.saturating_sub(1).min(DOUBLINGS_MAX))
            };
            let soonest = before.after(Nanos(doubled(least, question.sure) / 4 * 3));
            if now.after(SLACK) < soonest {
                let attempts = question.attempts;
                return Err(format!(
                    "question {} for {sequence} at {now}, the one before at {before}; due at {soonest} at the soonest",
                    attempts + 1
                ));
            }
            let patience = most / 4 * 5;
            let latest = before.after(Nanos(doubled(most, question.attempts) / 4 * 5));
            let latest = latest
                .max(answered_at.after(Nanos(patience)))
                .max(awake_at)
                .after(SLACK);
            if now > latest {
                let attempts = question.attempts;
                return Err(format!(
                    "question {} for {sequence} at {now}, the one before at {before}; due at {latest} at the latest",
                    attempts + 1
                ));
            }
        }
        question.at = Some(now);
        question.attempts += 1;
        question.sure += 1;
        Ok(())
    }

    /// Checks a READ of this sequence, or a NACK on the NACK connection. It is sent once on that
    /// path; after a timeout the next request uses the next rung ([`crate::checks::ladder`]).
    ///
    /// # Errors
    /// A request before or long after the time that a refusal set.
    pub fn asks_elsewhere(&mut self, sequence: Sequence, now: Nanos) -> Checked {
        self.waited_as_told(sequence, now)?;
        let question = Question {
            first: now,
            at: None,
            again: None,
            attempts: 0,
            sure: 0,
        };
        self.questions.entry(sequence.0).or_insert(question).at = None;
        Ok(())
    }

    /// Checks that a request comes neither before the time that a refusal set, nor long after it. A
    /// READ may have waited for room or tokens, and a gap that another line may fill for that line.
    fn waited_as_told(&mut self, sequence: Sequence, now: Nanos) -> Checked {
        let patience = Nanos(self.base(self.rtt_most) / 4 * 5);
        let below = self.answered.range(..sequence.0).next_back();
        let turn = below.map_or(Nanos::ZERO, |(_, at)| at.after(patience));
        let Some(question) = self.questions.get_mut(&sequence.0) else {
            return Ok(());
        };
        let Some((soonest, latest)) = question.again.take() else {
            return Ok(());
        };
        if now < soonest {
            return Err(format!(
                "{sequence} was refused, and is asked for again at {now}; due at {soonest} at the soonest"
            ));
        }
        let skew = Nanos::from_us(self.config.line_skew_us.into());
        let latest = latest.max(turn).max(question.first.after(skew));
        let latest = latest.max(self.awake_at).after(SLACK);
        if now > latest && !self.may_read {
            return Err(format!(
                "{sequence} was refused, and is asked for again at {now}; due at {latest} at the latest"
            ));
        }
        self.refusals_heeded += 1;
        Ok(())
    }

    /// Records a copy of a sequence that arrived over a connection or as a retransmission.
    pub fn comes(&mut self, sequence: Sequence, by_connection: bool, now: Nanos) {
        if by_connection {
            self.answer(sequence, now);
        }
        let questions = [&self.questions, &self.over];
        for question in questions.iter().filter_map(|of| of.get(&sequence.0)) {
            let last = question.at.unwrap_or(question.first);
            self.rtt_least = self.rtt_least.min(now.since(last));
            self.rtt_most = self.rtt_most.max(now.since(question.first));
        }
    }

    /// Records that a connection was closed after this time without a response: the subscriber may
    /// assume a round trip of that length.
    pub fn gives_up(&mut self, waited: Nanos) {
        self.rtt_most = self.rtt_most.max(waited.min(RTT_MAX));
    }

    fn answer(&mut self, sequence: Sequence, now: Nanos) {
        self.answered.split_off(&sequence.0);
        self.answered.insert(sequence.0, now);
    }

    /// Sets whether missing sequences may be READ.
    pub const fn may_read(&mut self, may_read: bool) {
        self.may_read = may_read;
    }

    /// Records a refusal. In the followed epoch, a refused NACK is no failed try, and is repeated
    /// at the time that the refusal sets.
    pub fn refused(&mut self, refused: &Refused, is_ours: bool, now: Nanos) {
        let range = refused.range;
        self.answer(range.last, now);
        if !is_ours {
            return;
        }
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        let wait = refused.wait().max(least);
        let again = match refused.reason {
            RefusalReason::Window => {
                let (least, most) = (self.base(self.rtt_least), self.base(self.rtt_most));
                let soonest = now.after(Nanos(least / 4 * 3)).0.saturating_sub(SLACK.0);
                (Nanos(soonest), now.after(Nanos(most / 4 * 5)))
            }
            // After repeated refusals of this kind, the sequence is requested less often.
            RefusalReason::Ahead => (now.after(wait), now.after(wait.max(DENIED_MAX))),
            _ => (now.after(wait), now.after(wait)),
        };
        for (_, question) in self.questions.range_mut(range.first.0..=range.last.0) {
            question.again = Some(again);
            question.at = None;
            question.attempts = question.attempts.saturating_sub(1);
            question.sure = 0;
        }
    }

    /// Forgets requests below `next`, because these sequences are settled.
    pub fn settled(&mut self, next: Sequence) {
        let below = self.answered.range(..next.0).next_back();
        if let Some(below) = below.map(|(s, _)| *s) {
            self.answered = self.answered.split_off(&below);
        }
        for questions in [&mut self.questions, &mut self.over] {
            while (questions.first_key_value()).is_some_and(|(s, _)| *s < next.0) {
                questions.pop_first();
            }
        }
    }

    /// Moves all requests to those of the previous connection, because the connection changed or
    /// another epoch is followed.
    pub fn restarted(&mut self) {
        self.over.append(&mut self.questions);
    }

    /// Records that the application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// Records a WELCOME.
    pub fn welcomed(&mut self, now: Nanos) {
        self.over.clear();
        (self.welcomed_at, self.is_up, self.unanswered) = (now, true, 0);
        self.progress_free = true;
    }

    /// Records that silence was reported, with its start, or its end. Silence permits a PROGRESS at
    /// once.
    pub const fn stale(&mut self, since: Option<Nanos>) {
        self.stale_at = since;
        self.progress_free |= since.is_some();
    }

    /// Records that the end was reported, which permits a PROGRESS at once.
    pub const fn ends(&mut self) {
        self.stale_at = None;
        self.progress_free = true;
    }

    /// Records that the repair connection changed or closed: no PROGRESS is due until the next
    /// WELCOME.
    pub const fn disconnected(&mut self) {
        self.is_up = false;
    }

    /// Checks before an input that no PROGRESS is late.
    ///
    /// # Errors
    /// A PROGRESS that was due and not sent.
    pub fn on_time(&self, now: Nanos) -> Checked {
        let every_us = match self.stale_at {
            Some(_) if self.unanswered < UNANSWERED_MAX => self.config.follow_us,
            _ => self.config.progress_us,
        };
        let since = self.progress_at.max(self.stale_at).unwrap_or(Nanos::ZERO);
        let since = since
            .max(self.welcomed_at)
            .max(self.awake_at)
            .max(self.answered_at);
        let due = since.after(Nanos::from_us(every_us.into()));
        if self.is_up && now > due.after(SLACK) {
            return Err(format!("at {now} has not said how far it is, due at {due}"));
        }
        Ok(())
    }

    /// Checks a PROGRESS that is sent, which requests a STATUS.
    ///
    /// # Errors
    /// A PROGRESS too soon after the one before.
    pub fn says(&mut self, now: Nanos, unconfirmed: bool) -> Checked {
        let free = std::mem::take(&mut self.progress_free) || unconfirmed;
        let before = self.progress_at.replace(now);
        self.said += 1;
        let waits = self.unanswered;
        self.unanswered += 1;
        let least = Nanos::from_us(self.config.progress_us.into());
        if waits >= UNANSWERED_MAX && before.is_some_and(|before| now < before.after(least)) {
            return Err(format!(
                "a PROGRESS at {now}, where {waits} wait for STATUS"
            ));
        }
        let every = Nanos::from_us(self.config.follow_us.into());
        match before {
            Some(before) if !free && now < before.after(every) => {
                Err(format!("a PROGRESS at {now}, the one before at {before}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns how many PROGRESS have no STATUS.
    #[must_use]
    pub const fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Records a STATUS of the followed epoch that responds to the echoed PROGRESS.
    pub fn status(&mut self, echo: Nanos, now: Nanos) {
        self.answered_at = now;
        self.unanswered = match self.progress_at == Some(echo) {
            true => 0,
            false => self.unanswered.saturating_sub(1),
        };
    }

    /// Records a hold-off that a heartbeat advises for a group of this size.
    pub fn advised(&mut self, hold_off: Nanos, group: u32, now: Nanos) {
        let advice = (hold_off.min(HOLD_OFF_MAX), group);
        if advice != self.advice {
            (self.advice, self.advised_at) = (advice, now);
        }
    }

    /// Records the number of runs found missing so far.
    pub fn found(&mut self, episodes: u64, connected: bool) {
        let new = episodes.saturating_sub(self.episodes);
        self.episodes = episodes;
        let (hold_off, group) = self.advice;
        if hold_off > Nanos::ZERO && connected && group > 0 {
            let share = (f64::from(group.ilog2() + 1) / f64::from(group)).min(1.0);
            self.scouts.expected += share * new as f64;
            self.scouts.variance += share * (1.0 - share) * new as f64;
        }
    }

    /// Records the first NACK or READ for a run that was found missing at `found`.
    pub fn asks_run(&mut self, found: Option<Nanos>, by_read: bool, now: Nanos) {
        let (hold_off, _) = self.advice;
        let Some(found) = found.filter(|_| hold_off > Nanos::ZERO) else {
            return;
        };
        let known = self.advised_at < found && self.welcomed_at < found && self.awake_at < found;
        let grace = Nanos::from_us(self.config.reorder_grace_us.into());
        let first = found != std::mem::replace(&mut self.counted, found);
        if known && first && now < found.after(grace).after(Nanos(hold_off.0 / 2)) {
            match by_read {
                true => self.scouts.read_at_once += 1,
                false => self.scouts.at_once += 1,
            }
        }
    }

    /// Returns whether this sequence was requested on this connection.
    #[must_use]
    pub fn has_asked(&self, sequence: Sequence) -> bool {
        self.questions.contains_key(&sequence.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::types::{Epoch, RecordNumber, SequenceRange};

    const S: Sequence = Sequence(5);

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    fn pace() -> NackRateCheck {
        let mut pace = NackRateCheck::new(ReceiverConfig::default());
        pace.asks(S, us(1_000)).unwrap();
        pace
    }

    #[test]
    fn early_or_late_request_is_detected_answer_excuses() {
        // The round trip is unknown: a second NACK is due after 1000 us, give or take 250.
        assert!(pace().asks(S, us(1_700)).unwrap_err().contains("soonest"));
        assert_eq!(pace().asks(S, us(1_750)), Ok(()));
        assert_eq!(pace().asks(S, us(2_250)), Ok(()));
        assert!(pace().asks(S, us(2_300)).unwrap_err().contains("latest"));
        let mut of = pace();
        of.comes(Sequence(4), true, us(2_000));
        assert_eq!(of.asks(S, us(3_200)), Ok(()));
        assert!(
            of.asks(S, us(4_600)).unwrap_err().contains("soonest"),
            "it doubles"
        );
        of.refused(&refused(RefusalReason::Ahead, 30), true, us(4_600));
        assert_eq!(of.asks(S, us(4_650)), Ok(()));
    }

    fn refused(reason: RefusalReason, retry_after_us: u32) -> Refused {
        Refused {
            epoch: Epoch(1),
            range: SequenceRange::one(S),
            reason,
            retry_after_us,
            oldest: Sequence(1),
            oldest_record: RecordNumber(1),
        }
    }

    #[test]
    fn retry_outside_refusal_delay_is_detected() {
        let again = |reason, retry_after_us, at| {
            let mut of = pace();
            of.refused(&refused(reason, retry_after_us), true, us(2_000));
            of.asks(S, us(at))
        };
        assert_eq!(again(RefusalReason::Budget, 300, 2_300), Ok(()));
        assert_eq!(again(RefusalReason::Budget, 300, 2_305), Ok(()));
        let wrong = |at| again(RefusalReason::Budget, 300, at).unwrap_err();
        assert!(wrong(2_299).contains("soonest"));
        assert!(wrong(2_306).contains("latest"));
        // The minimum retry timeout applies, and a whole one when the window moved on.
        assert!(again(RefusalReason::Ahead, 0, 2_049).is_err());
        assert_eq!(again(RefusalReason::Ahead, 0, 2_050), Ok(()));
        assert!(again(RefusalReason::Window, 0, 2_740).is_err());
        assert_eq!(again(RefusalReason::Window, 0, 2_750), Ok(()));
        assert_eq!(again(RefusalReason::Window, 0, 3_255), Ok(()));
        assert!(again(RefusalReason::Window, 0, 3_260).is_err());
    }

    #[test]
    fn answer_above_nacked_sequence_excuses_no_delay() {
        let mut of = pace();
        of.comes(Sequence(4), true, us(1_500));
        of.comes(Sequence(6), true, us(2_000));
        assert_eq!(of.clone().asks(S, us(2_750)), Ok(()));
        assert!(of.asks(S, us(2_800)).unwrap_err().contains("latest"));
    }

    #[test]
    fn answer_after_disconnect_measures_rtt_until_welcome() {
        let first_nack = |welcomed: bool| {
            let mut of = pace();
            of.restarted();
            if welcomed {
                of.welcomed(us(1_090));
            }
            of.comes(S, false, us(1_100));
            of.asks(Sequence(6), us(2_000)).unwrap();
            // Four round trips of 100 us minus a quarter.
            of.asks(Sequence(6), us(2_300))
        };
        assert_eq!(first_nack(false), Ok(()));
        assert!(first_nack(true).unwrap_err().contains("soonest"));
    }

    #[test]
    fn unanswered_nack_backs_off_within_limit() {
        let mut of = pace();
        of.gives_up(us(600));
        assert_eq!(of.asks(S, us(3_900)), Ok(()));
        let mut of = pace();
        of.gives_up(us(700_000));
        assert!(of.asks(S, us(126_100)).unwrap_err().contains("latest"));
    }

    #[test]
    fn early_message_is_detected_unless_excused() {
        let mut of = pace();
        assert_eq!(of.says(us(1), false), Ok(()));
        assert!(of.says(us(900), false).is_err());
        of.stale(Some(us(901)));
        assert_eq!(of.says(us(901), false), Ok(()));
        assert_eq!(of.says(us(1_901), false), Ok(()));
    }

    #[test]
    fn mute_follower_is_detected_sooner_when_stale() {
        let mut of = pace();
        assert_eq!(of.on_time(us(900_000)), Ok(()), "nobody welcomed it");
        of.welcomed(us(1_000));
        of.says(us(1_000), false).unwrap();
        assert_eq!(of.on_time(us(101_005)), Ok(()));
        assert!(of.on_time(us(101_006)).is_err());
        of.stale(Some(us(50_000)));
        assert_eq!(of.on_time(us(51_005)), Ok(()));
        assert!(of.on_time(us(51_006)).is_err());
        of.stale(None);
        assert_eq!(of.on_time(us(51_006)), Ok(()));
        of.disconnected();
        assert_eq!(of.on_time(us(900_000)), Ok(()));
    }

    #[test]
    fn group_without_nack_hold_off_is_detected() {
        let mut of = NackRateCheck::new(ReceiverConfig::default());
        of.advised(us(100), 16, us(1));
        for n in 1..=40 {
            of.found(n, true);
            of.asks_run(Some(us(n * 1_000)), false, us(n * 1_000 + 60));
        }
        assert_eq!((of.scouts.at_once, of.scouts.check()), (0, Ok(())));
        for n in 41..=80 {
            of.found(n, true);
            of.asks_run(Some(us(n * 1_000)), false, us(n * 1_000));
        }
        assert_eq!(of.scouts.at_once, 40);
        assert_eq!(of.scouts.check(), Ok(()), "25 are scouts");
        for n in 81..=200 {
            of.found(n, true);
            of.asks_run(Some(us(n * 1_000)), false, us(n * 1_000));
        }
        assert!(of.scouts.check().is_err());
    }
}
