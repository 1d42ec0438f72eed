//! What one subscriber asks for on one channel, held against what it was given: never too often,
//! too much, or what it has; and what two publishers say of one sequence is told.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::{NackClass, Refused};
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};

use crate::checks::ladder::{LadderCheck, Rung};
use crate::checks::nack_rate::NackRateCheck;

/// A datagram that is about to be given to a core.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Its sequence.
    pub sequence: Sequence,
    /// The identity of its content.
    pub crc: u32,
    /// Whether it came over the repair path, whose copy decides.
    pub decides: bool,
    /// Whether nobody asked for it: how long it took says nothing.
    pub unasked: bool,
    /// Whether it is a copy that was sent again.
    pub again: bool,
    /// When.
    pub at: Nanos,
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
pub struct NackCheck {
    config: ReceiverConfig,
    slots: u64,
    /// Questions for each sequence since the connection was established or it was refused, and
    /// when the last of them was asked.
    tries: BTreeMap<u64, (NackClass, u32, Nanos)>,
    /// Asked for on the NACK connection, and neither refused nor asked anew in another session.
    on_nack: BTreeSet<u64>,
    /// Contents taken: waiting for their turn, or delivered not long ago.
    taken: BTreeMap<u64, u32>,
    doubts: BTreeSet<u64>,
    /// Those that were asked about, or of which the publisher's own copy has come since the first:
    /// one question is enough.
    decided: BTreeSet<u64>,
    /// Those it may doubt beside them, which take up room until it asks: declared lost meanwhile, or
    /// at the edge of what it remembers.
    excused: BTreeSet<u64>,
    /// What was taken below this is not known any more.
    taken_from: Sequence,
    /// Two contents came of these: an alarm is due, unless they turn out to be lost.
    owed: BTreeSet<u64>,
    /// Sequences that an alarm was told for: they may be asked for although they came.
    alarmed: BTreeSet<u64>,
    /// How soon and how often.
    pub pace: NackRateCheck,
    /// What gives way when.
    pub rungs: LadderCheck,
    /// NACK messages, and the sequences they asked for.
    pub asked: (u64, u64),
    /// Of those messages, the ones on the NACK connection.
    pub asked_on_nack: u64,
}

impl NackCheck {
    /// Nothing was asked yet. The publisher's ring has so many slots.
    #[must_use]
    pub fn new(config: ReceiverConfig, slots: u64) -> Self {
        Self {
            config,
            slots,
            tries: BTreeMap::new(),
            on_nack: BTreeSet::new(),
            taken: BTreeMap::new(),
            doubts: BTreeSet::new(),
            decided: BTreeSet::new(),
            excused: BTreeSet::new(),
            taken_from: Sequence::NONE,
            owed: BTreeSet::new(),
            alarmed: BTreeSet::new(),
            pace: NackRateCheck::new(config),
            rungs: LadderCheck::new(config),
            asked: (0, 0),
            asked_on_nack: 0,
        }
    }

    fn span(&self) -> u64 {
        u64::from(self.config.window_slots).next_power_of_two()
    }

    /// Whether another one has come since that the window keeps in the place of this one.
    fn displaced(&self, sequence: Sequence) -> bool {
        let last = self.taken.last_key_value().map_or(0, |(last, _)| *last);
        let places = (1..).map(|n| sequence.0.saturating_add(self.span().saturating_mul(n)));
        (places.take_while(|place| *place <= last && *place < u64::MAX))
            .any(|place| self.taken.contains_key(&place))
    }

    /// Whether a datagram of this sequence is doubted by a core that stands at `next` and knows of
    /// everything up to `heard`.
    #[must_use]
    pub fn leaps(&self, sequence: Sequence, next: Sequence, heard: Sequence) -> bool {
        let leap_max = match self.config.delivery {
            Delivery::Ordered => self.slots,
            _ => self.slots.min(self.config.burst_max.into()),
        };
        sequence.since(heard.max(next)) > leap_max
    }

    /// Whether this content of a sequence was taken last.
    #[must_use]
    pub fn took(&self, sequence: Sequence, crc: u32) -> bool {
        self.taken.get(&sequence.0) == Some(&crc)
    }

    /// Whether another content of a sequence was taken.
    #[must_use]
    pub fn took_another(&self, sequence: Sequence, crc: u32) -> bool {
        self.taken.get(&sequence.0).is_some_and(|it| *it != crc)
    }

    /// A datagram of the epoch followed is given to a core that stands at `next` and knows of
    /// everything up to `heard`; tells the alarm that is due.
    pub fn give(&mut self, given: Given, next: Sequence, heard: Sequence) -> Option<Alarm> {
        let (sequence, span) = (given.sequence, self.span());
        let in_order = self.config.delivery != Delivery::Arrival;
        if (given.decides || given.again) && !given.unasked {
            self.pace.comes(sequence, given.decides, given.at);
            self.rungs.comes(sequence, given.at);
        }
        let old = next.minus(span);
        drop_below(&mut self.taken, old);
        self.taken_from = old;
        drop_below(&mut self.tries, next);
        self.on_nack = self.on_nack.split_off(&next.0);
        self.pace.settled(next);
        if self.leaps(sequence, next, heard) {
            return None;
        }
        let Some(before) = self.taken.get(&sequence.0).copied() else {
            let fits = !in_order || sequence < next.plus(span);
            if sequence >= next && fits {
                self.taken.insert(sequence.0, given.crc);
            }
            return None;
        };
        let forgotten = self.displaced(sequence) || sequence <= old;
        let is_decided = self.decided.contains(&sequence.0);
        if given.decides && !forgotten {
            self.decided.insert(sequence.0);
        }
        if before == given.crc {
            return None;
        }
        if forgotten {
            // At the edge of what it remembers it may doubt all the same.
            if !given.decides && !self.doubts.contains(&sequence.0) {
                self.excused.insert(sequence.0);
            }
            return None;
        }
        let delivered = sequence < next || !in_order;
        if given.decides {
            self.taken.insert(sequence.0, given.crc);
        } else if !is_decided {
            self.doubts.insert(sequence.0);
        }
        // Others give up what is missing, and may have given this up before it came: that will be
        // told, and what is lost is neither true nor false.
        let patient = self.config.delivery == Delivery::Ordered && self.config.repair;
        if !patient {
            self.owed.insert(sequence.0);
        }
        patient.then_some(Alarm {
            sequence,
            wrong_one_delivered: given.decides && delivered,
        })
    }

    /// A NACK was sent; `next` is due. `found`: when a sequence was found missing.
    ///
    /// # Errors
    /// What it should not have asked.
    pub fn nack(
        &mut self,
        path: Path,
        (class, ranges): (NackClass, &[SequenceRange]),
        next: Sequence,
        found: impl Fn(Sequence) -> Option<Nanos>,
        now: Nanos,
    ) -> Result<(), String> {
        self.asked.0 += 1;
        if path == Path::Nack {
            self.asked_on_nack += 1;
            if class == NackClass::Replay {
                return Err("replay is asked for on the NACK connection".into());
            }
        }
        drop_below(&mut self.tries, next);
        let beyond = next.plus(self.span());
        for range in ranges {
            self.asked.1 += range.len();
            if range.iter().all(|it| self.alarmed.contains(&it.0)) {
                self.doubts.retain(|it| !range.contains(Sequence(*it)));
                self.decided.extend(range.iter().map(|it| it.0));
                self.excused.clear();
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
            if class == NackClass::Repair && !self.pace.has_asked(range.first) {
                self.pace.asks_run(found(range.first), false, now);
            }
            for sequence in range.iter() {
                if path == Path::Nack {
                    // What it did not answer is the next rung's.
                    if !self.on_nack.insert(sequence.0) {
                        return Err(format!("{sequence} a second time on the NACK connection"));
                    }
                    self.rungs.asks(Some(Rung::Nack), sequence, now)?;
                    self.pace.asks_elsewhere(sequence, now)?;
                    continue;
                }
                if class == NackClass::Repair {
                    self.rungs.asks(None, sequence, now)?;
                    self.pace.asks(sequence, now)?;
                }
                let tries = self.tries.entry(sequence.0).or_insert((class, 0, now));
                *tries = (class, tries.1 + 1, now);
                if tries.1 > self.config.nack_tries {
                    let tries = tries.1;
                    return Err(format!("{tries} NACKs for {sequence} on one connection"));
                }
            }
        }
        let replays = (self.tries.iter())
            .filter(|(s, (class, ..))| *class == NackClass::Replay && !self.taken.contains_key(s));
        let (replays, most) = (replays.count(), self.config.replay_in_flight);
        if class == NackClass::Replay && replays > most as usize {
            return Err(format!(
                "{replays} sequences of replay are asked for at a time"
            ));
        }
        Ok(())
    }

    /// These are READ.
    ///
    /// # Errors
    /// That this was not due, or should have been done before.
    pub fn reads(
        &mut self,
        range: SequenceRange,
        found: Option<Nanos>,
        now: Nanos,
    ) -> Result<(), String> {
        if !self.pace.has_asked(range.first) {
            self.pace.asks_run(found, true, now);
        }
        for sequence in range.iter() {
            self.rungs.asks(Some(Rung::Read), sequence, now)?;
            self.pace.asks_elsewhere(sequence, now)?;
        }
        Ok(())
    }

    /// What was READ of these has come: they may be asked for otherwise from now on.
    pub fn read(&mut self, range: SequenceRange, now: Nanos) {
        for sequence in range.iter() {
            self.rungs.answers(Rung::Read, sequence, now);
        }
    }

    /// The application was told that two publishers say different things of this sequence.
    pub fn alarmed(&mut self, sequence: Sequence) {
        self.alarmed.insert(sequence.0);
        self.owed.remove(&sequence.0);
    }

    /// The application was told that these are lost: whatever came of them was dropped.
    pub fn lost(&mut self, range: SequenceRange) {
        let within = |s: &u64| range.contains(Sequence(*s));
        self.taken.retain(|s, _| !within(s));
        self.excused
            .extend(self.doubts.extract_if(.., |s| within(s)));
        self.owed.retain(|s| !within(s));
    }

    /// A sequence of which two contents came, and that was neither said nor lost.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        self.owed.first().copied()
    }

    /// The publisher refused these: no try that failed, where it is of the epoch that is followed.
    pub fn refused(&mut self, refused: &Refused, is_ours: bool, now: Nanos) {
        let range = refused.range;
        self.pace.refused(refused, is_ours, now);
        if !is_ours {
            return;
        }
        self.rungs.refused(range.first.0..=range.last.0);
        let refused: Vec<u64> = (self.tries.range(range.first.0..=range.last.0))
            .map(|(s, _)| *s)
            .collect();
        for sequence in refused {
            self.tries.remove(&sequence);
        }
        (self.on_nack).retain(|s| *s < range.first.0 || *s > range.last.0);
    }

    /// The repair connection is given up, because it does not answer what it was asked.
    pub fn gives_up(&mut self, now: Nanos) {
        let open = (self.tries.iter()).filter(|(s, _)| !self.taken.contains_key(s));
        let waited = open.map(|(_, (_, _, at))| now.since(*at)).max();
        self.pace.gives_up(waited.unwrap_or(Nanos::ZERO));
    }

    /// The publisher welcomed it: nobody could be asked about what was forgotten meanwhile.
    pub fn welcomed(&mut self, now: Nanos) {
        self.pace.welcomed(now);
        // What took its place may itself be too long ago for this list.
        let (span, from) = (self.span(), self.taken_from);
        let forgotten = |s: &u64| Sequence(*s).plus(span) < from || self.displaced(Sequence(*s));
        let forgotten: Vec<u64> = self.doubts.iter().copied().filter(forgotten).collect();
        for sequence in forgotten {
            self.doubts.remove(&sequence);
            self.excused.insert(sequence);
        }
    }

    /// A connection was established or is over: its questions count no more.
    pub fn reconnected(&mut self, path: Path) {
        match path {
            Path::Repair => {
                self.pace.disconnected();
                self.pace.restarted();
                self.rungs.restarted();
                self.tries.clear();
                self.on_nack.clear();
            }
            Path::Replay => (self.tries).retain(|_, (class, ..)| *class != NackClass::Replay),
            // What it was asked for is not asked for there again.
            Path::Nack | Path::Read => {}
        }
    }

    /// Another epoch: nothing of the one before counts any more.
    pub fn restarted(&mut self) {
        self.pace.restarted();
        self.rungs.restarted();
        self.tries.clear();
        self.on_nack.clear();
        self.taken.clear();
        self.taken_from = Sequence::NONE;
        self.doubts.clear();
        self.decided.clear();
        self.excused.clear();
        self.owed.clear();
        self.alarmed.clear();
    }

    /// The epoch is continued by another behind this sequence: what came beyond it counts no more.
    pub fn continued(&mut self, last: Sequence) {
        let counts = |s: &u64| *s <= last.0;
        self.pace.restarted();
        self.rungs.restarted();
        self.tries.retain(|s, _| counts(s));
        self.on_nack.retain(counts);
        self.taken.retain(|s, _| counts(s));
        self.taken_from = self.taken_from.min(last);
        for of in [
            &mut self.doubts,
            &mut self.decided,
            &mut self.excused,
            &mut self.owed,
            &mut self.alarmed,
        ] {
            of.retain(counts);
        }
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
    use tickcast_reliability::control::RefusalReason;
    use tickcast_reliability::types::{Epoch, RecordNumber};

    const NEXT: Sequence = Sequence(5);

    fn asked() -> NackCheck {
        let config = ReceiverConfig {
            window_slots: 16,
            nack_tries: 2,
            replay_in_flight: 4,
            ..ReceiverConfig::default()
        };
        NackCheck::new(config, 64)
    }

    fn given(sequence: u64, crc: u32, decides: bool) -> Given {
        Given {
            sequence: Sequence(sequence),
            crc,
            decides,
            unasked: false,
            again: false,
            at: Nanos::ZERO,
        }
    }

    fn nack(asked: &mut NackCheck, class: NackClass, first: u64, last: u64) -> Result<(), String> {
        let range = SequenceRange {
            first: Sequence(first),
            last: Sequence(last),
        };
        // Each when it is due, if all ask for the same: a millisecond that doubles.
        let now = Nanos::from_us(1_000).times((1 << asked.asked.0) - 1);
        asked.nack(Path::Repair, (class, &[range]), NEXT, |_| None, now)
    }

    #[test]
    fn excessive_nacks_are_detected() {
        let class = NackClass::Repair;
        let mut of = asked();
        assert_eq!(nack(&mut of, class, 6, 9), Ok(()));
        assert_eq!(nack(&mut of, class, 9, 9), Ok(()));
        assert!(
            nack(&mut of, class, 9, 9)
                .unwrap_err()
                .contains("3 NACKs for 9")
        );
        of.reconnected(Path::Repair);
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
    fn unanswered_nack_link_request_is_not_repeated_there() {
        let mut of = asked();
        let range = SequenceRange::one(Sequence(6));
        let class = NackClass::Repair;
        let ask = |path, of: &mut NackCheck| {
            let now = Nanos::from_us(1_000).times(of.asked.0);
            of.nack(path, (class, &[range]), NEXT, |_| None, now)
        };
        assert_eq!(ask(Path::Nack, &mut of), Ok(()));
        assert_eq!(ask(Path::Repair, &mut of), Ok(()));
        of.reconnected(Path::Nack);
        let again = ask(Path::Nack, &mut of);
        assert!(again.unwrap_err().contains("second time"));
        let refused = Refused {
            epoch: Epoch(1),
            range,
            reason: RefusalReason::Ahead,
            retry_after_us: 100,
            oldest: Sequence(1),
            oldest_record: RecordNumber(1),
        };
        of.refused(&refused, true, Nanos::from_us(2_900));
        assert_eq!(ask(Path::Nack, &mut of), Ok(()));
        of.reconnected(Path::Repair);
        assert_eq!(ask(Path::Nack, &mut of), Ok(()));
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
