//! What one subscriber asks for on one channel, held against what it was given: never too often,
//! too much, or what it has; and what two publishers say of one sequence is told.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::NackClass;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::units::{Sequence, SequenceRange};

/// Sequences in doubt that a receiver remembers to ask for.
const DOUBTS_MAX: usize = 64;

/// A datagram that is about to be given to a core.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Its sequence.
    pub sequence: Sequence,
    /// The identity of its content.
    pub crc: u32,
    /// Whether it came over the repair path, whose copy decides.
    pub decides: bool,
}

/// An alarm that a core owes, or gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The sequence that had two contents.
    pub sequence: Sequence,
    /// Whether the wrong one had been delivered.
    pub wrong_one_delivered: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Asked {
    config: ReceiverConfig,
    slots: u64,
    /// Questions for each sequence since the connection was established or it was refused.
    tries: BTreeMap<u64, (NackClass, u32)>,
    /// Contents taken: waiting for their turn, or delivered not long ago.
    taken: BTreeMap<u64, u32>,
    doubts: BTreeSet<u64>,
    /// Sequences that an alarm was told for: they may be asked for although they came.
    alarmed: BTreeSet<u64>,
    /// NACK messages, and the sequences they asked for.
    pub asked: (u64, u64),
}

impl Asked {
    /// Nothing was asked yet. The publisher's ring has so many slots.
    #[must_use]
    pub const fn new(config: ReceiverConfig, slots: u64) -> Self {
        Self {
            config,
            slots,
            tries: BTreeMap::new(),
            taken: BTreeMap::new(),
            doubts: BTreeSet::new(),
            alarmed: BTreeSet::new(),
            asked: (0, 0),
        }
    }

    fn span(&self) -> u64 {
        u64::from(self.config.window_slots).next_power_of_two()
    }

    /// A datagram of the epoch followed is given to a core that stands at `next` and knows of
    /// everything up to `heard`; tells the alarm that is due.
    pub fn give(&mut self, given: Given, next: Sequence, heard: Sequence) -> Option<Alarm> {
        let (sequence, span) = (given.sequence, self.span());
        let in_order = self.config.delivery != Delivery::Arrival;
        let leap_max = match self.config.delivery {
            Delivery::Ordered => self.slots,
            _ => self.slots.min(self.config.burst_max.into()),
        };
        let old = next.minus(span);
        drop_below(&mut self.taken, old);
        drop_below(&mut self.tries, next);
        if sequence.since(heard.max(next)) > leap_max {
            return None;
        }
        let Some(before) = self.taken.get(&sequence.0).copied() else {
            let fits = !in_order || sequence < next.plus(span);
            if sequence >= next && fits {
                self.taken.insert(sequence.0, given.crc);
            }
            return None;
        };
        let forgotten = self.taken.contains_key(&sequence.plus(span).0) || sequence <= old;
        if before == given.crc || forgotten {
            return None;
        }
        let delivered = sequence < next || !in_order;
        if given.decides {
            self.taken.insert(sequence.0, given.crc);
        } else if self.doubts.len() < DOUBTS_MAX {
            self.doubts.insert(sequence.0);
        }
        // Others give up what is missing, and may have given this up before it came.
        let patient = self.config.delivery == Delivery::Ordered && self.config.repair;
        patient.then_some(Alarm {
            sequence,
            wrong_one_delivered: given.decides && delivered,
        })
    }

    /// A NACK was sent; `next` is due.
    ///
    /// # Errors
    /// What it should not have asked.
    pub fn nack(
        &mut self,
        class: NackClass,
        ranges: &[SequenceRange],
        next: Sequence,
    ) -> Result<(), String> {
        self.asked.0 += 1;
        drop_below(&mut self.tries, next);
        let beyond = next.plus(self.span());
        for range in ranges {
            self.asked.1 += range.len();
            if range.first == range.last && self.alarmed.contains(&range.first.0) {
                self.doubts.remove(&range.first.0);
                continue;
            }
            if range.first < next {
                return Err(format!("a NACK for {range}, delivered up to {next}"));
            }
            if range.last >= beyond && range.last > range.first {
                return Err(format!("a NACK for {range}, the window ends at {beyond}"));
            }
            if let Some((had, _)) = self.taken.range(range.first.0..=range.last.0).next() {
                return Err(format!("a NACK for {range}, of which {had} came"));
            }
            for sequence in range.iter() {
                let tries = self.tries.entry(sequence.0).or_insert((class, 0));
                *tries = (class, tries.1 + 1);
                if tries.1 > self.config.nack_tries {
                    let tries = tries.1;
                    return Err(format!("{tries} NACKs for {sequence} on one connection"));
                }
            }
        }
        let replays = (self.tries.iter())
            .filter(|(s, (class, _))| *class == NackClass::Replay && !self.taken.contains_key(s));
        let (replays, most) = (replays.count(), self.config.replay_in_flight);
        if class == NackClass::Replay && replays > most as usize {
            return Err(format!(
                "{replays} sequences of replay are asked for at a time"
            ));
        }
        Ok(())
    }

    /// The application was told that two publishers say different things of this sequence.
    pub fn alarmed(&mut self, sequence: Sequence) {
        self.alarmed.insert(sequence.0);
    }

    /// The publisher refused these: no try that failed.
    pub fn refused(&mut self, range: SequenceRange) {
        let refused: Vec<u64> = (self.tries.range(range.first.0..=range.last.0))
            .map(|(s, _)| *s)
            .collect();
        for sequence in refused {
            self.tries.remove(&sequence);
        }
    }

    /// A connection was established or is over: its questions count no more.
    pub fn reconnected(&mut self, replay: bool) {
        self.tries
            .retain(|_, (class, _)| replay && *class != NackClass::Replay);
    }

    /// Another epoch: nothing of the one before counts any more.
    pub fn restarted(&mut self) {
        self.tries.clear();
        self.taken.clear();
        self.doubts.clear();
        self.alarmed.clear();
    }

    /// A sequence that two publishers said different things of and that nobody asked about yet.
    #[must_use]
    pub fn doubt(&self) -> Option<u64> {
        self.doubts.first().copied()
    }
}

fn drop_below<T>(map: &mut BTreeMap<u64, T>, first: Sequence) {
    while map.first_key_value().is_some_and(|(s, _)| *s < first.0) {
        map.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: Sequence = Sequence(5);

    fn asked() -> Asked {
        let config = ReceiverConfig {
            window_slots: 16,
            nack_tries: 2,
            replay_in_flight: 4,
            ..ReceiverConfig::default()
        };
        Asked::new(config, 64)
    }

    fn given(sequence: u64, crc: u32, decides: bool) -> Given {
        Given {
            sequence: Sequence(sequence),
            crc,
            decides,
        }
    }

    fn nack(asked: &mut Asked, class: NackClass, first: u64, last: u64) -> Result<(), String> {
        let range = SequenceRange {
            first: Sequence(first),
            last: Sequence(last),
        };
        asked.nack(class, &[range], NEXT)
    }

    #[test]
    fn a_nack_too_often_too_far_for_too_much_or_for_what_came_is_seen() {
        let class = NackClass::Repair;
        let mut of = asked();
        assert_eq!(nack(&mut of, class, 6, 9), Ok(()));
        assert_eq!(nack(&mut of, class, 9, 9), Ok(()));
        assert!(
            nack(&mut of, class, 8, 9)
                .unwrap_err()
                .contains("3 NACKs for 9")
        );
        of.reconnected(false);
        assert_eq!(nack(&mut of, class, 9, 9), Ok(()));
        assert!(
            nack(&mut asked(), class, 20, 21)
                .unwrap_err()
                .contains("window")
        );
        assert!(
            nack(&mut asked(), class, 4, 5)
                .unwrap_err()
                .contains("delivered")
        );
        let in_flight = nack(&mut asked(), NackClass::Replay, 6, 10);
        assert!(in_flight.unwrap_err().contains("5 sequences of replay"));
        assert_eq!(of.give(given(12, 1, false), NEXT, Sequence(12)), None);
        assert!(
            nack(&mut of, class, 10, 13)
                .unwrap_err()
                .contains("12 came")
        );
    }

    #[test]
    fn two_contents_of_a_sequence_are_due_an_alarm_and_a_question() {
        let mut of = asked();
        of.give(given(5, 1, false), NEXT, Sequence(5));
        assert_eq!(of.give(given(5, 1, false), NEXT, Sequence(5)), None);
        let next = Sequence(6);
        let alarm = of.give(given(5, 2, false), next, Sequence(5));
        assert_eq!(alarm.map(|a| a.wrong_one_delivered), Some(false));
        assert_eq!(of.doubt(), Some(5));
        let alarm = of.give(given(5, 2, true), next, Sequence(5));
        assert_eq!(alarm.map(|a| a.wrong_one_delivered), Some(true));
        assert_eq!(of.give(given(5, 2, false), next, Sequence(5)), None);
    }
}
