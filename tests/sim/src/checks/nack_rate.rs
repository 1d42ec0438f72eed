//! How soon and how often one subscriber asks on one channel, held against the formulas of
//! docs/PROTOCOL.md §5.4 and §5.5: never sooner than its backoff allows, never later than it
//! promises, and in a large group no more at once than are scouts.
//!
//! The round trip in these formulas is the subscriber's own affair. Here it is bounded from both
//! sides: by the least and the most that any answer to a question took.

use std::collections::BTreeMap;

use tickcast_reliability::control::{RefusalReason, Refused};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{Nanos, Sequence};

type Checked = Result<(), String>;

/// As late as a timer may fire, and a smoothed round trip may be rounded.
const SLACK: Nanos = Nanos(5_000);
/// With so many words that no STATUS has answered the next one waits for longer.
const UNANSWERED_MAX: u64 = 4;
/// What is said to be ahead is asked for again after this at the latest.
const DENIED_MAX: Nanos = Nanos::from_ms(100);
/// The round trip assumed before the first one was measured.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// No longer round trip counts.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Retries double at most this often.
const DOUBLINGS_MAX: u32 = 8;
/// No longer hold-off is believed.
const HOLD_OFF_MAX: Nanos = Nanos::from_ms(10);

/// What was asked about one sequence since the connection was established.
#[derive(Clone, Copy, Debug)]
struct Question {
    first: Nanos,
    /// When it was asked last; `None` since it was refused, or asked elsewhere.
    at: Option<Nanos>,
    /// Since it was refused: when it is due again, at the soonest and at the latest.
    again: Option<(Nanos, Nanos)>,
    /// Questions that count as tries, and of those the ones since the last refusal.
    tries: u32,
    sure: u32,
}

/// First questions of a large group, all that were found to be missing and those asked at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scouts {
    /// Questions at once that are to be expected, and their variance.
    pub expected: f64,
    /// Its variance.
    pub variance: f64,
    /// Questions at once.
    pub at_once: u64,
    /// READs at once.
    pub read_at_once: u64,
}

impl Scouts {
    /// Adds another subscriber's.
    pub fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.variance += other.variance;
        self.at_once += other.at_once;
        self.read_at_once += other.read_at_once;
    }

    /// Whether no more asked at once than chance explains (six standard deviations).
    ///
    /// # Errors
    /// How many did.
    pub fn check(&self) -> Checked {
        let most = self.expected + 6.0 * self.variance.sqrt() + 3.0;
        if self.at_once as f64 > most {
            return Err(format!(
                "{} asked at once where a hold-off was advised, {:.0} are scouts",
                self.at_once, self.expected
            ));
        }
        // What belongs to a run that was found before is READ with it; that is some.
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

/// See the module.
#[derive(Clone, Debug)]
pub struct NackRateCheck {
    config: ReceiverConfig,
    questions: BTreeMap<u64, Question>,
    /// Of the connection before: until the next one is there, a copy sent again by multicast may
    /// still answer them.
    over: BTreeMap<u64, Question>,
    rtt_least: Nanos,
    rtt_most: Nanos,
    /// When answers came, by sequence: only those after which none came for a lower sequence. A
    /// question waits for its turn while they are below it.
    answered: BTreeMap<u64, Nanos>,
    /// When the application last began to poll again, and when it was welcomed last.
    awake_at: Nanos,
    welcomed_at: Nanos,
    /// Whether what is missing may be READ, and so wait for that.
    may_read: bool,
    /// Whether the publisher welcomed it, and since when multicast is silent.
    is_up: bool,
    stale_at: Option<Nanos>,
    /// When it was told how far it is last, and whether the next such word may come at any time.
    progress_at: Option<Nanos>,
    progress_free: bool,
    /// How many of those words no STATUS has answered.
    unanswered: u64,
    answered_at: Nanos,
    /// Hold-off and group as advised, since when, and the runs that were found missing until now.
    advice: (Nanos, u32),
    advised_at: Nanos,
    episodes: u64,
    counted: Nanos,
    /// How often it said how far it is, each time before it was late.
    pub said: u64,
    /// Questions that waited as a refusal says.
    pub refusals_heeded: u64,
    /// Of this subscriber.
    pub scouts: Scouts,
}

impl NackRateCheck {
    /// Nothing was asked yet.
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

    /// The most that an answer took.
    #[must_use]
    pub const fn rtt_most(&self) -> Nanos {
        self.rtt_most
    }

    fn base(&self, rtt: Nanos) -> u64 {
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        rtt.min(RTT_MAX).times(4).max(least).0
    }

    /// A NACK of class repair goes out that names this sequence.
    ///
    /// # Errors
    /// That it comes too soon or too late.
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
            tries: 0,
            sure: 0,
        });
        if let Some(before) = question.at {
            let doubled = |base: u64, tries: u32| {
                base.saturating_mul(1 << tries.saturating_sub(1).min(DOUBLINGS_MAX))
            };
            let soonest = before.after(Nanos(doubled(least, question.sure) / 4 * 3));
            if now.after(SLACK) < soonest {
                let tries = question.tries;
                return Err(format!(
                    "question {} for {sequence} at {now}, the one before at {before}; due at {soonest} at the soonest",
                    tries + 1
                ));
            }
            let patience = most / 4 * 5;
            let latest = before.after(Nanos(doubled(most, question.tries) / 4 * 5));
            let latest = latest
                .max(answered_at.after(Nanos(patience)))
                .max(awake_at)
                .after(SLACK);
            if now > latest {
                let tries = question.tries;
                return Err(format!(
                    "question {} for {sequence} at {now}, the one before at {before}; due at {latest} at the latest",
                    tries + 1
                ));
            }
        }
        question.at = Some(now);
        question.tries += 1;
        question.sure += 1;
        Ok(())
    }

    /// This sequence is READ, or asked for on the NACK connection: but once there, and the next
    /// question goes to the next rung, when this one gives way ([`crate::checks::ladder`]).
    ///
    /// # Errors
    /// That it was to wait, or should have come before.
    pub fn asks_elsewhere(&mut self, sequence: Sequence, now: Nanos) -> Checked {
        self.waited_as_told(sequence, now)?;
        let question = Question {
            first: now,
            at: None,
            again: None,
            tries: 0,
            sure: 0,
        };
        self.questions.entry(sequence.0).or_insert(question).at = None;
        Ok(())
    }

    /// This sequence is asked for: not before a refusal said, and not long after. What is READ then may
    /// have had to wait for room or tokens, and what another line may bring for that line.
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

    /// A copy of a sequence comes over a connection, or is one that was sent again.
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

    /// A connection is given up that did not answer for so long: the round trip may be taken to be
    /// that long.
    pub fn gives_up(&mut self, waited: Nanos) {
        self.rtt_most = self.rtt_most.max(waited.min(RTT_MAX));
    }

    fn answer(&mut self, sequence: Sequence, now: Nanos) {
        self.answered.split_off(&sequence.0);
        self.answered.insert(sequence.0, now);
    }

    /// Whether what is missing may be READ.
    pub const fn may_read(&mut self, may_read: bool) {
        self.may_read = may_read;
    }

    /// These were refused: no try that failed, and asked again when the refusal says, unless it is of
    /// an epoch other than that which is followed.
    pub fn refused(&mut self, refused: &Refused, is_ours: bool, now: Nanos) {
        let range = refused.range;
        self.answer(range.last, now);
        if !is_ours {
            return;
        }
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        let wait = Nanos::from_us(refused.retry_after_us.into()).max(least);
        let again = match refused.reason {
            RefusalReason::Window => {
                let (least, most) = (self.base(self.rtt_least), self.base(self.rtt_most));
                let soonest = now.after(Nanos(least / 4 * 3)).0.saturating_sub(SLACK.0);
                (Nanos(soonest), now.after(Nanos(most / 4 * 5)))
            }
            // One that keeps saying so is asked less often.
            RefusalReason::Ahead => (now.after(wait), now.after(wait.max(DENIED_MAX))),
            _ => (now.after(wait), now.after(wait)),
        };
        for (_, question) in self.questions.range_mut(range.first.0..=range.last.0) {
            question.again = Some(again);
            question.at = None;
            question.tries = question.tries.saturating_sub(1);
            question.sure = 0;
        }
    }

    /// Everything below is settled.
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

    /// The connection is up or over, or another epoch is followed: its questions are asked anew.
    pub fn restarted(&mut self) {
        self.over.append(&mut self.questions);
    }

    /// The application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// A WELCOME comes.
    pub fn welcomed(&mut self, now: Nanos) {
        self.over.clear();
        (self.welcomed_at, self.is_up, self.unanswered) = (now, true, 0);
        self.progress_free = true;
    }

    /// Silence is told, and since when it lasts, or its end. It is a reason to say at once how far it is.
    pub const fn stale(&mut self, since: Option<Nanos>) {
        self.stale_at = since;
        self.progress_free |= since.is_some();
    }

    /// The end is told, another reason.
    pub const fn ends(&mut self) {
        self.stale_at = None;
        self.progress_free = true;
    }

    /// The repair connection is another, or none: nobody is told anything until the next WELCOME.
    pub const fn disconnected(&mut self) {
        self.is_up = false;
    }

    /// The core is given something: what was due before that must have been said.
    ///
    /// # Errors
    /// That it was long ago that it said how far it is.
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

    /// It says how far it is, and so asks for STATUS.
    ///
    /// # Errors
    /// That it asked just before.
    pub fn says(&mut self, now: Nanos) -> Checked {
        let free = std::mem::take(&mut self.progress_free);
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

    /// STATUS comes, of the epoch that is followed, to the PROGRESS that it echoes.
    pub fn status(&mut self, echo: Nanos, now: Nanos) {
        self.answered_at = now;
        self.unanswered = match self.progress_at == Some(echo) {
            true => 0,
            false => self.unanswered.saturating_sub(1),
        };
    }

    /// A heartbeat advises a hold-off for a group of this many.
    pub fn advised(&mut self, hold_off: Nanos, group: u32, now: Nanos) {
        let advice = (hold_off.min(HOLD_OFF_MAX), group);
        if advice != self.advice {
            (self.advice, self.advised_at) = (advice, now);
        }
    }

    /// So many runs were found missing until now.
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

    /// A run that was found missing at `found` is asked for, or READ.
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

    /// Whether this sequence was asked about on this connection.
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
        // The round trip is unknown: a second question is due after 1000 us, give or take 250.
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
    fn who_does_not_wait_as_a_refusal_says_is_seen() {
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
        // At least the least of a retry, and where the window moved on a whole one.
        assert!(again(RefusalReason::Ahead, 0, 2_049).is_err());
        assert_eq!(again(RefusalReason::Ahead, 0, 2_050), Ok(()));
        assert!(again(RefusalReason::Window, 0, 2_740).is_err());
        assert_eq!(again(RefusalReason::Window, 0, 2_750), Ok(()));
        assert_eq!(again(RefusalReason::Window, 0, 3_255), Ok(()));
        assert!(again(RefusalReason::Window, 0, 3_260).is_err());
    }

    #[test]
    fn an_answer_above_a_question_excuses_nothing() {
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
            // Four round trips of 100 us, less a quarter.
            of.asks(Sequence(6), us(2_300))
        };
        assert_eq!(first_nack(false), Ok(()));
        assert!(first_nack(true).unwrap_err().contains("soonest"));
    }

    #[test]
    fn who_waited_in_vain_may_wait_longer_but_not_for_ever() {
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
        assert_eq!(of.says(us(1)), Ok(()));
        assert!(of.says(us(900)).is_err());
        of.stale(Some(us(901)));
        assert_eq!(of.says(us(901)), Ok(()));
        assert_eq!(of.says(us(1_901)), Ok(()));
    }

    #[test]
    fn mute_follower_is_detected_sooner_if_silent() {
        let mut of = pace();
        assert_eq!(of.on_time(us(900_000)), Ok(()), "nobody welcomed it");
        of.welcomed(us(1_000));
        of.says(us(1_000)).unwrap();
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
    fn a_group_that_asks_at_once_is_seen() {
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
