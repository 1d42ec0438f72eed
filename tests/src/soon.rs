//! That what is missing is not left to lie: a gap is asked for the first time when it is due, and
//! given up when its time is over (docs/PROTOCOL.md §5.3, §5.4, §7).
//!
//! Looked at is the oldest gap, which has the earliest of all deadlines and lies in the window; each
//! gap is the oldest some time. What was sent before the subscriber came has no deadline, and is
//! asked for as fast as the replay may be; runs that are too long for repair too.

use std::collections::{BTreeSet, VecDeque};

use tickcast_reliability::delivery::{Delivery, Event};
use tickcast_reliability::receiver_config::{Ladder, ReceiverConfig};
use tickcast_reliability::units::{Epoch, Nanos, Sequence, SequenceRange};

type Checked = Result<(), String>;

/// As late as a timer may fire.
const SLACK: Nanos = Nanos(5_000);
/// No longer hold-off is believed.
const HOLD_OFF_MAX: Nanos = Nanos::from_ms(10);
/// What is to be READ may wait for one first retry after the last READ that could be begun: four
/// round trips of 25 ms, and a quarter more.
const READ_WAITS_MAX: Nanos = Nanos::from_ms(125);

/// What must have happened by when, if nothing else comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    sequence: Sequence,
    found: Nanos,
    asked_by: Nanos,
    given_up_by: Nanos,
}

/// See the module.
#[derive(Debug)]
pub struct Soon {
    config: ReceiverConfig,
    /// From when a gap is found until it is asked for, but for a hold-off and READ.
    wait: Nanos,
    reads: bool,
    /// When a READ was begun last.
    read_at: Nanos,
    /// Everything up to the newest of the WELCOME is settled.
    live: bool,
    epoch: Epoch,
    /// Up to here it was sent before this epoch was followed.
    history_to: Sequence,
    /// Up to here a run may have been too long for repair.
    too_long_to: Sequence,
    /// As they were after the input before.
    next: Sequence,
    heard: Sequence,
    /// Asked for on the present connection.
    asked: BTreeSet<u64>,
    connected_since: Option<Nanos>,
    awake_at: Nanos,
    hold_off: Nanos,
    /// Where the window ended, and since when.
    ends: VecDeque<(Sequence, Nanos)>,
    due: Option<Due>,
}

impl Soon {
    /// Nothing is missing yet.
    #[must_use]
    pub fn new(config: ReceiverConfig, lines: u8, reads: bool) -> Self {
        let skew = if lines > 1 { config.line_skew_us } else { 0 };
        Self {
            config,
            wait: Nanos::from_us((config.reorder_grace_us + skew).into()),
            reads: reads && matches!(config.ladder, Ladder::Read | Ladder::ReadThenNack),
            read_at: Nanos::ZERO,
            live: false,
            epoch: Epoch::NONE,
            history_to: Sequence::NONE,
            too_long_to: Sequence::NONE,
            next: Sequence::NONE,
            heard: Sequence::NONE,
            asked: BTreeSet::new(),
            connected_since: None,
            awake_at: Nanos::ZERO,
            hold_off: Nanos::ZERO,
            ends: VecDeque::new(),
            due: None,
        }
    }

    /// A heartbeat advises a hold-off: the longest ever bounds all.
    pub fn advised(&mut self, hold_off: Nanos) {
        self.hold_off = self.hold_off.max(hold_off.min(HOLD_OFF_MAX));
    }

    /// The application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// These are asked for, in whatever way.
    pub fn asks(&mut self, range: SequenceRange) {
        self.asked.extend(range.first.0..=range.last.0);
    }

    /// A READ is begun, of whatever channel: they share what can be under way.
    pub const fn reads(&mut self, now: Nanos) {
        self.read_at = now;
    }

    /// The application was told this.
    pub const fn told(&mut self, event: &Event) {
        match event {
            Event::Joined { .. } | Event::EpochChanged { .. } => self.live = false,
            Event::Live => self.live = true,
            _ => {}
        }
    }

    /// The core is given something: what was due before that must have happened.
    ///
    /// # Errors
    /// What did not.
    pub fn on_time(&self, now: Nanos) -> Checked {
        let Some(due) = self.due else { return Ok(()) };
        let late = |by: Nanos| by < Nanos::MAX && now > by.max(self.awake_at).after(SLACK);
        if late(due.given_up_by) {
            return Err(format!("at {now} still waits for what is overdue: {due:?}"));
        }
        if late(due.asked_by) && !self.asked.contains(&due.sequence.0) {
            return Err(format!(
                "at {now} has not asked for what it misses: {due:?}"
            ));
        }
        Ok(())
    }

    /// The input is over, and this epoch is followed. What was sent under it before it was is history,
    /// whatever it continues.
    pub fn follows(&mut self, epoch: Epoch, heard: Sequence) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.restarted();
            self.history_to = heard;
        }
    }

    /// The input is over: `next` is due, all up to `heard` is known of, and when `next` was found
    /// missing, if it is; the repair connection is up, or is not.
    pub fn settled(
        &mut self,
        (next, heard): (Sequence, Sequence),
        found: Option<Nanos>,
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
        // A run grows before anything of it is settled, and beyond the window what is found joins it.
        let long = heard.since(self.next.min(next)) >= self.config.burst_max.into();
        let joins = self.heard.next() >= self.next.plus(span);
        if long || joins && self.too_long_to == self.heard {
            self.too_long_to = heard;
        }
        (self.next, self.heard) = (next, heard);
        while self.asked.first().is_some_and(|s| *s < next.0) {
            self.asked.pop_first();
        }
        let history = self.config.repair && (!self.live || next <= self.history_to);
        let missing = found.filter(|_| next <= heard && !history);
        self.due = missing.map(|found| Due {
            sequence: next,
            found,
            asked_by: self.asked_by(next, found),
            given_up_by: self.given_up_by(found),
        });
    }

    fn restarted(&mut self) {
        self.asked.clear();
        self.ends.clear();
        (self.too_long_to, self.next, self.heard) = Default::default();
        self.due = None;
    }

    fn asked_by(&self, sequence: Sequence, found: Nanos) -> Nanos {
        match self.connected_since {
            Some(since) if self.config.repair && sequence > self.too_long_to => {
                let from = found.max(since).max(self.awake_at);
                // What lies beyond the window can't be asked for yet.
                let entered = self.ends.iter().find(|(end, _)| sequence < *end);
                let from = from.max(entered.map_or(Nanos::ZERO, |(_, at)| *at));
                let asks = from.after(self.wait).after(self.hold_off);
                match self.reads {
                    true => asks.max(self.read_at).after(READ_WAITS_MAX),
                    false => asks,
                }
            }
            _ => Nanos::MAX,
        }
    }

    fn given_up_by(&self, found: Nanos) -> Nanos {
        match self.config.delivery {
            _ if !self.config.repair => {
                found.after(Nanos::from_us(self.config.unrepaired_wait_us.into()))
            }
            Delivery::OrderedWithin(deadline) => found.after(deadline),
            _ => Nanos::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    /// Live, connected since 1 us; 5 is missing since 10 us.
    fn soon(config: ReceiverConfig) -> Soon {
        let mut soon = Soon::new(config, 1, false);
        soon.told(&Event::Live);
        soon.settled((Sequence(5), Sequence(4)), None, true, us(1));
        soon.settled((Sequence(5), Sequence(8)), Some(us(10)), true, us(10));
        soon
    }

    #[test]
    fn a_question_that_does_not_come_is_seen_and_a_hold_off_excuses_it() {
        let mut of = soon(ReceiverConfig::default());
        assert_eq!(of.on_time(us(15)), Ok(()));
        assert!(of.on_time(us(16)).unwrap_err().contains("not asked"));
        of.asks(SequenceRange::one(Sequence(5)));
        assert_eq!(of.on_time(us(1_000_000)), Ok(()));
        let mut of = soon(ReceiverConfig::default());
        of.advised(us(50));
        of.settled((Sequence(5), Sequence(8)), Some(us(10)), true, us(11));
        assert_eq!(of.on_time(us(60)), Ok(()));
        assert!(of.on_time(us(66)).is_err());
        of.awakes(us(70));
        assert_eq!(of.on_time(us(71)), Ok(()));
    }

    #[test]
    fn nothing_is_asked_without_a_connection_and_a_new_one_is_asked_at_once() {
        let mut of = soon(ReceiverConfig::default());
        of.asks(SequenceRange::one(Sequence(5)));
        of.settled((Sequence(5), Sequence(8)), Some(us(10)), false, us(20));
        assert_eq!(of.on_time(us(900)), Ok(()));
        of.settled((Sequence(5), Sequence(8)), Some(us(10)), true, us(900));
        assert!(of.on_time(us(906)).is_err());
    }

    #[test]
    fn a_gap_that_outlives_its_deadline_is_seen() {
        let mut of = soon(ReceiverConfig {
            delivery: Delivery::OrderedWithin(us(100)),
            ..ReceiverConfig::default()
        });
        of.asks(SequenceRange::one(Sequence(5)));
        assert_eq!(of.on_time(us(115)), Ok(()));
        assert!(of.on_time(us(116)).unwrap_err().contains("overdue"));
        let of = soon(ReceiverConfig {
            repair: false,
            unrepaired_wait_us: 200,
            ..ReceiverConfig::default()
        });
        assert_eq!(of.on_time(us(215)), Ok(()));
        assert!(of.on_time(us(216)).unwrap_err().contains("overdue"));
    }

    #[test]
    fn history_and_runs_too_long_for_repair_have_no_time_to_be_asked_for() {
        let mut of = soon(ReceiverConfig::default());
        of.told(&Event::Joined { after: Sequence(4) });
        of.settled((Sequence(5), Sequence(8)), Some(us(10)), true, us(11));
        assert_eq!(of.on_time(us(900)), Ok(()));
        let mut of = soon(ReceiverConfig {
            burst_max: 3,
            ..ReceiverConfig::default()
        });
        assert_eq!(of.on_time(us(900)), Ok(()));
        of.settled((Sequence(9), Sequence(8)), None, true, us(899));
        of.settled((Sequence(9), Sequence(9)), Some(us(900)), true, us(900));
        assert!(of.on_time(us(906)).is_err());
    }
}
