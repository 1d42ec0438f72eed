//! What one application was told, held against what was published: every record once, in its
//! place, as it was sealed; and every record that did not come declared, to the record.

use std::collections::BTreeSet;

use tickcast_reliability::delivery::{Delivery, Event, Item, Position};
use tickcast_reliability::loss::{Loss, LossCause};
use tickcast_reliability::units::{Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::Kind;

use crate::truth::{EpochTruth, Truth, is_record};

/// The place of one subscriber in the stream, and what it got.
#[derive(Debug)]
pub struct Stream {
    in_arrival_order: bool,
    epoch: Epoch,
    /// The next sequence, and how many of its records came already.
    next: Sequence,
    part: u64,
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
    /// Sequences declared lost, by cause as in [`LossCause::ALL`].
    pub lost_by_cause: [u64; LossCause::ALL.len()],
    /// Every record by its number, epoch by epoch.
    pub digest: u64,
}

type Checked = Result<(), String>;

impl Stream {
    /// A stream of which nothing came yet.
    #[must_use]
    pub fn new(delivery: Delivery) -> Self {
        Self {
            in_arrival_order: delivery == Delivery::Arrival,
            epoch: Epoch::NONE,
            next: Sequence::NONE,
            part: 0,
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

    /// Takes one record.
    ///
    /// # Errors
    /// What is untrue about it.
    pub fn record(&mut self, truth: &Truth, position: &Position, bytes: &[u8]) -> Checked {
        let (sequence, number) = (position.sequence, position.record.0);
        self.nothing_of_unknown_size()?;
        let of = self.here(truth, position)?;
        let Some(sealed) = of.get(sequence).filter(|s| s.kind == Kind::Data) else {
            return Err(format!(
                "a record of sequence {sequence}, which carries none"
            ));
        };
        if !is_record(position.epoch, number, bytes) {
            return Err(format!(
                "record {number} of {sequence} is not what was published"
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
        self.in_turn(sequence)?;
        self.part = part + 1;
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
                Ok(())
            }
            Event::EpochChanged { from, to } => self.changed(truth, *from, *to),
            Event::Lost(loss) => self.lost(truth, loss),
            Event::Stream(_) => {
                let of = self.here(truth, position)?;
                if of.get(position.sequence).map(|s| s.kind) != Some(Kind::Event) {
                    return Err(format!("sequence {} is no event", position.sequence));
                }
                self.whole(position.sequence)
            }
            Event::EndOfSession => {
                let of = self.here(truth, position)?;
                if self.ended {
                    return Err("the end a second time".into());
                }
                if of.get(of.last()).map(|s| s.kind) != Some(Kind::End) {
                    return Err("the end, which was not published".into());
                }
                self.ended = true;
                // It may come although its datagram was declared lost.
                if position.sequence != of.last() || self.next <= of.last() {
                    self.whole(position.sequence)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn here<'t>(&self, truth: &'t Truth, position: &Position) -> Result<&'t EpochTruth, String> {
        if position.epoch != self.epoch {
            return Err(format!(
                "something of epoch {} in epoch {}",
                position.epoch, self.epoch
            ));
        }
        if self.tail_lost {
            return Err(format!("epoch {} goes on after its end", self.epoch));
        }
        truth.of(self.epoch).ok_or_else(|| "no such epoch".into())
    }

    fn nothing_of_unknown_size(&self) -> Checked {
        match self.of_unknown_size {
            Some((range, records)) => Err(format!(
                "loss of {range} of unknown size; it cost {records} records, and the epoch goes on"
            )),
            None => Ok(()),
        }
    }

    fn in_turn(&self, sequence: Sequence) -> Checked {
        if sequence == self.next {
            return Ok(());
        }
        Err(format!("sequence {sequence} where {} is due", self.next))
    }

    fn whole(&mut self, sequence: Sequence) -> Checked {
        if self.part != 0 {
            return Err(format!("sequence {sequence} within {}", self.next));
        }
        if self.in_arrival_order && sequence != self.next {
            if sequence < self.next || !self.early.insert(sequence.0) {
                return Err(format!("sequence {sequence} a second time"));
            }
            return Ok(());
        }
        self.in_turn(sequence)?;
        self.pass(sequence);
        Ok(())
    }

    fn pass(&mut self, sequence: Sequence) {
        (self.next, self.part) = (sequence.next(), 0);
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
        let of = truth.of(self.epoch).ok_or("no such epoch")?;
        if range.last > of.last() {
            return Err(format!(
                "loss of {range}, but {} was the last published",
                of.last()
            ));
        }
        if let Some(early) = self.early.range(range.first.0..=range.last.0).next() {
            return Err(format!("loss of {range}, of which {early} was delivered"));
        }
        let real = of.records_in(range);
        match loss.records {
            Some(records) if records != real => {
                return Err(format!(
                    "loss of {range} is said to cost {records} records, it cost {real}"
                ));
            }
            // Right behind a loss of unknown size its own beginning is unknown.
            None if self.unknown_before => {}
            None if loss.cause == LossCause::PublisherDead => self.unknown_before = true,
            None => {
                self.of_unknown_size = Some((range, real));
            }
            _ => {}
        }
        let cause = LossCause::ALL.iter().position(|c| *c == loss.cause);
        self.lost_by_cause[cause.unwrap_or(0)] += range.len();
        self.pass(range.last);
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
        if truth.of(to).is_none() {
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
