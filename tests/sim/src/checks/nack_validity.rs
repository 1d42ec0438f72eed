//! Checks one subscriber's NACKs on one channel against the datagrams that it received. It never
//! requests a sequence too often, too many sequences, or one that it has. It emits an alarm when
//! two publishers send different contents of one sequence.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::{NackClass, Refused};
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};

use crate::checks::ladder::{LadderCheck, Rung};
use crate::checks::nack_rate::NackRateCheck;

/// A datagram that is about to be passed to a core.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The datagram's sequence.
    pub sequence: Sequence,
    /// The CRC, which identifies the content.
    pub crc: u32,
    /// Whether it arrived over the repair path, whose copy decides.
    pub decides: bool,
    /// Whether it was not requested, so that its response time means nothing.
    pub unasked: bool,
    /// Whether it is a retransmission.
    pub again: bool,
    /// Whether it lies beyond what multicast may claim without a confirmation.
    pub unconfirmed: bool,
    /// Whether the core has room for it in its window ([`NackCheck::has_room`]).
    pub has_room: bool,
    /// Time of arrival.
    pub at: Nanos,
}

/// An alarm that a core must emit, or emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The sequence with two contents.
    pub sequence: Sequence,
    /// Whether the wrong content had been delivered.
    pub wrong_one_delivered: bool,
}

/// Check on one subscriber's NACKs and READs on one channel.
#[derive(Debug)]
pub struct NackCheck {
    config: ReceiverConfig,
    slots: u64,
    /// For each sequence, the class, number and last time of its NACKs since the connection was
    /// established or the sequence was refused.
    attempts: BTreeMap<u64, (NackClass, u32, Nanos)>,
    /// Sequences requested on the NACK connection that were neither refused nor requested again in
    /// another session.
    on_nack: BTreeSet<u64>,
    /// Contents received: buffered, or delivered recently.
    taken: BTreeMap<u64, u32>,
    doubts: BTreeSet<u64>,
    /// Sequences with two contents that were requested again, or whose authoritative copy arrived
    /// after the first. One request is enough.
    decided: BTreeSet<u64>,
    /// Further sequences that the core may consider conflicting, which take up room until it
    /// requests them: declared lost meanwhile, or at the edge of its memory.
    excused: BTreeSet<u64>,
    /// The core's next sequence at the last datagram.
    next: Sequence,
    /// Sequences with two contents: an alarm is due, unless they are declared lost.
    owed: BTreeSet<u64>,
    /// Sequences with an alarm: they may be requested although they arrived.
    alarmed: BTreeSet<u64>,
    /// Check on the times and numbers of NACKs.
    pub pace: NackRateCheck,
    /// Check on timeouts of the repair paths.
    pub rungs: LadderCheck,
    /// Number of NACK messages, and of the sequences that they requested.
    pub asked: (u64, u64),
    /// Number of NACK messages on the NACK connection.
    pub asked_on_nack: u64,
}

impl NackCheck {
    /// Returns a check without requests, for a publisher whose ring has this many slots.
    #[must_use]
    pub fn new(config: ReceiverConfig, slots: u64) -> Self {
        Self {
            config,
            slots,
            attempts: BTreeMap::new(),
            on_nack: BTreeSet::new(),
            taken: BTreeMap::new(),
            doubts: BTreeSet::new(),
            decided: BTreeSet::new(),
            excused: BTreeSet::new(),
            next: Sequence::NONE,
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

    /// Returns the number of delivered contents that a core remembers: those of two rings or windows.
    #[must_use]
    pub fn memory(&self) -> u64 {
        2 * self.slots.next_power_of_two().max(self.span())
    }

    /// Returns whether a core may have forgotten the content of this sequence. Earlier datagrams of an
    /// input move its memory too.
    fn is_forgotten(&self, sequence: Sequence, next: Sequence) -> bool {
        next.since(sequence) >= self.memory() / 4 * 3
    }

    /// Returns whether a core considers this sequence a jump. `next` is its next sequence to
    /// deliver, `heard` the last known one.
    #[must_use]
    pub fn jumps(&self, sequence: Sequence, next: Sequence, heard: Sequence) -> bool {
        let jump_max = match self.config.delivery {
            Delivery::Ordered => self.slots,
            _ => self.slots.min(self.config.burst_max.into()),
        };
        sequence.since(heard.max(next)) > jump_max
    }

    /// Returns whether a core has room for this sequence. In arrival order, sequences that may be lost make
    /// room: those up to `confirmed`, and all if it came over a connection or nobody can confirm more.
    #[must_use]
    pub fn has_room(
        &self,
        sequence: Sequence,
        next: Sequence,
        (confirmed, limit): (Sequence, Sequence),
        decides: bool,
    ) -> bool {
        let makes_room = || {
            let any = decides || limit == Sequence(u64::MAX);
            any || sequence.minus(self.span()) <= confirmed
        };
        let in_arrival_order = self.config.delivery == Delivery::Arrival;
        sequence < next.plus(self.span()) || in_arrival_order && makes_room()
    }

    /// Returns whether this content was the last one received for a sequence.
    #[must_use]
    pub fn took(&self, sequence: Sequence, crc: u32) -> bool {
        self.taken.get(&sequence.0) == Some(&crc)
    }

    /// Returns whether another content was received for a sequence.
    #[must_use]
    pub fn took_another(&self, sequence: Sequence, crc: u32) -> bool {
        self.taken.get(&sequence.0).is_some_and(|it| *it != crc)
    }

    /// Records a datagram of the followed epoch that is passed to a core. `next` is the core's next
    /// sequence to deliver, `heard` the last known one. Returns the alarm that is due.
    pub fn give(&mut self, given: Given, next: Sequence, heard: Sequence) -> Option<Alarm> {
        let sequence = given.sequence;
        let in_order = self.config.delivery != Delivery::Arrival;
        if (given.decides || given.again) && !given.unasked {
            self.pace.comes(sequence, given.decides, given.at);
            self.rungs.comes(sequence, given.at);
        }
        let oldest = next.minus(self.memory());
        drop_below(&mut self.taken, oldest);
        self.next = next;
        drop_below(&mut self.attempts, next);
        self.on_nack = self.on_nack.split_off(&next.0);
        self.pace.settled(next);
        if given.unconfirmed || self.jumps(sequence, next, heard) {
            return None;
        }
        let Some(before) = self.taken.get(&sequence.0).copied() else {
            if sequence >= next && given.has_room {
                self.taken.insert(sequence.0, given.crc);
            }
            return None;
        };
        let forgotten = self.is_forgotten(sequence, next);
        let is_decided = self.decided.contains(&sequence.0);
        if given.decides && !forgotten {
            self.decided.insert(sequence.0);
        }
        if before == given.crc {
            return None;
        }
        if forgotten {
            // At the edge of its memory, the core may still detect the conflict.
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
        // Other delivery modes give up gaps and may have given this one up before the datagram
        // arrived. The loss is reported then, and a lost sequence needs no alarm.
        let patient = self.config.delivery == Delivery::Ordered && self.config.repair;
        if !patient {
            self.owed.insert(sequence.0);
        }
        patient.then_some(Alarm {
            sequence,
            wrong_one_delivered: given.decides && delivered,
        })
    }

    /// Checks a NACK that was sent. `next` is the next sequence to deliver. `found` returns when a
    /// sequence was found missing, and `may_be_lost` whether it may be lost by now.
    ///
    /// # Errors
    /// A sequence that must not be requested, a request at a wrong time, or too many requests.
    pub fn nack(
        &mut self,
        path: Path,
        (class, ranges): (NackClass, &[SequenceRange]),
        next: Sequence,
        (found, may_be_lost): (
            impl Fn(Sequence) -> Option<Nanos>,
            impl Fn(Sequence) -> bool,
        ),
        now: Nanos,
    ) -> Result<(), String> {
        self.asked.0 += 1;
        if path == Path::Nack {
            self.asked_on_nack += 1;
            if class == NackClass::Replay {
                return Err("replay is asked for on the NACK connection".into());
            }
        }
        drop_below(&mut self.attempts, next);
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
                    // After a timeout, the sequence is requested on the next rung.
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
                let attempts = self.attempts.entry(sequence.0).or_insert((class, 0, now));
                *attempts = (class, attempts.1 + 1, now);
                if attempts.1 > self.config.nack_attempts {
                    let attempts = attempts.1;
                    return Err(format!("{attempts} NACKs for {sequence} on one connection"));
                }
            }
        }
        let replays: Vec<_> = (self.attempts.iter())
            .filter(|(s, (class, ..))| *class == NackClass::Replay && !self.taken.contains_key(s))
            .map(|(s, _)| *s)
            .collect();
        // A loss is reported in its turn. Until then, nobody waits for an answer.
        let awaited = replays.iter().filter(|it| !may_be_lost(Sequence(**it)));
        let most = self.config.replay_in_flight as usize;
        if class == NackClass::Replay && awaited.count() > most {
            return Err(format!(
                "{} sequences of replay are asked for at a time: {replays:?}",
                replays.len()
            ));
        }
        Ok(())
    }

    /// Checks a READ of these sequences.
    ///
    /// # Errors
    /// A READ that is too early or too late.
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

    /// Records that the READ of these sequences completed: they may be requested on another path.
    pub fn read(&mut self, range: SequenceRange, now: Nanos) {
        for sequence in range.iter() {
            let late = !self.awaits(Rung::Read, sequence);
            self.rungs.answers(Rung::Read, sequence, late, now);
        }
    }

    /// Returns whether a sequence is missing and waits for this rung.
    #[must_use]
    pub fn awaits(&self, rung: Rung, sequence: Sequence) -> bool {
        self.rungs.awaits(rung, sequence) && !self.taken.contains_key(&sequence.0)
    }

    /// Records an alarm that two publishers sent different contents of this sequence.
    pub fn alarmed(&mut self, sequence: Sequence) {
        self.alarmed.insert(sequence.0);
        self.owed.remove(&sequence.0);
    }

    /// Records that the stream begins behind this sequence. A ring that moved on moves the beginning too,
    /// and what was received before it is never delivered.
    pub fn begins_behind(&mut self, after: Sequence) {
        if let Some(range) = SequenceRange::new(Sequence::NONE, after) {
            self.lost(range);
        }
    }

    /// Records that these sequences were declared lost, so that their received contents were
    /// dropped.
    pub fn lost(&mut self, range: SequenceRange) {
        let within = |s: &u64| range.contains(Sequence(*s));
        self.taken.retain(|s, _| !within(s));
        self.excused
            .extend(self.doubts.extract_if(.., |s| within(s)));
        self.owed.retain(|s| !within(s));
    }

    /// Returns a sequence with two contents that has neither an alarm nor a loss.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        self.owed.first().copied()
    }

    /// Records a refusal. In the followed epoch, a refused NACK is no failed try.
    pub fn refused(&mut self, refused: &Refused, is_ours: bool, now: Nanos) {
        let range = refused.range;
        self.pace.refused(refused, is_ours, now);
        if !is_ours {
            return;
        }
        self.rungs.refused(range.first.0..=range.last.0);
        let refused: Vec<u64> = (self.attempts.range(range.first.0..=range.last.0))
            .map(|(s, _)| *s)
            .collect();
        for sequence in refused {
            self.attempts.remove(&sequence);
        }
        (self.on_nack).retain(|s| *s < range.first.0 || *s > range.last.0);
    }

    /// Records that the subscriber closed the repair connection for lack of a response.
    pub fn gives_up(&mut self, now: Nanos) {
        let open = (self.attempts.iter()).filter(|(s, _)| !self.taken.contains_key(s));
        let waited = open.map(|(_, (_, _, at))| now.since(*at)).max();
        self.pace.gives_up(waited.unwrap_or(Nanos::ZERO));
    }

    /// Records a WELCOME. Conflicts that the core forgot meanwhile could not be requested again.
    pub fn welcomed(&mut self, now: Nanos) {
        self.pace.welcomed(now);
        let forgotten = |s: &u64| self.is_forgotten(Sequence(*s), self.next);
        let forgotten: Vec<u64> = self.doubts.iter().copied().filter(forgotten).collect();
        for sequence in forgotten {
            self.doubts.remove(&sequence);
            self.excused.insert(sequence);
        }
    }

    /// Records that a connection was established or closed, so that its requests no longer count.
    pub fn reconnected(&mut self, path: Path) {
        match path {
            Path::Repair => {
                self.pace.disconnected();
                self.pace.restarted();
                self.rungs.restarted();
                self.attempts.clear();
                self.on_nack.clear();
            }
            Path::Replay => (self.attempts).retain(|_, (class, ..)| *class != NackClass::Replay),
            // Sequences requested on these paths are not requested there again.
            Path::Nack | Path::Read => {}
        }
    }

    /// Forgets everything, because another epoch is followed.
    pub fn restarted(&mut self) {
        self.pace.restarted();
        self.rungs.restarted();
        self.attempts.clear();
        self.on_nack.clear();
        self.taken.clear();
        self.next = Sequence::NONE;
        self.doubts.clear();
        self.decided.clear();
        self.excused.clear();
        self.owed.clear();
        self.alarmed.clear();
    }

    /// Forgets sequences above `last`, because another epoch continues this one behind it.
    pub fn continued(&mut self, last: Sequence) {
        let counts = |s: &u64| *s <= last.0;
        self.pace.restarted();
        self.rungs.restarted();
        self.attempts.retain(|s, _| counts(s));
        self.on_nack.retain(counts);
        self.taken.retain(|s, _| counts(s));
        self.next = self.next.min(last.next());
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

    /// Returns a sequence with two contents that was not requested again yet.
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
            nack_attempts: 2,
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
            unconfirmed: false,
            has_room: true,
            at: Nanos::ZERO,
        }
    }

    fn nack(asked: &mut NackCheck, class: NackClass, first: u64, last: u64) -> Result<(), String> {
        let range = SequenceRange {
            first: Sequence(first),
            last: Sequence(last),
        };
        // Each NACK is sent when it is due, if all request the same sequences: after a millisecond
        // that doubles.
        let now = Nanos::from_us(1_000).times((1 << asked.asked.0) - 1);
        asked.nack(
            Path::Repair,
            (class, &[range]),
            NEXT,
            (|_| None, |_| false),
            now,
        )
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
            of.nack(path, (class, &[range]), NEXT, (|_| None, |_| false), now)
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
    fn conflicting_contents_require_alarm_and_new_request() {
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
