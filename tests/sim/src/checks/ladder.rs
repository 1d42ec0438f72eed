//! That a READ, or a question on the NACK connection, that is not answered gives way in time
//! (docs/PROTOCOL.md §5.4): within one first retry of it, or of the last answer on its connection.
//!
//! What a first retry is follows from a round trip that is the subscriber's own affair. Here it is the
//! longest that any answer on that connection took, and half as much again for each answer that came
//! when something had given way before.

use std::collections::BTreeMap;

use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{Nanos, Sequence};

type Checked = Result<(), String>;

/// As late as a timer may fire.
const SLACK: Nanos = Nanos(5_000);
/// The round trip assumed before the first one was measured.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// No longer round trip counts.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Questions of which it is remembered when they were asked.
const REMEMBERED_MAX: usize = 1 << 13;

/// What may give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// READ.
    Read,
    /// The NACK connection.
    Nack,
}

/// One of them.
#[derive(Clone, Debug)]
struct Of {
    answered_at: Nanos,
    rtt_most: Nanos,
    gave_way: bool,
    /// When each sequence was asked for last, be it open or not.
    asked: BTreeMap<u64, Nanos>,
}

/// See the module.
#[derive(Debug)]
pub struct LadderCheck {
    config: ReceiverConfig,
    of: [Of; 2],
    /// Which one each sequence waits for.
    open: BTreeMap<u64, (Rung, Nanos)>,
    awake_at: Nanos,
    /// The oldest gap.
    oldest: Option<Sequence>,
    /// How often one gave way in time.
    pub seen: u64,
}

impl LadderCheck {
    /// Nothing was asked.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        let of = Of {
            answered_at: Nanos::ZERO,
            rtt_most: RTT_UNKNOWN,
            gave_way: false,
            asked: BTreeMap::new(),
        };
        Self {
            config,
            of: [of.clone(), of],
            open: BTreeMap::new(),
            awake_at: Nanos::ZERO,
            oldest: None,
            seen: 0,
        }
    }

    /// The application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// A sequence is asked for, over one of these or, `None`, over TCP: what it waited for gives way.
    ///
    /// # Errors
    /// That this comes too late.
    pub fn asks(&mut self, rung: Option<Rung>, sequence: Sequence, now: Nanos) -> Checked {
        if let Some((before, at)) = self.open.remove(&sequence.0) {
            self.of[before as usize].gave_way = true;
            self.seen += 1;
            let latest = self.latest(before, at);
            if now > latest {
                return Err(format!(
                    "{before:?} gives way for {sequence} at {now}, asked at {at}; due at {latest} at the latest"
                ));
            }
        }
        if let Some(rung) = rung {
            self.open.insert(sequence.0, (rung, now));
            let asked = &mut self.of[rung as usize].asked;
            asked.insert(sequence.0, now);
            if asked.len() > REMEMBERED_MAX {
                asked.pop_first();
            }
        }
        Ok(())
    }

    /// Something comes for this sequence on one of them, whatever it is worth.
    pub fn answers(&mut self, rung: Rung, sequence: Sequence, now: Nanos) {
        let of = &mut self.of[rung as usize];
        of.answered_at = now;
        if let Some(at) = of.asked.get(&sequence.0) {
            of.rtt_most = of.rtt_most.max(now.since(*at));
        }
        if std::mem::take(&mut of.gave_way) {
            of.rtt_most = Nanos(of.rtt_most.0 / 2 * 3).min(RTT_MAX);
        }
    }

    /// A copy of a sequence comes, over whichever connection or sent again: what it waited for counts it
    /// as its answer.
    pub fn comes(&mut self, sequence: Sequence, now: Nanos) {
        if let Some((rung, at)) = self.open.get(&sequence.0) {
            let of = &mut self.of[*rung as usize];
            of.rtt_most = of.rtt_most.max(now.since(*at));
        }
    }

    /// A sequence waits for none of them any more: it was refused.
    pub fn refused(&mut self, range: std::ops::RangeInclusive<u64>) {
        self.open.retain(|s, _| !range.contains(s));
    }

    /// The connection is up or over, or another epoch is followed: all is asked anew.
    pub fn restarted(&mut self) {
        self.open.clear();
        self.oldest = None;
    }

    /// The input is over: `next` is due, and missing if all up to `heard` is known of.
    pub fn settled(&mut self, next: Sequence, heard: Sequence) {
        while self
            .open
            .first_key_value()
            .is_some_and(|(s, _)| *s < next.0)
        {
            self.open.pop_first();
        }
        self.oldest = (next <= heard).then_some(next);
    }

    /// The core is given something: what was due before that must have happened.
    ///
    /// # Errors
    /// What should have given way.
    pub fn on_time(&self, now: Nanos) -> Checked {
        let open = self.oldest.and_then(|s| Some((s, *self.open.get(&s.0)?)));
        match open {
            Some((sequence, (rung, at))) if now > self.latest(rung, at) => Err(format!(
                "at {now} still waits for {rung:?} to bring {sequence}, asked at {at}"
            )),
            _ => Ok(()),
        }
    }

    /// The longest that its round trip may be taken to be.
    #[must_use]
    pub fn rtt_most(&self, rung: Rung) -> Nanos {
        self.of[rung as usize].rtt_most
    }

    fn latest(&self, rung: Rung, at: Nanos) -> Nanos {
        let of = &self.of[rung as usize];
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        let retry = of.rtt_most.min(RTT_MAX).times(4).max(least).0 / 4 * 5;
        let from = at.max(of.answered_at);
        from.after(Nanos(retry)).max(self.awake_at).after(SLACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Sequence = Sequence(5);

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    fn rungs() -> LadderCheck {
        let mut of = LadderCheck::new(ReceiverConfig::default());
        of.asks(Some(Rung::Read), S, us(1_000)).unwrap();
        of.settled(S, S);
        of
    }

    #[test]
    fn late_fallback_is_detected_answer_excuses() {
        // The round trip is unknown: 1000 us, and a quarter.
        assert_eq!(rungs().asks(None, S, us(2_255)), Ok(()));
        let late = rungs().asks(Some(Rung::Nack), S, us(2_256));
        assert!(late.unwrap_err().contains("Read gives way"));
        let mut of = rungs();
        of.answers(Rung::Nack, S, us(2_000));
        assert!(of.asks(None, S, us(2_256)).is_err());
        let mut of = rungs();
        of.answers(Rung::Read, Sequence(4), us(2_000));
        assert_eq!(of.asks(None, S, us(3_255)), Ok(()));
        assert_eq!(
            of.asks(None, S, us(9_000)),
            Ok(()),
            "TCP is looked at elsewhere"
        );
        assert_eq!(of.seen, 1);
    }

    #[test]
    fn a_rung_that_never_gives_way_is_seen() {
        let mut of = rungs();
        assert_eq!(of.on_time(us(2_255)), Ok(()));
        assert!(of.on_time(us(2_256)).is_err());
        of.settled(S.next(), S);
        assert_eq!(of.on_time(us(9_000)), Ok(()));
        let mut of = rungs();
        of.refused(5..=5);
        assert_eq!(of.on_time(us(9_000)), Ok(()));
    }

    #[test]
    fn what_comes_another_way_counts_as_its_answer() {
        let mut of = rungs();
        of.comes(S, us(1_500));
        of.asks(Some(Rung::Read), S.next(), us(2_000)).unwrap();
        // Four round trips of 500 us, and a quarter.
        assert_eq!(of.asks(None, S.next(), us(4_505)), Ok(()));
    }

    #[test]
    fn a_late_answer_makes_it_more_patient() {
        let mut of = rungs();
        of.asks(None, S, us(2_000)).unwrap();
        of.answers(Rung::Read, S, us(2_000));
        of.asks(Some(Rung::Read), S, us(10_000)).unwrap();
        // Four round trips of 1500 us, and a quarter.
        assert_eq!(of.asks(None, S, us(17_505)), Ok(()));
    }
}
