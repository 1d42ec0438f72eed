//! What one application was told, held against what was published: every record once, in its
//! place, as it was sealed; and every record that did not come declared, to the record.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::delivery::{Delivery, Event, Item, Position, Start};
use tickcast_reliability::loss::{Loss, LossCause};
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::units::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::{Datagram, Kind};

use crate::truth::{EpochTruth, Truth};

/// The place of one subscriber in the stream of one channel, and what it got.
#[derive(Debug)]
pub struct Stream {
    channel: ChannelId,
    /// It named the sequence that it begins with: nobody knows that record's number.
    begins_anywhere: bool,
    in_arrival_order: bool,
    epoch: Epoch,
    /// The next sequence, and how many of its records came already.
    next: Sequence,
    part: u64,
    /// Of which ring those are, where two publishers have the epoch.
    ring: usize,
    /// Of which ring the copies are that came over the repair path and are not delivered yet.
    decided: BTreeMap<u64, usize>,
    /// What `next` was when it joined.
    joined: Sequence,
    /// In arrival order: delivered beyond `next`.
    early: BTreeSet<u64>,
    ended: bool,
    /// The last loss, and what it cost, if nobody said: only the end of an epoch excuses that.
    of_unknown_size: Option<(SequenceRange, u64)>,
    /// The size of the loss right before was unknown, as it may be when a publisher is dead.
    unknown_before: bool,
    /// The tail of the epoch was declared lost: only another epoch can follow.
    tail_lost: bool,
    /// Records delivered.
    pub records: u64,
    /// Loss events, and the records they declared.
    pub losses: u64,
    /// Records that they declared lost.
    pub lost_records: u64,
    /// Loss events of unknown size.
    pub losses_of_unknown_size: u64,
    /// Sequences that it was told were recovered.
    pub recovered: u64,
    /// The same run by run: first sequence, how many, and the nanoseconds they took.
    pub repairs: Vec<(u64, u64, u64)>,
    /// Sequences declared lost, by cause as in [`LossCause::ALL`].
    pub lost_by_cause: [u64; LossCause::ALL.len()],
    /// Every record by its number, epoch by epoch.
    pub digest: u64,
}

type Checked = Result<(), String>;

impl Stream {
    /// A stream of which nothing came yet.
    #[must_use]
    pub fn new(channel: ChannelId, delivery: Delivery, start: Start) -> Self {
        Self {
            channel,
            begins_anywhere: matches!(start, Start::At(..)),
            in_arrival_order: delivery == Delivery::Arrival,
            epoch: Epoch::NONE,
            next: Sequence::NONE,
            part: 0,
            ring: 0,
            decided: BTreeMap::new(),
            joined: Sequence::NONE,
            early: BTreeSet::new(),
            ended: false,
            of_unknown_size: None,
            unknown_before: false,
            tail_lost: false,
            records: 0,
            losses: 0,
            lost_records: 0,
            losses_of_unknown_size: 0,
            recovered: 0,
            repairs: Vec::new(),
            lost_by_cause: [0; LossCause::ALL.len()],
            digest: 0,
        }
    }

    /// The epoch it is in.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The next sequence to be delivered or declared.
    #[must_use]
    pub const fn next(&self) -> Sequence {
        self.next
    }

    /// Whether the end of the session was told.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Takes what the application was told next.
    ///
    /// # Errors
    /// What is untrue about it.
    pub fn take(&mut self, truth: &Truth, item: &Item<'_>) -> Checked {
        match item {
            Item::Record(position, record) => {
                let bytes: &[u8] = record.as_ref();
                self.record(truth, position, bytes)
            }
            Item::Event(position, event) => self.event(truth, position, event),
        }
    }

    /// This copy of a datagram that was not delivered yet came over the repair path: whatever came
    /// before, this is what it says.
    pub fn decided(&mut self, truth: &Truth, datagram: &Datagram<'_>) {
        let header = datagram.header();
        let number = header.first_record.0;
        let Some(record) = (datagram.records().ok()).and_then(|mut records| records.next()) else {
            return;
        };
        let rings = truth.of(self.channel, self.epoch);
        let is_it = |of: &EpochTruth| of.is_record(number, record.as_ref());
        if let Some(ring) = rings.iter().position(is_it)
            && !self.in_arrival_order
        {
            self.decided.insert(header.sequence.0, ring);
        }
    }

    /// Takes one record.
    ///
    /// # Errors
    /// What is untrue about it.
    pub fn record(&mut self, truth: &Truth, position: &Position, bytes: &[u8]) -> Checked {
        let (sequence, number) = (position.sequence, position.record.0);
        self.nothing_of_unknown_size()?;
        let rings = self.here(truth, position)?;
        let data = |of: &EpochTruth| of.get(sequence).copied().filter(|s| s.kind == Kind::Data);
        if !rings.iter().any(|of| data(of).is_some()) {
            return Err(format!(
                "a record of sequence {sequence}, which carries none"
            ));
        }
        let is_it = |of: &EpochTruth| data(of).is_some() && of.is_record(number, bytes);
        let found = rings.iter().position(is_it);
        let Some((ring, sealed)) = found.and_then(|ring| Some((ring, data(&rings[ring])?))) else {
            return Err(format!(
                "record {number} of {sequence} is not what was published"
            ));
        };
        if let Some(of) = self.decided.get(&sequence.0).filter(|of| **of != ring) {
            return Err(format!(
                "record {number} of {sequence} is of publisher {ring}, the repair path's copy is of {of}"
            ));
        }
        let early = self.in_arrival_order && sequence != self.next;
        let part = if early {
            number.wrapping_sub(sealed.first_record)
        } else {
            self.part
        };
        if number != sealed.first_record + part || part >= sealed.count {
            return Err(format!(
                "record {number} of {sequence} (records {} + {}) where {part} came before",
                sealed.first_record, sealed.count
            ));
        }
        let whole = part + 1 == sealed.count;
        self.records += 1;
        self.digest = self
            .digest
            .wrapping_add((number ^ position.epoch.0.rotate_left(40)).wrapping_mul(0x9e37_79b9));
        if early {
            if sequence < self.next || (part == 0 && self.early.contains(&sequence.0)) {
                return Err(format!("sequence {sequence} a second time"));
            }
            self.early.insert(sequence.0);
            return Ok(());
        }
        self.in_turn(truth, sequence)?;
        if part > 0 && ring != self.ring {
            return Err(format!("{sequence} is a mixture of two publishers"));
        }
        (self.part, self.ring) = (part + 1, ring);
        self.unknown_before = false;
        if whole {
            self.pass(sequence);
        }
        Ok(())
    }

    fn event(&mut self, truth: &Truth, position: &Position, event: &Event) -> Checked {
        match event {
            Event::Joined { after } => {
                let moves = self.epoch == position.epoch
                    && (self.next, self.part) == (self.joined, 0)
                    && after.next() > self.next;
                if self.epoch != Epoch::NONE && !moves {
                    return Err("joined a second time".into());
                }
                (self.epoch, self.next) = (position.epoch, after.next());
                self.joined = self.next;
                self.unknown_before = self.begins_anywhere;
                Ok(())
            }
            Event::EpochChanged { from, to } => self.changed(truth, *from, *to),
            Event::Lost(loss) => self.lost(truth, loss),
            Event::GapRecovered {
                first,
                sequences,
                took,
            } => {
                self.recovered += sequences;
                self.repairs.push((first.0, *sequences, took.0));
                Ok(())
            }
            Event::Stream(_) => {
                let kind = |of: &EpochTruth| of.get(position.sequence).map(|s| s.kind);
                let mut rings = self.here(truth, position)?.iter();
                if !rings.any(|of| kind(of) == Some(Kind::Event)) {
                    return Err(format!("sequence {} is no event", position.sequence));
                }
                self.whole(truth, position.sequence)
            }
            Event::EndOfSession => {
                let rings = self.here(truth, position)?;
                if self.ended {
                    return Err("the end a second time".into());
                }
                let mut ended = rings.iter().filter(|of| of.ended()).peekable();
                if ended.peek().is_none() {
                    return Err("the end, which was not published".into());
                }
                self.ended = true;
                // It may come although its datagram was declared lost, or was another's.
                let last = position.sequence;
                let lost = ended.any(|of| last == of.last() && self.next > last);
                if lost || (rings.len() > 1 && last != self.next) {
                    return Ok(());
                }
                self.whole(truth, last)
            }
            Event::FencingViolation { sequence, .. }
                if truth.of(self.channel, self.epoch).len() < 2 =>
            {
                Err(format!(
                    "an alarm for {sequence}, which one publisher alone sent"
                ))
            }
            _ => Ok(()),
        }
    }

    fn here<'t>(&self, truth: &'t Truth, position: &Position) -> Result<&'t [EpochTruth], String> {
        if position.epoch != self.epoch {
            return Err(format!(
                "something of epoch {} in epoch {}",
                position.epoch, self.epoch
            ));
        }
        if self.tail_lost {
            return Err(format!("epoch {} goes on after its end", self.epoch));
        }
        Ok(truth.of(self.channel, self.epoch))
    }

    fn nothing_of_unknown_size(&self) -> Checked {
        match self.of_unknown_size {
            Some((range, records)) => Err(format!(
                "loss of {range} of unknown size; it cost {records} records, and the epoch goes on"
            )),
            None => Ok(()),
        }
    }

    fn in_turn(&mut self, truth: &Truth, sequence: Sequence) -> Checked {
        if sequence == self.next {
            return Ok(());
        }
        // An END that only another publisher with this epoch sent is passed without a word.
        let rings = truth.of(self.channel, self.epoch);
        let end = |of: &EpochTruth| of.get(self.next).map(|s| s.kind) == Some(Kind::End);
        if rings.len() > 1 && sequence == self.next.next() && rings.iter().any(end) {
            self.pass(self.next);
            return Ok(());
        }
        Err(format!("sequence {sequence} where {} is due", self.next))
    }

    fn whole(&mut self, truth: &Truth, sequence: Sequence) -> Checked {
        if self.part != 0 {
            return Err(format!("sequence {sequence} within {}", self.next));
        }
        if self.in_arrival_order && sequence != self.next {
            if sequence < self.next || !self.early.insert(sequence.0) {
                return Err(format!("sequence {sequence} a second time"));
            }
            return Ok(());
        }
        self.in_turn(truth, sequence)?;
        self.pass(sequence);
        Ok(())
    }

    fn pass(&mut self, sequence: Sequence) {
        (self.next, self.part) = (sequence.next(), 0);
        self.decided.retain(|of, _| *of > sequence.0);
        while self.early.remove(&self.next.0) {
            self.next = self.next.next();
        }
    }

    fn lost(&mut self, truth: &Truth, loss: &Loss) -> Checked {
        let range = loss.sequences;
        self.losses += 1;
        match loss.records {
            Some(records) => self.lost_records += records,
            None => self.losses_of_unknown_size += 1,
        }
        if range.last != Sequence(u64::MAX) {
            self.nothing_of_unknown_size()?;
        }
        if self.epoch == Epoch::NONE {
            // The past of a subscriber that names an epoch which is over.
            return Ok(());
        }
        let rings = truth.of(self.channel, self.epoch);
        if loss.cause == LossCause::Fenced {
            // Of what was delivered: it was not the publisher's.
            self.lost_by_cause[cause_index(loss.cause)] += range.len();
            let delivered = range.last < self.next || self.early.contains(&range.last.0);
            return if rings.len() > 1 && delivered {
                Ok(())
            } else {
                Err(format!("{range} is said to be another publisher's"))
            };
        }
        if range.first != self.next || self.part != 0 {
            return Err(format!(
                "loss of {range} where {} + {} is due",
                self.next, self.part
            ));
        }
        if range.last == Sequence(u64::MAX) && loss.cause == LossCause::Epoch {
            self.tail_lost = true;
            return Ok(());
        }
        let last = rings.iter().map(EpochTruth::last).max();
        if last.is_none_or(|last| range.last > last) {
            return Err(format!(
                "loss of {range}, but {last:?} was the last published"
            ));
        }
        if let Some(early) = self.early.range(range.first.0..=range.last.0).next() {
            return Err(format!("loss of {range}, of which {early} was delivered"));
        }
        if let [of] = rings {
            self.cost(loss, of.records_in(range))?;
        }
        self.lost_by_cause[cause_index(loss.cause)] += range.len();
        self.pass(range.last);
        Ok(())
    }

    /// Checks what a loss is said to cost against what it did, where that can be known.
    fn cost(&mut self, loss: &Loss, real: u64) -> Checked {
        let range = loss.sequences;
        match loss.records {
            Some(records) if records != real => {
                return Err(format!(
                    "loss of {range} is said to cost {records} records, it cost {real}"
                ));
            }
            // Right behind a loss of unknown size its own beginning is unknown.
            None if self.unknown_before => {}
            None if loss.cause == LossCause::PublisherDead => self.unknown_before = true,
            None => self.of_unknown_size = Some((range, real)),
            _ => {}
        }
        Ok(())
    }

    fn changed(&mut self, truth: &Truth, from: Epoch, to: Epoch) -> Checked {
        let known = self.epoch != Epoch::NONE;
        if (known && from != self.epoch) || to <= from {
            return Err(format!("from epoch {from} to {to} in {}", self.epoch));
        }
        if known && !self.tail_lost && !self.ended {
            return Err(format!("epoch {from} left without a word on its tail"));
        }
        if truth.of(self.channel, to).is_empty() {
            return Err(format!("epoch {to} was never opened"));
        }
        if !known {
            // `Joined` follows.
            return Ok(());
        }
        (self.epoch, self.next, self.part) = (to, Sequence::FIRST, 0);
        (self.ended, self.tail_lost) = (false, false);
        self.of_unknown_size = None;
        self.early.clear();
        self.decided.clear();
        Ok(())
    }

    /// What a subscriber that knows of everything up to `heard` has neither got nor been told of.
    #[must_use]
    pub fn unaccounted(&self, heard: Sequence) -> Option<SequenceRange> {
        if self.tail_lost || self.epoch == Epoch::NONE {
            return None;
        }
        SequenceRange::new(self.next, heard)
    }
}

fn cause_index(cause: LossCause) -> usize {
    let at = LossCause::ALL.iter().position(|c| *c == cause);
    at.unwrap_or(0)
}

/// Whether something can be lost for this cause by a subscriber with these settings.
#[must_use]
pub fn can_be_lost(config: &ReceiverConfig, cause: LossCause) -> bool {
    match cause {
        LossCause::Deadline => {
            config.repair && matches!(config.delivery, Delivery::OrderedWithin(_))
        }
        LossCause::RepairOff => !config.repair,
        LossCause::Burst => config.repair || config.delivery != Delivery::Ordered,
        _ => true,
    }
}
