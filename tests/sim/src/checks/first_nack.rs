//! Checks that each gap has its first NACK in time, and is given up in time (docs/PROTOCOL.md §5.3,
//! §5.4, §7).
//!
//! The check follows the oldest gap, which has the earliest of all deadlines and is inside the
//! window. Each gap is the oldest at some time.
//!
//! - Sequences sent before the subscriber joined have no deadline: they are requested at the replay
//!   rate.
//! - Runs that are too long for repair have no deadline either.
//! - Sequences to be READ may wait as long as no READ can begin, and no longer.
//! - Sequences that only multicast claims may outlive their deadline for a while, if a STATUS was requested
//!   before it.

use std::collections::{BTreeSet, VecDeque};

use tickcast_reliability::control::Grant;
use tickcast_reliability::delivery::{Delivery, Event};
use tickcast_reliability::receive::{ReceiverConfig, RepairOrder};
use tickcast_reliability::types::{Epoch, Nanos, Sequence, SequenceRange};

use crate::checks::loss_reason::Found;

type Checked = Result<(), String>;

/// Tolerance for a late timer.
const SLACK: Nanos = Nanos(5_000);
/// Longest hold-off that is accepted.
const HOLD_OFF_MAX: Nanos = Nanos::from_ms(10);
/// Longest wait of a sequence that only multicast claims, beyond its deadline.
const CONFIRM_WAIT: Nanos = Nanos::from_ms(20);
/// Number of PROGRESS without a STATUS that delay the next one.
const UNANSWERED_MAX: u64 = 4;
/// Longest round trip that counts.
const RTT_MAX: Nanos = Nanos::from_ms(25);

/// The READs that are possible at present.
#[derive(Debug)]
struct Reads {
    /// Maximum number of READs in flight of one subscriber over all channels, and the slot length
    /// in bytes.
    most: u32,
    slot_len: u64,
    /// Start times of the READs in flight; they complete in this order.
    begun: VecDeque<Nanos>,
    /// The last grant, if any, and the bytes already READ under it.
    granted: Option<Grant>,
    used: u64,
    /// Time at which the tokens ran out, if they did, and the last time at which room for a READ or
    /// its bytes became free.
    dry_from: Option<Nanos>,
    free_at: Nanos,
    /// Upper bound of the round trip of a READ.
    rtt_most: Nanos,
}

impl Reads {
    /// Returns whether the maximum number of READs is in flight.
    fn is_full(&self) -> bool {
        self.granted.is_some() && self.begun.len() >= self.most as usize
    }

    /// Returns whether the tokens are used up. A grant that never had enough tokens does not delay
    /// anything.
    fn is_dry(&self) -> bool {
        self.granted.is_some_and(|grant| {
            let left = grant.tokens.saturating_sub(self.used);
            left < self.slot_len && grant.tokens >= self.slot_len
        })
    }

    /// Applies a change, and records when room or tokens became free or ran out.
    fn change(&mut self, now: Nanos, f: impl FnOnce(&mut Self)) {
        let before = (self.is_full(), self.is_dry());
        f(self);
        let after = (self.is_full(), self.is_dry());
        if (before.0 && !after.0) || (before.1 && !after.1) {
            self.free_at = now;
        }
        self.dry_from = after.1.then(|| self.dry_from.unwrap_or(now));
    }
}

/// Number of cases that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineCounts {
    /// First NACKs that were due by a deadline and met it.
    pub asked: u64,
    /// Gaps that had to be given up by a deadline and were.
    pub given_up: u64,
    /// Requests for a STATUS that were due before a deadline and sent in time.
    pub confirmed: u64,
}

/// The deadlines of the oldest gap, if no further input arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    epoch: Epoch,
    sequence: Sequence,
    found: Nanos,
    asked_by: Nanos,
    status_by: Nanos,
    given_up_by: Nanos,
}

/// Check on the first NACK and the end of the oldest gap of one channel.
#[derive(Debug)]
pub struct FirstNackCheck {
    config: ReceiverConfig,
    /// Time from the detection of a gap to its NACK, without a hold-off or READ.
    wait: Nanos,
    /// State of READ, if the repair order includes it.
    reads: Option<Reads>,
    /// Longest response time of a NACK.
    rtt_most: Nanos,
    /// Whether everything up to the newest sequence of the WELCOME is settled.
    live: bool,
    epoch: Epoch,
    /// Last sequence sent before this epoch was followed.
    history_to: Sequence,
    /// The next sequence after the previous input.
    next: Sequence,
    /// Sequences requested on the current connection.
    asked: BTreeSet<u64>,
    connected_since: Option<Nanos>,
    awake_at: Nanos,
    /// Advised hold-offs with their start times: the one in force when the gap was found, and later
    /// ones.
    hold_offs: VecDeque<(Nanos, Nanos)>,
    /// Ends of the window, each with the time from which it applied.
    ends: VecDeque<(Sequence, Nanos)>,
    due: Option<Due>,
    /// The newest sequence that the repair path confirmed, while it can confirm more.
    confirmed: Option<Sequence>,
    /// Time since which it cannot, if it cannot.
    lifted_at: Nanos,
    /// Time of the last PROGRESS, and the earliest time of the next one.
    said_at: Nanos,
    may_say_at: Nanos,
    /// Number of cases that were checked.
    pub seen: DeadlineCounts,
}

impl FirstNackCheck {
    /// Returns a check without a gap. `reads` is the maximum number of READs in flight, of slots of
    /// this length; 0 without a READ path.
    #[must_use]
    pub fn new(config: ReceiverConfig, lines: u8, (reads, slot_len): (u32, u32)) -> Self {
        let skew = if lines > 1 { config.line_skew_us } else { 0 };
        Self {
            config,
            wait: Nanos::from_us((config.reorder_grace_us + skew).into()),
            reads: (reads > 0 && config.ladder != RepairOrder::Nack).then_some(Reads {
                most: reads,
                slot_len: slot_len.into(),
                begun: VecDeque::new(),
                granted: None,
                used: 0,
                dry_from: None,
                free_at: Nanos::ZERO,
                rtt_most: Nanos::ZERO,
            }),
            rtt_most: Nanos::ZERO,
            live: false,
            epoch: Epoch::NONE,
            history_to: Sequence::NONE,
            next: Sequence::NONE,
            asked: BTreeSet::new(),
            connected_since: None,
            awake_at: Nanos::ZERO,
            hold_offs: VecDeque::from([(Nanos::ZERO, Nanos::ZERO)]),
            ends: VecDeque::new(),
            due: None,
            confirmed: None,
            lifted_at: Nanos::ZERO,
            said_at: Nanos::ZERO,
            may_say_at: Nanos::ZERO,
            seen: DeadlineCounts::default(),
        }
    }

    /// Records the hold-off that a heartbeat advises.
    pub fn advised(&mut self, hold_off: Nanos, now: Nanos) {
        self.hold_offs.push_back((now, hold_off.min(HOLD_OFF_MAX)));
    }

    /// Records that the application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// Records a request for these sequences, on any path.
    pub fn asks(&mut self, range: SequenceRange) {
        let bounded = self.due.filter(|due| due.asked_by < Nanos::MAX);
        let first = bounded.filter(|due| range.contains(due.sequence));
        if first.is_some_and(|due| !self.asked.contains(&due.sequence.0)) {
            self.seen.asked += 1;
        }
        self.asked.extend(range.first.0..=range.last.0);
    }

    /// Records the newest sequence that the repair path confirmed, while it can confirm more, and how many
    /// PROGRESS wait for a STATUS.
    pub fn confirms(&mut self, newest: Option<Sequence>, unanswered: u64, now: Nanos) {
        if newest.is_none() && self.confirmed.is_some() {
            self.lifted_at = now;
        }
        self.confirmed = newest;
        if unanswered >= UNANSWERED_MAX {
            self.may_say_at = now.after(Nanos::from_us(self.config.follow_us.into()));
        }
    }

    /// Records a PROGRESS that is sent.
    pub fn says(&mut self, now: Nanos) {
        self.said_at = now;
        self.may_say_at = now.after(Nanos::from_us(self.config.follow_us.into()));
        if let Some(due) = &mut self.due {
            let in_time = due.status_by < Nanos::MAX;
            self.seen.confirmed += u64::from(in_time);
            due.status_by = Nanos::MAX;
        }
    }

    /// Sets upper bounds of the response time of a NACK and of a READ.
    pub const fn answered_within(&mut self, rtt_most: Nanos, read_most: Nanos) {
        self.rtt_most = rtt_most;
        if let Some(reads) = &mut self.reads {
            reads.rtt_most = read_most;
        }
    }

    /// Records the start of a READ or of another operation that takes its place, with the bytes
    /// that it READs of this channel.
    pub fn begins_read(&mut self, bytes: u64, now: Nanos) {
        if let Some(reads) = &mut self.reads {
            reads.change(now, |reads| {
                reads.begun.push_back(now);
                reads.used += bytes;
            });
        }
    }

    /// Records that the oldest READ, or operation in its place, completed.
    pub fn ends_read(&mut self, now: Nanos) {
        if let Some(reads) = &mut self.reads {
            reads.change(now, |reads| {
                reads.begun.pop_front();
            });
        }
    }

    /// Records a grant for this channel.
    pub fn granted(&mut self, grant: &Grant, now: Nanos) {
        if let Some(reads) = &mut self.reads {
            let before = reads.granted.map(|before| before.attempt);
            if before > Some(grant.attempt) {
                return;
            }
            reads.change(now, |reads| {
                if before != Some(grant.attempt) {
                    reads.used = 0;
                }
                reads.granted = Some(*grant);
            });
        }
    }

    /// Returns whether missing sequences may be READ.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.reads
            .as_ref()
            .is_some_and(|reads| reads.granted.is_some())
    }

    /// Records that the READ connection changed or closed.
    pub fn reads_anew(&mut self, now: Nanos) {
        if let Some(reads) = &mut self.reads {
            reads.change(now, |reads| {
                reads.begun.clear();
                reads.granted = None;
            });
        }
    }

    /// Records an event that the application received.
    pub const fn reported(&mut self, event: &Event) {
        match event {
            Event::Joined { .. } | Event::EpochChanged { .. } => self.live = false,
            Event::Live => self.live = true,
            _ => {}
        }
    }

    /// Checks before an input that no deadline has passed.
    ///
    /// # Errors
    /// A gap that was not requested, not confirmed or not given up by its deadline.
    pub fn on_time(&self, now: Nanos) -> Checked {
        let Some(due) = self.due else { return Ok(()) };
        let late = |by: Nanos| by < Nanos::MAX && now > by.max(self.awake_at).after(SLACK);
        if late(due.given_up_by) {
            return Err(format!("at {now} still waits for what is overdue: {due:?}"));
        }
        if late(due.status_by) {
            return Err(format!(
                "at {now} has not asked whether what it misses was sent: {due:?}"
            ));
        }
        if late(due.asked_by) && !self.asked.contains(&due.sequence.0) {
            return Err(format!(
                "at {now} has not asked for what it misses: {due:?}"
            ));
        }
        Ok(())
    }

    /// Records, after an input, the epoch that is followed. Sequences sent before it was followed
    /// are history, even when it continues another epoch.
    pub fn follows(&mut self, epoch: Epoch, heard: Sequence) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.restarted();
            self.history_to = heard;
        }
    }

    /// Computes the deadlines after an input. `next` is the next sequence to deliver, and `heard`
    /// the last known one. `found` is the detection of `next` as missing, and `connected` the state
    /// of the repair connection.
    pub fn settled(
        &mut self,
        (next, heard): (Sequence, Sequence),
        found: Option<Found>,
        connected: bool,
        now: Nanos,
    ) {
        if connected != self.connected_since.is_some() {
            self.connected_since = connected.then_some(now);
            self.asked.clear();
        }
        let span = u64::from(self.config.window_slots).next_power_of_two();
        let end = next.plus(span);
        if self.ends.back().is_none_or(|(before, _)| *before < end) {
            self.ends.push_back((end, now));
        }
        while self.ends.get(1).is_some_and(|_| self.ends[0].0 <= next) {
            self.ends.pop_front();
        }
        let over = self
            .due
            .filter(|due| due.sequence < next && due.epoch == self.epoch);
        if over.is_some_and(|due| due.given_up_by <= now) {
            self.seen.given_up += 1;
        }
        self.next = next;
        while self.asked.first().is_some_and(|s| *s < next.0) {
            self.asked.pop_first();
        }
        let history = self.config.repair && (!self.live || next <= self.history_to);
        let found = found.filter(|_| next <= heard);
        let oldest_at = found.map_or(now, |found| found.at);
        while self.hold_offs.get(1).is_some_and(|(at, _)| *at < oldest_at) {
            self.hold_offs.pop_front();
        }
        self.due = found.filter(|_| !history).map(|found| Due {
            epoch: self.epoch,
            sequence: next,
            found: found.at,
            asked_by: self.asked_by(next, found),
            status_by: self.status_by(next, found.at),
            given_up_by: self.given_up_by(next, found.at),
        });
    }

    fn restarted(&mut self) {
        self.asked.clear();
        self.ends.clear();
        self.next = Sequence::NONE;
        self.due = None;
    }

    fn asked_by(&self, sequence: Sequence, found: Found) -> Nanos {
        let Some(since) = self.connected_since else {
            return Nanos::MAX;
        };
        if !self.config.repair || found.too_long {
            return Nanos::MAX;
        }
        let from = found.at.max(since).max(self.awake_at);
        // Sequences beyond the window can't be requested yet.
        let entered = self.ends.iter().find(|(end, _)| sequence < *end);
        let from = from.max(entered.map_or(Nanos::ZERO, |(_, at)| *at));
        let hold_off = self.hold_offs.iter().map(|(_, hold_off)| *hold_off).max();
        let by = from.after(self.wait).after(hold_off.unwrap_or(Nanos::ZERO));
        let Some(reads) = &self.reads else { return by };
        let by = by.max(reads.free_at);
        let oldest = reads.begun.front().filter(|_| reads.is_full());
        let room = oldest.map(|at| at.after(self.first_retry(reads.rtt_most)));
        let tokens = reads.dry_from.map(|from| {
            let from = from.max(by);
            from.after(self.first_retry(self.rtt_most))
        });
        by.max(room.unwrap_or(by)).max(tokens.unwrap_or(by))
    }

    /// Returns the longest first retry timeout when no response took longer than this.
    fn first_retry(&self, rtt_most: Nanos) -> Nanos {
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        Nanos(rtt_most.min(RTT_MAX).times(4).max(least).0 / 4 * 5)
    }

    /// Returns how long a gap may stay open at all.
    fn patience(&self) -> Option<Nanos> {
        match self.config.delivery {
            _ if !self.config.repair => Some(Nanos::from_us(self.config.unrepaired_wait_us.into())),
            Delivery::OrderedWithin(deadline) => Some(deadline),
            _ => None,
        }
    }

    /// Returns whether only multicast claims this sequence, and the repair path can tell.
    fn is_claimed(&self, sequence: Sequence) -> bool {
        self.confirmed.is_some_and(|newest| sequence > newest)
    }

    /// A STATUS is requested once half of the time of such a gap is over, unless a PROGRESS was sent since.
    fn status_by(&self, sequence: Sequence, found: Nanos) -> Nanos {
        let (Some(wait), Some(since)) = (self.patience(), self.connected_since) else {
            return Nanos::MAX;
        };
        // A PROGRESS of the same time may say as much: the core can have found the gap earlier.
        if !self.is_claimed(sequence) || self.said_at >= found {
            return Nanos::MAX;
        }
        let half = found.after(Nanos(wait.0 / 2));
        half.max(since).max(self.may_say_at)
    }

    fn given_up_by(&self, sequence: Sequence, found: Nanos) -> Nanos {
        let Some(wait) = self.patience() else {
            return Nanos::MAX;
        };
        let at = found.after(wait);
        match self.confirmed {
            Some(newest) if sequence > newest => at.after(CONFIRM_WAIT),
            Some(_) => at,
            None => at.max(self.lifted_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::control::RemoteAccess;

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    /// Returns a check that is live, connected since 1 us, with eight READs in flight at most;
    /// sequence 5 is missing since 10 us.
    fn check(config: ReceiverConfig) -> FirstNackCheck {
        let mut check = FirstNackCheck::new(config, 1, (8, 1_024));
        check.reported(&Event::Live);
        check.settled((Sequence(5), Sequence(4)), None, true, us(1));
        settle(&mut check, 10);
        check
    }

    fn missing(at: u64) -> Option<Found> {
        let (at, too_long) = (us(at), false);
        Some(Found { at, too_long })
    }

    /// Passes an input at this time that changes nothing.
    fn settle(check: &mut FirstNackCheck, at: u64) {
        let connected = check.connected_since.is_some();
        check.settled((Sequence(5), Sequence(8)), missing(10), connected, us(at));
    }

    fn grant(tokens: u64) -> Grant {
        let ring = RemoteAccess {
            address: 0,
            len: 0,
            key: 0,
        };
        Grant {
            epoch: Epoch(1),
            attempt: 1,
            tokens,
            ring,
            cursor: None,
        }
    }

    #[test]
    fn missing_request_is_detected_hold_off_excuses() {
        let mut of = check(ReceiverConfig::default());
        assert_eq!(of.on_time(us(15)), Ok(()));
        assert!(of.on_time(us(16)).unwrap_err().contains("not asked"));
        of.asks(SequenceRange::one(Sequence(5)));
        of.asks(SequenceRange::one(Sequence(5)));
        assert_eq!(of.on_time(us(1_000_000)), Ok(()));
        assert_eq!((of.seen.asked, of.seen.given_up), (1, 0));
        let mut of = check(ReceiverConfig::default());
        of.advised(us(50), us(10));
        of.advised(us(20), us(11));
        settle(&mut of, 11);
        assert_eq!(of.on_time(us(60)), Ok(()));
        assert!(of.on_time(us(66)).is_err());
        of.awakes(us(70));
        assert_eq!(of.on_time(us(71)), Ok(()));
    }

    #[test]
    fn superseded_hold_off_does_not_excuse_late_nack() {
        let mut of = FirstNackCheck::new(ReceiverConfig::default(), 1, (0, 1_024));
        of.reported(&Event::Live);
        of.advised(us(50), us(1));
        of.advised(us(20), us(2));
        of.settled((Sequence(5), Sequence(4)), None, true, us(3));
        settle(&mut of, 10);
        assert_eq!(of.on_time(us(35)), Ok(()));
        assert!(of.on_time(us(36)).is_err());
    }

    #[test]
    fn nack_is_due_only_while_connected() {
        let mut of = check(ReceiverConfig::default());
        of.asks(SequenceRange::one(Sequence(5)));
        of.settled((Sequence(5), Sequence(8)), missing(10), false, us(20));
        assert_eq!(of.on_time(us(900)), Ok(()));
        of.settled((Sequence(5), Sequence(8)), missing(10), true, us(900));
        assert!(of.on_time(us(906)).is_err());
    }

    #[test]
    fn read_wait_for_tokens_or_room_lasts_one_retry() {
        let config = ReceiverConfig::default();
        // No grant, or enough tokens: no excuse.
        assert!(check(config).on_time(us(16)).is_err());
        let mut of = check(config);
        of.answered_within(us(250), us(250));
        of.granted(&grant(1_024), us(11));
        settle(&mut of, 11);
        assert!(of.on_time(us(17)).is_err());
        of.begins_read(1, us(12));
        settle(&mut of, 12);
        // Four times the round trip plus a quarter; another READ does not extend it.
        let retry = 1_250;
        of.begins_read(0, us(600));
        settle(&mut of, 600);
        assert_eq!(of.on_time(us(12 + retry)), Ok(()));
        assert!(of.on_time(us(12 + retry + 6)).is_err());
        // A subscriber that never had enough tokens does not wait for any.
        let mut of = check(config);
        of.granted(&grant(1_023), us(11));
        settle(&mut of, 11);
        assert!(of.on_time(us(17)).is_err());

        let mut of = check(config);
        of.answered_within(us(900), us(250));
        of.granted(&grant(1 << 20), us(11));
        (0..7).for_each(|_| of.begins_read(1_024, us(11)));
        settle(&mut of, 11);
        assert!(of.on_time(us(17)).is_err(), "one more can be begun");
        of.begins_read(0, us(400));
        settle(&mut of, 400);
        assert_eq!(of.on_time(us(11 + retry)), Ok(()));
        assert!(of.on_time(us(11 + retry + 6)).is_err());
        of.ends_read(us(500));
        settle(&mut of, 500);
        assert!(of.on_time(us(506)).is_err());
        of.reads_anew(us(600));
        settle(&mut of, 600);
        assert!(of.on_time(us(606)).is_err());
    }

    #[test]
    fn gap_past_its_deadline_is_detected() {
        let mut of = check(ReceiverConfig {
            delivery: Delivery::OrderedWithin(us(100)),
            ..ReceiverConfig::default()
        });
        of.asks(SequenceRange::one(Sequence(5)));
        assert_eq!(of.on_time(us(115)), Ok(()));
        assert!(of.on_time(us(116)).unwrap_err().contains("overdue"));
        of.settled((Sequence(9), Sequence(8)), None, true, us(110));
        assert_eq!(of.seen.given_up, 1);
        let of = check(ReceiverConfig {
            repair: false,
            unrepaired_wait_us: 200,
            ..ReceiverConfig::default()
        });
        assert_eq!(of.on_time(us(215)), Ok(()));
        assert!(of.on_time(us(216)).unwrap_err().contains("overdue"));
    }

    #[test]
    fn claimed_gap_asks_in_time_and_outlives_deadline() {
        let config = ReceiverConfig {
            delivery: Delivery::OrderedWithin(us(100)),
            ..ReceiverConfig::default()
        };
        let claimed = |newest, unanswered| {
            let mut of = check(config);
            of.asks(SequenceRange::one(Sequence(5)));
            of.confirms(Some(Sequence(newest)), unanswered, us(10));
            settle(&mut of, 10);
            of
        };
        assert!(claimed(5, 0).on_time(us(116)).is_err(), "confirmed");
        let mut of = claimed(4, 0);
        assert_eq!(of.on_time(us(65)), Ok(()));
        assert!(of.on_time(us(66)).unwrap_err().contains("was sent"));
        of.says(us(65));
        assert_eq!(of.seen.confirmed, 1);
        let longest = us(115).after(CONFIRM_WAIT);
        assert_eq!(of.on_time(longest), Ok(()));
        assert!(
            of.on_time(longest.after(us(1)))
                .unwrap_err()
                .contains("overdue")
        );
        // While too many wait for their STATUS, the next one may be held back.
        assert_eq!(claimed(4, UNANSWERED_MAX).on_time(us(900)), Ok(()));
    }

    #[test]
    fn replay_and_long_runs_have_no_nack_deadline() {
        let mut of = check(ReceiverConfig::default());
        of.reported(&Event::Joined { after: Sequence(4) });
        settle(&mut of, 11);
        assert_eq!(of.on_time(us(900)), Ok(()));
        let mut of = check(ReceiverConfig::default());
        let found = missing(10).map(|found| Found {
            too_long: true,
            ..found
        });
        of.settled((Sequence(5), Sequence(8)), found, true, us(11));
        assert_eq!(of.on_time(us(900)), Ok(()));
    }
}
