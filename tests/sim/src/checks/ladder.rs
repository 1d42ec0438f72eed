//! Checks that the next rung is tried in time when a READ, or a NACK on the NACK connection, has no
//! response (docs/PROTOCOL.md §5.4). The bound is one first retry timeout after the request, or
//! after the last response on its connection.
//!
//! The first retry timeout depends on the subscriber's own RTT estimate. The check uses an upper
//! bound: the longest response time on that connection, increased by half for each response that
//! arrived after a timeout. A timeout without such a response may have one still to come.

use std::collections::BTreeMap;

use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{Nanos, Sequence};

type Checked = Result<(), String>;

/// Tolerance for a late timer.
const SLACK: Nanos = Nanos(5_000);
/// Round trip assumed before the first measurement.
const RTT_UNKNOWN: Nanos = Nanos::from_us(250);
/// Longest round trip that counts.
const RTT_MAX: Nanos = Nanos::from_ms(25);
/// Maximum number of sequences whose last request time is kept.
const REMEMBERED_MAX: usize = 1 << 13;

/// A repair path that can time out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// READ.
    Read,
    /// The NACK connection.
    Nack,
}

/// State of one rung.
#[derive(Clone, Debug)]
struct Of {
    answered_at: Nanos,
    rtt_most: Nanos,
    gave_way: bool,
    /// Time of the last request for each sequence, open or not.
    asked: BTreeMap<u64, Nanos>,
}

impl Of {
    /// Returns the upper bound of the round trip.
    fn rtt_bound(&self) -> Nanos {
        let raised = match self.gave_way {
            true => Nanos(self.rtt_most.0 / 2 * 3),
            false => self.rtt_most,
        };
        raised.min(RTT_MAX)
    }
}

/// Check on timeouts of the repair paths.
#[derive(Clone, Debug)]
pub struct LadderCheck {
    config: ReceiverConfig,
    of: [Of; 2],
    /// Rung and request time of each sequence that waits for a response.
    open: BTreeMap<u64, (Rung, Nanos)>,
    awake_at: Nanos,
    /// The oldest gap.
    oldest: Option<Sequence>,
    /// Number of timeouts that happened in time.
    pub seen: u64,
}

impl LadderCheck {
    /// Returns a check without requests.
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

    /// Records that the application polls again.
    pub const fn awakes(&mut self, now: Nanos) {
        self.awake_at = now;
    }

    /// Checks a request for a sequence, on this rung or, for `None`, over TCP. The rung that it
    /// waited for before has timed out.
    ///
    /// # Errors
    /// A timeout that is too late.
    pub fn asks(&mut self, rung: Option<Rung>, sequence: Sequence, now: Nanos) -> Checked {
        if let Some((before, at)) = self.open.remove(&sequence.0) {
            let latest = self.latest(before, at);
            self.of[before as usize].gave_way = true;
            self.seen += 1;
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

    /// Returns whether a sequence waits for this rung.
    #[must_use]
    pub fn awaits(&self, rung: Rung, sequence: Sequence) -> bool {
        (self.open.get(&sequence.0)).is_some_and(|(on, _)| *on == rung)
    }

    /// Records a response for this sequence on a rung. `late`: the datagram came after the timeout, or after
    /// another copy.
    pub fn answers(&mut self, rung: Rung, sequence: Sequence, late: bool, now: Nanos) {
        let of = &mut self.of[rung as usize];
        of.answered_at = now;
        if let Some(at) = of.asked.get(&sequence.0) {
            of.rtt_most = of.rtt_most.max(now.since(*at));
        }
        if late {
            of.rtt_most = of.rtt_bound();
            of.gave_way = false;
        }
    }

    /// Records a copy of a sequence that arrived over any connection or as a retransmission. The
    /// rung that the sequence waits for measures it as its response.
    pub fn comes(&mut self, sequence: Sequence, now: Nanos) {
        if let Some((rung, at)) = self.open.get(&sequence.0) {
            let of = &mut self.of[*rung as usize];
            of.rtt_most = of.rtt_most.max(now.since(*at));
        }
    }

    /// Records that these sequences were refused, so that they no longer wait for a rung.
    pub fn refused(&mut self, range: std::ops::RangeInclusive<u64>) {
        self.open.retain(|s, _| !range.contains(s));
    }

    /// Forgets open requests, because the connection changed or another epoch is followed.
    pub fn restarted(&mut self) {
        self.open.clear();
        self.oldest = None;
    }

    /// Records the state after an input. `next` is the next sequence to deliver; it is missing when
    /// it is not above `heard`.
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

    /// Checks before an input that the oldest gap's request has not passed its timeout.
    ///
    /// # Errors
    /// A rung that should have timed out.
    pub fn on_time(&self, now: Nanos) -> Checked {
        let open = self.oldest.and_then(|s| Some((s, *self.open.get(&s.0)?)));
        match open {
            Some((sequence, (rung, at))) if now > self.latest(rung, at) => Err(format!(
                "at {now} still waits for {rung:?} to bring {sequence}, asked at {at}"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the upper bound of a rung's round trip.
    #[must_use]
    pub fn rtt_most(&self, rung: Rung) -> Nanos {
        self.of[rung as usize].rtt_bound()
    }

    fn latest(&self, rung: Rung, at: Nanos) -> Nanos {
        let of = &self.of[rung as usize];
        let least = Nanos::from_us(self.config.nack_retry_us.into());
        let retry = of.rtt_bound().times(4).max(least).0 / 4 * 5;
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
        // The round trip is unknown: 1000 us plus a quarter.
        assert_eq!(rungs().asks(None, S, us(2_255)), Ok(()));
        let late = rungs().asks(Some(Rung::Nack), S, us(2_256));
        assert!(late.unwrap_err().contains("Read gives way"));
        let mut of = rungs();
        of.answers(Rung::Nack, S, false, us(2_000));
        assert!(of.asks(None, S, us(2_256)).is_err());
        let mut of = rungs();
        of.answers(Rung::Read, Sequence(4), false, us(2_000));
        assert_eq!(of.asks(None, S, us(3_255)), Ok(()));
        assert_eq!(
            of.asks(None, S, us(9_000)),
            Ok(()),
            "TCP is looked at elsewhere"
        );
        assert_eq!(of.seen, 1);
    }

    #[test]
    fn repair_rung_held_past_timeout_is_detected() {
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
    fn arrival_by_other_path_counts_as_rung_answer() {
        let mut of = rungs();
        of.comes(S, us(1_500));
        of.asks(Some(Rung::Read), S.next(), us(2_000)).unwrap();
        // Four round trips of 500 us plus a quarter.
        assert_eq!(of.asks(None, S.next(), us(4_505)), Ok(()));
    }

    #[test]
    fn late_answer_extends_rung_timeout() {
        let mut of = rungs();
        of.asks(None, S, us(2_000)).unwrap();
        // It came in time, so a late one may follow.
        of.answers(Rung::Read, Sequence(4), false, us(2_000));
        for _ in 0..2 {
            of.answers(Rung::Read, S, true, us(2_000));
        }
        of.asks(Some(Rung::Read), S, us(10_000)).unwrap();
        // Four round trips of 1500 us plus a quarter.
        assert!(of.clone().asks(None, S, us(17_506)).is_err());
        assert_eq!(of.asks(None, S, us(17_505)), Ok(()));
    }
}
